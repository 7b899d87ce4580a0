#include <fmt/format.h>

#include "reports/html/sections.h"
#include "reports/text.h"

namespace kveval::html {
namespace {

constexpr size_t kJsonLimit = 4000;

std::string entry(std::string_view name, std::string_view value) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, value.empty() ? kNone : value);
}

std::string code(std::string_view text) {
  return text.empty() ? "" : fmt::format("<code>{}</code>", escape(text, kJsonLimit));
}

std::string git_text(const RunRecord& run) {
  if (run.git_sha.empty()) return "";
  return code(run.git_sha) + (run.git_dirty.value_or(false) ? " with uncommitted changes" : "");
}

}  // namespace

std::string provenance(const RunRecord& run, std::span<const ArmData> arms) {
  std::string out = "<dl>\n";
  out += entry("Run", code(run.id));
  out += entry("Status", name_of(run.status));
  out += entry("Started", utc_text(run.started_ms));
  out += entry("Finished", run.finished_ms ? utc_text(*run.finished_ms) : "");
  out += entry("Model", code(run.model));
  out += entry("Model hash", code(run.model_hash));
  out += entry("Tokenizer hash", code(run.tokenizer_hash));
  out += entry("Template hash", code(run.template_hash));
  out += entry("Suite", escape(run.suite));
  out += entry("Suite hash", code(run.suite_hash));
  out += entry("Seed", fmt::format("{}", run.seed));
  out += entry("Decoding", code(run.decoding_json));
  out += entry("Compute type", escape(run.compute));
  out += entry("Cache mode", escape(run.cache_mode));
  out += entry("kveval", escape(run.tool_version));
  out += entry("Commit", git_text(run));
  out +=
      entry("Host", fmt::format("{}, {}, {}", escape(run.host), escape(run.simd),
                                counted(static_cast<size_t>(run.threads < 0 ? 0 : run.threads), "thread")));
  out += entry("Command", code(run.argv_json));
  out += "</dl>\n";

  std::string table =
      "<table><caption>Profiles</caption><thead><tr><th scope=\"col\" class=\"l\">Profile</th>"
      "<th scope=\"col\" class=\"l\">Keys</th><th scope=\"col\" class=\"l\">Values</th>"
      "<th scope=\"col\">Cache bytes a token</th><th scope=\"col\" class=\"l\">Hash</th></tr></thead>"
      "<tbody>\n";
  for (const ArmData& data : arms) {
    table += fmt::format(
        "<tr class=\"sub\"><th scope=\"row\">{}{}</th><td class=\"l\">{}</td><td class=\"l\">{}</td>"
        "<td>{:.0f}</td><td class=\"l\">{}</td></tr>\n",
        escape(data.arm.name), data.arm.baseline ? " <span class=\"dim\">baseline</span>" : "",
        escape(data.arm.k_format), escape(data.arm.v_format), data.arm.cache_bytes_per_token,
        code(data.arm.profile_hash));
  }
  out += scrolling("Profiles", table + "</tbody></table>");
  out += "<details><summary>Profiles, suite and configuration as stored</summary>\n<dl>\n";
  for (const ArmData& data : arms) out += entry(escape(data.arm.name), code(data.arm.profile_json));
  out += entry("suite", code(run.suite_json));
  out += entry("configuration", code(run.config_json));
  return out + "</dl></details>\n";
}

}  // namespace kveval::html

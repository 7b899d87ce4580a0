// kveval model logits: what a model makes of given tokens under a profile, position by position.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "engine/compute.h"
#include "engine/error.h"
#include "harness/commands/model.h"
#include "harness/commands/session.h"
#include "harness/divergence.h"
#include "harness/progress.h"

namespace kveval {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kProgressInterval = std::chrono::seconds(5);

struct LogitsOptions {
  std::string model, tokens_file, output;
  std::optional<std::string> profile;  // else the 16-bit format of the arithmetic
  int top = 5;
  EngineSettings engine;
};

// The float's exact value: what is computed from the file is then what was computed here.
std::string number(float value) { return fmt::format("{}", double(value)); }

// The largest logits as [id, value], the lower id first among equals.
std::string top_of(std::span<const float> logits, size_t count) {
  std::vector<size_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), size_t{0});
  count = std::min(count, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + std::ptrdiff_t(count), ids.end(), [&](size_t a, size_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  std::string text;
  for (size_t i = 0; i < count; ++i)
    text += fmt::format("{}[{}, {}]", i > 0 ? ", " : "", ids[i], number(logits[ids[i]]));
  return text;
}

struct Rows {
  std::vector<std::string> json;  // row i: of the logits behind token i
  double nll = 0;                 // summed over all tokens but the first
};

Rows run_logits(Engine& engine, const Profile& profile, const Tokens& ids, int top, const Context& context) {
  Turn turn{.tokens = {ids[0]}, .text = {}, .ask = Ask::score, .target = {ids.begin() + 1, ids.end()}};
  turn.target.push_back(0);  // any: asks for the row behind the last token too
  const PromptGroup group{.prefix = {}, .branches = {{{turn}}}};

  Rows rows;
  std::optional<Error> failed;
  Events events;
  events.on_logits = [&](size_t, size_t, size_t position, std::span<const float> logits) {
    const double total = log_sum_exp(logits);
    std::string next = "null";
    if (position + 1 < ids.size()) {
      const float logit = logits[size_t(ids[position + 1])];
      next = number(logit);
      rows.nll += total - double(logit);
    }
    rows.json.push_back(
        fmt::format(R"({{"lse": {}, "top": [{}], "next": {}}})", total, top_of(logits, size_t(top)), next));
  };
  events.on_reply = [&](size_t, size_t, Reply&& reply) { failed = reply.error; };
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_line = begin + kProgressInterval;
  events.progress = [&](uint64_t done) {
    const Clock::time_point now = Clock::now();
    if (!context.quiet && now >= next_line) {
      const double elapsed = std::chrono::duration<double>(now - begin).count();
      fmt::print(stderr, "{} of {} tokens, {} left\n", done, ids.size(),
                 format_duration(elapsed * double(ids.size() - done) / double(done)));
      next_line = now + kProgressInterval;
    }
    return true;
  };
  engine.run(group, {}, profile, events);
  if (failed) throw Error(*failed);
  return rows;
}

std::string document(const EngineInfo& info, const Profile& profile, const Tokens& ids, const Rows& rows) {
  const Json nll = ids.size() > 1 ? Json(rows.nll / double(ids.size() - 1)) : Json();
  std::string text = fmt::format(
      "{{\"schema\": \"kveval.model-logits/1\", \"model\": {}, \"model_hash\": {}, \"compute\": {}, "
      "\"profile\": {},\n"
      "\"ids\": {},\n\"mean_nll\": {},\n\"rows\": [",
      Json(info.model).dump(-1, ' ', false, Json::error_handler_t::replace), Json(info.model_hash).dump(),
      Json(info.compute).dump(), Json(canonical(profile)).dump(), Json(ids).dump(), nll.dump());
  for (size_t i = 0; i < rows.json.size(); ++i) text += (i > 0 ? ",\n" : "\n") + rows.json[i];
  return text + "\n]}\n";
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush())
    throw Error(ErrorKind::run, fmt::format("cannot write '{}'", path),
                "check its folder and its disk's space");
}

void logits_command(const LogitsOptions& options, const Context& context) {
  std::vector<Profile> profiles = {
      parse_profile(options.profile.value_or(name_of(wide_format(options.engine.compute))))};
  if (profiles[0].mode == CacheMode::transcode)
    throw Error(ErrorKind::usage, "logits are of one pass over the tokens: there is no prefix to transcode",
                "leave mode=transcode out");
  const Tokens ids = read_token_file(options.tokens_file);
  const std::unique_ptr<Engine> engine = open_engine(options.model, options.engine, context);
  check_vocabulary(ids, engine->describe(), options.tokens_file);
  engine->check(profiles[0]);
  resolve_profiles(profiles, *engine);
  const Rows rows = run_logits(*engine, profiles[0], ids, options.top, context);
  const std::string text = document(engine->describe(), profiles[0], ids, rows);
  if (options.output.empty()) {
    fmt::print("{}", text);
  } else {
    write_file(options.output, text);
  }
}

}  // namespace

void add_model_logits(CLI::App& model, Context& context) {
  const auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = model.add_subcommand("logits", "The largest logits behind every token, as JSON");
  add_model_argument(*command, options->model);
  add_profile_option(*command, options->profile);
  command
      ->add_option("--tokens", options->tokens_file,
                   "a JSON file with \"ids\"; they are taken as they are, BOS is not added")
      ->type_name("FILE")
      ->required();
  command->add_option("--top", options->top, "how many of the largest logits")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "write to this file instead of standard output")
      ->type_name("FILE");
  add_compute_option(*command, options->engine);
  add_engine_options(*command, options->engine);
  command->callback([options, &context] { logits_command(*options, context); });
}

}  // namespace kveval

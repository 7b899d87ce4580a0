// kveval list [runs|suites|profiles|models]: what there is.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/profile.h"
#include "harness/commands/commands.h"
#include "harness/commands/model.h"
#include "harness/commands/terminal_table.h"
#include "reports/text.h"
#include "tasks/suite.h"
#include "tasks/task.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

struct ListOptions {
  std::string what = "runs";
  bool json = false;
};

struct Named {
  const char* name;
  const char* summary;
};

constexpr std::array<Named, 8> kPresets{{
    {"f32", "32-bit floats: what the model computes without a cache format"},
    {"fp16", "half floats: the usual baseline"},
    {"bf16", "bfloat16"},
    {"e4m3", "8-bit floats, scale 1: vLLM's --kv-cache-dtype fp8"},
    {"fp8", "another name of e4m3"},
    {"e5m2", "8-bit floats with a wider range and two bits of precision"},
    {"int8", "8-bit integers, one scale per token and head"},
    {"int8-tensor", "8-bit integers, one scale per layer, measured once before the run"},
}};

std::string joined_names(const std::vector<ArmRecord>& arms) {
  std::string names;
  for (const ArmRecord& arm : arms) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", printable(arm.name, 60));
  }
  return names;
}

void list_runs(const ListOptions& options, const Context& context) {
  // A folder without a database has no runs yet: no error, so that scripts may ask.
  std::error_code unreadable;  // then opening says why
  const bool exists = std::filesystem::exists(context.db, unreadable) || unreadable;
  Json rows = Json::array();
  TextTable table(
      {{"run"}, {"status"}, {"groups", Align::right}, {"suite"}, {"model"}, {"profiles"}, {"started"}});
  if (exists) {
    const Store store = open_store(context, Store::Mode::read_only);
    for (const RunRecord& run : store.runs()) {
      const std::vector<ArmRecord> arms = store.arms(run.id);
      const size_t done = store.done_groups(run.id).size();
      Json names = Json::array();
      for (const ArmRecord& arm : arms) names.push_back(arm.name);
      rows.push_back({{"id", run.id},
                      {"status", name_of(run.status)},
                      {"groups_done", done},
                      {"groups_planned", run.groups_planned},
                      {"suite", run.suite},
                      {"model", run.model},
                      {"profiles", names},
                      {"cache_mode", run.cache_mode},
                      {"seed", run.seed},
                      {"started_ms", run.started_ms},
                      {"finished_ms", run.finished_ms ? Json(*run.finished_ms) : Json()}});
      table.add({printable(run.id, 40), name_of(run.status), fmt::format("{}/{}", done, run.groups_planned),
                 printable(run.suite, 24), printable(run.model, 60), joined_names(arms),
                 utc_text(run.started_ms)});
    }
  }
  if (options.json) {
    print_json({{"schema", "kveval.list-runs/1"}, {"runs", rows}});
  } else if (rows.empty()) {
    if (!context.quiet)
      fmt::print(stderr, "no runs in '{}' yet: start one with 'kveval run niah'\n", context.db);
  } else {
    fmt::print("{}", table.text());
  }
}

void list_suites(const ListOptions& options) {
  Json rows = Json::array();
  TextTable table({{"suite"}, {"task"}, {"lengths"}, {"haystacks", Align::right}, {"summary"}});
  for (const std::string& name : builtin_suites()) {
    const Suite suite = load_suite(name);
    rows.push_back(Json::parse(to_json(suite)));
    for (const Family& family : suite.families) {
      std::string lengths;
      for (const int length : family.lengths) {
        lengths += fmt::format("{}{}", lengths.empty() ? "" : ",", length_name(length));
      }
      table.add(
          {name, family.task, lengths, std::to_string(family.haystacks), task_named(family.task).summary});
    }
  }
  if (options.json) return print_json({{"schema", "kveval.list-suites/1"}, {"suites", rows}});
  fmt::print("{}", table.text());
}

template <size_t kSize>
void list_named(const ListOptions& options, const char* schema, const char* member,
                const std::array<Named, kSize>& all) {
  Json rows = Json::array();
  TextTable table({{"name"}, {"summary"}});
  for (const Named& one : all) {
    rows.push_back({{"name", one.name}, {"summary", one.summary}});
    table.add({one.name, one.summary});
  }
  if (options.json) return print_json({{"schema", schema}, {member, rows}});
  fmt::print("{}", table.text());
}

void list_command(const ListOptions& options, const Context& context) {
  if (options.what == "suites") return list_suites(options);
  if (options.what == "models") return print_models(options.json, context);
  if (options.what == "profiles") {
    list_named(options, "kveval.list-profiles/1", "profiles", kPresets);
    if (!options.json && !context.quiet) {
      fmt::print(
          "\nkeys and values apart: k=e4m3,v=fp16; layers left in 16 bit: e4m3,skip-layers=0-1; scales: "
          "int8,scale=tensor\n");
    }
    return;
  }
  list_runs(options, context);
}

}  // namespace

void add_list_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<ListOptions>();
  CLI::App* command = app.add_subcommand("list", "List runs, suites, profiles or models");
  command->add_option("what", options->what, "runs, suites, profiles or models")
      ->check(CLI::IsMember({"runs", "suites", "profiles", "models"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &context] { list_command(*options, context); });
}

}  // namespace kveval

// kveval run SUITE: asks every question under every profile.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.h"
#include "harness/commands/commands.h"
#include "harness/commands/session.h"
#include "harness/environment.h"
#include "harness/record.h"
#include "tasks/suite.h"
#include "tasks/task.h"

namespace kveval {
namespace {

struct RunOptions {
  std::string suite = "niah";
  std::string model = "phantom";
  std::optional<std::string> profiles;  // else default_profiles
  std::optional<std::string> lengths;
  std::optional<int> haystacks, needles;
  std::optional<uint64_t> seed;
  std::vector<std::string> haystack_files;
  std::string mode;  // empty: what the profiles say
  std::string chat = "auto";
  EngineSettings engine;
  bool dry_run = false;
};

Suite chosen_suite(const RunOptions& options) {
  Suite suite = load_suite(options.suite);
  if (options.seed) suite.seed = *options.seed;
  for (Family& family : suite.families) {
    if (options.lengths) family.lengths = parse_lengths(*options.lengths);
    if (options.haystacks) family.haystacks = *options.haystacks;
    if (!options.needles && options.haystack_files.empty()) continue;
    nlohmann::json parameters = nlohmann::json::parse(family.parameters);
    if (options.needles) parameters["needles"] = *options.needles;
    if (!options.haystack_files.empty()) {
      // Absolute, so that the run can be resumed from another folder.
      nlohmann::json files = nlohmann::json::array();
      for (const std::string& file : options.haystack_files) {
        if (file.empty())
          throw Error(ErrorKind::usage, "--haystack has an empty file name", "name a text file");
        files.push_back(std::filesystem::absolute(file).string());
      }
      parameters["haystack"] = files;
    }
    family.parameters = task_named(family.task).resolve_parameters(parameters);
  }
  return suite;
}

std::vector<Profile> chosen_profiles(const RunOptions& options) {
  std::vector<Profile> profiles =
      parse_profile_list(options.profiles.value_or(default_profiles(options.engine.compute)));
  if (!options.mode.empty()) {
    const CacheMode mode = options.mode == "transcode" ? CacheMode::transcode : CacheMode::as_you_go;
    for (Profile& profile : profiles) {
      if (profile.mode != CacheMode::as_you_go && profile.mode != mode) {
        throw Error(ErrorKind::usage,
                    fmt::format("profile '{}' contradicts --mode {}", canonical(profile), options.mode),
                    "say it in one place");
      }
      profile.mode = mode;
    }
  }
  return profiles;
}

// CLI11 reads -1 as the largest unsigned number, 010 as 8 and what is too large as the largest.
CLI::Validator whole_number() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [stopped, error] = std::from_chars(text.data(), end, value);
        if (text.empty() || error != std::errc() || stopped != end) {
          return fmt::format("'{}' is no whole number from 0 to 2^64 - 1", text);
        }
        text = std::to_string(value);
        return std::string();
      },
      "UINT");
}

void run_command(const RunOptions& options, const Context& context) {
  // What costs nothing to check comes first, the model's weights last.
  const Suite suite = chosen_suite(options);
  std::vector<Profile> profiles = chosen_profiles(options);
  // A database that is there is opened before the model is loaded, a new one created only once the run can
  // begin.
  std::optional<Store> store;
  std::error_code unreadable;  // opening says why
  if (!options.dry_run && std::filesystem::exists(context.db, unreadable)) {
    store.emplace(open_store(context, Store::Mode::read_write));
  }
  const std::unique_ptr<Engine> engine = open_engine(options.model, options.engine, context);
  const EngineInfo info = engine->describe();
  const ChatTemplate chat = chat_of(info, options.chat);

  // Planned once before static scales are measured, so that what cannot run is refused at once.
  plan_arms(profiles, *engine);
  resolve_profiles(profiles, *engine);
  const Plan plan =
      make_plan(suite, chat, plan_arms(profiles, *engine), *engine, known_speeds(info, context));
  if (options.dry_run) return print_plan(plan, info, options.engine, context, stdout);
  if (!store) store.emplace(open_store(context, Store::Mode::read_write));
  if (!context.quiet) print_plan(plan, info, options.engine, context, stderr);

  const RunRecord run =
      record_of(suite, plan, info.model, options.chat, info, this_environment(context.argv), now_ms());
  std::vector<ArmRecord> arms = arm_records(plan);
  store->begin_run(run, arms);
  carry_out(*store, run.id, arms, plan, *engine, context);
}

}  // namespace

void add_run_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Ask a suite's questions under every cache profile");
  command->add_option("suite", options->suite, "a built-in suite or a JSON file ('kveval list suites')")
      ->capture_default_str();
  command->add_option("--model", options->model, "the model ('kveval list models')")
      ->envname("KVEVAL_MODEL")
      ->capture_default_str();
  add_profiles_option(*command, options->profiles);
  command
      ->add_option("--lengths", options->lengths,
                   "prompt lengths, such as 8k,32k,128k (default: the suite's)")
      ->envname("KVEVAL_LENGTHS");
  command->add_option("--haystacks", options->haystacks, "haystacks per length (default: the suite's)")
      ->check(CLI::Range(1, 100000));
  command->add_option("--needles", options->needles, "needles, and so questions, per haystack");
  command->add_option("--seed", options->seed, "seed of every haystack (default: the suite's)")
      ->envname("KVEVAL_SEED")
      ->transform(whole_number());
  command->add_option("--haystack", options->haystack_files, "text files to hide the needles in")
      ->type_name("FILE");
  command
      ->add_option("--mode", options->mode,
                   "as-you-go: prefill reads the quantized cache as servers do; transcode: one 16-bit "
                   "prefill, quantized afterwards")
      ->check(CLI::IsMember({"as-you-go", "transcode"}));
  add_chat_option(*command, options->chat);
  add_compute_option(*command, options->engine);
  add_engine_options(*command, options->engine);
  command->add_flag("--dry-run", options->dry_run, "print the plan and its cost, run nothing");
  command->callback([options, &context] { run_command(*options, context); });
}

}  // namespace kveval

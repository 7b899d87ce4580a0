#include "harness/commands/session.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/cpu/cpu_engine.h"
#include "engine/error.h"
#include "harness/calibration.h"
#include "harness/commands/pull.h"
#include "harness/commands/terminal_table.h"
#include "harness/environment.h"
#include "harness/progress.h"
#include "harness/record.h"
#include "harness/runner.h"
#include "reports/comparison.h"
#include "reports/terminal.h"
#include "reports/text.h"

namespace kveval {
namespace {

// Beyond this share of errors the remaining samples are no longer those the suite asks for.
constexpr double kTooManyErrors = 0.1;

void print_results(const Store& store, const RunRecord& run, const Context& context) {
  if (context.quiet) {
    fmt::print("{}\n", run.id);
    return;
  }
  const std::vector<ArmData> arms = load_run(store, run);
  fmt::print("{}", render_run_summary(run, arms, comparisons_of(arms), {use_color(context, stdout)}));
  std::fflush(stdout);
}

// As a shell takes it.
std::string shell_word(const std::string& text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_-./,:=+@%").find(char(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

// The bench whose figures a plan with these settings takes its times from.
std::string bench_command_for(const EngineInfo& engine, const EngineSettings& settings,
                              const Context& context) {
  std::string command = "kveval bench --model " + shell_word(engine.model);
  if (settings.compute != Compute::float32) command += " --compute bf16";
  if (settings.threads != 0) command += fmt::format(" --threads {}", settings.threads);
  if (context.db != Context().db) command += " --db " + shell_word(context.db);
  return command;
}

void check_errors(const Store& store, const std::string& run_id, const std::vector<ArmRecord>& arms) {
  size_t samples = 0, errors = 0;
  std::string first;
  for (const ArmRecord& arm : arms) {
    for (const SampleView& view : store.samples(arm.id)) {
      ++samples;
      if (view.sample.state != SampleState::error) continue;
      if (errors++ == 0) first = fmt::format("{}: {}", arm.name, view.sample.error);
    }
  }
  if (double(errors) > kTooManyErrors * double(samples)) {
    throw Error(ErrorKind::run,
                fmt::format("{} of {} answers of run {} are errors, the first one {}", errors, samples,
                            run_id, first),
                "they are counted neither as right nor as wrong; remove the cause and run again");
  }
}

}  // namespace

void add_chat_option(CLI::App& command, std::string& chat) {
  command
      .add_option("--chat", chat,
                  "auto: prompts in the checkpoint's own chat template, where it has one; plain: the text "
                  "alone, as for a base model")
      ->envname("KVEVAL_CHAT")
      ->check(CLI::IsMember({"auto", "plain"}))
      ->capture_default_str();
}

void add_engine_options(CLI::App& command, EngineSettings& settings) {
  command.add_option("--threads", settings.threads, "threads (0: one per core); never changes results")
      ->envname("KVEVAL_THREADS")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--chunk", settings.chunk, "tokens of one forward pass; never changes results")
      ->envname("KVEVAL_CHUNK")
      ->check(CLI::Range(1, kMaxChunkTokens))
      ->capture_default_str();
  command.add_option("--page", settings.page, "tokens of one cache page; never changes results")
      ->envname("KVEVAL_PAGE")
      ->check(CLI::IsMember({64, 128, 256}))
      ->capture_default_str();
}

void add_compute_option(CLI::App& command, EngineSettings& settings) {
  command
      .add_option_function<std::string>(
          "--compute",
          [&settings](const std::string& name) { settings.compute = compute_named(name).value(); },
          "what is multiplied: float32, or bf16, faster where the CPU has AVX512_BF16; runs of one are never "
          "compared with runs of the other")
      ->envname("KVEVAL_COMPUTE")
      ->check(CLI::IsMember({"float32", "bf16", "bfloat16"}))
      ->default_str("float32");
}

std::string default_profiles(Compute compute) {
  return compute == Compute::bfloat16 ? "bf16,int8,e4m3,e5m2" : "fp16,int8,e4m3,e5m2";
}

void add_profiles_option(CLI::App& command, std::optional<std::string>& profiles) {
  command.add_option("--profiles", profiles, "cache profiles, separated by commas ('kveval list profiles')")
      ->envname("KVEVAL_PROFILES")
      ->default_str(default_profiles(Compute::float32) + "; with bf16 arithmetic bf16 for fp16");
}

void add_profile_option(CLI::App& command, std::optional<std::string>& profile) {
  command.add_option("--profile", profile, "cache profile ('kveval list profiles')")
      ->default_str("fp16; with bf16 arithmetic bf16");
}

std::unique_ptr<Engine> open_engine(const std::string& model, const EngineSettings& settings,
                                    const Context& context) {
  CpuEngineOptions options;
  options.threads = settings.threads;
  options.chunk_tokens = settings.chunk;
  options.page_tokens = settings.page;
  options.compute = settings.compute;
  return make_cpu_engine(load_or_pull(model, context), options);
}

void resolve_profiles(std::vector<Profile>& profiles, Engine& engine) {
  const EngineInfo info = engine.describe();
  std::vector<Tokens> calibration;  // the same for all
  for (Profile& profile : profiles) {
    if (!profile.needs_resolve()) continue;
    if (info.tokenizer == nullptr) {
      throw Error(ErrorKind::usage, fmt::format("{} needs a measured scale, and {} has no tokenizer",
                                                canonical(profile), info.model));
    }
    if (calibration.empty()) calibration.push_back(calibration_tokens(*info.tokenizer));
    profile = engine.resolve(profile, calibration);
  }
}

Tokens read_token_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorKind::bad_file, fmt::format("'{}' {}", path, why),
                 "a file of token ids is {\"ids\": [1, 2, ...]}, a line of what 'kveval model tokenize "
                 "--jsonl' writes");
  };
  std::ifstream file(path);
  if (!file) throw refuse("cannot be opened");
  if (std::filesystem::is_directory(path)) throw refuse("is a folder");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("ids") || !json["ids"].is_array())
    throw refuse("is no JSON object with \"ids\"");
  Tokens tokens;
  for (const nlohmann::json& id : json["ids"]) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<Token>::max())
      throw refuse(fmt::format("holds {}, which is no token id", printable(id.dump(), 40)));
    tokens.push_back(id.get<Token>());
  }
  if (tokens.empty()) throw refuse("holds no token ids");
  return tokens;
}

void check_vocabulary(const Tokens& tokens, const EngineInfo& info, const std::string& path) {
  for (const Token token : tokens)
    if (token >= info.vocabulary)
      throw Error(
          ErrorKind::bad_file,
          fmt::format("'{}' holds token {}, {} has tokens 0 to {}", path, token, info.model,
                      info.vocabulary - 1),
          fmt::format("'kveval model tokenize {} --jsonl FILE' writes ids of this model", info.model));
}

bool draws_bar() {
  const char* terminal = std::getenv("TERM");
  return isatty(fileno(stderr)) != 0 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

CleanEnd::CleanEnd(const Context& context) : context_(context) {
  if (context.ends_cleanly != nullptr) context.ends_cleanly->store(true);
}

CleanEnd::~CleanEnd() {
  if (context_.ends_cleanly != nullptr) context_.ends_cleanly->store(false);
}

bool CleanEnd::cancelled() const { return context_.interrupts != nullptr && context_.interrupts->load() > 0; }

std::vector<SpeedRecord> known_speeds(const EngineInfo& engine, const Context& context) {
  // A plan's times may be a guess: whatever is wrong with the file, who needs it will say so.
  try {
    std::vector<SpeedRecord> speeds =
        Store(context.db, Store::Mode::read_only).speeds(speed_key(engine, this_environment({})));
    // Plans parse them: a profile of another version must not end one.
    for (const SpeedRecord& speed : speeds) parse_profile(speed.profile);
    return speeds;
  } catch (const Error&) { return {}; }
}

void print_plan(const Plan& plan, const EngineInfo& engine, const EngineSettings& settings,
                const Context& context, std::FILE* stream) {
  fmt::print(stream, "model    {} ({} layers, {} tokens of context, {}, {}, {})\n", engine.model,
             engine.layers, engine.context, engine.compute, engine.simd,
             counted(size_t(engine.threads), "thread"));
  fmt::print(
      stream, "prompts  {}\n",
      plan.chat.family == "plain" ? "plain text" : fmt::format("in the {} chat template", plan.chat.family));
  size_t widest = 0;
  for (const PlannedArm& arm : plan.arms) widest = std::max(widest, arm.name.size());
  for (const PlannedArm& arm : plan.arms) {
    fmt::print(stream, "profile  {:<{}} {:>7.0f} bytes a token of cache{}\n", arm.name, widest,
               arm.cache_bytes_per_token, arm.baseline ? ", the baseline" : "");
  }
  TextTable table({{"task", Align::left},
                   {"length", Align::right},
                   {"haystacks", Align::right},
                   {"questions", Align::right},
                   {"time, all profiles", Align::right},
                   {"cache", Align::right}});
  for (const PlannedCell& cell : plan.cells) {
    double seconds = 0;
    size_t bytes = 0;
    for (const Estimate& estimate : cell.per_arm) {
      seconds += cell.haystacks * estimate.seconds();
      bytes = std::max(bytes, estimate.cache_bytes);
    }
    table.add({cell.task, length_name(cell.length), std::to_string(cell.haystacks),
               std::to_string(cell.haystacks * cell.samples_per_haystack), format_duration(seconds),
               format_bytes(double(bytes))});
  }
  fmt::print(stream, "{}", table.text());
  if (plan.measured_ms) {
    fmt::print(stream, "time     from 'kveval bench' of {:%Y-%m-%d} UTC\n",
               fmt::gmtime(std::time_t(*plan.measured_ms / 1000)));
  } else {
    fmt::print(stream, "time     is a guess; this measures the machine: {}\n",
               bench_command_for(engine, settings, context));
  }
  fmt::print(stream, "estimate {}, {}, about {}, up to {} of cache\n", counted(plan.groups.size(), "group"),
             counted(plan.samples() * plan.arms.size(), "answer"), format_duration(plan.seconds()),
             format_bytes(double(plan.cache_bytes())));
}

void carry_out(Store& store, const std::string& run_id, const std::vector<ArmRecord>& arms, const Plan& plan,
               Engine& engine, const Context& context) {
  const int64_t begin = now_ms();
  {
    const CleanEnd clean_end(context);
    const auto cancelled = [&] { return clean_end.cancelled(); };
    if (context.quiet) {
      run_plan(store, run_id, arms, plan, engine, {cancelled, {}});
    } else {
      fmt::print(stderr, "run      {}\n", run_id);
      ProgressPrinter printer(stderr, draws_bar());
      run_plan(store, run_id, arms, plan, engine,
               {cancelled, [&](const Progress& progress) { printer.update(progress); }});
    }
  }
  print_results(store, store.find_run(run_id), context);
  if (!context.quiet) {
    const bool has_baseline =
        std::any_of(arms.begin(), arms.end(), [](const ArmRecord& arm) { return arm.baseline; });
    fmt::print(stderr,
               "\ntook {}, peak memory {}; every answer is in '{}'\n"
               "next: kveval compare {}{} --flips\n"
               "      kveval report {} -o report.html\n",
               format_duration(double(now_ms() - begin) / 1e3), format_bytes(double(peak_rss_bytes())),
               store.path().string(), run_id, has_baseline ? "" : " --base ARM", run_id);
  }
  check_errors(store, run_id, arms);
}

}  // namespace kveval

// kveval bench: how long this machine takes to read a prompt and to answer, per cache profile and length.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/random.h"
#include "harness/commands/commands.h"
#include "harness/commands/session.h"
#include "harness/commands/terminal_table.h"
#include "harness/environment.h"
#include "harness/planner.h"
#include "tasks/suite.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

struct BenchOptions {
  std::string model = "phantom";
  std::optional<std::string> profiles;  // else default_profiles
  std::string lengths = "2k,8k";
  std::string tokens_file;
  int decode = 32;
  int rounds = 3;
  EngineSettings engine;
  bool json = false;
};

// Of one profile at one length; each list has one entry a round.
struct Measurement {
  std::string profile;
  size_t tokens = 0;
  double cache_bytes = 0;  // a token
  std::vector<double> prefill_seconds;
  std::vector<double> decode_seconds;  // a token
  std::vector<double> cpu_seconds;     // of the whole round
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double user_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_utime.tv_sec) + double(usage.ru_utime.tv_usec) * 1e-6;
}

// What is read matters to no time, only how many: ids from a seed.
Tokens seeded_tokens(size_t count, int vocabulary) {
  Random random(1);
  Tokens tokens(count);
  for (Token& token : tokens) token = Token(random.below(uint64_t(vocabulary)));
  return tokens;
}

void measure(Engine& engine, const Profile& profile, const Tokens& tokens, const BenchOptions& options,
             Measurement& result) {
  PromptGroup group;
  group.prefix.tokens.assign(tokens.begin(), tokens.end() - 1);
  Turn turn;
  turn.tokens = {tokens.back()};
  turn.ask = Ask::generate;
  group.branches.push_back({{turn}});
  Decoding decoding;
  decoding.max_tokens = options.decode;
  decoding.stop_at_eos = false;
  Events events;
  events.on_reply = [&](size_t, size_t, Reply&& reply) {
    if (reply.error) throw Error(*reply.error);
    result.prefill_seconds.push_back(reply.timing.prefix_seconds);
    // As many forward passes of one token as tokens generated: the prompt's last token makes the first.
    result.decode_seconds.push_back(reply.timing.reply_seconds / options.decode);
  };
  const double begin = user_cpu_seconds();
  engine.run(group, decoding, profile, events);
  result.cpu_seconds.push_back(user_cpu_seconds() - begin);
}

void print(const std::vector<Measurement>& all, const EngineInfo& info, const BenchOptions& options) {
  if (options.json) {
    Json rows = Json::array();
    for (const Measurement& m : all) {
      rows.push_back({{"profile", m.profile},
                      {"tokens", m.tokens},
                      {"cache_bytes_per_token", m.cache_bytes},
                      {"prefill_seconds", m.prefill_seconds},
                      {"decode_seconds_per_token", m.decode_seconds},
                      {"user_cpu_seconds", m.cpu_seconds}});
    }
    print_json({{"schema", "kveval.bench/1"},
                {"model", info.model},
                {"model_hash", info.model_hash},
                {"simd", info.simd},
                {"threads", info.threads},
                {"compute", info.compute},
                {"decoded_tokens", options.decode},
                {"rounds", options.rounds},
                {"results", rows}});
    return;
  }
  TextTable table({{"profile"},
                   {"tokens", Align::right},
                   {"prefill s", Align::right},
                   {"tokens/s", Align::right},
                   {"decode ms", Align::right},
                   {"tokens/s", Align::right},
                   {"cache B/token", Align::right}});
  for (const Measurement& m : all) {
    const double prefill = median(m.prefill_seconds), decode = median(m.decode_seconds);
    table.add({m.profile, std::to_string(m.tokens), fmt::format("{:.2f}", prefill),
               fmt::format("{:.0f}", double(m.tokens - 1) / prefill), fmt::format("{:.2f}", decode * 1e3),
               fmt::format("{:.1f}", 1 / decode), fmt::format("{:.0f}", m.cache_bytes)});
  }
  fmt::print("{} ({}, {}, {} threads), median of {}\n{}", info.model, info.compute, info.simd, info.threads,
             options.rounds, table.text());
}

void bench_command(const BenchOptions& options, const Context& context) {
  std::vector<Profile> profiles =
      parse_profile_list(options.profiles.value_or(default_profiles(options.engine.compute)));
  Tokens given;
  if (!options.tokens_file.empty()) given = read_token_file(options.tokens_file);
  std::vector<size_t> lengths;
  if (given.empty())
    for (const int length : parse_lengths(options.lengths)) lengths.push_back(size_t(length));
  else
    lengths = {given.size()};

  const std::unique_ptr<Engine> engine = open_engine(options.model, options.engine, context);
  const EngineInfo info = engine->describe();
  check_vocabulary(given, info, options.tokens_file);
  for (const size_t length : lengths) {
    if (length < 2 || length + size_t(options.decode) > size_t(info.context)) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} tokens and {} more do not fit: {} holds 2 to {}", length, options.decode,
                              info.model, info.context),
                  "choose other --lengths, or fewer tokens to --decode");
    }
  }
  resolve_profiles(profiles, *engine);

  const std::vector<PlannedArm> arms = plan_arms(profiles, *engine);
  std::vector<Measurement> all;
  for (const size_t length : lengths)
    for (const PlannedArm& arm : arms)
      all.push_back({arm.name, length, arm.cache_bytes_per_token, {}, {}, {}});
  // Rounds outside: what disturbs the machine for a while disturbs every profile alike.
  for (int round = 0; round < options.rounds; round++) {
    for (size_t i = 0; i < all.size(); i++) {
      if (!context.quiet)
        fmt::print(stderr, "round {}/{}: {} at {} tokens\n", round + 1, options.rounds, all[i].profile,
                   all[i].tokens);
      const Tokens tokens = given.empty() ? seeded_tokens(all[i].tokens, info.vocabulary) : given;
      measure(*engine, arms[i % arms.size()].profile, tokens, options, all[i]);
    }
  }
  print(all, info, options);
}

}  // namespace

void add_bench_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "Measure prefill and decode speed per cache profile");
  command->add_option("--model", options->model, "the model ('kveval list models')")
      ->envname("KVEVAL_MODEL")
      ->capture_default_str();
  command->add_option("--profiles", options->profiles, "cache profiles, separated by commas")
      ->envname("KVEVAL_PROFILES")
      ->default_str(default_profiles(Compute::float32) + "; with bf16 arithmetic bf16 for fp16");
  command->add_option("--lengths", options->lengths, "prompt lengths, such as 2k,8k")
      ->envname("KVEVAL_LENGTHS")
      ->capture_default_str();
  command
      ->add_option("--tokens", options->tokens_file,
                   "the prompt: a JSON file with \"ids\", instead of --lengths")
      ->type_name("FILE");
  command->add_option("--decode", options->decode, "tokens to generate behind the prompt")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "how often everything is measured; medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_compute_option(*command, options->engine);
  add_engine_options(*command, options->engine);
  command->add_flag("--json", options->json, "print JSON, every round");
  command->callback([options, &context] { bench_command(*options, context); });
}

}  // namespace kveval

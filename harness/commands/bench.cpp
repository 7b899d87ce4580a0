// kveval bench: how long this machine takes to read a prompt and to answer, per cache profile and length. The
// medians go into the database, for the estimates of 'kveval run'.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/cpu/ceilings.h"
#include "engine/cpu/kernels.h"
#include "engine/error.h"
#include "engine/model/config.h"
#include "engine/random.h"
#include "harness/commands/bench_report.h"
#include "harness/commands/commands.h"
#include "harness/commands/session.h"
#include "harness/environment.h"
#include "harness/planner.h"
#include "harness/progress.h"
#include "harness/record.h"
#include "tasks/suite.h"

namespace kveval {
namespace {

struct BenchOptions {
  std::string model = "phantom";
  std::optional<std::string> profiles;  // else default_profiles
  std::string lengths = "2k,8k";
  std::string tokens_file;
  int decode = 32;
  int questions = 0;
  int rounds = 3;
  EngineSettings engine;
  bool json = false;
};

constexpr size_t kQuestionTokens = 32, kAnswerTokens = 16;

double user_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_utime.tv_sec) + double(usage.ru_utime.tv_usec) * 1e-6;
}

// What is read matters to no time, only how many: ids from a seed.
Tokens seeded_tokens(uint64_t seed, size_t count, int vocabulary) {
  Random random(seed);
  Tokens tokens(count);
  for (Token& token : tokens) token = Token(random.below(uint64_t(vocabulary)));
  return tokens;
}

// Everything that is measured of one prompt. As many forward passes of one token as tokens generated: the
// prompt's last token makes the first.
GroupShape decoding_shape(size_t tokens, const BenchOptions& options) {
  const size_t replied = size_t(options.decode);
  return {tokens - 1, 1, 1 + replied, replied};
}
GroupShape questions_shape(size_t tokens, const BenchOptions& options) {
  return {tokens - 1, size_t(options.questions), kQuestionTokens + kAnswerTokens, kAnswerTokens};
}

// The prompt but for its last token, which ends every branch's question.
PromptGroup group_of(const Tokens& tokens, const GroupShape& shape, int vocabulary) {
  PromptGroup group;
  group.prefix.tokens.assign(tokens.begin(), tokens.end() - 1);
  for (size_t branch = 0; branch < shape.branches; branch++) {
    Turn turn;
    turn.tokens = seeded_tokens(2 + branch, shape.branch_tokens - shape.reply_tokens - 1, vocabulary);
    turn.tokens.push_back(tokens.back());
    turn.ask = Ask::generate;
    group.branches.push_back({{turn}});
  }
  return group;
}

// One for each branch, all with the same prefix_seconds.
std::vector<Timing> time_group(Engine& engine, const Profile& profile, const Tokens& tokens,
                               const GroupShape& shape, const std::function<bool(uint64_t)>& progress) {
  Decoding decoding;
  decoding.max_tokens = int(shape.reply_tokens);
  decoding.stop_at_eos = false;
  std::vector<Timing> timings;
  Events events;
  events.on_reply = [&](size_t, size_t, Reply&& reply) {
    if (reply.error) throw Error(*reply.error);
    timings.push_back(reply.timing);
  };
  events.progress = progress;
  engine.run(group_of(tokens, shape, engine.describe().vocabulary), decoding, profile, events);
  return timings;
}

// Rounds outside: what disturbs the machine for a while disturbs every profile alike.
class Bench {
 public:
  Bench(Engine& engine, const std::vector<PlannedArm>& arms, const BenchOptions& options, const Tokens& given,
        const Context& context)
      : engine_(engine), arms_(arms), options_(options), given_(given), clean_end_(context) {
    if (!context.quiet) printer_.emplace(stderr, draws_bar());
    progress_.unit = "measurements";
  }

  // Arms vary fastest in `all`.
  void run(std::vector<Measurement>& all) {
    progress_.groups = all.size() * size_t(options_.rounds);
    for (size_t i = 0; i < all.size(); i++) {
      progress_.total_cost += options_.rounds * (full(i, decoding_shape(all[i].tokens, options_)).seconds() +
                                                 full(i, questions_shape(all[i].tokens, options_)).seconds());
    }
    try {
      for (int round = 0; round < options_.rounds; round++) {
        for (size_t i = 0; i < all.size(); i++) {
          progress_.place = fmt::format("round {}, {}", round + 1, length_name(int(all[i].tokens)));
          progress_.arm = all[i].profile;
          measure(i, all[i]);
          progress_.groups_done++;
        }
      }
    } catch (const Error& error) {
      if (error.kind != ErrorKind::cancelled) throw;
      throw Error(ErrorKind::cancelled,
                  fmt::format("interrupted after {} of {} measurements, of which none is kept",
                              progress_.groups_done, progress_.groups));
    }
  }

 private:
  const Profile& profile(size_t index) const { return arms_[index % arms_.size()].profile; }
  Estimate full(size_t index, const GroupShape& shape) const {
    return shape.branches > 0 ? engine_.estimate(shape, profile(index)) : Estimate{};
  }

  void measure(size_t index, Measurement& m) {
    const Tokens tokens = given_.empty() ? seeded_tokens(1, m.tokens, engine_.describe().vocabulary) : given_;
    const double begin = user_cpu_seconds();
    const Timing alone = time_group(index, tokens, decoding_shape(m.tokens, options_)).front();
    m.cpu_seconds.push_back(user_cpu_seconds() - begin);
    m.prefill_seconds.push_back(alone.prefix_seconds);
    m.decode_seconds.push_back(alone.reply_seconds / options_.decode);
    if (options_.questions == 0) return;
    // A reply's time is its share of the steps it had a part in: together they are all there was.
    double seconds = 0;
    const std::vector<Timing> timings = time_group(index, tokens, questions_shape(m.tokens, options_));
    for (const Timing& timing : timings) seconds += timing.reply_seconds;
    m.questions_prefix_seconds.push_back(timings.front().prefix_seconds);
    m.questions_seconds.push_back(timings.front().prefix_seconds + seconds);
  }

  std::vector<Timing> time_group(size_t index, const Tokens& tokens, const GroupShape& shape) {
    const Estimate estimate = full(index, shape);
    const double cost_before = progress_.done_cost;
    std::vector<Timing> timings =
        kveval::time_group(engine_, profile(index), tokens, shape, [&](uint64_t done) {
          progress_.done_cost =
              cost_before + estimate.seconds() * share_done(engine_, shape, profile(index), estimate, done);
          if (printer_) printer_->update(progress_);
          return !clean_end_.cancelled();
        });
    progress_.done_cost = cost_before + estimate.seconds();
    return timings;
  }

  Engine& engine_;
  const std::vector<PlannedArm>& arms_;
  const BenchOptions& options_;
  const Tokens& given_;
  CleanEnd clean_end_;
  std::optional<ProgressPrinter> printer_;
  Progress progress_;
};

std::vector<Profile> chosen_profiles(const BenchOptions& options) {
  std::vector<Profile> profiles =
      parse_profile_list(options.profiles.value_or(default_profiles(options.engine.compute)));
  for (const Profile& profile : profiles) {
    if (profile.mode != CacheMode::transcode) continue;
    throw Error(ErrorKind::usage,
                fmt::format("profile '{}' has no prefill of its own to measure", canonical(profile)),
                "leave mode=transcode out: its prefill is that of the 16-bit profile");
  }
  return profiles;
}

void check_lengths(const std::vector<size_t>& lengths, const BenchOptions& options, const EngineInfo& info) {
  const size_t more =
      std::max(size_t(options.decode), options.questions > 0 ? kQuestionTokens + kAnswerTokens : 0);
  for (const size_t length : lengths) {
    if (length >= 2 && length + more <= size_t(info.context)) continue;
    const bool larger = info.model.starts_with("phantom") && length >= 2 && length + more <= kMaxContext;
    throw Error(ErrorKind::usage,
                fmt::format("{} tokens and {} more do not fit: {} holds 2 to {}", length, more, info.model,
                            info.context),
                larger ? fmt::format("give the phantom a longer context: --model {},context={}", info.model,
                                     length + more)
                       : "choose other --lengths, or fewer tokens to --decode");
  }
}

std::vector<Measurement> to_measure(const std::vector<size_t>& lengths, const std::vector<PlannedArm>& arms,
                                    const BenchOptions& options, const Engine& engine) {
  std::vector<Measurement> all;
  for (const size_t length : lengths) {
    for (const PlannedArm& arm : arms) {
      const Estimate alone = engine.estimate(decoding_shape(length, options), arm.profile);
      const Estimate asked = engine.estimate(questions_shape(length, options), arm.profile);
      Measurement& m = all.emplace_back();
      m.profile = arm.name;
      m.tokens = length;
      m.cache_bytes = arm.cache_bytes_per_token;
      m.prefill_flops = alone.prefix_flops;
      m.decode_flops = alone.branch_flops / options.decode;
      m.decode_bytes = alone.step_bytes;
      m.questions_flops = asked.prefix_flops + asked.branch_flops;
    }
  }
  return all;
}

std::vector<SpeedRecord> speeds_of(const BenchResult& result, const SpeedKey& key) {
  std::vector<SpeedRecord> speeds;
  for (const Measurement& m : result.all) {
    speeds.push_back({key, m.profile, int64_t(m.tokens), m.prefill_flops, median(m.prefill_seconds),
                      median(m.decode_seconds), now_ms()});
  }
  return speeds;
}

void bench_command(const BenchOptions& options, const Context& context) {
  std::vector<Profile> profiles = chosen_profiles(options);
  Tokens given;
  if (!options.tokens_file.empty()) given = read_token_file(options.tokens_file);
  std::vector<size_t> lengths;
  if (given.empty())
    for (const int length : parse_lengths(options.lengths)) lengths.push_back(size_t(length));
  else
    lengths = {given.size()};
  // As 'kveval run' does: a database that is there is opened before the model is loaded, a new one created
  // before anything is measured.
  std::optional<Store> store;
  std::error_code unreadable;  // opening says why
  if (std::filesystem::exists(context.db, unreadable))
    store.emplace(open_store(context, Store::Mode::read_write));

  const std::unique_ptr<Engine> engine = open_engine(options.model, options.engine, context);
  const EngineInfo info = engine->describe();
  check_vocabulary(given, info, options.tokens_file);
  check_lengths(lengths, options, info);
  resolve_profiles(profiles, *engine);
  if (!store) store.emplace(open_store(context, Store::Mode::read_write));

  const std::vector<PlannedArm> arms = plan_arms(profiles, *engine);
  BenchResult result{info, {}, options.decode, options.rounds, options.questions, {}};
  result.all = to_measure(lengths, arms, options, *engine);
  // Before and after: while another program is busy, this machine can do less than it can.
  const cpu::Kernels& kernels = *cpu::kernels_named(info.simd.c_str(), options.engine.compute);
  const cpu::Ceilings before = cpu::measure_ceilings(kernels, info.threads);
  Bench(*engine, arms, options, given, context).run(result.all);
  const cpu::Ceilings after = cpu::measure_ceilings(kernels, info.threads);
  result.ceilings = {std::max(before.flops_per_second, after.flops_per_second),
                     std::max(before.bytes_per_second, after.bytes_per_second)};

  if (options.json)
    print_json(bench_json(result));
  else
    fmt::print("{}", bench_table(result));
  std::fflush(stdout);
  store->save_speeds(speeds_of(result, speed_key(info, this_environment(context.argv))));
}

}  // namespace

void add_bench_command(CLI::App& app, Context& context) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure prefill and decode speed per cache profile, beside what this machine can do at most; 'run' "
      "estimates its time from the figures");
  command->add_option("--model", options->model, "the model ('kveval list models')")
      ->envname("KVEVAL_MODEL")
      ->capture_default_str();
  command->add_option("--profiles", options->profiles, "cache profiles, separated by commas")
      ->envname("KVEVAL_PROFILES")
      ->default_str(default_profiles(Compute::float32) + "; with bf16 arithmetic bf16 for fp16");
  command->add_option("--lengths", options->lengths, "prompt lengths, such as 2k,8k,1m")
      ->envname("KVEVAL_LENGTHS")
      ->capture_default_str();
  command
      ->add_option("--tokens", options->tokens_file,
                   "the prompt: a JSON file with \"ids\", instead of --lengths")
      ->type_name("FILE");
  command->add_option("--decode", options->decode, "tokens to generate behind the prompt")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--questions", options->questions,
                   "also measure so many questions on one prompt, of 32 tokens and 16 tokens of answer each, "
                   "and compare them with their FLOPs")
      ->check(CLI::Range(0, 1000))
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

// kveval bench: how long this machine takes to read a prompt and to answer, per cache profile and length. The
// medians go into the database, for the estimates of 'kveval run'.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/cpu/ceilings.h"
#include "engine/cpu/kernels.h"
#include "engine/error.h"
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
  std::optional<std::string> tokens_file;
  int decode = 32;
  int questions = 0;
  int rounds = 3;
  EngineSettings engine;
  bool json = false;
};

// A question of niah's is about as long in a chat template, and its answer at most.
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

// What is measured of a prompt. As many forward passes of one token as tokens are generated: the prompt's
// last token makes the first.
GroupShape decoding_shape(size_t tokens, int decode) {
  const size_t replied = size_t(decode);
  return {tokens - 1, 1, 1 + replied, replied};
}
GroupShape questions_shape(size_t tokens, int questions) {
  return {tokens - 1, size_t(questions), kQuestionTokens + kAnswerTokens, kAnswerTokens};
}

// Of its longest sequence.
size_t tokens_of(const GroupShape& shape) {
  return shape.branches > 0 ? shape.prefix_tokens + shape.branch_tokens : 0;
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

struct Timed {
  std::vector<Timing> branches;  // all with the same prefix_seconds
  double prefix_cpu_seconds = 0, branch_cpu_seconds = 0;
};

Timed time_group(Engine& engine, const Profile& profile, const Tokens& tokens, const GroupShape& shape,
                 const std::function<bool(uint64_t)>& progress) {
  Decoding decoding;
  decoding.max_tokens = int(shape.reply_tokens);
  decoding.stop_at_eos = false;
  Timed timed;
  const double begin = user_cpu_seconds();
  std::optional<double> behind_prefix;
  Events events;
  events.on_reply = [&](size_t, size_t, Reply&& reply) {
    if (reply.error) throw Error(*reply.error);
    timed.branches.push_back(reply.timing);
  };
  events.progress = [&](uint64_t done) {
    if (!behind_prefix && done >= shape.prefix_tokens) behind_prefix = user_cpu_seconds();
    return progress(done);
  };
  engine.run(group_of(tokens, shape, engine.describe().vocabulary), decoding, profile, events);
  timed.prefix_cpu_seconds = behind_prefix.value_or(begin) - begin;
  timed.branch_cpu_seconds = user_cpu_seconds() - behind_prefix.value_or(begin);
  return timed;
}

class Bench {
 public:
  Bench(Engine& engine, const BenchOptions& options, const Tokens& given, const CleanEnd& clean_end,
        bool quiet)
      : engine_(engine), options_(options), given_(given), clean_end_(clean_end) {
    if (!quiet) printer_.emplace(stderr, draws_bar());
    progress_.unit = "measurements";
  }

  void run(std::vector<Measurement>& all) {
    progress_.total = all.size() * size_t(options_.rounds);
    for (const Measurement& m : all) {
      const double seconds = full(m, decoding_shape(m.tokens, options_.decode)).seconds() +
                             full(m, questions_shape(m.tokens, options_.questions)).seconds();
      progress_.total_cost += options_.rounds * seconds;
    }
    try {
      // Rounds outside: what disturbs the machine for a while disturbs every profile alike.
      for (int round = 0; round < options_.rounds; round++) {
        for (Measurement& m : all) {
          progress_.place = fmt::format("round {}, {}", round + 1, length_name(int(m.tokens)));
          progress_.arm = canonical(m.profile);
          measure(m);
          progress_.done++;
        }
      }
    } catch (const Error& error) {
      if (error.kind != ErrorKind::cancelled) throw;
      throw Error(ErrorKind::cancelled,
                  fmt::format("interrupted after {} of {} measurements, of which none is kept",
                              progress_.done, progress_.total));
    }
  }

 private:
  Estimate full(const Measurement& m, const GroupShape& shape) const {
    return shape.branches > 0 ? engine_.estimate(shape, m.profile) : Estimate{};
  }

  void measure(Measurement& m) {
    const Tokens tokens = given_.empty() ? seeded_tokens(1, m.tokens, engine_.describe().vocabulary) : given_;
    const Timed alone = time_with_progress(m, tokens, decoding_shape(m.tokens, options_.decode));
    m.prefill_seconds.push_back(alone.branches.front().prefix_seconds);
    m.prefill_cpu_seconds.push_back(alone.prefix_cpu_seconds);
    m.decode_seconds.push_back(alone.branches.front().reply_seconds / options_.decode);
    m.decode_cpu_seconds.push_back(alone.branch_cpu_seconds);
    if (options_.questions == 0) return;
    // A reply's time is its share of the steps it had a part in: together they are all there was.
    const Timed asked = time_with_progress(m, tokens, questions_shape(m.tokens, options_.questions));
    const double prefix_seconds = asked.branches.front().prefix_seconds;
    double seconds = prefix_seconds;
    for (const Timing& timing : asked.branches) seconds += timing.reply_seconds;
    m.questions_prefix_seconds.push_back(prefix_seconds);
    m.questions_seconds.push_back(seconds);
  }

  Timed time_with_progress(const Measurement& m, const Tokens& tokens, const GroupShape& shape) {
    const Estimate estimate = full(m, shape);
    const double cost_before = progress_.done_cost;
    Timed timed = time_group(engine_, m.profile, tokens, shape, [&](uint64_t done) {
      progress_.done_cost =
          cost_before + estimate.seconds() * share_done(engine_, shape, m.profile, estimate, done);
      if (printer_) printer_->update(progress_);
      return !clean_end_.cancelled();
    });
    progress_.done_cost = cost_before + estimate.seconds();
    return timed;
  }

  Engine& engine_;
  const BenchOptions& options_;
  const Tokens& given_;
  const CleanEnd& clean_end_;
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
  const bool from_file = options.tokens_file.has_value();
  const size_t context = size_t(info.context);
  for (const size_t length : lengths) {
    if (length < 2) {
      throw Error(ErrorKind::usage,
                  "a prompt of 1 token leaves no prefill to measure: its last token is fed with the answer",
                  fmt::format("give at least 2 tokens with {}", from_file ? "--tokens" : "--lengths"));
    }
    const size_t decoding = tokens_of(decoding_shape(length, options.decode));
    const size_t asking = tokens_of(questions_shape(length, options.questions));
    const size_t needed = std::max(decoding, asking);
    if (needed <= context) continue;
    const bool question = asking > decoding;
    const char* change = "generate fewer tokens with --decode";
    if (length >= context)
      change = from_file ? "give a shorter prompt with --tokens" : "choose shorter --lengths";
    else if (question)
      change = "leave --questions out, or ask them on a shorter prompt";
    throw Error(
        ErrorKind::usage,
        fmt::format("{} tokens of prompt and {} of {} do not fit {}, whose context is {} tokens", length,
                    needed - length, question ? "a question on it" : "answer", info.model, context),
        room_hint(info, needed, change));
  }
}

std::vector<Measurement> to_measure(const std::vector<size_t>& lengths, const std::vector<PlannedArm>& arms,
                                    const BenchOptions& options, const Engine& engine) {
  std::vector<Measurement> all;
  for (const size_t length : lengths) {
    for (const PlannedArm& arm : arms) {
      const auto estimate = [&](const GroupShape& shape) { return engine.estimate(shape, arm.profile); };
      const Estimate alone = estimate(decoding_shape(length, options.decode));
      const Estimate middle = estimate(decoding_shape(length, (options.decode + 1) / 2));
      const Estimate asked = estimate(questions_shape(length, options.questions));
      Measurement& m = all.emplace_back();
      m.profile = arm.profile;
      m.tokens = length;
      m.cache_bytes = arm.cache_bytes_per_token;
      m.prefill_flops = alone.prefix_flops;
      m.decode_flops = alone.branch_flops / options.decode;
      m.decode_bytes = middle.step_bytes;
      m.questions_flops = asked.prefix_flops + asked.branch_flops;
    }
  }
  return all;
}

std::vector<SpeedRecord> speeds_of(const BenchResult& result, const SpeedKey& key) {
  std::vector<SpeedRecord> speeds;
  for (const Measurement& m : result.all) {
    speeds.push_back({key, canonical(m.profile), int64_t(m.tokens), m.prefill_flops,
                      median(m.prefill_seconds), median(m.decode_seconds), now_ms()});
  }
  return speeds;
}

// Figures that cannot be kept are no reason not to measure and to show them.
void warn_not_kept(const Error& error) {
  fmt::print(stderr, "kveval: figures are not kept: {}\n", error.what());
  if (!error.hint.empty()) fmt::print(stderr, "        {}\n", error.hint);
}

// Where figures are kept, if they are: runs estimate from this machine's speed with the usual settings.
std::optional<Store> open_for_figures(const BenchOptions& options, const Context& context) {
  const EngineSettings usual;
  if (options.engine.chunk != usual.chunk || options.engine.page != usual.page) {
    if (!context.quiet) {
      fmt::print(stderr, "kveval: note: figures with other than --chunk {} and --page {} are not kept\n",
                 usual.chunk, usual.page);
    }
    return std::nullopt;
  }
  try {
    return open_store(context, Store::Mode::read_write);
  } catch (const Error& error) {
    warn_not_kept(error);
    return std::nullopt;
  }
}

void save_speeds(Store& store, const BenchResult& result, const Context& context) {
  try {
    store.save_speeds(speeds_of(result, speed_key(result.engine, this_environment(context.argv))));
  } catch (const Error& error) { warn_not_kept(error); }
}

void bench_command(const BenchOptions& options, const Context& context) {
  std::vector<Profile> profiles = chosen_profiles(options);
  Tokens given;
  if (options.tokens_file) given = read_token_file(*options.tokens_file);
  std::vector<size_t> lengths;
  if (given.empty())
    for (const int length : parse_lengths(options.lengths)) lengths.push_back(size_t(length));
  else
    lengths = {given.size()};
  const std::unique_ptr<Engine> engine = open_engine(options.model, options.engine, context);
  const EngineInfo info = engine->describe();
  check_vocabulary(given, info, options.tokens_file.value_or(""));
  check_lengths(lengths, options, info);
  resolve_profiles(profiles, *engine);
  const std::vector<PlannedArm> arms = plan_arms(profiles, *engine);
  const CleanEnd clean_end(context);  // before a new database shows that measuring has begun
  std::optional<Store> store = open_for_figures(options, context);

  BenchResult result{info, {}, options.decode, options.rounds, options.questions, {}};
  result.all = to_measure(lengths, arms, options, *engine);
  // Before and after: while another program is busy, this machine can do less than it can.
  const cpu::Kernels& kernels = cpu::kernels(options.engine.compute);
  const cpu::Ceilings before = cpu::measure_ceilings(kernels, info.threads);
  Bench(*engine, options, given, clean_end, context.quiet).run(result.all);
  if (store) save_speeds(*store, result, context);
  const cpu::Ceilings after = cpu::measure_ceilings(kernels, info.threads);
  result.ceilings = {std::max(before.flops_per_second, after.flops_per_second),
                     std::max(before.bytes_per_second, after.bytes_per_second)};

  if (options.json)
    print_json(bench_json(result));
  else
    fmt::print("{}", bench_table(result));
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
  add_profiles_option(*command, options->profiles);
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
                   fmt::format("also measure so many questions on one prompt, of {} tokens and {} tokens of "
                               "answer each, and compare them with their FLOPs",
                               kQuestionTokens, kAnswerTokens))
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

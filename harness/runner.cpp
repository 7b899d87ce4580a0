#include "harness/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "engine/error.h"
#include "harness/divergence.h"
#include "harness/environment.h"
#include "tasks/scorers.h"

namespace kveval {
namespace {

// How often a living run says so in the database: often enough to tell it from a dead one within a minute.
constexpr int64_t kHeartbeatMs = 5000;

// What one arm's engine said about one group.
struct Heard {
  std::vector<std::optional<Reply>> answers, scores;  // by sample
  std::vector<std::vector<double>> kl;                // by sample and position; empty without a baseline
  std::vector<CacheDiagnostic> diagnostics;
};

// What the baseline's distributions were, by sample and position.
using Baseline = std::vector<std::vector<Distribution>>;

Heard listen(const SampleGroup& group, const PlannedArm& arm, Engine& engine, Baseline& baseline,
             const std::function<bool(uint64_t)>& progress) {
  Heard heard;
  heard.answers.resize(group.samples.size());
  heard.scores.resize(group.samples.size());
  heard.kl.resize(group.samples.size());

  Events events;
  events.on_reply = [&](size_t branch, size_t, Reply&& reply) {
    const size_t sample = branch / 2;
    (branch == answer_branch(sample) ? heard.answers : heard.scores)[sample] = std::move(reply);
  };
  events.on_logits = [&](size_t branch, size_t, size_t position, std::span<const float> logits) {
    const size_t sample = branch / 2;
    if (arm.baseline) {
      baseline[sample].resize(group.samples[sample].target.size());
      baseline[sample][position] = keep(logits);
    } else if (position < baseline[sample].size() &&
               baseline[sample][position].logits.size() == logits.size()) {
      heard.kl[sample].resize(baseline[sample].size());
      heard.kl[sample][position] = kl_divergence(baseline[sample][position], logits);
    }
  };
  events.on_diagnostics = [&](std::span<const CacheDiagnostic> diagnostics) {
    heard.diagnostics.assign(diagnostics.begin(), diagnostics.end());
  };
  events.progress = progress;
  Decoding decoding = decoding_of(task_named(group.task));
  decoding.stop_tokens = group.stop_tokens;
  engine.run(prompt_of(group), decoding, arm.profile, events);
  return heard;
}

bool usable(const std::optional<Reply>& reply) {
  return reply && !reply->error && reply->stop != Stop::error;
}

std::string why_unusable(const std::optional<Reply>& reply) {
  if (!reply) return "the engine gave no reply";
  if (reply->error) return reply->error->what();
  return "the engine failed without saying why";
}

const char* name_of(Stop stop) {
  switch (stop) {
    case Stop::eos: return "eos";
    case Stop::string: return "string";
    case Stop::length: return "length";
    case Stop::error: return "error";
  }
  return "error";
}

double summed_nll(const std::vector<TokenStats>& stats) {
  double nll = 0;
  for (const TokenStats& token : stats) nll -= double(token.logprob);
  return nll;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / double(values.size());
}

// Share of positions where both find the same token most probable; both scored the same target.
double agreement(const std::vector<TokenStats>& baseline, const std::vector<TokenStats>& arm) {
  size_t equal = 0;
  for (size_t i = 0; i < arm.size(); ++i) equal += baseline[i].top == arm[i].top ? 1 : 0;
  return double(equal) / double(arm.size());
}

SampleRecord error_sample(int64_t arm_id, const std::string& why, double milliseconds) {
  SampleRecord record;
  record.arm_id = arm_id;
  record.state = SampleState::error;
  record.error = why;
  record.milliseconds = milliseconds;
  return record;
}

// `baseline` is null for the baseline arm itself and for runs without one.
SampleRecord judge(const Sample& sample, size_t index, Scorer primary, int64_t arm_id, const Heard& heard,
                   const Heard* baseline) {
  const std::optional<Reply>& answer = heard.answers[index];
  const std::optional<Reply>& scored = heard.scores[index];
  const double milliseconds = answer ? answer->timing.reply_seconds * 1e3 : 0;
  if (!usable(answer)) return error_sample(arm_id, why_unusable(answer), milliseconds);
  if (!usable(scored)) return error_sample(arm_id, why_unusable(scored), milliseconds);
  if (scored->stats.size() != sample.target.size()) {
    return error_sample(
        arm_id, fmt::format("the engine scored {} of {} tokens", scored->stats.size(), sample.target.size()),
        milliseconds);
  }
  const double nll = summed_nll(scored->stats);
  if (!std::isfinite(nll)) {
    return error_sample(arm_id, "the likelihood of the right answer is not a finite number", milliseconds);
  }

  const Scores scores = score(answer->text, sample.expected);
  SampleRecord record;
  record.arm_id = arm_id;
  record.correct = scores.by(primary);
  record.strict = scores.strict;
  record.first = scores.first;
  record.contains = scores.contains;
  record.output = answer->text;
  record.output_tokens = answer->tokens;
  record.stop = name_of(answer->stop);
  record.gold_nll = nll;
  record.milliseconds = milliseconds;
  if (baseline == nullptr) return record;

  const std::optional<Reply>& base_answer = baseline->answers[index];
  const std::optional<Reply>& base_scored = baseline->scores[index];
  if (!usable(base_answer) || !usable(base_scored) || base_scored->stats.size() != sample.target.size()) {
    return record;
  }
  if (!sample.target.empty()) {
    record.top1_agreement = agreement(base_scored->stats, scored->stats);
    if (heard.kl[index].size() == sample.target.size()) record.kl = mean(heard.kl[index]);
  }
  const int difference = first_difference(base_answer->tokens, answer->tokens);
  if (difference >= 0) record.first_divergence = difference;
  return record;
}

DiagnosticRecord to_record(const CacheDiagnostic& diagnostic, int64_t arm_id) {
  DiagnosticRecord record;
  record.arm_id = arm_id;
  record.layer = diagnostic.layer;
  record.kv_head = diagnostic.kv_head;
  record.keys = diagnostic.keys;
  record.elements = static_cast<int64_t>(diagnostic.elements);
  record.clipped = static_cast<int64_t>(diagnostic.clipped);
  record.flushed = static_cast<int64_t>(diagnostic.flushed);
  record.absolute_max = double(diagnostic.absolute_max);
  record.error_energy = diagnostic.error_energy;
  record.energy = diagnostic.energy;
  return record;
}

GroupResult describe(const SampleGroup& group) {
  GroupResult result;
  HaystackRecord& haystack = result.haystack;
  haystack.task = group.task;
  haystack.task_version = group.task_version;
  haystack.length = group.length;
  haystack.index = group.haystack;
  haystack.prefix_sha = group.prefix_sha;
  haystack.prefix_tokens = group.prefix;
  haystack.prefix_text = group.prefix_text;
  for (const Sample& sample : group.samples) {
    ItemRecord item;
    item.item_key = sample.item_key;
    item.prompt_sha = sample.prompt_sha;
    item.index = sample.index;
    item.stratum = sample.stratum;
    item.depth = sample.depth;
    item.question = sample.question;
    item.expected = sample.expected;
    item.question_tokens = sample.question_tokens;
    item.target_tokens = sample.target;
    result.items.push_back(std::move(item));
  }
  return result;
}

// The loop over groups, with what it tells the outside.
class Loop {
 public:
  Loop(Store& store, const std::string& run_id, const std::vector<ArmRecord>& arms, const Plan& plan,
       Engine& engine, const RunHooks& hooks)
      : store_(store), run_id_(run_id), arms_(arms), plan_(plan), engine_(engine), hooks_(hooks) {}

  void run() {
    const EngineInfo info = engine_.describe();
    for (const std::string& key : store_.done_groups(run_id_)) done_.insert(key);
    progress_.total = plan_.groups.size();
    for (const PlannedGroup& group : plan_.groups) {
      if (is_done(group)) {
        ++progress_.done;
      } else {
        for (const Estimate& estimate : plan_.cells[group.cell].per_arm)
          progress_.total_cost += estimate.seconds();
      }
    }
    for (const PlannedGroup& group : plan_.groups) {
      if (!is_done(group)) run(group, *info.tokenizer);
    }
  }

  size_t groups_done() const { return progress_.done; }

 private:
  bool is_done(const PlannedGroup& group) const {
    return done_.contains(group_key(group.spec.task, group.spec.length, group.spec.haystack));
  }

  void run(const PlannedGroup& planned, const Tokenizer& tokenizer) {
    const PlannedCell& cell = plan_.cells[planned.cell];
    progress_.place = fmt::format("{} {} #{}", cell.task, length_name(cell.length), planned.spec.haystack);
    const double cost_before = progress_.done_cost;
    const SampleGroup group = task_named(planned.spec.task).make_group(planned.spec, {tokenizer, plan_.chat});
    const GroupResult result =
        run_group(group, arms_, plan_.arms, engine_, [&](size_t arm, uint64_t done_tokens) {
          progress_.arm = plan_.arms[arm].name;
          progress_.done_cost = cost_before;
          for (size_t i = 0; i < arm; ++i) progress_.done_cost += cell.per_arm[i].seconds();
          const Estimate& full = cell.per_arm[arm];
          progress_.done_cost +=
              full.seconds() * share_done(engine_, cell.shape, plan_.arms[arm].profile, full, done_tokens);
          return alive();
        });
    store_.commit_group(run_id_, result);
    ++progress_.done;
    progress_.done_cost = cost_before;
    for (const Estimate& estimate : cell.per_arm) progress_.done_cost += estimate.seconds();
    tell();
  }

  bool alive() {
    tell();
    const int64_t now = now_ms();
    if (now - last_heartbeat_ >= kHeartbeatMs) {
      last_heartbeat_ = now;
      // A database that is busy now may be free when the group is committed: that is where it counts.
      try {
        store_.heartbeat(run_id_, now);
      } catch (const Error&) {}
    }
    return !hooks_.cancelled || !hooks_.cancelled();
  }

  void tell() const {
    if (hooks_.progress) hooks_.progress(progress_);
  }

  Store& store_;
  const std::string& run_id_;
  const std::vector<ArmRecord>& arms_;
  const Plan& plan_;
  Engine& engine_;
  const RunHooks& hooks_;
  std::set<std::string> done_;
  Progress progress_;
  int64_t last_heartbeat_ = now_ms();
};

// Marks the run, then throws the reason it stopped with the way to go on. A store that cannot take the mark
// leaves the run "running" with a dead process, which resumes as well.
[[noreturn]] void stop(Store& store, const std::string& run_id, RunStatus status, ErrorKind kind,
                       const std::string& message, const std::string& hint) {
  try {
    store.set_status(run_id, status, now_ms());
  } catch (const Error&) {}
  throw Error(kind, message, hint);
}

}  // namespace

GroupResult run_group(const SampleGroup& group, const std::vector<ArmRecord>& arms,
                      const std::vector<PlannedArm>& planned, Engine& engine,
                      const std::function<bool(size_t, uint64_t)>& progress) {
  const Scorer primary = task_named(group.task).primary;
  GroupResult result = describe(group);
  Baseline distributions(group.samples.size());
  Heard baseline;
  bool has_baseline = false;
  for (size_t arm = 0; arm < planned.size(); ++arm) {
    const auto arm_progress = [&](uint64_t done) { return progress(arm, done); };
    if (!arm_progress(0)) throw Error(ErrorKind::cancelled, "cancelled");
    Heard heard = listen(group, planned[arm], engine, distributions, arm_progress);

    GroupResult::ArmResult& out = result.arms.emplace_back();
    out.arm_id = arms[arm].id;
    for (size_t i = 0; i < group.samples.size(); ++i) {
      out.samples.push_back(
          judge(group.samples[i], i, primary, out.arm_id, heard, has_baseline ? &baseline : nullptr));
    }
    for (const CacheDiagnostic& diagnostic : heard.diagnostics) {
      out.diagnostics.push_back(to_record(diagnostic, out.arm_id));
    }
    if (planned[arm].baseline) {
      baseline = std::move(heard);
      has_baseline = true;
    }
  }
  return result;
}

void run_plan(Store& store, const std::string& run_id, const std::vector<ArmRecord>& arms, const Plan& plan,
              Engine& engine, const RunHooks& hooks) {
  Loop loop(store, run_id, arms, plan, engine, hooks);
  const std::string resume = fmt::format("'kveval resume {}' goes on after the last whole group", run_id);
  try {
    loop.run();
  } catch (const Error& error) {
    if (error.kind == ErrorKind::cancelled) {
      stop(store, run_id, RunStatus::interrupted, error.kind,
           fmt::format("run {} was interrupted after {} of {} groups", run_id, loop.groups_done(),
                       plan.groups.size()),
           resume);
    }
    stop(store, run_id, RunStatus::failed, error.kind, error.what(),
         error.hint.empty() ? resume : error.hint);
  } catch (const std::bad_alloc&) {
    stop(store, run_id, RunStatus::failed, ErrorKind::run, "out of memory", resume);
  } catch (const std::exception& error) {
    stop(store, run_id, RunStatus::failed, ErrorKind::run, error.what(), resume);
  }
  store.set_status(run_id, RunStatus::complete, now_ms());
}

}  // namespace kveval

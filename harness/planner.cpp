#include "harness/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "engine/compute.h"
#include "engine/error.h"
#include "engine/model/config.h"

namespace kveval {
namespace {

// What a FLOP of the branches takes over one of the prefix: fewer rows a product. Measured with 20 branches
// of 48 tokens, decode steps apart: 1.05 (smollm2-135m at 2K) to 1.2 (the phantom at 8K).
constexpr double kBranchOverhead = 1.2;

bool stores_both_in(const Profile& profile, Format format) {
  return profile.k.format == format && profile.v.format == format;
}

// One more token's bytes, from two estimates far behind every window and page boundary.
double bytes_per_token(const Engine& engine, const Profile& profile) {
  constexpr size_t kFrom = size_t{1} << 17, kTo = size_t{1} << 18;
  const size_t low = engine.estimate({kFrom}, profile).cache_bytes;
  const size_t high = engine.estimate({kTo}, profile).cache_bytes;
  return (double(high) - double(low)) / double(kTo - kFrom);
}

GroupShape shape_of(const SampleGroup& group, const Task& task) {
  GroupShape shape{group.prefix.size(), 2 * group.samples.size()};
  for (const Sample& sample : group.samples) {
    const size_t answer = std::max(sample.target.size(), size_t(task.max_answer_tokens));
    shape.branch_tokens = std::max(shape.branch_tokens, sample.question_tokens.size() + answer);
    shape.reply_tokens = std::max(shape.reply_tokens, answer);
  }
  return shape;
}

// Speeds at lengths this many times apart say little of each other; profiles at one length differ by
// percents.
constexpr double kFar = 8;
// What a much shorter prompt than this takes is fixed cost, no work: one forward pass reads as many tokens.
constexpr int64_t kWholePass = 512;

// The speed measured at the length nearest to `tokens`, in ratio, one of `profile` before any other unless it
// is far; null: none that says anything of such a length.
const SpeedRecord* nearest(const std::vector<SpeedRecord>& speeds, std::string_view profile, size_t tokens) {
  const SpeedRecord* best = nullptr;
  std::tuple<bool, bool, double> best_rank;
  for (const SpeedRecord& speed : speeds) {
    const double ratio = std::abs(std::log(double(speed.length) / double(tokens)));
    const bool far = ratio > std::log(kFar);
    if (far && speed.length < std::min(int64_t(tokens), kWholePass)) continue;
    const std::tuple rank(far, speed.profile != profile, ratio);
    if (best != nullptr && best_rank <= rank) continue;
    best = &speed;
    best_rank = rank;
  }
  return best;
}

// Replaces a guess by what was measured, which may be of another profile.
void set_seconds(Estimate& estimate, const SpeedRecord& speed, const GroupShape& shape,
                 const Engine& engine) {
  const double seconds_per_flop = speed.prefill_seconds / speed.prefix_flops;
  estimate.prefix_seconds = estimate.prefix_flops * seconds_per_flop;
  // A step of all branches together takes one branch's time, which is that of reading, and the others' work.
  const double measured_bytes =
      engine.estimate({size_t(speed.length), 1, 1, 1}, parse_profile(speed.profile)).step_bytes;
  const double step_seconds = speed.decode_seconds * estimate.step_bytes / measured_bytes;
  const size_t steps =
      shape.reply_tokens > 0 ? shape.reply_tokens - 1 : 0;  // the first comes with the question
  estimate.branch_seconds =
      estimate.branch_flops * seconds_per_flop * kBranchOverhead + double(steps) * step_seconds;
}

// What one group takes under the arm at `index`.
Estimate estimate_of(size_t index, const std::vector<PlannedArm>& arms, const GroupShape& shape,
                     const Engine& engine, const std::vector<SpeedRecord>& speeds,
                     std::optional<int64_t>& measured_ms) {
  const Profile& profile = arms[index].profile;
  Estimate estimate = engine.estimate(shape, profile);
  const bool transcode = profile.mode == CacheMode::transcode;
  Profile as_measured = profile;
  as_measured.mode = CacheMode::as_you_go;
  if (const SpeedRecord* speed = nearest(speeds, canonical(as_measured), shape.prefix_tokens)) {
    set_seconds(estimate, *speed, shape, engine);
    measured_ms = std::min(measured_ms.value_or(speed->measured_ms), speed->measured_ms);
  }
  // The first arm's 16-bit prefill serves all of the group's.
  if (transcode && index > 0) estimate.prefix_seconds = 0;
  return estimate;
}

PlannedCell plan_cell(const GroupSpec& spec, const ChatTemplate& chat, const Engine& engine) {
  const EngineInfo info = engine.describe();
  if (spec.length > info.context) {
    throw Error(ErrorKind::usage,
                fmt::format("{} at {} does not fit {}, whose context is {} tokens", spec.task,
                            length_name(spec.length), info.model, info.context),
                room_hint(info, size_t(spec.length),
                          fmt::format("choose lengths up to {} with --lengths", length_name(info.context))));
  }
  if (info.tokenizer == nullptr) {
    throw Error(ErrorKind::usage, fmt::format("{} has no tokenizer to build prompts with", info.model));
  }
  const Task& task = task_named(spec.task);
  const SampleGroup group = task.make_group(spec, {*info.tokenizer, chat});
  return {spec.task, spec.length, 0, static_cast<int>(group.samples.size()), shape_of(group, task), {}};
}

}  // namespace

size_t Plan::samples() const {
  size_t samples = 0;
  for (const PlannedCell& cell : cells) samples += size_t(cell.haystacks) * size_t(cell.samples_per_haystack);
  return samples;
}

double Plan::seconds() const {
  double seconds = 0;
  for (const PlannedCell& cell : cells) {
    for (const Estimate& estimate : cell.per_arm) seconds += cell.haystacks * estimate.seconds();
  }
  return seconds;
}

size_t Plan::cache_bytes() const {
  size_t bytes = 0;
  for (const PlannedCell& cell : cells) {
    for (const Estimate& estimate : cell.per_arm) bytes = std::max(bytes, estimate.cache_bytes);
  }
  return bytes;
}

std::vector<PlannedArm> plan_arms(const std::vector<Profile>& profiles, const Engine& engine) {
  std::vector<PlannedArm> arms;
  std::set<std::string> names;
  for (const Profile& profile : profiles) {
    const std::string name = canonical(profile);
    if (!names.insert(name).second) {
      throw Error(ErrorKind::usage, fmt::format("the profile {} is named twice", name),
                  "name each profile once in --profiles");
    }
    if (profile.mode != profiles.front().mode) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} and {} have different cache modes, which one run cannot compare",
                              canonical(profiles.front()), name),
                  "give one mode for all of them with --mode");
    }
    engine.check(profile);
    arms.push_back({profile, name, false, bytes_per_token(engine, profile)});
  }
  // A server that multiplies in bfloat16 keeps its 16-bit cache in it.
  std::array formats = {wide_format(Compute::float32), wide_format(Compute::bfloat16), Format::f32};
  if (compute_named(engine.describe().compute) == Compute::bfloat16) std::swap(formats[0], formats[1]);
  for (const Format format : formats) {
    const auto it = std::find_if(arms.begin(), arms.end(), [format](const PlannedArm& arm) {
      return stores_both_in(arm.profile, format);
    });
    if (it == arms.end()) continue;
    it->baseline = true;
    std::rotate(arms.begin(), it, it + 1);
    break;
  }
  return arms;
}

ChatTemplate chat_of(const EngineInfo& engine, std::string_view choice) {
  if (choice == "plain") return plain_chat();
  if (choice != "auto") throw Error(ErrorKind::usage, fmt::format("there is no chat framing '{}'", choice));
  if (engine.chat_error != nullptr) throw *engine.chat_error;
  return engine.chat != nullptr ? *engine.chat : plain_chat();
}

Plan make_plan(const Suite& suite, ChatTemplate chat, std::vector<PlannedArm> arms, const Engine& engine,
               const std::vector<SpeedRecord>& speeds) {
  Plan plan;
  plan.chat = std::move(chat);
  plan.arms = std::move(arms);
  std::map<std::pair<std::string, int>, size_t> cell_of;
  std::set<std::tuple<std::string, int, int>> seen;
  for (const GroupSpec& spec : groups_of(suite)) {
    if (!seen.insert({spec.task, spec.length, spec.haystack}).second) {
      throw Error(
          ErrorKind::usage,
          fmt::format("suite {} asks for {} at {} twice", suite.name, spec.task, length_name(spec.length)),
          "one family per task and length: give the second one another length");
    }
    const auto [it, added] = cell_of.try_emplace({spec.task, spec.length}, plan.cells.size());
    if (added) {
      PlannedCell& cell = plan.cells.emplace_back(plan_cell(spec, plan.chat, engine));
      for (size_t arm = 0; arm < plan.arms.size(); ++arm)
        cell.per_arm.push_back(estimate_of(arm, plan.arms, cell.shape, engine, speeds, plan.measured_ms));
    }
    ++plan.cells[it->second].haystacks;
    plan.groups.push_back({spec, it->second});
  }
  return plan;
}

double share_done(const Engine& engine, const GroupShape& shape, const Profile& profile, const Estimate& full,
                  uint64_t done) {
  if (full.seconds() <= 0) return 0;
  const size_t prefix = std::min<size_t>(done, shape.prefix_tokens);
  const double branch_tokens = double(shape.branches) * double(shape.branch_tokens);
  double seconds = 0;
  if (full.prefix_flops > 0)
    seconds += full.prefix_seconds * engine.estimate({prefix}, profile).prefix_flops / full.prefix_flops;
  if (branch_tokens > 0) seconds += full.branch_seconds * double(done - prefix) / branch_tokens;
  return std::min(1.0, seconds / full.seconds());
}

PromptGroup prompt_of(const SampleGroup& group) {
  PromptGroup prompt;
  prompt.prefix = {group.prefix, group.prefix_text, Ask::nothing, {}};
  for (const Sample& sample : group.samples) {
    prompt.branches.push_back({{{sample.question_tokens, sample.question, Ask::generate, {}}}});
    prompt.branches.push_back({{{sample.question_tokens, sample.question, Ask::score, sample.target}}});
  }
  return prompt;
}

std::string room_hint(const EngineInfo& engine, size_t tokens, std::string otherwise) {
  const bool phantom = engine.model.substr(0, engine.model.find(':')) == "phantom";
  if (!phantom || tokens > size_t{kMaxContext}) return otherwise;
  return fmt::format("the phantom's context={} makes room", tokens);
}

Decoding decoding_of(const Task& task) {
  Decoding decoding;
  decoding.max_tokens = task.max_answer_tokens;
  decoding.stop_strings = task.stop_strings;
  return decoding;
}

std::string decoding_json(const Suite& suite) {
  nlohmann::json json = nlohmann::json::object();
  for (const Family& family : suite.families) {
    const Decoding decoding = decoding_of(task_named(family.task));
    json[family.task] = {{"max_tokens", decoding.max_tokens},
                         {"stop_at_eos", decoding.stop_at_eos},
                         {"stop_strings", decoding.stop_strings}};
  }
  return json.dump();
}

}  // namespace kveval

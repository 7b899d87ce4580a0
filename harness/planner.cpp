#include "harness/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "engine/compute.h"
#include "engine/error.h"

namespace kveval {
namespace {

bool stores_both_in(const Profile& profile, Format format) {
  return profile.k.format == format && profile.v.format == format;
}

// One more token's bytes, from two estimates far behind every window and page boundary.
double bytes_per_token(const Engine& engine, const Profile& profile) {
  constexpr size_t kFrom = size_t{1} << 17, kTo = size_t{1} << 18;
  const size_t low = engine.estimate({kFrom, 0, 0}, profile).cache_bytes;
  const size_t high = engine.estimate({kTo, 0, 0}, profile).cache_bytes;
  return (double(high) - double(low)) / double(kTo - kFrom);
}

GroupShape shape_of(const SampleGroup& group, const Task& task) {
  GroupShape shape{group.prefix.size(), 2 * group.samples.size(), 0};
  for (const Sample& sample : group.samples) {
    const size_t answer = std::max(sample.target.size(), size_t(task.max_answer_tokens));
    shape.branch_tokens = std::max(shape.branch_tokens, sample.question_tokens.size() + answer);
  }
  return shape;
}

PlannedCell plan_cell(const GroupSpec& spec, const ChatTemplate& chat, const std::vector<PlannedArm>& arms,
                      const Engine& engine) {
  const EngineInfo info = engine.describe();
  if (spec.length > info.context) {
    throw Error(ErrorKind::usage,
                fmt::format("{} at {} does not fit {}, whose context is {} tokens", spec.task,
                            length_name(spec.length), info.model, info.context),
                fmt::format("choose lengths up to {} with --lengths", length_name(info.context)));
  }
  if (info.tokenizer == nullptr) {
    throw Error(ErrorKind::usage, fmt::format("{} has no tokenizer to build prompts with", info.model));
  }
  const Task& task = task_named(spec.task);
  const SampleGroup group = task.make_group(spec, {*info.tokenizer, chat});
  PlannedCell cell{spec.task, spec.length, 0, static_cast<int>(group.samples.size()), shape_of(group, task),
                   {}};
  for (const PlannedArm& arm : arms) cell.per_arm.push_back(engine.estimate(cell.shape, arm.profile));
  return cell;
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
    for (const Estimate& estimate : cell.per_arm) seconds += cell.haystacks * estimate.seconds;
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
  const bool bfloat16 = engine.describe().compute == name_of(Compute::bfloat16);
  const Format first = wide_format(bfloat16 ? Compute::bfloat16 : Compute::float32),
               second = wide_format(bfloat16 ? Compute::float32 : Compute::bfloat16);
  for (const Format format : {first, second, Format::f32}) {
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

Plan make_plan(const Suite& suite, ChatTemplate chat, std::vector<PlannedArm> arms, const Engine& engine) {
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
    if (added) plan.cells.push_back(plan_cell(spec, plan.chat, plan.arms, engine));
    ++plan.cells[it->second].haystacks;
    plan.groups.push_back({spec, it->second});
  }
  return plan;
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

// From a suite, profiles and a model to the work in order, and what it will take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/profile.h"
#include "engine/text/chat.h"
#include "harness/store.h"
#include "tasks/suite.h"
#include "tasks/task.h"

namespace kveval {

struct PlannedArm {
  Profile profile;
  std::string name;  // canonical profile
  bool baseline = false;
  double cache_bytes_per_token =
      0;  // of one more token in a long sequence: windowed layers cost nothing more
};

// Task family x length.
struct PlannedCell {
  std::string task;
  int length = 0;
  int haystacks = 0;
  int samples_per_haystack = 0;
  GroupShape shape;  // of one group: two branches a question, one answered and one scored
  // One group under each arm, arms in the plan's order; seconds from the plan's speeds where it has some.
  std::vector<Estimate> per_arm;
};

struct PlannedGroup {
  GroupSpec spec;
  size_t cell = 0;
};

struct Plan {
  ChatTemplate chat;             // around every prompt
  std::vector<PlannedArm> arms;  // the baseline first
  std::vector<PlannedCell> cells;
  std::vector<PlannedGroup> groups;
  // When the oldest of the speeds was measured that its seconds come from; empty: they are a guess.
  std::optional<int64_t> measured_ms;

  size_t samples() const;  // questions, each asked once an arm
  double seconds() const;
  size_t cache_bytes() const;  // the largest of any group
};

// fp16, else bf16, else f32 comes first and is the baseline, under bfloat16 arithmetic bf16 before fp16;
// without any of them no arm is one. Order kept otherwise. Throws Error{usage} for a profile named twice, for
// profiles of different cache modes, and for one the engine does not support.
std::vector<PlannedArm> plan_arms(const std::vector<Profile>& profiles, const Engine& engine);

// `choice`: "auto" is the model's own template, "plain" none. Throws the engine's Error for a template that
// is not understood.
ChatTemplate chat_of(const EngineInfo& engine, std::string_view choice);

// Throws Error{usage} for a cell that the model's context or the task cannot hold, and for a suite that names
// the same cell twice. Generates one haystack a cell to know its shape. `speeds` are this machine's with this
// model: what an arm's seconds come from is the one measured at the nearest length, in ratio, under the arm's
// profile, or under any where that has none. Their profiles must be ones that parse.
Plan make_plan(const Suite& suite, ChatTemplate chat, std::vector<PlannedArm> arms, const Engine& engine,
               const std::vector<SpeedRecord>& speeds = {});

// Share of a group's time, of which `full` is the estimate, that its first `done` tokens take: attention
// makes late tokens dearer.
double share_done(const Engine& engine, const GroupShape& shape, const Profile& profile, const Estimate& full,
                  uint64_t done);

// What a user can do whose `tokens` do not fit the engine's context: a phantom may be given a longer one,
// else `otherwise`.
std::string room_hint(const EngineInfo& engine, size_t tokens, std::string otherwise);

// What one sample asks of an engine: its answer, and the likelihood of the right one.
PromptGroup prompt_of(const SampleGroup& group);
constexpr size_t answer_branch(size_t sample) { return 2 * sample; }
constexpr size_t score_branch(size_t sample) { return 2 * sample + 1; }

Decoding decoding_of(const Task& task);

// {"niah": {"max_tokens": 12, "stop_strings": ["\n"]}} for every task of the suite.
std::string decoding_json(const Suite& suite);

}  // namespace kveval

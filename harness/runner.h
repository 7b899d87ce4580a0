// Runs a plan: for each group (outside) each arm (inside), scores what comes back, commits the group whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "harness/planner.h"
#include "harness/progress.h"
#include "harness/store.h"

namespace kveval {

// All optional.
struct RunHooks {
  std::function<bool()> cancelled;  // asked between arms and whenever the engine tells its progress
  std::function<void(const Progress&)> progress;
};

// Runs the groups that run `run_id` does not have yet and sets its status: complete, or interrupted or failed
// and the Error that stopped it, whose hint says how to resume. `arms` are the run's, in the plan's order.
// The rows do not depend on where an earlier process stopped.
void run_plan(Store& store, const std::string& run_id, const std::vector<ArmRecord>& arms, const Plan& plan,
              Engine& engine, const RunHooks& hooks);

// One group under every arm, ready to be committed. Throws what the engine throws.
GroupResult run_group(const SampleGroup& group, const std::vector<ArmRecord>& arms,
                      const std::vector<PlannedArm>& planned, Engine& engine,
                      const std::function<bool(size_t arm, uint64_t done_tokens)>& progress);

}  // namespace kveval

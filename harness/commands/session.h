// What `run` and `resume` share: an engine for a model, and a plan carried out with progress and a summary.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "harness/commands/commands.h"
#include "harness/planner.h"
#include "harness/store.h"

namespace CLI {
class App;
}

namespace kveval {

// None of these changes a result.
struct EngineSettings {
  int threads = 0;  // 0: one per core
  int chunk = 512;
  int page = 128;
};

void add_engine_options(CLI::App& command, EngineSettings& settings);

std::unique_ptr<Engine> open_engine(const std::string& model, const EngineSettings& settings);

// Measures the static scales that profiles lack, on one fixed text.
void resolve_profiles(std::vector<Profile>& profiles, Engine& engine);

// Cells, arms, time and memory.
void print_plan(const Plan& plan, const EngineInfo& engine, std::FILE* stream);

// Runs what is missing, then prints the results on stdout and what to do next on stderr. Throws Error{run}
// when more than a tenth of the samples are errors.
void carry_out(Store& store, const std::string& run_id, const std::vector<ArmRecord>& arms, const Plan& plan,
               Engine& engine, const Context& context);

}  // namespace kveval

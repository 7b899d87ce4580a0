// What the verbs that need a model share: their options, an engine for the model, prompts from files, what is
// known of its speed, and a plan printed and carried out with progress and a summary.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/compute.h"
#include "engine/engine.h"
#include "harness/commands/commands.h"
#include "harness/planner.h"
#include "harness/store.h"

namespace CLI {
class App;
}

namespace kveval {

// None of these but `compute` changes a result.
struct EngineSettings {
  int threads = 0;  // 0: one per core
  int chunk = 512;
  int page = 128;
  Compute compute = Compute::float32;
};

void add_engine_options(CLI::App& command, EngineSettings& settings);
// --compute, for verbs that choose it themselves; the others take what a run began with.
void add_compute_option(CLI::App& command, EngineSettings& settings);
// What --profiles begins as: the 16-bit format of the arithmetic and the 8-bit ones.
std::string default_profiles(Compute compute);
void add_profiles_option(CLI::App& command, std::optional<std::string>& profiles);  // else default_profiles
void add_profile_option(CLI::App& command, std::optional<std::string>& profile);    // else wide_format's
void add_chat_option(CLI::App& command, std::string& chat);                         // what chat_of takes

// A catalogued model that is not here is fetched first.
std::unique_ptr<Engine> open_engine(const std::string& model, const EngineSettings& settings,
                                    const Context& context);

// The "ids" of a JSON file: what 'kveval model tokenize --jsonl' writes. Not empty. Throws Error{bad_file}.
Tokens read_token_file(const std::string& path);

// Refuses the file's tokens where the model has no such ones.
void check_vocabulary(const Tokens& tokens, const EngineInfo& info, const std::string& path);

// Measures the static scales that profiles lack, on one fixed text.
void resolve_profiles(std::vector<Profile>& profiles, Engine& engine);

// Whether a bar can be drawn on stderr: a terminal that moves its cursor.
bool draws_bar();

// While one lives, a first signal does not end the process: who works asks cancelled() now and then and ends
// cleanly.
class CleanEnd {
 public:
  explicit CleanEnd(const Context& context);
  ~CleanEnd();
  CleanEnd(const CleanEnd&) = delete;
  CleanEnd& operator=(const CleanEnd&) = delete;
  bool cancelled() const;

 private:
  const Context& context_;
};

// What the database, if there is one that can be read, knows of this machine's speed with the engine's model.
std::vector<SpeedRecord> known_speeds(const EngineInfo& engine, const Context& context);

// Cells, arms, time and memory. Where the time is a guess, the command that ends it.
void print_plan(const Plan& plan, const EngineInfo& engine, const EngineSettings& settings,
                const Context& context, std::FILE* stream);

// Runs what is missing, then prints the results on stdout and what to do next on stderr. Throws Error{run}
// when more than a tenth of the samples are errors.
void carry_out(Store& store, const std::string& run_id, const std::vector<ArmRecord>& arms, const Plan& plan,
               Engine& engine, const Context& context);

}  // namespace kveval

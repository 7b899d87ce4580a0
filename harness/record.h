// What a run writes down about itself, and reads back to go on.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "harness/environment.h"
#include "harness/planner.h"
#include "harness/store.h"
#include "tasks/suite.h"

namespace kveval {

// What of RunRecord::config_json a run is resumed from. Its arithmetic is the record's own.
struct RunConfig {
  std::string model;              // specification
  std::string chat;               // "auto" or "plain": chat_of
  std::vector<Profile> profiles;  // resolved: static scales included
};

// `model_spec` loads the same model again, `chat` chooses the plan's framing again. Status running, started
// now.
RunRecord record_of(const Suite& suite, const Plan& plan, const std::string& model_spec,
                    const std::string& chat, const EngineInfo& engine, const Environment& environment,
                    int64_t now_ms);
std::vector<ArmRecord> arm_records(const Plan& plan);

// Whose speeds this engine's here are.
SpeedKey speed_key(const EngineInfo& engine, const Environment& environment);

// Throws Error{bad_file} for a configuration this version cannot read.
RunConfig config_of(const RunRecord& run);

// The newest run that is not complete, when `reference` is empty. Throws Error{usage} for a complete run and
// for one that a living process works on.
RunRecord find_resumable(const Store& store, const std::string& reference, const Environment& environment,
                         int64_t now_ms);

// Throws Error{usage} when going on would not give what an unbroken run gives: another model, tokenizer, chat
// template, arithmetic or task version than the run began with.
void check_same(const RunRecord& run, const Suite& suite, const ChatTemplate& chat, const EngineInfo& engine);

// Throws Error{bad_file} when the stored arms are not the plan's.
void check_arms(const RunRecord& run, const std::vector<ArmRecord>& arms, const Plan& plan);

}  // namespace kveval

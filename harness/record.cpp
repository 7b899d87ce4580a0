#include "harness/record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "engine/hash.h"
#include "engine/text/chat.h"
#include "tasks/task.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

// A living run writes its heartbeat every few seconds; after this long without one a run of another host is
// dead.
constexpr int64_t kStaleMs = 60000;

constexpr int kConfigVersion = 1;

Json task_versions(const Suite& suite) {
  Json versions = Json::object();
  for (const Family& family : suite.families) versions[family.task] = task_named(family.task).version;
  return versions;
}

std::string tokenizer_hash(const EngineInfo& engine) {
  return engine.tokenizer == nullptr ? std::string() : engine.tokenizer->hash();
}

const char* mode_of(const Plan& plan) { return name_of(plan.arms.front().profile.mode); }

std::string config_json(const Suite& suite, const Plan& plan, const std::string& model_spec,
                        const std::string& chat, const EngineInfo& engine) {
  Json profiles = Json::array();
  for (const PlannedArm& arm : plan.arms) profiles.push_back(Json::parse(to_json(arm.profile)));
  const Json config = {{"version", kConfigVersion},
                       {"model", model_spec},
                       {"model_hash", engine.model_hash},
                       {"tokenizer_hash", tokenizer_hash(engine)},
                       {"chat", chat},
                       {"chat_family", plan.chat.family},
                       {"template_hash", template_hash(plan.chat)},
                       {"compute", engine.compute},
                       {"cache_mode", mode_of(plan)},
                       {"profiles", profiles},
                       {"seed", suite.seed},
                       {"tasks", task_versions(suite)},
                       {"decoding", Json::parse(decoding_json(suite))}};
  return config.dump();
}

bool is_alive(const RunRecord& run, const Environment& environment, int64_t now_ms) {
  if (run.status != RunStatus::running) return false;
  if (run.host == environment.host) return is_running_elsewhere(run.pid);
  return now_ms - run.heartbeat_ms < kStaleMs;
}

[[noreturn]] void refuse(const RunRecord& run, std::string_view what, std::string_view then,
                         std::string_view now) {
  throw Error(ErrorKind::usage, fmt::format("run {} began with {} {}, this is {}", run.id, what, then, now),
              "resume it with what it began with, or start a new run");
}

}  // namespace

RunRecord record_of(const Suite& suite, const Plan& plan, const std::string& model_spec,
                    const std::string& chat, const EngineInfo& engine, const Environment& environment,
                    int64_t now_ms) {
  RunRecord run;
  run.id = make_run_id(now_ms);
  run.suite = suite.name;
  run.suite_json = to_json(suite);
  run.suite_hash = suite_hash(suite);
  run.config_json = config_json(suite, plan, model_spec, chat, engine);
  run.config_hash = hash_hex(run.config_json);
  run.started_ms = run.heartbeat_ms = now_ms;
  run.pid = environment.pid;
  run.seed = suite.seed;
  run.model = engine.model;
  run.model_hash = engine.model_hash;
  run.tokenizer_hash = tokenizer_hash(engine);
  run.template_hash = template_hash(plan.chat);
  run.decoding_json = decoding_json(suite);
  run.compute = engine.compute;
  run.cache_mode = mode_of(plan);
  run.tool_version = environment.tool_version;
  run.git_sha = environment.git_sha;
  run.git_dirty = environment.git_dirty;
  run.host = environment.host;
  run.cpu = environment.cpu;
  run.simd = engine.simd;
  run.threads = engine.threads;
  run.argv_json = environment.argv_json;
  run.groups_planned = static_cast<int>(plan.groups.size());
  return run;
}

std::vector<ArmRecord> arm_records(const Plan& plan) {
  std::vector<ArmRecord> records;
  for (const PlannedArm& arm : plan.arms) {
    ArmRecord record;
    record.position = static_cast<int>(records.size());
    record.name = arm.name;
    record.baseline = arm.baseline;
    record.profile_json = to_json(arm.profile);
    record.profile_hash = profile_hash(arm.profile);
    record.k_format = name_of(arm.profile.k.format);
    record.v_format = name_of(arm.profile.v.format);
    record.cache_bytes_per_token = arm.cache_bytes_per_token;
    records.push_back(std::move(record));
  }
  return records;
}

SpeedKey speed_key(const EngineInfo& engine, const Environment& environment) {
  return {engine.model_hash, engine.compute, engine.simd, engine.threads, environment.host, environment.cpu};
}

RunConfig config_of(const RunRecord& run) {
  const Json json = Json::parse(run.config_json, nullptr, false);
  const auto unreadable = [&](std::string_view why) {
    return Error(ErrorKind::bad_file,
                 fmt::format("the configuration of run {} cannot be read: {}", run.id, why),
                 "it was written by another version of kveval, or edited");
  };
  if (!json.is_object() || !json.contains("version") || json["version"] != kConfigVersion)
    throw unreadable("its version is unknown");
  try {
    RunConfig config;
    config.model = json.at("model").get<std::string>();
    config.chat = json.value("chat", "plain");  // runs from before there were templates do not say
    for (const Json& profile : json.at("profiles"))
      config.profiles.push_back(profile_from_json(profile.dump()));
    return config;
  } catch (const Json::exception& error) { throw unreadable(error.what()); }
}

RunRecord find_resumable(const Store& store, const std::string& reference, const Environment& environment,
                         int64_t now_ms) {
  RunRecord run;
  if (reference.empty()) {
    for (const RunRecord& candidate : store.runs()) {
      if (candidate.status == RunStatus::complete || is_alive(candidate, environment, now_ms)) continue;
      run = candidate;
      break;
    }
    if (run.id.empty()) {
      throw Error(ErrorKind::usage, fmt::format("'{}' holds no run to resume", store.path().string()),
                  "'kveval list' shows the runs there are");
    }
  } else {
    run = store.find_run(reference);
  }
  if (run.status == RunStatus::complete) {
    throw Error(ErrorKind::usage, fmt::format("run {} is complete", run.id),
                fmt::format("'kveval compare {}' shows its results", run.id));
  }
  if (is_alive(run, environment, now_ms)) {
    throw Error(ErrorKind::usage,
                fmt::format("run {} is still running as process {} on {}", run.id, run.pid, run.host),
                "wait for it, or stop that process first");
  }
  return run;
}

void check_same(const RunRecord& run, const Suite& suite, const ChatTemplate& chat,
                const EngineInfo& engine) {
  if (engine.model_hash != run.model_hash) refuse(run, "the model", run.model_hash, engine.model_hash);
  if (tokenizer_hash(engine) != run.tokenizer_hash) {
    refuse(run, "the tokenizer", run.tokenizer_hash, tokenizer_hash(engine));
  }
  if (template_hash(chat) != run.template_hash) {
    refuse(run, "the chat template", run.template_hash,
           fmt::format("{} ({})", template_hash(chat), chat.family));
  }
  if (engine.compute != run.compute) refuse(run, "the arithmetic", run.compute, engine.compute);
  const Json config = Json::parse(run.config_json, nullptr, false);
  const Json then = config.is_object() ? config.value("tasks", Json::object()) : Json::object();
  const Json now = task_versions(suite);
  if (then != now) refuse(run, "the task versions", then.dump(), now.dump());
  const std::string decoding = decoding_json(suite);
  if (decoding != run.decoding_json) refuse(run, "the decoding", run.decoding_json, decoding);
}

void check_arms(const RunRecord& run, const std::vector<ArmRecord>& arms, const Plan& plan) {
  const std::vector<ArmRecord> planned = arm_records(plan);
  bool same = arms.size() == planned.size() && static_cast<int>(plan.groups.size()) == run.groups_planned;
  for (size_t i = 0; same && i < arms.size(); ++i) {
    same = arms[i].profile_hash == planned[i].profile_hash && arms[i].baseline == planned[i].baseline;
  }
  if (!same) {
    throw Error(ErrorKind::bad_file, fmt::format("the stored plan of run {} does not add up", run.id),
                "it was written by another version of kveval, or edited: start a new run");
  }
}

}  // namespace kveval

// Every sample of every run in one SQLite file (schema.sql). The only door to it for the harness and the
// reports.
//
// A group (one haystack, all arms) is committed in one transaction: a killed run loses at most the group in
// flight.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"

namespace kveval {

enum class RunStatus { running, complete, interrupted, failed };
const char* name_of(RunStatus status);

// What is needed to repeat a run, or to refuse comparing it.
struct RunRecord {
  std::string id;  // "20261129-184233-3fa9"
  std::string suite;
  std::string suite_json, suite_hash;
  std::string config_json,
      config_hash;  // resolved: model, profiles, decoding, mode, seed; nothing that cannot change results
  RunStatus status = RunStatus::running;
  int64_t started_ms = 0;  // Unix time
  std::optional<int64_t> finished_ms;
  int64_t heartbeat_ms = 0;
  int64_t pid = 0;
  uint64_t seed = 0;
  std::string model, model_hash, tokenizer_hash, template_hash;
  std::string decoding_json;
  std::string compute;     // "float32"
  std::string cache_mode;  // "as-you-go" | "transcode"
  std::string tool_version, git_sha;
  std::optional<bool> git_dirty;
  std::string host, cpu, simd, argv_json;  // for information: never change results
  int threads = 0;
  int groups_planned = 0;
};

struct ArmRecord {
  int64_t id = 0;
  std::string run_id;
  int position = 0;  // order in the run; the baseline arm of the run is marked
  std::string name;  // canonical profile
  bool baseline = false;
  std::string profile_json, profile_hash;
  std::string k_format, v_format;
  double cache_bytes_per_token = 0;
};

struct HaystackRecord {
  int64_t id = 0;
  std::string task;
  int task_version = 0;
  int length = 0;
  int index = 0;
  std::string prefix_sha;
  std::vector<int32_t> prefix_tokens;  // stored zstd-compressed, once
  std::string prefix_text;             // likewise
};

struct ItemRecord {
  int64_t id = 0;
  int64_t haystack_id = 0;
  std::string item_key, prompt_sha;
  int index = 0;
  std::optional<int> stratum;
  std::optional<double> depth;
  std::string question, expected;
  std::vector<int32_t> question_tokens, target_tokens;
};

enum class SampleState { ok, error };

struct SampleRecord {
  int64_t arm_id = 0;
  int64_t item_id = 0;
  SampleState state = SampleState::ok;
  // state == ok
  std::optional<bool> correct;  // by the task's primary scorer
  std::optional<bool> strict, first, contains;
  std::string output;  // decoded answer
  std::vector<int32_t> output_tokens;
  std::string stop;                // "eos" | "string" | "length"
  std::optional<double> gold_nll;  // nats, summed over the target's tokens
  // Against the run's baseline arm, on the target's positions; empty for the baseline itself.
  std::optional<double> kl;              // mean over positions of KL(baseline || arm), nats
  std::optional<double> top1_agreement;  // share of positions with the same most probable token
  std::optional<int> first_divergence;   // index of the first generated token that differs; empty: none
  double milliseconds = 0;
  // state == error
  std::string error;
};

struct DiagnosticRecord {
  int64_t arm_id = 0;
  int64_t haystack_id = 0;
  int layer = 0, kv_head = 0;
  bool keys = true;
  int64_t elements = 0, clipped = 0, flushed = 0;
  double absolute_max = 0, error_energy = 0, energy = 0;
};

// One group's results, ids still unset: commit_group assigns and links them.
struct GroupResult {
  HaystackRecord haystack;
  std::vector<ItemRecord> items;
  struct ArmResult {
    int64_t arm_id = 0;
    std::vector<SampleRecord> samples;  // one per item, same order
    std::vector<DiagnosticRecord> diagnostics;
  };
  std::vector<ArmResult> arms;
};

// Whose figures they are: speeds of different machines are never mixed.
struct SpeedKey {
  std::string model_hash, compute, simd;
  int threads = 0;
  std::string host, cpu;
};

// Medians of 'kveval bench'.
struct SpeedRecord {
  SpeedKey key;
  std::string profile;      // canonical
  int64_t length = 0;       // tokens of the prompt
  double prefix_flops = 0;  // of reading all of it but the last token
  double prefill_seconds = 0;
  double decode_seconds = 0;  // a token behind it
  int64_t measured_ms = 0;    // Unix time
};

// A sample as reports read it: item, cell and result in one row.
struct SampleView {
  ItemRecord item;
  std::string task;
  int task_version = 0;
  int length = 0;
  int haystack = 0;  // index within the cell: (task, length, haystack) is the cluster
  SampleRecord sample;
};

class Store {
 public:
  enum class Mode {
    read_only,
    update,      // writes and migrates a database that is there
    read_write,  // and creates one that is not
  };
  // Throws Error{bad_file}: not SQLite, not a kveval database, written by a newer kveval, locked, unwritable
  // folder. Everything below throws Error{bad_file} for a damaged file and Error{run} for a full disk or a
  // lock that another process holds for longer than `patience`.
  Store(const std::filesystem::path& path, Mode mode,
        std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~Store();
  Store(Store&&) noexcept;

  // --- writing
  void begin_run(const RunRecord& run, std::vector<ArmRecord>& arms);  // assigns arm ids
  void commit_group(const std::string& run_id, const GroupResult& group);
  void heartbeat(const std::string& run_id, int64_t now_ms);
  void set_status(const std::string& run_id, RunStatus status,
                  int64_t now_ms);  // complete, interrupted, failed set finished_ms
  void claim(const std::string& run_id, const std::string& host, int64_t pid,
             int64_t now_ms);  // resume: status running again, owner recorded
  // begin_run and claim make this Store the run's owner: commit_group throws Error{run} once another has
  // claimed it.

  // Each takes the place of an older one of the same key, profile and length.
  void save_speeds(const std::vector<SpeedRecord>& speeds);

  // --- reading
  std::vector<RunRecord> runs() const;  // newest first
  // "latest", a whole id, or a part that only one has. Throws Error{usage} naming the candidates.
  RunRecord find_run(std::string_view reference) const;
  std::vector<ArmRecord> arms(const std::string& run_id) const;           // by position
  std::vector<std::string> done_groups(const std::string& run_id) const;  // "task/length/haystack"
  std::vector<SampleView> samples(int64_t arm_id) const;            // by family, length, haystack, index
  std::vector<DiagnosticRecord> diagnostics(int64_t arm_id) const;  // summed over haystacks
  HaystackRecord haystack(int64_t haystack_id) const;
  std::vector<std::string> runs_with_item(std::string_view item_key_prefix) const;  // run ids, newest first
  std::vector<SpeedRecord> speeds(const SpeedKey& key) const;                       // by profile and length
  std::filesystem::path path() const;
  std::string notice()
      const;  // one sentence for the user, or empty: "... cannot use write-ahead logging ..."

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string group_key(std::string_view task, int length, int haystack);  // "niah/8192/3"

}  // namespace kveval

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "harness/store_state.h"

namespace kveval {
namespace {

// Reads a row's columns one after the other, in the order the query names them.
class Row {
 public:
  explicit Row(SQLite::Statement& statement) : statement_(statement) {}

  bool null() { return statement_.getColumn(next_).isNull(); }
  std::string text() { return statement_.getColumn(next_++).getString(); }
  int integer() { return statement_.getColumn(next_++).getInt(); }
  int64_t integer64() { return statement_.getColumn(next_++).getInt64(); }
  double real() { return statement_.getColumn(next_++).getDouble(); }
  bool flag() { return integer() != 0; }

  std::optional<int> maybe_integer() { return null() ? skip<int>() : integer(); }
  std::optional<int64_t> maybe_integer64() { return null() ? skip<int64_t>() : integer64(); }
  std::optional<double> maybe_real() { return null() ? skip<double>() : real(); }
  std::optional<bool> maybe_flag() { return null() ? skip<bool>() : flag(); }

 private:
  template <class T>
  std::optional<T> skip() {
    ++next_;
    return std::nullopt;
  }
  SQLite::Statement& statement_;
  int next_ = 0;
};

RunStatus status_named(const std::string& name) {
  for (const RunStatus status : {RunStatus::running, RunStatus::complete, RunStatus::interrupted}) {
    if (name == name_of(status)) return status;
  }
  return RunStatus::failed;
}

RunRecord read_run(SQLite::Statement& query) {
  Row row(query);
  RunRecord run;
  run.id = row.text();
  run.suite = row.text();
  run.suite_json = row.text();
  run.suite_hash = row.text();
  run.config_json = row.text();
  run.config_hash = row.text();
  run.status = status_named(row.text());
  run.started_ms = row.integer64();
  run.finished_ms = row.maybe_integer64();
  run.heartbeat_ms = row.integer64();
  run.pid = row.integer64();
  run.seed = static_cast<uint64_t>(row.integer64());
  run.model = row.text();
  run.model_hash = row.text();
  run.tokenizer_hash = row.text();
  run.template_hash = row.text();
  run.decoding_json = row.text();
  run.compute = row.text();
  run.cache_mode = row.text();
  run.groups_planned = row.integer();
  run.tool_version = row.text();
  run.git_sha = row.text();
  run.git_dirty = row.maybe_flag();
  run.host = row.text();
  run.cpu = row.text();
  run.simd = row.text();
  run.threads = row.integer();
  run.argv_json = row.text();
  return run;
}

SampleView read_sample(SQLite::Statement& query, int64_t arm_id, const std::filesystem::path& path) {
  Row row(query);
  SampleView view;
  view.task = row.text();
  view.task_version = row.integer();
  view.length = row.integer();
  view.haystack = row.integer();

  ItemRecord& item = view.item;
  item.id = row.integer64();
  item.haystack_id = row.integer64();
  item.item_key = row.text();
  item.prompt_sha = row.text();
  item.index = row.integer();
  item.stratum = row.maybe_integer();
  item.depth = row.maybe_real();
  item.question = row.text();
  item.expected = row.text();
  item.question_tokens = unpack_tokens(row.text(), path);
  item.target_tokens = unpack_tokens(row.text(), path);

  SampleRecord& sample = view.sample;
  sample.arm_id = arm_id;
  sample.item_id = item.id;
  sample.state = row.text() == "ok" ? SampleState::ok : SampleState::error;
  sample.correct = row.maybe_flag();
  sample.strict = row.maybe_flag();
  sample.first = row.maybe_flag();
  sample.contains = row.maybe_flag();
  sample.stop = row.text();
  sample.gold_nll = row.maybe_real();
  sample.kl = row.maybe_real();
  sample.top1_agreement = row.maybe_real();
  sample.first_divergence = row.maybe_integer();
  sample.milliseconds = row.real();
  sample.error = row.text();
  sample.output = row.text();
  sample.output_tokens = unpack_tokens(row.text(), path);
  return view;
}

std::string one_line_of(const std::vector<const RunRecord*>& runs) {
  std::string text;
  for (const RunRecord* run : runs) text += fmt::format("{}{}", text.empty() ? "" : ", ", run->id);
  return text;
}

}  // namespace

std::vector<RunRecord> Store::runs() const {
  return guarded(state_->path, [&] {
    SQLite::Statement query(
        state_->database,
        "SELECT id, suite, suite_json, suite_hash, config_json, config_hash, status, started_ms, "
        "finished_ms, "
        "heartbeat_ms, pid, seed, model, model_hash, tokenizer_hash, template_hash, decoding_json, compute, "
        "cache_mode, groups_planned, tool_version, git_sha, git_dirty, host, cpu, simd, threads, argv_json "
        "FROM run ORDER BY started_ms DESC, rowid DESC");
    std::vector<RunRecord> runs;
    while (query.executeStep()) runs.push_back(read_run(query));
    return runs;
  });
}

RunRecord Store::find_run(std::string_view reference) const {
  const std::vector<RunRecord> all = runs();
  const std::string file = state_->path.string();
  if (all.empty()) {
    throw Error(ErrorKind::usage, fmt::format("'{}' holds no runs yet", file),
                "start one with 'kveval run niah'");
  }
  if (reference == "latest") return all.front();
  std::vector<const RunRecord*> candidates;
  for (const RunRecord& run : all) {
    if (run.id == reference) return run;
    if (!reference.empty() && run.id.find(reference) != std::string::npos) { candidates.push_back(&run); }
  }
  if (candidates.size() == 1) return *candidates.front();
  if (candidates.empty()) {
    throw Error(ErrorKind::usage, fmt::format("'{}' holds no run '{}'", file, reference),
                "'kveval list' shows the runs there are");
  }
  throw Error(ErrorKind::usage,
              fmt::format("'{}' could be any of the runs {}", reference, one_line_of(candidates)),
              "give more of the id");
}

std::vector<ArmRecord> Store::arms(const std::string& run_id) const {
  return guarded(state_->path, [&] {
    SQLite::Statement query(
        state_->database,
        "SELECT id, position, name, baseline, profile_json, profile_hash, k_format, v_format, "
        "cache_bytes_per_token FROM arm WHERE run_id = ? ORDER BY position");
    query.bind(1, run_id);
    std::vector<ArmRecord> arms;
    while (query.executeStep()) {
      Row row(query);
      ArmRecord arm;
      arm.run_id = run_id;
      arm.id = row.integer64();
      arm.position = row.integer();
      arm.name = row.text();
      arm.baseline = row.flag();
      arm.profile_json = row.text();
      arm.profile_hash = row.text();
      arm.k_format = row.text();
      arm.v_format = row.text();
      arm.cache_bytes_per_token = row.real();
      arms.push_back(std::move(arm));
    }
    return arms;
  });
}

std::vector<std::string> Store::done_groups(const std::string& run_id) const {
  return guarded(state_->path, [&] {
    SQLite::Statement query(state_->database,
                            "SELECT h.task, h.length, h.number FROM run_group g JOIN haystack h ON h.id = "
                            "g.haystack_id WHERE g.run_id = ? ORDER BY h.task, h.length, h.number");
    query.bind(1, run_id);
    std::vector<std::string> keys;
    while (query.executeStep()) {
      Row row(query);
      const std::string task = row.text();
      const int length = row.integer();
      keys.push_back(group_key(task, length, row.integer()));
    }
    return keys;
  });
}

std::vector<SampleView> Store::samples(int64_t arm_id) const {
  return guarded(state_->path, [&] {
    SQLite::Statement query(
        state_->database,
        "SELECT h.task, h.task_version, h.length, h.number, i.id, i.haystack_id, i.item_key, i.prompt_sha, "
        "i.number, "
        "i.stratum, i.depth, i.question, i.expected, i.question_tokens, i.target_tokens, s.state, s.correct, "
        "s.strict, s.first, s.contains, s.stop, s.gold_nll, s.kl, s.top1_agreement, s.first_divergence, "
        "s.milliseconds, s.error, o.text, o.tokens "
        "FROM sample s JOIN item i ON i.id = s.item_id JOIN haystack h ON h.id = i.haystack_id "
        "LEFT JOIN output o ON o.arm_id = s.arm_id AND o.item_id = s.item_id "
        "WHERE s.arm_id = ? ORDER BY h.task, h.length, h.number, i.number, i.id");
    query.bind(1, arm_id);
    std::vector<SampleView> views;
    while (query.executeStep()) views.push_back(read_sample(query, arm_id, state_->path));
    return views;
  });
}

std::vector<DiagnosticRecord> Store::diagnostics(int64_t arm_id) const {
  return guarded(state_->path, [&] {
    SQLite::Statement query(
        state_->database,
        "SELECT layer, kv_head, part, elements, clipped, flushed, absolute_max, error_energy, "
        "energy FROM diagnostic WHERE arm_id = ? ORDER BY layer, kv_head, part, haystack_id");
    query.bind(1, arm_id);
    // Summed here and not by SQLite: the order of floating-point additions is then ours.
    std::vector<DiagnosticRecord> sums;
    while (query.executeStep()) {
      Row row(query);
      DiagnosticRecord one;
      one.arm_id = arm_id;
      one.layer = row.integer();
      one.kv_head = row.integer();
      one.keys = row.text() == "k";
      const bool same = !sums.empty() && sums.back().layer == one.layer &&
                        sums.back().kv_head == one.kv_head && sums.back().keys == one.keys;
      if (!same) sums.push_back(one);
      DiagnosticRecord& sum = sums.back();
      sum.elements += row.integer64();
      sum.clipped += row.integer64();
      sum.flushed += row.integer64();
      sum.absolute_max = std::max(sum.absolute_max, row.real());
      sum.error_energy += row.real();
      sum.energy += row.real();
    }
    return sums;
  });
}

HaystackRecord Store::haystack(int64_t id) const {
  return guarded(state_->path, [&] {
    SQLite::Statement query(
        state_->database,
        "SELECT task, task_version, length, number, prefix_sha, prefix_tokens, prefix_text "
        "FROM haystack WHERE id = ?");
    query.bind(1, id);
    if (!query.executeStep()) {
      throw Error(ErrorKind::bad_file, fmt::format("'{}' has no haystack {}", state_->path.string(), id));
    }
    Row row(query);
    HaystackRecord haystack;
    haystack.id = id;
    haystack.task = row.text();
    haystack.task_version = row.integer();
    haystack.length = row.integer();
    haystack.index = row.integer();
    haystack.prefix_sha = row.text();
    haystack.prefix_tokens = unpack_tokens(decompress(row.text(), state_->path), state_->path);
    haystack.prefix_text = decompress(row.text(), state_->path);
    return haystack;
  });
}

std::vector<std::string> Store::runs_with_item(std::string_view item_key_prefix) const {
  return guarded(state_->path, [&] {
    // Keys are lowercase hex: an upper bound of "g" closes the range of everything that begins with the
    // prefix.
    SQLite::Statement query(
        state_->database,
        "SELECT r.id FROM run r WHERE EXISTS (SELECT 1 FROM item i JOIN sample s ON s.item_id = "
        "i.id JOIN arm a ON a.id = s.arm_id WHERE a.run_id = r.id AND i.item_key >= ?1 AND "
        "i.item_key < ?1 || 'g') ORDER BY r.started_ms DESC, r.rowid DESC");
    query.bind(1, std::string(item_key_prefix));
    std::vector<std::string> ids;
    while (query.executeStep()) ids.push_back(query.getColumn(0).getString());
    return ids;
  });
}

std::vector<SpeedRecord> Store::speeds(const SpeedKey& key) const {
  return guarded(state_->path, [&] {
    SQLite::Statement query(
        state_->database,
        "SELECT profile, length, prefix_flops, prefill_seconds, decode_seconds, measured_ms FROM speed "
        "WHERE model_hash = ? AND compute = ? AND simd = ? AND threads = ? AND host = ? AND cpu = ? "
        "ORDER BY profile, length");
    query.bind(1, key.model_hash);
    query.bind(2, key.compute);
    query.bind(3, key.simd);
    query.bind(4, key.threads);
    query.bind(5, key.host);
    query.bind(6, key.cpu);
    std::vector<SpeedRecord> speeds;
    while (query.executeStep()) {
      Row row(query);
      SpeedRecord& speed = speeds.emplace_back();
      speed.key = key;
      speed.profile = row.text();
      speed.length = row.integer64();
      speed.prefix_flops = row.real();
      speed.prefill_seconds = row.real();
      speed.decode_seconds = row.real();
      speed.measured_ms = row.integer64();
    }
    return speeds;
  });
}

}  // namespace kveval

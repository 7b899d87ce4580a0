#include <fmt/format.h>

#include "harness/store_state.h"

namespace kveval {
namespace {

// Binds values to ?1, ?2, ... in the order they come; optionals become NULL.
class Binder {
 public:
  explicit Binder(SQLite::Statement& statement) : statement_(statement) {}

  Binder& operator<<(int value) { return statement_.bind(next_++, value), *this; }
  Binder& operator<<(int64_t value) { return statement_.bind(next_++, value), *this; }
  Binder& operator<<(double value) { return statement_.bind(next_++, value), *this; }
  Binder& operator<<(bool value) { return *this << static_cast<int>(value); }
  Binder& operator<<(const char* value) { return statement_.bind(next_++, value), *this; }
  Binder& operator<<(const std::string& value) { return statement_.bind(next_++, value), *this; }
  Binder& operator<<(const std::vector<int32_t>& tokens) { return blob(pack_tokens(tokens)); }
  template <class T>
  Binder& operator<<(const std::optional<T>& value) {
    if (value) return *this << *value;
    return statement_.bind(next_++), *this;
  }
  Binder& blob(const std::string& bytes) {
    return statement_.bind(next_++, bytes.data(), static_cast<int>(bytes.size())), *this;
  }

 private:
  SQLite::Statement& statement_;
  int next_ = 1;
};

// A statement that is executed many times with different values.
class Repeated {
 public:
  Repeated(SQLite::Database& database, const char* sql) : statement_(database, sql) {}
  Binder start() {
    statement_.reset();
    statement_.clearBindings();
    return Binder(statement_);
  }
  SQLite::Statement& statement() { return statement_; }
  void exec() { statement_.exec(); }
  std::optional<int64_t> id() {
    if (!statement_.executeStep()) return std::nullopt;
    return statement_.getColumn(0).getInt64();
  }

 private:
  SQLite::Statement statement_;
};

int64_t haystack_id(SQLite::Database& database, const HaystackRecord& haystack) {
  Repeated find(
      database,
      "SELECT id FROM haystack WHERE task = ? AND task_version = ? AND length = ? AND number = ? AND "
      "prefix_sha = ?");
  find.start() << haystack.task << haystack.task_version << haystack.length << haystack.index
               << haystack.prefix_sha;
  if (const auto id = find.id()) return *id;

  Repeated insert(
      database,
      "INSERT INTO haystack(task, task_version, length, number, prefix_sha, token_count, prefix_tokens, "
      "prefix_text) VALUES(?, ?, ?, ?, ?, ?, ?, ?)");
  (insert.start() << haystack.task << haystack.task_version << haystack.length << haystack.index
                  << haystack.prefix_sha << static_cast<int64_t>(haystack.prefix_tokens.size()))
      .blob(compress(pack_tokens(haystack.prefix_tokens)))
      .blob(compress(haystack.prefix_text));
  insert.exec();
  return database.getLastInsertRowid();
}

std::vector<int64_t> item_ids(SQLite::Database& database, int64_t haystack,
                              const std::vector<ItemRecord>& items) {
  Repeated find(database, "SELECT id FROM item WHERE item_key = ? AND prompt_sha = ?");
  Repeated insert(
      database,
      "INSERT INTO item(haystack_id, item_key, prompt_sha, number, stratum, depth, question, expected, "
      "question_tokens, target_tokens) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  std::vector<int64_t> ids;
  for (const ItemRecord& item : items) {
    find.start() << item.item_key << item.prompt_sha;
    if (const auto id = find.id()) {
      ids.push_back(*id);
      continue;
    }
    insert.start() << haystack << item.item_key << item.prompt_sha << item.index << item.stratum << item.depth
                   << item.question << item.expected << item.question_tokens << item.target_tokens;
    insert.exec();
    ids.push_back(database.getLastInsertRowid());
  }
  return ids;
}

void insert_samples(SQLite::Database& database, const GroupResult::ArmResult& arm,
                    const std::vector<int64_t>& items) {
  Repeated sample(
      database,
      "INSERT INTO sample(arm_id, item_id, state, correct, strict, first, contains, stop, gold_nll, kl, "
      "top1_agreement, first_divergence, milliseconds, error) "
      "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  Repeated output(database, "INSERT INTO output(arm_id, item_id, text, tokens) VALUES(?, ?, ?, ?)");
  for (size_t i = 0; i < arm.samples.size(); ++i) {
    const SampleRecord& s = arm.samples[i];
    if (s.state == SampleState::error) {
      const std::optional<double> none;
      sample.start() << arm.arm_id << items[i] << "error" << none << none << none << none << none << none
                     << none << none << none << s.milliseconds << s.error;
      sample.exec();
      continue;
    }
    sample.start() << arm.arm_id << items[i] << "ok" << s.correct << s.strict << s.first << s.contains
                   << s.stop << s.gold_nll << s.kl << s.top1_agreement << s.first_divergence << s.milliseconds
                   << std::optional<std::string>();
    sample.exec();
    output.start() << arm.arm_id << items[i] << s.output << s.output_tokens;
    output.exec();
  }
}

void insert_diagnostics(SQLite::Database& database, const GroupResult::ArmResult& arm, int64_t haystack) {
  Repeated insert(
      database,
      "INSERT INTO diagnostic(arm_id, haystack_id, layer, kv_head, part, elements, clipped, flushed, "
      "absolute_max, error_energy, energy) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  for (const DiagnosticRecord& d : arm.diagnostics) {
    insert.start() << arm.arm_id << haystack << d.layer << d.kv_head << (d.keys ? "k" : "v") << d.elements
                   << d.clipped << d.flushed << d.absolute_max << d.error_energy << d.energy;
    insert.exec();
  }
}

// A process whose run was claimed by another must not write over what that one says.
void update_run(const SQLite::Database& database, const std::string& run_id, SQLite::Statement& update) {
  if (update.exec() != 1) {
    throw Error(ErrorKind::run, fmt::format("run {} in '{}' was deleted or taken over by another process",
                                            run_id, database.getFilename()));
  }
}

}  // namespace

void Store::begin_run(const RunRecord& run, std::vector<ArmRecord>& arms) {
  guarded(state_->path, [&] {
    SQLite::Database& database = state_->database;
    SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
    Repeated insert(
        database,
        "INSERT INTO run(id, suite, suite_json, suite_hash, config_json, config_hash, status, started_ms, "
        "finished_ms, heartbeat_ms, pid, seed, model, model_hash, tokenizer_hash, template_hash, "
        "decoding_json, "
        "compute, cache_mode, groups_planned, tool_version, git_sha, git_dirty, host, cpu, simd, threads, "
        "argv_json) "
        "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    insert.start() << run.id << run.suite << run.suite_json << run.suite_hash << run.config_json
                   << run.config_hash << name_of(run.status) << run.started_ms << run.finished_ms
                   << run.heartbeat_ms << run.pid << static_cast<int64_t>(run.seed) << run.model
                   << run.model_hash << run.tokenizer_hash << run.template_hash << run.decoding_json
                   << run.compute << run.cache_mode << run.groups_planned << run.tool_version << run.git_sha
                   << run.git_dirty << run.host << run.cpu << run.simd << run.threads << run.argv_json;
    insert.exec();
    Repeated arm_insert(
        database,
        "INSERT INTO arm(run_id, position, name, baseline, profile_json, profile_hash, k_format, "
        "v_format, cache_bytes_per_token) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)");
    for (ArmRecord& arm : arms) {
      arm_insert.start() << run.id << arm.position << arm.name << arm.baseline << arm.profile_json
                         << arm.profile_hash << arm.k_format << arm.v_format << arm.cache_bytes_per_token;
      arm_insert.exec();
      arm.id = database.getLastInsertRowid();
      arm.run_id = run.id;
    }
    transaction.commit();
    state_->owned_run = run.id;
    state_->owner_pid = run.pid;
  });
}

void Store::commit_group(const std::string& run_id, const GroupResult& group) {
  guarded(state_->path, [&] {
    SQLite::Database& database = state_->database;
    SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);

    SQLite::Statement owner(database, "SELECT pid FROM run WHERE id = ? AND status = 'running'");
    owner.bind(1, run_id);
    if (state_->owned_run != run_id || !owner.executeStep() ||
        owner.getColumn(0).getInt64() != state_->owner_pid) {
      throw Error(ErrorKind::run, fmt::format("run {} was taken over by another process", run_id),
                  "its results are whole: leave it to that process");
    }
    owner.reset();

    const int64_t haystack = haystack_id(database, group.haystack);
    const std::vector<int64_t> items = item_ids(database, haystack, group.items);
    for (const GroupResult::ArmResult& arm : group.arms) {
      if (arm.samples.size() != items.size()) {
        throw Error(ErrorKind::run, fmt::format("an arm of run {} has {} results for {} questions", run_id,
                                                arm.samples.size(), items.size()));
      }
      insert_samples(database, arm, items);
      insert_diagnostics(database, arm, haystack);
    }
    Repeated done(database, "INSERT INTO run_group(run_id, haystack_id) VALUES(?, ?)");
    done.start() << run_id << haystack;
    done.exec();
    transaction.commit();
  });
}

void Store::heartbeat(const std::string& run_id, int64_t now_ms) {
  guarded(state_->path, [&] {
    SQLite::Statement update(state_->database,
                             "UPDATE run SET heartbeat_ms = ? WHERE id = ? AND pid = coalesce(?, pid)");
    Binder(update) << now_ms << run_id << state_->pid_if_owned(run_id);
    update_run(state_->database, run_id, update);
  });
}

void Store::set_status(const std::string& run_id, RunStatus status, int64_t now_ms) {
  guarded(state_->path, [&] {
    SQLite::Statement update(
        state_->database,
        "UPDATE run SET status = ?, finished_ms = ?, heartbeat_ms = ? WHERE id = ? AND pid = "
        "coalesce(?, pid)");
    const bool finished = status != RunStatus::running;
    Binder(update) << name_of(status) << (finished ? std::optional(now_ms) : std::nullopt) << now_ms << run_id
                   << state_->pid_if_owned(run_id);
    update_run(state_->database, run_id, update);
  });
}

void Store::claim(const std::string& run_id, const std::string& host, int64_t pid, int64_t now_ms) {
  guarded(state_->path, [&] {
    SQLite::Statement update(state_->database,
                             "UPDATE run SET status = 'running', finished_ms = NULL, host = ?, pid = ?, "
                             "heartbeat_ms = ? WHERE id = ?");
    Binder(update) << host << pid << now_ms << run_id;
    update_run(state_->database, run_id, update);
    state_->owned_run = run_id;
    state_->owner_pid = pid;
  });
}

void Store::save_speeds(const std::vector<SpeedRecord>& speeds) {
  guarded(state_->path, [&] {
    SQLite::Transaction transaction(state_->database, SQLite::TransactionBehavior::IMMEDIATE);
    Repeated insert(
        state_->database,
        "INSERT OR REPLACE INTO speed(model_hash, compute, simd, threads, host, cpu, profile, length, "
        "prefix_flops, prefill_seconds, decode_seconds, measured_ms) "
        "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    for (const SpeedRecord& speed : speeds) {
      const SpeedKey& key = speed.key;
      insert.start() << key.model_hash << key.compute << key.simd << key.threads << key.host << key.cpu
                     << speed.profile << speed.length << speed.prefix_flops << speed.prefill_seconds
                     << speed.decode_seconds << speed.measured_ms;
      insert.exec();
    }
    transaction.commit();
  });
}

}  // namespace kveval

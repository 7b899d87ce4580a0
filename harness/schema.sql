-- kveval's results, schema version 2. One file holds many runs; runs that ask the same question share its item row.
-- application_id and user_version are set by the code that executes this (harness/migrate.cpp).
-- Columns ending in _hash or _sha are XXH3-128 in hex; token blobs are little-endian int32 (see store_write.cpp).

CREATE TABLE run(
  id             TEXT PRIMARY KEY,
  suite          TEXT NOT NULL,
  suite_json     TEXT NOT NULL CHECK(json_valid(suite_json)),
  suite_hash     TEXT NOT NULL,
  config_json    TEXT NOT NULL CHECK(json_valid(config_json)),
  config_hash    TEXT NOT NULL,
  status         TEXT NOT NULL CHECK(status IN ('running', 'complete', 'interrupted', 'failed')),
  started_ms     INTEGER NOT NULL,
  finished_ms    INTEGER CHECK((finished_ms IS NULL) = (status = 'running')),
  heartbeat_ms   INTEGER NOT NULL,
  pid            INTEGER NOT NULL,
  seed           INTEGER NOT NULL, -- the bits of a uint64
  model          TEXT NOT NULL,
  model_hash     TEXT NOT NULL,
  tokenizer_hash TEXT NOT NULL,
  template_hash  TEXT NOT NULL,
  decoding_json  TEXT NOT NULL CHECK(json_valid(decoding_json)),
  compute        TEXT NOT NULL,
  cache_mode     TEXT NOT NULL CHECK(cache_mode IN ('as-you-go', 'transcode')),
  groups_planned INTEGER NOT NULL,
  -- provenance: never changes a result
  tool_version   TEXT NOT NULL,
  git_sha        TEXT NOT NULL,
  git_dirty      INTEGER CHECK(git_dirty IN (0, 1)),
  host           TEXT NOT NULL,
  cpu            TEXT NOT NULL,
  simd           TEXT NOT NULL,
  threads        INTEGER NOT NULL,
  argv_json      TEXT NOT NULL CHECK(json_valid(argv_json))
) STRICT;

CREATE TABLE arm(
  id                    INTEGER PRIMARY KEY,
  run_id                TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
  position              INTEGER NOT NULL,
  name                  TEXT NOT NULL,
  baseline              INTEGER NOT NULL CHECK(baseline IN (0, 1)),
  profile_json          TEXT NOT NULL CHECK(json_valid(profile_json)),
  profile_hash          TEXT NOT NULL,
  k_format              TEXT NOT NULL,
  v_format              TEXT NOT NULL,
  cache_bytes_per_token REAL NOT NULL,
  UNIQUE(run_id, position),
  UNIQUE(run_id, name)
) STRICT;
CREATE UNIQUE INDEX one_baseline ON arm(run_id) WHERE baseline = 1;

-- One long prefix: the statistical cluster of the questions on it.
CREATE TABLE haystack(
  id            INTEGER PRIMARY KEY,
  task          TEXT NOT NULL,
  task_version  INTEGER NOT NULL,
  length        INTEGER NOT NULL,
  number        INTEGER NOT NULL, -- within its cell
  prefix_sha    TEXT NOT NULL,
  token_count   INTEGER NOT NULL,
  prefix_tokens BLOB NOT NULL,    -- zstd
  prefix_text   BLOB NOT NULL,    -- zstd
  UNIQUE(task, task_version, length, number, prefix_sha)
) STRICT;

-- One question. The same key with another prompt is another row: drift is for comparisons to refuse.
CREATE TABLE item(
  id              INTEGER PRIMARY KEY,
  haystack_id     INTEGER NOT NULL REFERENCES haystack,
  item_key        TEXT NOT NULL,
  prompt_sha      TEXT NOT NULL,
  number          INTEGER NOT NULL, -- within its haystack
  stratum         INTEGER,
  depth           REAL CHECK(depth BETWEEN 0 AND 1),
  question        TEXT NOT NULL,
  expected        TEXT NOT NULL,
  question_tokens BLOB NOT NULL,
  target_tokens   BLOB NOT NULL,
  UNIQUE(item_key, prompt_sha)
) STRICT;
CREATE INDEX item_haystack ON item(haystack_id);

-- A group that is committed whole: every arm, every question of one haystack.
CREATE TABLE run_group(
  run_id      TEXT NOT NULL REFERENCES run ON DELETE CASCADE,
  haystack_id INTEGER NOT NULL REFERENCES haystack,
  PRIMARY KEY(run_id, haystack_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE sample(
  arm_id           INTEGER NOT NULL REFERENCES arm ON DELETE CASCADE,
  item_id          INTEGER NOT NULL REFERENCES item,
  state            TEXT NOT NULL CHECK(state IN ('ok', 'error')),
  correct          INTEGER CHECK(correct IN (0, 1)),
  strict           INTEGER CHECK(strict IN (0, 1)),
  first            INTEGER CHECK(first IN (0, 1)),
  contains         INTEGER CHECK(contains IN (0, 1)),
  stop             TEXT CHECK(stop IN ('eos', 'string', 'length')),
  gold_nll         REAL,
  kl               REAL,
  top1_agreement   REAL CHECK(top1_agreement BETWEEN 0 AND 1),
  first_divergence INTEGER,
  milliseconds     REAL NOT NULL,
  error            TEXT,
  PRIMARY KEY(arm_id, item_id),
  CHECK((state = 'ok') = (correct IS NOT NULL)),
  CHECK((state = 'ok') = (strict IS NOT NULL AND first IS NOT NULL AND contains IS NOT NULL)),
  CHECK((state = 'ok') = (stop IS NOT NULL)),
  CHECK((state = 'error') = (error IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX sample_item ON sample(item_id);

-- What was answered; apart from sample so that counting reads little.
CREATE TABLE output(
  arm_id  INTEGER NOT NULL,
  item_id INTEGER NOT NULL,
  text    TEXT NOT NULL,
  tokens  BLOB NOT NULL,
  PRIMARY KEY(arm_id, item_id),
  FOREIGN KEY(arm_id, item_id) REFERENCES sample ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- What encoding one haystack (prefix and answers) did to the numbers of one KV head.
CREATE TABLE diagnostic(
  arm_id       INTEGER NOT NULL REFERENCES arm ON DELETE CASCADE,
  haystack_id  INTEGER NOT NULL REFERENCES haystack,
  layer        INTEGER NOT NULL,
  kv_head      INTEGER NOT NULL,
  part         TEXT NOT NULL CHECK(part IN ('k', 'v')),
  elements     INTEGER NOT NULL,
  clipped      INTEGER NOT NULL,
  flushed      INTEGER NOT NULL,
  absolute_max REAL NOT NULL,
  error_energy REAL NOT NULL,
  energy       REAL NOT NULL,
  PRIMARY KEY(arm_id, haystack_id, layer, kv_head, part)
) STRICT, WITHOUT ROWID;

-- How fast one machine was with one model under one profile at one length: the newest figures of 'kveval bench', which
-- the times of plans are made of. Belongs to no run.
CREATE TABLE speed(
  model_hash      TEXT NOT NULL,
  compute         TEXT NOT NULL,
  simd            TEXT NOT NULL,
  threads         INTEGER NOT NULL,
  host            TEXT NOT NULL,
  cpu             TEXT NOT NULL,
  profile         TEXT NOT NULL,    -- canonical name
  length          INTEGER NOT NULL, -- tokens of the prompt
  prefix_flops    REAL NOT NULL CHECK(prefix_flops > 0),
  prefill_seconds REAL NOT NULL CHECK(prefill_seconds > 0),
  decode_seconds  REAL NOT NULL CHECK(decode_seconds > 0), -- a token
  measured_ms     INTEGER NOT NULL,
  PRIMARY KEY(model_hash, compute, simd, threads, host, cpu, profile, length)
) STRICT, WITHOUT ROWID;

-- The same question under two arms, both answered.
CREATE VIEW pair AS
  SELECT b.arm_id AS base_arm, c.arm_id AS candidate_arm, i.id AS item_id, i.item_key,
         h.task, h.length, h.number AS haystack, i.number, i.stratum, i.depth,
         b.correct AS base_correct, c.correct AS candidate_correct,
         b.correct AND NOT c.correct AS loss, c.correct AND NOT b.correct AS gain
    FROM sample b
    JOIN sample c ON c.item_id = b.item_id AND c.arm_id <> b.arm_id
    JOIN item i ON i.id = b.item_id
    JOIN haystack h ON h.id = i.haystack_id
   WHERE b.state = 'ok' AND c.state = 'ok';

-- Pairs that say nothing because at least one side is an error: never counted as wrong, never silently dropped.
CREATE VIEW pair_lost_to_error AS
  SELECT b.arm_id AS base_arm, c.arm_id AS candidate_arm, i.id AS item_id, i.item_key,
         h.task, h.length, h.number AS haystack, i.number,
         b.error AS base_error, c.error AS candidate_error
    FROM sample b
    JOIN sample c ON c.item_id = b.item_id AND c.arm_id <> b.arm_id
    JOIN item i ON i.id = b.item_id
    JOIN haystack h ON h.id = i.haystack_id
   WHERE b.state = 'error' OR c.state = 'error';

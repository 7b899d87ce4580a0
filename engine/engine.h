// Engine: what turns tokens into answers under one cache profile. The only virtual interface of the engines.
//
// A PromptGroup is the unit of work because one prefill of a long prefix serves all questions on it. Whatever
// an engine does inside (batching, forking, threads), a branch's replies are those of running it alone: the
// same tokens in give the same bits out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/profile.h"
#include "engine/text/tokenizer.h"

namespace kveval {

struct ChatTemplate;  // engine/text/chat.h

enum class Ask {
  nothing,   // context only
  generate,  // decode greedily under Decoding
  score,     // teacher-forced log-probabilities of Turn::target
};

struct Turn {
  Tokens tokens;     // appended to everything before it
  std::string text;  // the same as tokens, for engines without token input
  Ask ask = Ask::nothing;
  Tokens target;  // what to score (Ask::score)
};

struct Branch {
  std::vector<Turn> turns;  // a turn sees the prefix and all earlier turns, replies (or targets) included
};

struct PromptGroup {
  Turn prefix;  // Ask::nothing; shared by all branches; may be without tokens
  std::vector<Branch> branches;
};

// Greedy: the largest logit, the lowest id among equals.
struct Decoding {
  int max_tokens = 64;
  std::vector<std::string> stop_strings;  // generation ends once the reply's text contains one of them
  bool stop_at_eos = true;
  Tokens stop_tokens{};  // end a reply as EOS does: a chat template's end of turn
};

enum class Stop { eos, string, length, error };

// One token of a reply (generate) or of a target (score). Natural logarithms.
struct TokenStats {
  Token token = 0;
  float logprob = 0;
  Token top = 0;  // the most probable token at this position
  float top_logprob = 0;
};

struct Timing {
  double prefix_seconds = 0;  // the shared prefix, the same figure in every reply of a group
  double reply_seconds = 0;   // this turn, its share of batched steps
};

struct Reply {
  // Generated tokens, EOS and stop tokens left out, those of a stop string kept; empty for score.
  Tokens tokens;
  std::string text;  // decoded, cut before the stop string
  Stop stop = Stop::length;
  std::optional<Error> error;     // set iff stop == Stop::error: such a reply is never a wrong answer
  std::vector<TokenStats> stats;  // one per generated or scored token
  Timing timing;
};

// What encoding one part (keys or values) of one KV head of one layer did to the numbers. A row is summed in
// 16 float32 lanes, rows in float64 in token order, branches in order: no sum depends on batching.
struct CacheDiagnostic {
  int layer = 0;
  int kv_head = 0;
  bool keys = true;
  uint64_t elements = 0;
  uint64_t clipped = 0;     // |x / scale| rounds beyond the format's largest value
  uint64_t flushed = 0;     // x != 0 stored as zero
  float absolute_max = 0;   // of x before encoding
  double error_energy = 0;  // sum of (decoded - x)^2
  double energy = 0;        // sum of x^2; relative round-trip error = sqrt(error_energy / energy)
};

// Callbacks come from the thread that called run(). Empty functions are skipped.
struct Events {
  std::function<void(size_t branch, size_t turn, Reply&&)> on_reply;
  // Ask::generate only: the reply as far as it is there, after each of its tokens.
  std::function<void(size_t branch, size_t turn, const Reply& so_far)> on_token;
  // Ask::score only: logits (one per vocabulary entry) that predict target[position]. Valid during the call.
  std::function<void(size_t branch, size_t turn, size_t position, std::span<const float> logits)> on_logits;
  std::function<void(std::span<const CacheDiagnostic>)> on_diagnostics;  // once, after the last reply
  // Tokens of the group fed so far; false cancels: run() throws Error{cancelled}.
  std::function<bool(uint64_t done_tokens)> progress;
};

struct EngineInfo {
  std::string name;        // "cpu"
  std::string model;       // the specification that was loaded, canonical: "phantom:kappa=80,..."
  std::string model_hash;  // XXH3-128 of configuration and weights
  int context = 0;         // longest sequence, tokens
  int vocabulary = 0;
  int layers = 0;
  const Tokenizer* tokenizer = nullptr;  // null: the engine takes text only
  const ChatTemplate* chat = nullptr;    // how the model wants to be spoken to; null: plain text
  const Error* chat_error = nullptr;  // why the checkpoint's template is not understood; chat is then plain
  int concurrency = 0;                // most branches advanced together; 0: all of a group
  std::string compute;                // "float32" | "bfloat16": results of different ones are never compared
  std::string simd;                   // for information: never changes results
  int threads = 1;                    // for information: never changes results
};

struct GroupShape {
  size_t prefix_tokens = 0;
  size_t branches = 0;
  size_t branch_tokens = 0;  // longest branch, reply (or target) included
  size_t reply_tokens = 0;   // of these, the reply's (or target's)
};

struct Estimate {
  double prefix_seconds = 0;  // a guess, from the speed of one large product
  double branch_seconds = 0;  // of all branches; likewise
  size_t cache_bytes = 0;     // peak of the paged cache

  // Counted, not guessed. Multiply-adds x 2, and 4 * heads * head_dim for each key that a query sees.
  double prefix_flops = 0;
  double branch_flops = 0;  // of all branches, each fed but for its reply's last token
  double step_bytes = 0;    // weights and cache that the last step of one branch reads

  double seconds() const { return prefix_seconds + branch_seconds; }
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual EngineInfo describe() const = 0;

  // Throws Error{usage} naming what is not supported: a profile is never approximated.
  virtual void check(const Profile& profile) const = 0;

  // Fills in static scales by running `calibration`; profiles without static scales come back unchanged.
  virtual Profile resolve(const Profile& profile, std::span<const Tokens> calibration) = 0;

  virtual Estimate estimate(const GroupShape& shape, const Profile& profile) const = 0;

  // Every turn that asks something gets exactly one on_reply. What goes wrong inside one branch (too long for
  // the context) is a Reply with an error; what concerns the group (out of memory, cancelled) throws Error.
  virtual void run(const PromptGroup& group, const Decoding& decoding, const Profile& profile,
                   const Events& events) = 0;
};

}  // namespace kveval

// FakeEngine: an Engine that follows a script, so that what surrounds engines is tested in milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace kveval {

// One turn that asks something, as a script sees it.
struct FakeTurn {
  const Profile& profile;
  const Turn& turn;
  size_t branch = 0;
  size_t index = 0;  // of the turn within its branch
  size_t call = 0;   // how many run() calls came before this one
};

struct FakeScript {
  EngineInfo
      info;  // a tokenizer and a context are the least a runner needs; vocabulary gives the logits' length

  // The answer to Ask::generate. An Error inside it makes it an error reply; stats are filled in where
  // missing. Default: ends at once.
  std::function<Reply(const FakeTurn&)> generate;
  // The logits that predict target[position]. Default: deterministic noise that depends on profile, turn and
  // position.
  std::function<std::vector<float>(const FakeTurn&, size_t position)> logits;
  // The error, if any, of a turn that asks for a score.
  std::function<std::optional<Error>(const FakeTurn&)> score_error;
  std::function<std::vector<CacheDiagnostic>(const PromptGroup&, const Profile&)> diagnostics;
  // Called before anything else in run(); throw here to fail as a whole group does.
  std::function<void(const Profile&, size_t call)> on_run;
  // What resolve() gives a profile that needs static scales.
  std::function<Profile(const Profile&, std::span<const Tokens>)> resolve;

  // Of estimates. A token of the prefix and of a branch count alike.
  double seconds_per_token = 0.001;
  double flops_per_token = 1000;
  size_t bytes_per_token = 100;     // of the cache; a step reads it once
  uint64_t progress_tokens = 1024;  // progress is told every so many tokens
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(FakeScript script);

  EngineInfo describe() const override;
  void check(const Profile& profile) const override;
  Profile resolve(const Profile& profile, std::span<const Tokens> calibration) override;
  Estimate estimate(const GroupShape& shape, const Profile& profile) const override;
  void run(const PromptGroup& group, const Decoding& decoding, const Profile& profile,
           const Events& events) override;

  size_t calls() const { return calls_; }  // of run(), the failed ones included

 private:
  FakeScript script_;
  size_t calls_ = 0;
};

// A script's `generate` from a table: profile name (canonical) to question tokens to answer. The profile ""
// stands for those without an entry of their own; a question without an entry is an error reply.
using FakeReplies = std::map<std::string, std::map<Tokens, Reply>>;
std::function<Reply(const FakeTurn&)> replies_from(FakeReplies table);

// Log-probability of `token` under `logits`. Throws Error{run} when they do not reach so far.
TokenStats stats_of(std::span<const float> logits, Token token);

}  // namespace kveval

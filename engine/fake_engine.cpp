#include "engine/fake_engine.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "engine/deterministic_math.h"
#include "engine/hash.h"
#include "engine/random.h"

namespace kveval {
namespace {

std::vector<float> noise_logits(const FakeTurn& turn, size_t position, int vocabulary) {
  const std::string key = profile_hash(turn.profile) + hash_hex(turn.turn.tokens) +
                          hash_hex(turn.turn.target) + std::to_string(position);
  Random random(std::stoull(hash_hex(key).substr(0, 16), nullptr, 16));
  std::vector<float> logits(static_cast<size_t>(vocabulary));
  for (float& logit : logits) logit = static_cast<float>(random.normal());
  return logits;
}

uint64_t tokens_of(const PromptGroup& group) {
  uint64_t tokens = group.prefix.tokens.size();
  for (const Branch& branch : group.branches) {
    for (const Turn& turn : branch.turns) tokens += turn.tokens.size() + turn.target.size();
  }
  return tokens;
}

// Tells progress every `step` tokens up to `end`; a refusal cancels the run as in any engine.
void advance(uint64_t& done, uint64_t end, uint64_t step, const Events& events) {
  while (done < end) {
    done = std::min(end, done + step);
    if (events.progress && !events.progress(done)) throw Error(ErrorKind::cancelled, "cancelled");
  }
}

}  // namespace

TokenStats stats_of(std::span<const float> logits, Token token) {
  if (token < 0 || size_t(token) >= logits.size()) {
    throw Error(ErrorKind::run, "the script gives no logit for token " + std::to_string(token));
  }
  const auto top = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += det::exp(double(logit) - double(*top));
  const double log_sum = double(*top) + det::log(sum);
  return {token, float(double(logits[size_t(token)]) - log_sum), Token(top - logits.begin()),
          float(double(*top) - log_sum)};
}

FakeEngine::FakeEngine(FakeScript script) : script_(std::move(script)) {}

EngineInfo FakeEngine::describe() const { return script_.info; }

void FakeEngine::check(const Profile&) const {}

Profile FakeEngine::resolve(const Profile& profile, std::span<const Tokens> calibration) {
  if (!profile.needs_resolve() || !script_.resolve) return profile;
  return script_.resolve(profile, calibration);
}

Estimate FakeEngine::estimate(const GroupShape& shape, const Profile&) const {
  const size_t asked = shape.branches * shape.branch_tokens;
  Estimate estimate;
  estimate.prefix_seconds = double(shape.prefix_tokens) * script_.seconds_per_token;
  estimate.branch_seconds = double(asked) * script_.seconds_per_token;
  estimate.cache_bytes = (shape.prefix_tokens + asked) * script_.bytes_per_token;
  estimate.prefix_flops = double(shape.prefix_tokens) * script_.flops_per_token;
  estimate.branch_flops = double(asked) * script_.flops_per_token;
  estimate.step_bytes = double((shape.prefix_tokens + shape.branch_tokens) * script_.bytes_per_token);
  return estimate;
}

void FakeEngine::run(const PromptGroup& group, const Decoding& decoding, const Profile& profile,
                     const Events& events) {
  const size_t call = calls_++;
  if (script_.on_run) script_.on_run(profile, call);
  uint64_t done = 0;
  const uint64_t total = tokens_of(group);
  advance(done, group.prefix.tokens.size(), script_.progress_tokens, events);

  for (size_t branch = 0; branch < group.branches.size(); ++branch) {
    for (size_t index = 0; index < group.branches[branch].turns.size(); ++index) {
      const Turn& turn = group.branches[branch].turns[index];
      const FakeTurn asked{profile, turn, branch, index, call};
      advance(done, std::min<uint64_t>(total, done + turn.tokens.size() + turn.target.size()),
              script_.progress_tokens, events);
      if (turn.ask == Ask::nothing) continue;

      Reply reply;
      reply.stop = Stop::eos;
      if (turn.ask == Ask::generate) {
        if (script_.generate) reply = script_.generate(asked);
        if (reply.tokens.size() > size_t(decoding.max_tokens)) {
          reply.tokens.resize(size_t(decoding.max_tokens));
          reply.stop = Stop::length;
        }
        if (reply.stats.empty()) {
          for (const Token token : reply.tokens) reply.stats.push_back({token, 0, token, 0});
        }
      } else {
        if (script_.score_error) reply.error = script_.score_error(asked);
        for (size_t position = 0; !reply.error && position < turn.target.size(); ++position) {
          const std::vector<float> logits = script_.logits
                                                ? script_.logits(asked, position)
                                                : noise_logits(asked, position, script_.info.vocabulary);
          if (events.on_logits) events.on_logits(branch, index, position, logits);
          reply.stats.push_back(stats_of(logits, turn.target[position]));
        }
      }
      if (reply.error) reply.stop = Stop::error;
      if (events.on_reply) events.on_reply(branch, index, std::move(reply));
    }
  }
  if (events.on_diagnostics) {
    events.on_diagnostics(script_.diagnostics ? script_.diagnostics(group, profile)
                                              : std::vector<CacheDiagnostic>());
  }
}

std::function<Reply(const FakeTurn&)> replies_from(FakeReplies table) {
  return [table = std::move(table)](const FakeTurn& asked) {
    for (const std::string& name : {canonical(asked.profile), std::string()}) {
      const auto profile = table.find(name);
      if (profile == table.end()) continue;
      const auto reply = profile->second.find(asked.turn.tokens);
      if (reply != profile->second.end()) return reply->second;
    }
    Reply missing;
    missing.error = Error(ErrorKind::run, "the script has no answer to this question");
    return missing;
  };
}

}  // namespace kveval

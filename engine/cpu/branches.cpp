#include "engine/cpu/branches.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <utility>

namespace kveval::cpu {

namespace {

using Clock = std::chrono::steady_clock;

struct Run {
  size_t index;  // of the branch
  const Branch* branch;
  kv::Sequence sequence;
  size_t turn = 0;
  Tokens pending{};                 // not in the cache yet
  size_t first_wanted = 0;          // logits behind pending[first_wanted ..] belong to the turn's question
  size_t scored = 0;                // targets seen (Ask::score)
  std::optional<Token> produced{};  // by this step: context for the next one
  bool turn_done = false;
  Reply reply{};

  const Turn& current() const { return branch->turns[turn]; }
};

TokenStats stats_of(const Kernels& kernels, std::span<const float> logits, Token token) {
  const float total = kernels.log_sum_exp(logits.data(), logits.size());
  const Token top = kernels.argmax(logits.data(), logits.size());
  return {token, logits[size_t(token)] - total, top, logits[size_t(top)] - total};
}

// Puts the current turn's tokens behind what an earlier turn left to feed. For a score the targets but the
// last are fed too (teacher forcing); the last one predicts nothing, so it waits for the next turn.
void begin_turn(Run& run) {
  const Turn& turn = run.current();
  run.reply = {};
  run.turn_done = false;
  run.scored = 0;
  run.pending.insert(run.pending.end(), turn.tokens.begin(), turn.tokens.end());
  run.first_wanted = turn.ask == Ask::nothing ? run.pending.size() : run.pending.size() - 1;
  if (turn.ask == Ask::score) {
    run.pending.insert(run.pending.end(), turn.target.begin(), turn.target.end() - 1);
  }
}

class BranchSet {
 public:
  BranchSet(const PromptGroup& group, const Decoding& decoding, const Tokenizer* tokenizer,
            const Kernels& kernels, const BranchLimits& limits, const Events& events)
      : group_(group),
        decoding_(decoding),
        tokenizer_(tokenizer),
        kernels_(kernels),
        limits_(limits),
        events_(events),
        results_{std::vector<std::vector<CacheDiagnostic>>(group.branches.size()), true} {}

  BranchResults run(Forward& forward, kv::Cache& cache, const kv::Sequence& prefix,
                    const std::function<void(size_t)>& fed) {
    size_t next = 0;
    const size_t most = limits_.max_branches > 0 ? size_t(limits_.max_branches) : group_.branches.size();
    while (true) {
      while (live_.size() < most && next < group_.branches.size()) {
        live_.push_back({next, &group_.branches[next], cache.fork(prefix)});
        next++;
        if (live_.back().branch->turns.empty()) {
          finish_branch(live_.back());
          live_.pop_back();
        } else {
          start_turns(live_.back());
        }
      }
      std::erase_if(live_, [](const Run& run) { return run.turn == run.branch->turns.size(); });
      if (live_.empty() && next == group_.branches.size()) return std::move(results_);
      if (!live_.empty()) fed(step(forward, cache));
    }
  }

 private:
  // One forward pass over as many waiting tokens as fit into a chunk, the first branches first.
  size_t step(Forward& forward, kv::Cache& cache) {
    std::vector<Feed> feeds;
    std::vector<Run*> runs;
    size_t budget = size_t(limits_.chunk_tokens);
    for (Run& run : live_) {
      if (budget == 0) break;
      const size_t take = std::min(budget, run.pending.size());
      feeds.push_back({&run.sequence, {run.pending.data(), take}, std::min(run.first_wanted, take)});
      runs.push_back(&run);
      budget -= take;
    }
    const auto start = Clock::now();
    forward.run(cache, feeds, [&](size_t feed, size_t, std::span<const float> logits) {
      take_logits(*runs[feed], logits);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const size_t total = size_t(limits_.chunk_tokens) - budget;
    for (size_t f = 0; f < feeds.size(); f++) {
      Run& run = *runs[f];
      const size_t taken = feeds[f].tokens.size();
      run.reply.timing.reply_seconds += seconds * double(taken) / double(total);
      run.first_wanted -= std::min(run.first_wanted, taken);
      run.pending.erase(run.pending.begin(), run.pending.begin() + std::ptrdiff_t(taken));
      if (run.produced) run.pending.push_back(*std::exchange(run.produced, std::nullopt));
      if (run.turn_done || (run.pending.empty() && run.current().ask == Ask::nothing)) {
        finish_turn(run);
        start_turns(run);
      } else {
        refuse_if_too_long(run);
      }
    }
    return total;
  }

  void take_logits(Run& run, std::span<const float> logits) {
    const Turn& turn = run.current();
    if (turn.ask == Ask::score) {
      const Token target = turn.target[run.scored];
      add_stats(run, logits, target);
      if (events_.on_logits) events_.on_logits(run.index, run.turn, run.scored, logits);
      run.turn_done = ++run.scored == turn.target.size();
      if (run.turn_done) run.produced = target;
    } else {
      generate(run, logits);
    }
  }

  void add_stats(Run& run, std::span<const float> logits, Token token) {
    run.reply.stats.push_back(stats_of(kernels_, logits, token));
    if (!std::isfinite(run.reply.stats.back().top_logprob)) results_.finite_logits = false;
  }

  void generate(Run& run, std::span<const float> logits) {
    Reply& reply = run.reply;
    const Token token = kernels_.argmax(logits.data(), logits.size());
    add_stats(run, logits, token);
    if (ends_reply(token)) {
      reply.stop = Stop::eos;
      run.turn_done = true;
      return;
    }
    reply.tokens.push_back(token);
    run.produced = token;
    if (tokenizer_) {
      reply.text = tokenizer_->decode(reply.tokens);
      size_t cut = std::string::npos;
      for (const std::string& stop : decoding_.stop_strings) cut = std::min(cut, reply.text.find(stop));
      if (cut != std::string::npos) {
        reply.text.resize(cut);
        reply.stop = Stop::string;
        run.turn_done = true;
        return;
      }
    }
    if (events_.on_token) events_.on_token(run.index, run.turn, reply);
    if (int(reply.tokens.size()) >= decoding_.max_tokens) {
      reply.stop = Stop::length;
      run.turn_done = true;
    }
  }

  bool ends_reply(Token token) const {
    if (decoding_.stop_at_eos && tokenizer_ && tokenizer_->eos() == token) return true;
    const Tokens& stops = decoding_.stop_tokens;
    return std::find(stops.begin(), stops.end(), token) != stops.end();
  }

  void refuse_if_too_long(Run& run) {
    const size_t needed = run.sequence.length() + run.pending.size();
    if (needed <= limits_.context) return;
    fail(run, Error(ErrorKind::run,
                    fmt::format("branch {} needs {} tokens at turn {}, the model's context holds {}",
                                run.index, needed, run.turn, limits_.context),
                    "shorten the prompt or the answer"));
  }

  // Every turn still to be answered gets the error: nothing of it may be scored.
  void fail(Run& run, const Error& error) {
    for (; run.turn < run.branch->turns.size(); run.turn++) {
      run.reply = {};
      run.reply.stop = Stop::error;
      run.reply.error = error;
      reply_to(run);
    }
    finish_branch(run);
  }

  void reply_to(Run& run) {
    run.reply.timing.prefix_seconds = limits_.prefix_seconds;
    if (run.current().ask != Ask::nothing && events_.on_reply) {
      events_.on_reply(run.index, run.turn, std::move(run.reply));
    }
  }

  void finish_turn(Run& run) {
    reply_to(run);
    run.turn++;
  }

  // Opens the next turn, or closes the branch behind its last.
  void start_turns(Run& run) {
    if (run.turn == run.branch->turns.size()) {
      finish_branch(run);
    } else {
      begin_turn(run);
      refuse_if_too_long(run);
    }
  }

  void finish_branch(Run& run) {
    const auto all = run.sequence.diagnostics();
    results_.diagnostics[run.index].assign(all.begin(), all.end());
  }

  const PromptGroup& group_;
  const Decoding& decoding_;
  const Tokenizer* tokenizer_;
  const Kernels& kernels_;
  const BranchLimits& limits_;
  const Events& events_;
  BranchResults results_;
  std::deque<Run> live_;
};

}  // namespace

BranchResults run_branches(const PromptGroup& group, const Decoding& decoding, const Tokenizer* tokenizer,
                           const Kernels& kernels, Forward& forward, kv::Cache& cache,
                           const kv::Sequence& prefix, const BranchLimits& limits, const Events& events,
                           const std::function<void(size_t)>& fed) {
  return BranchSet(group, decoding, tokenizer, kernels, limits, events).run(forward, cache, prefix, fed);
}

}  // namespace kveval::cpu

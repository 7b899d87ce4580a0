// Before and after, pair by pair: the same question under two arms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/store.h"
#include "reports/statistics/intervals.h"

namespace kveval {

// One arm with everything reports need of it.
struct ArmData {
  RunRecord run;
  ArmRecord arm;
  std::vector<SampleView> samples;            // by family, length, haystack, index
  std::vector<DiagnosticRecord> diagnostics;  // one per (layer, KV head, part), summed over haystacks
};

// The arms of a run by position, the order `kveval run --profiles` gave.
std::vector<ArmData> load_run(const Store& store, const RunRecord& run);

// What one arm answered in a set of samples, those with errors left out.
struct Tally {
  size_t scored = 0;
  size_t correct = 0;  // by each task's primary scorer
  size_t strict = 0, first = 0, contains = 0;
  size_t scorers_disagree = 0;     // samples on which the three scorers differ
  std::optional<double> gold_nll;  // mean over samples, nats per expected answer
  double accuracy() const {
    return scored == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(scored);
  }
  Interval interval() const { return wilson(correct, scored); }
};

// Samples with an error are skipped, never counted as wrong.
Tally tally(std::span<const SampleView* const> samples);

// What the arms of a run answered in one task and length, or in all of them.
struct CellSamples {
  std::string task;                                          // empty: pooled
  int length = 0;                                            // tokens; 0: pooled
  std::map<int64_t, std::vector<const SampleView*>> by_arm;  // arm id
  size_t haystacks = 0;
  size_t questions = 0;  // asked of each arm

  Tally tally_of(int64_t arm_id) const;    // all zero for an arm without samples
  size_t errors_of(int64_t arm_id) const;  // samples without a score
};

// By task and length; where there are several, a last one pooled. Points into `arms`.
std::vector<CellSamples> cells_of(std::span<const ArmData> arms);

// Below this accuracy of the baseline a cell holds too few right answers to lose: it is no evidence of
// safety.
inline constexpr double kFloorAccuracy = 0.20;

// The pairs at one depth of a cell.
struct StratumDifference {
  std::optional<int> stratum;
  size_t pairs = 0, losses = 0, gains = 0;
};

// The pairs of one task and length, or of all of them.
struct CellComparison {
  std::string task;              // empty: pooled
  int length = 0;                // tokens; 0: pooled
  Tally base, candidate;         // over the same pairs
  size_t losses = 0, gains = 0;  // right -> wrong, wrong -> right
  size_t haystacks = 0;          // clusters with at least one pair
  double p = 1;                  // one-sided: losses exceed gains, exact sign flips of haystacks
  double p_holm = 1;             // p adjusted for looking at every cell; pooled: p itself
  size_t lost_pairs = 0;         // an error in either arm: shown, never scored
  // Against the base arm, means over pairs; only where the base is the baseline that the run measured them
  // against.
  std::optional<double> kl, top1_agreement;
  std::vector<StratumDifference> strata;  // by stratum, samples without one first

  size_t pairs() const { return base.scored; }
  // More losses than gains, beyond what chance explains at level alpha.
  bool worse(double alpha) const { return losses > gains && p_holm < alpha; }
  bool floor() const { return pairs() > 0 && base.accuracy() < kFloorAccuracy; }
};

// A pair whose correctness differs.
struct Flip {
  bool loss = false;
  size_t number = 0;  // of the question in the candidate's run, from 1: `kveval show RUN:number`
  std::string item_key, task;
  int length = 0, haystack = 0, index = 0;
  std::optional<double> depth;
  std::string expected, base_output, candidate_output;
  std::optional<int> first_divergence;  // first generated token that differs
};

struct Comparison {
  RunRecord base_run, candidate_run;
  ArmRecord base, candidate;
  std::vector<CellComparison> cells;  // by task, length
  CellComparison pooled;
  std::vector<Flip> flips;                   // losses first, each part in the order of the samples
  size_t only_base = 0, only_candidate = 0;  // samples without a partner in the other arm
};

// The cell (length 0: pooled) of the comparison whose candidate is this arm, null where there is none.
const CellComparison* find_cell(std::span<const Comparison> comparisons, int64_t candidate_arm_id,
                                std::string_view task, int length);

// Throws Error{no_baseline} when the arms must not be compared, naming every setting that differs (model,
// tokenizer, template, decoding, compute type, cache mode); when a question drifted: same key and another
// prompt, or a task whose version changed; and when not one sample is in both.
Comparison compare(const ArmData& base, const ArmData& candidate);

// Every other arm of a run against its baseline, or the named arms. Throws Error{usage} listing the arms
// there are, Error{no_baseline} when there is nothing to compare.
std::vector<Comparison> compare_run(std::span<const ArmData> arms, std::string_view base = {},
                                    std::string_view candidate = {});

// The same against the baseline, or none where a run has nothing to compare and still has results to show:
// one profile, no baseline, or interrupted before its first haystack.
std::vector<Comparison> comparisons_of(std::span<const ArmData> arms);

// Two runs, the first the base: arms of the same name, or the named ones. Same errors.
std::vector<Comparison> compare_runs(std::span<const ArmData> base_arms,
                                     std::span<const ArmData> candidate_arms, std::string_view base = {},
                                     std::string_view candidate = {});

}  // namespace kveval

// Results as text: aligned tables for people at a terminal, plain when piped.
#pragma once

#include <span>
#include <string>

#include "reports/comparison.h"

namespace kveval {

struct TerminalStyle {
  bool colour = false;  // ANSI escapes
  double alpha = 0.05;  // cells whose adjusted p is below it are marked; 0 < alpha < 1
};

// Per length and pooled: accuracy of both arms with Wilson 95 % intervals, losses, gains, p, NLL, KL, and
// beneath what a reader must know before believing it (pairs lost to errors, floor cells, scorers that
// disagree).
std::string render_comparison(const Comparison& comparison, const TerminalStyle& style);

// Each flipped sample, losses first: where it is, what was expected, both answers.
std::string render_flips(const Comparison& comparison, const TerminalStyle& style);

// One line: "e4m3 against fp16: 12 losses, 0 gains in 80 pairs, p <0.0001".
std::string render_line(const Comparison& comparison);

// The end of `kveval run`: one table a length, one line a profile. `comparisons` are those of
// compare_run(arms).
std::string render_run_summary(const RunRecord& run, std::span<const ArmData> arms,
                               std::span<const Comparison> comparisons, const TerminalStyle& style);

}  // namespace kveval

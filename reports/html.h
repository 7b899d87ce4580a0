// A run as one HTML file that needs nothing else: no script, no network, no fonts. Opens from disk, prints,
// survives as a CI artefact.
#pragma once

#include <span>
#include <string>

#include "reports/comparison.h"

namespace kveval {

// `comparisons` are those of compare_run(arms), empty where the run has nothing to compare. The page is a
// function of its arguments to the byte (times come from the run) and stays below 2 MB: answers beyond that
// are counted and the command that lists them is named.
std::string render_html(const RunRecord& run, std::span<const ArmData> arms,
                        std::span<const Comparison> comparisons);

}  // namespace kveval

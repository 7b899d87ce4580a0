// The parts of the page, for reports/html.cpp alone. Each returns complete, balanced elements.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "reports/comparison.h"

namespace kveval::html {

// Model output and names are text, never markup: printable(), then every character HTML gives a meaning
// escaped.
std::string escape(std::string_view text, size_t limit = 300);

// A table that scrolls sideways on its own on a narrow screen, by keyboard too.
std::string scrolling(std::string_view label, std::string_view table);

std::string style_sheet();  // the heat maps' colour classes included: c0..c100, n-100..n100

std::string headline(std::span<const ArmData> arms, std::span<const Comparison> comparisons);
std::string summary(std::span<const ArmData> arms, std::span<const Comparison> comparisons);
std::string heat_maps(std::span<const ArmData> arms, std::span<const Comparison> comparisons);
std::string flips(const RunRecord& run, std::span<const Comparison> comparisons);
std::string diagnostics(std::span<const ArmData> arms);
std::string provenance(const RunRecord& run, std::span<const ArmData> arms);

// "82 of 120": the class of a heat-map cell, e.g. "c68".
std::string accuracy_class(size_t correct, size_t scored);

}  // namespace kveval::html

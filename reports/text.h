// Numbers, times and model output as reports print them; the same text on every machine and locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reports/statistics/intervals.h"

namespace kveval {

// Text of unknown origin made safe to print: control and bidirectional-override characters dropped, line
// breaks shown as U+21B5, bytes that are not UTF-8 as U+FFFD, and what is longer than `limit` characters cut
// with an ellipsis.
std::string printable(std::string_view text, size_t limit);

size_t display_width(std::string_view utf8);  // characters, each one column wide

std::string length_label(int tokens);                  // 8192 -> "8k", 5000 -> "5000"
std::string percent(double share);                     // 0.925 -> "92.5%"
std::string interval_text(const Interval& interval);   // "[80.1, 97.4]", percent
std::string p_text(double p);                          // "0.0313"; below 0.0001 "<0.0001"
std::string small_text(double value);                  // three significant digits: "0.00213", "3.1e-07"
std::string grouped(uint64_t value);                   // 1234567 -> "1,234,567"
std::string counted(size_t n, std::string_view noun);  // "1 pair", "2 pairs"
std::string utc_text(int64_t unix_ms);                 // "2026-11-29 18:42:33 UTC"

inline constexpr const char* kNone = "–";                    // what a table shows where there is no number
std::string small_text(const std::optional<double>& value);  // kNone when empty

}  // namespace kveval

#include "reports/text.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

namespace kveval {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// Decodes one character and moves past it. Overlong forms, surrogates and cut sequences are one U+FFFD a
// byte.
char32_t next_character(std::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  char32_t c = size == 1 ? lead : lead & (0x7Fu >> size);
  bool valid = size == 1 || (lead >= 0xC2 && lead <= 0xF4 && text.size() >= size);
  for (size_t i = 1; valid && i < size; ++i) {
    valid = (byte(i) & 0xC0) == 0x80;
    c = (c << 6) | (byte(i) & 0x3F);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  valid = valid && c >= kSmallest[size] && c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
  text.remove_prefix(valid ? size : 1);
  return valid ? c : kReplacement;
}

void append_utf8(std::string& out, char32_t c) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_line_break(char32_t c) { return c == '\n' || c == 0x85 || c == 0x2028 || c == 0x2029; }

// Characters that act on the terminal or on the order of the text around them instead of showing anything.
bool is_invisible(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0x061C || c == 0xFEFF ||
         (c >= 0xE0000 && c <= 0xE007F);
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  size_t shown = 0;
  size_t keep =
      0;  // bytes of `out` that hold the first limit - 1 characters: an ellipsis may have to follow them
  while (!text.empty()) {
    char32_t c = next_character(text);
    if (c == '\t') c = ' ';
    if (is_line_break(c)) c = 0x21B5;
    if (is_invisible(c)) continue;
    if (shown == limit) {
      out.resize(keep);
      return out + "…";
    }
    append_utf8(out, c);
    ++shown;
    if (shown + 1 == limit) keep = out.size();
  }
  return out;
}

size_t display_width(std::string_view utf8) {
  size_t width = 0;
  for (const char c : utf8) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string length_label(int tokens) {
  if (tokens > 0 && tokens % (1024 * 1024) == 0) return fmt::format("{}m", tokens / (1024 * 1024));
  if (tokens > 0 && tokens % 1024 == 0) return fmt::format("{}k", tokens / 1024);
  return fmt::format("{}", tokens);
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string interval_text(const Interval& interval) {
  return fmt::format("[{:.1f}, {:.1f}]", 100 * interval.low, 100 * interval.high);
}

std::string p_text(double p) { return p < 0.0001 ? "<0.0001" : fmt::format("{:.4f}", p); }

std::string small_text(double value) {
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return "0";
  if (magnitude < 0.001) return fmt::format("{:.1e}", value);
  return fmt::format("{:.{}f}", value, magnitude < 0.01 ? 5 : magnitude < 0.1 ? 4 : magnitude < 10 ? 3 : 1);
}

std::string small_text(const std::optional<double>& value) { return value ? small_text(*value) : kNone; }

std::string grouped(uint64_t value) {
  std::string digits = fmt::format("{}", value);
  for (size_t from_end = 3; from_end < digits.size(); from_end += 4)
    digits.insert(digits.size() - from_end, 1, ',');
  return digits;
}

std::string counted(size_t n, std::string_view noun) {
  // "loss" is the one noun of the reports that ends in s.
  const char* plural = n == 1 ? "" : noun.ends_with("s") ? "es" : "s";
  return fmt::format("{} {}{}", grouped(n), noun, plural);
}

std::string utc_text(int64_t unix_ms) {
  using namespace std::chrono;
  // A damaged database must not reach the calendar's undefined years.
  if (unix_ms < 0 || unix_ms > 253402300799999) return "unknown";
  const sys_time<milliseconds> time{milliseconds(unix_ms)};
  const sys_days day = floor<days>(time);
  const year_month_day date{day};
  const hh_mm_ss clock{floor<seconds>(time - day)};
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

}  // namespace kveval

#include "harness/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>

namespace kveval {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kLogInterval = std::chrono::seconds(10);
constexpr size_t kBarWidth = 24;
// Before this much is done the speed seen so far says little about the rest.
constexpr double kEnoughForEta = 0.01;

double share(const Progress& progress) {
  if (progress.total_cost <= 0) return progress.done == progress.total ? 1 : 0;
  return std::clamp(progress.done_cost / progress.total_cost, 0.0, 1.0);
}

std::string time_left(const Progress& progress, double elapsed) {
  const double done = share(progress);
  if (done < kEnoughForEta || elapsed < 1) return {};
  return format_duration(elapsed * (1 - done) / done) + " left";
}

std::string where(const Progress& progress) {
  if (progress.place.empty()) return {};
  return fmt::format("{} {}", progress.place, progress.arm);
}

size_t columns_of(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(std::max(0.0, seconds)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(units)) {
    bytes /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", bytes, decimals, units[unit]);
}

std::string progress_bar(const Progress& progress, double elapsed_seconds, size_t columns) {
  const double done = share(progress);
  const auto filled = static_cast<size_t>(done * double(kBarWidth));
  std::string line =
      fmt::format("{:3} %  [{}{}]  {}/{} {}", int(done * 100), std::string(filled, '#'),
                  std::string(kBarWidth - filled, '.'), progress.done, progress.total, progress.unit);
  const std::string left = time_left(progress, elapsed_seconds), place = where(progress);
  if (!left.empty()) line += "  " + left;
  if (!place.empty()) line += "  " + place;
  if (line.size() > columns) line.resize(columns);
  return line;
}

std::string progress_text(const Progress& progress, double elapsed_seconds) {
  std::string line = fmt::format("progress {} %, {} of {} {}", int(share(progress) * 100), progress.done,
                                 progress.total, progress.unit);
  const std::string left = time_left(progress, elapsed_seconds), place = where(progress);
  if (!left.empty()) line += ", " + left;
  if (!place.empty()) line += fmt::format(" ({})", place);
  return line;
}

ProgressPrinter::ProgressPrinter(std::FILE* stream, bool bar)
    : stream_(stream), bar_(bar), next_(begin_ + (bar ? Clock::duration::zero() : kLogInterval)) {}

ProgressPrinter::~ProgressPrinter() {
  if (drawn_) fmt::print(stream_, "\r\033[K");
}

void ProgressPrinter::update(const Progress& progress) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  if (bar_) {
    // One column stays free: a full line would wrap on some terminals.
    fmt::print(stream_, "\r{}\033[K", progress_bar(progress, elapsed, columns_of(stream_) - 1));
    drawn_ = true;
    next_ = now + kRedraw;
  } else {
    fmt::print(stream_, "{}\n", progress_text(progress, elapsed));
    next_ = now + kLogInterval;
  }
  std::fflush(stream_);
}

}  // namespace kveval

// Telling a person how a run goes on: a bar on a terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace kveval {

// Where a run, or a series of measurements, stands. Costs are estimated seconds of what this process has to
// do: weights for a bar and an ETA, not promises.
struct Progress {
  std::string unit = "groups";
  size_t done = 0;  // those of an earlier, interrupted process included
  size_t total = 0;
  double done_cost = 0;
  double total_cost = 0;
  std::string place;  // "niah 32k #3"
  std::string arm;
};

std::string format_duration(double seconds);  // "8 s", "3 min 20 s", "2 h 05 min"
std::string format_bytes(double bytes);       // "312 MB", "1.46 GB": powers of 1,000, three digits

// One line without an end: " 42 %  [########......]  9/20 groups  niah 32k #3 e4m3  1 min 10 s left". The
// share and the time left weigh each group by its estimated cost, not by its number. No longer than
// `columns`.
std::string progress_bar(const Progress& progress, double elapsed_seconds, size_t columns);

// The same facts for a log: "progress 42 %, 9 of 20 groups, 1 min 10 s left (niah 32k #3 e4m3)".
std::string progress_text(const Progress& progress, double elapsed_seconds);

class ProgressPrinter {
 public:
  // `bar`: redraw one line (a terminal); else a line at most every 10 seconds.
  ProgressPrinter(std::FILE* stream, bool bar);
  ~ProgressPrinter();  // leaves a bar's line clean
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void update(const Progress& progress);

 private:
  using Clock = std::chrono::steady_clock;
  std::FILE* stream_;
  bool bar_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_;
};

}  // namespace kveval

#include "engine/cpu/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engine/error.h"

namespace kveval::cpu {
namespace {

// A forward pass runs several jobs a layer, microseconds apart: waking a sleeper costs more than that. Some
// 10 us of spinning (a pause takes 40 to 140 cycles) bridge the gaps; longer waits sleep and leave the
// machine to others.
constexpr int kSpins = 500;

template <class Ready>
bool spin_until(Ready ready) {
  for (int i = 0; i < kSpins; i++) {
    if (ready()) return true;
    _mm_pause();
  }
  return ready();
}

}  // namespace

// A worker that sees a new generation enters (inside + 1) and then looks whether the job is open; the caller
// closes the job and then waits until nobody is inside. Both orders are sequentially consistent, so a worker
// that comes late either finds the job closed and leaves untouched, or is waited for: nobody waits for
// sleepers.
struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;  // guards error; orders sleeping and waking
  std::condition_variable wake, idle;

  std::atomic<uint64_t> generation{0};
  std::atomic<int> sleepers{0}, inside{0};
  std::atomic<bool> open{false}, stop{false}, caller_sleeps{false};

  // The job: written while it is closed and nobody is inside.
  const std::function<void(int, int)>* piece = nullptr;
  int pieces = 0;
  std::atomic<int> next{0};
  std::exception_ptr error;

  void take_pieces(int thread) {
    for (;;) {
      const int i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= pieces) return;
      try {
        (*piece)(i, thread);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next.store(pieces, std::memory_order_relaxed);  // the rest is not worth starting
      }
    }
  }

  void work(int thread) {
    uint64_t seen = 0;
    for (;;) {
      const auto news = [&] { return generation.load() != seen; };
      if (!spin_until(news)) {
        std::unique_lock lock(mutex);
        sleepers++;
        wake.wait(lock, news);
        sleepers--;
      }
      seen = generation.load();
      if (stop.load()) return;
      inside++;
      if (open.load()) take_pieces(thread);
      if (--inside == 0 && caller_sleeps.load()) {
        const std::lock_guard lock(mutex);
        idle.notify_one();
      }
    }
  }

  void announce() {
    generation++;
    if (sleepers.load() > 0) {
      {
        const std::lock_guard lock(mutex);
      }  // whoever counted itself as a sleeper is waiting now, or has seen it
      wake.notify_all();
    }
  }

  void dismiss() {
    stop = true;
    announce();
    for (std::thread& worker : workers) worker.join();
  }

  void wait_until_empty() {
    const auto empty = [&] { return inside.load() == 0; };
    if (spin_until(empty)) return;
    std::unique_lock lock(mutex);
    caller_sleeps = true;
    idle.wait(lock, empty);
    caller_sleeps = false;
  }
};

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads < 1) {
    throw Error(ErrorKind::usage, "a thread pool needs at least one thread, not " + std::to_string(threads),
                "give --threads a number from 1");
  }
  try {
    for (int i = 1; i < threads; i++) state_->workers.emplace_back([s = state_.get(), i] { s->work(i); });
  } catch (const std::system_error& e) {
    state_->dismiss();
    throw Error(ErrorKind::run, "cannot start " + std::to_string(threads) + " threads: " + e.what(),
                "give --threads a smaller number");
  }
}

ThreadPool::~ThreadPool() { state_->dismiss(); }

int ThreadPool::size() const { return int(state_->workers.size()) + 1; }

void ThreadPool::run(int pieces, const std::function<void(int piece, int thread)>& piece) {
  State& s = *state_;
  if (pieces <= 1 || s.workers.empty()) {
    for (int i = 0; i < pieces; i++) piece(i, 0);
    return;
  }
  s.piece = &piece;
  s.pieces = pieces;
  s.next = 0;
  s.error = nullptr;
  s.open = true;
  s.announce();
  s.take_pieces(0);
  s.open = false;
  s.wait_until_empty();
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace kveval::cpu

#include "engine/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/error.h"

namespace kveval::cpu {
namespace {

TEST(ThreadPool, RunsEveryPieceOnceOnAKnownThread) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int pieces : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> calls(size_t(pieces) + 1);
      std::atomic<int> strangers{0};
      pool.run(pieces, [&](int piece, int thread) {
        calls[size_t(piece)]++;
        if (thread < 0 || thread >= threads) strangers++;
      });
      for (int i = 0; i < pieces; i++) EXPECT_EQ(calls[size_t(i)], 1) << "piece " << i << " of " << pieces;
      EXPECT_EQ(strangers, 0);
    }
  }
}

TEST(ThreadPool, NoTwoPiecesShareAThreadAtATime) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> busy(3);
  std::atomic<int> clashes{0};
  pool.run(300, [&](int, int thread) {
    if (busy[size_t(thread)]++ != 0) clashes++;
    std::this_thread::yield();
    busy[size_t(thread)]--;
  });
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, ManySmallJobsSeeEachOthersWrites) {
  ThreadPool pool(3);
  std::vector<int> values(64, 0);  // plain ints: a missing happens-before is for the thread sanitizer to find
  for (int job = 0; job < 2000; job++) {
    const int n = 1 + job % 64;
    pool.run(n, [&](int piece, int) { values[size_t(piece)] += values[size_t(piece)] % 2 == 0 ? 3 : 1; });
  }
  int jobs_of_first = 0;
  for (int value = 0; value < values[0]; jobs_of_first++) value += value % 2 == 0 ? 3 : 1;
  EXPECT_EQ(jobs_of_first, 2000);
}

TEST(ThreadPool, WakesSleepers) {
  ThreadPool pool(2);
  for (int job = 0; job < 5; job++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // far longer than a worker spins
    std::atomic<int> sum{0};
    std::atomic<int> arrived{0};
    pool.run(2, [&](int piece, int) {
      arrived++;
      while (arrived < 2) std::this_thread::yield();  // only returns when both threads take part
      sum += piece + 1;
    });
    EXPECT_EQ(sum, 3);
  }
}

TEST(ThreadPool, RethrowsAndGoesOn) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; round++) {
      try {
        pool.run(50, [](int piece, int) {
          if (piece == 7) throw std::runtime_error("piece 7");
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& e) { EXPECT_STREQ(e.what(), "piece 7"); }
      std::atomic<int> calls{0};
      pool.run(50, [&](int, int) { calls++; });
      EXPECT_EQ(calls, 50);
    }
  }
}

TEST(ThreadPool, NeedsAThread) {
  try {
    ThreadPool pool(0);
    ADD_FAILURE() << "a pool of no threads";
  } catch (const Error& e) { EXPECT_EQ(e.kind, ErrorKind::usage); }
}

}  // namespace
}  // namespace kveval::cpu

// Threads that run numbered pieces of work. Which thread runs a piece never changes its result.
#pragma once

#include <functional>
#include <memory>

namespace kveval::cpu {

// Cores this process may use: a container's limit counts, the machine's number does not.
int usable_cores();

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; the caller is one of them, so 1 starts none
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls piece(i, thread) for i in [0, pieces), each once, thread in [0, size()); returns when all are done.
  // Pieces are taken in order by whichever thread is free. The first exception is rethrown here.
  void run(int pieces, const std::function<void(int piece, int thread)>& piece);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kveval::cpu

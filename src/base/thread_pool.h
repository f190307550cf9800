#pragma once
// A fixed set of threads that run index ranges together with the caller.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble {

// One thread's share of a count: [begin, end), and which of the pool's threads it is.
struct IndexRange {
  int64_t begin, end;
  int thread_idx;
};

class ThreadPool {
 public:
  // `threads` counts the caller: 1 starts none. REQUIRES threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body once per non-empty range of [0, count), on all threads; returns when all are done. Ranges are contiguous
  // and fixed by (count, threads). One caller at a time; body must not throw.
  void parallel_for(int64_t count, const std::function<void(IndexRange)>& body);

 private:
  void work(int thread_idx, int threads);

  struct Shared {  // guarded by mutex
    std::mutex mutex;
    std::condition_variable wake;
    std::condition_variable done;
    const std::function<void(IndexRange)>* body = nullptr;
    int64_t count = 0;
    uint64_t generation = 0;
    int running = 0;
    bool stop = false;
  };

  Shared shared_;
  std::vector<std::jthread> workers_;
};

}  // namespace nibble

#pragma once
// A fixed set of threads that run index ranges together with the caller.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace nibble {

// A part of a range of indices: [begin, end), and which of the pool's threads has it.
struct IndexRange {
  int64_t begin, end;
  int thread_idx;
};

// Between calls a thread spins for some microseconds, so that the next call starts at once, and then sleeps.
class ThreadPool {
 public:
  using Body = std::function<void(IndexRange)>;

  // `threads` counts the caller, so 1 starts none. REQUIRES threads >= 1. Throws Error(kIo) if the system cannot start
  // as many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return threads_; }

  // All functions call body for every index of [0, count), on all threads, and return when all are done. They do not
  // wait for a thread that another program keeps from running. One caller at a time; body must not throw.
  //
  // As many contiguous ranges as threads, fixed by (count, threads), each taken by whichever thread is free.
  void parallel_for(int64_t count, const Body& body);
  // Ranges of `chunk` indices (the last may be shorter), each taken by whichever thread is free.
  void parallel_chunks(int64_t count, int64_t chunk, const Body& body);
  // Ranges of whole chunks (the last may be shorter), each taken by whichever thread is free. They start long, so that
  // there are few, and get shorter, down to one chunk, so that all threads end together.
  void parallel_ranges(int64_t count, int64_t chunk, const Body& body);

 private:
  struct Job {
    const Body& body;
    int64_t count, chunk;  // chunk 0: a piece per thread
    bool shrinks;          // from long ranges to single chunks
  };
  void start(const Job& job);
  void end();
  void work(int thread_idx);
  void take(int thread_idx);

  const int threads_;
  // The job, cut into pieces of one chunk each. A thread that comes late may read these while the next job is written.
  std::atomic<const Body*> body_{nullptr};
  std::atomic<int64_t> count_{0}, pieces_{0}, chunk_{0};
  std::atomic<bool> shrinks_{false};
  std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint64_t> open_{
      0};  // generation, and in the low half the number of pieces that no thread has taken
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace nibble

#pragma once
// A fixed set of threads that run index ranges together with the caller.

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace nibble {

// A share of a count: [begin, end), and which of the pool's threads has it.
struct IndexRange {
  int64_t begin, end;
  int thread_idx;
};

// Between calls a thread spins for some microseconds, so that calls in a row start at once, and then sleeps.
class ThreadPool {
 public:
  using Body = std::function<void(IndexRange)>;

  // `threads` counts the caller: 1 starts none. REQUIRES threads >= 1. Throws Error(kIo) where the system starts fewer.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return threads_; }

  // All call body for every index of [0, count), on all threads, and return when all are done: a thread that another
  // program keeps from coming is not waited for. One caller at a time; body must not throw.
  // As many contiguous ranges as threads, fixed by (count, threads), each taken by whichever thread is free.
  void parallel_for(int64_t count, const Body& body);
  // Ranges of `chunk` indices (the last may be shorter), each taken by whichever thread is free.
  void parallel_chunks(int64_t count, int64_t chunk, const Body& body);
  // Ranges of whole chunks (the last may be shorter), each taken by whichever thread is free: long ones first, so that
  // there are few, then shorter ones, down to one chunk, so that the threads end together.
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
  // The job, in pieces of a chunk each. A thread that comes late may read while the next one is written.
  std::atomic<const Body*> body_{nullptr};
  std::atomic<int64_t> count_{0}, pieces_{0}, chunk_{0};
  std::atomic<bool> shrinks_{false};
  std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint64_t> open_{0};  // generation, and in the low half the pieces that no thread has taken
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace nibble

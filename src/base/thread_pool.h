#pragma once
// Threads, and how they talk: a pool that runs index ranges together with its caller, threads bound to an index each,
// and a queue of messages.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace nibble {

// Turns that a thread spins before it sleeps: some 30 µs, longer than the time between the parallel parts of a step.
inline constexpr int kSpins = 2000;
// Waits for another thread that is about to arrive: returns when value is no longer `old`. Spins without the kernel,
// then sleeps. REQUIRES that whoever changes it notifies.
void wait_while(const std::atomic<uint32_t>& value, uint32_t old, int spins = kSpins);

// A part of a range of indices: [begin, end), and which of the pool's threads has it.
struct IndexRange {
  int64_t begin, end;
  int thread_idx;
};

// A fixed set of threads that run index ranges together with the caller. Between calls a thread spins for some
// microseconds, so that the next call starts at once, and then sleeps.
class ThreadPool {
 public:
  using Body = std::function<void(IndexRange)>;

  // `threads` counts the caller, so 1 starts none. REQUIRES threads >= 1. Throws Error(kIo) if the system cannot start
  // as many. spins: between calls.
  explicit ThreadPool(int threads, int spins = kSpins);
  ~ThreadPool() { end(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return threads_; }

  // All functions call body for every index of [0, count), on all threads, and return when all are done. They do not
  // wait for a thread that another program keeps from running. One caller at a time; body must not throw.
  //
  // As many contiguous ranges as threads, fixed by (count, threads), each taken by whichever thread is free.
  void parallel_for(int64_t count, const Body& body);
  // parallel_for, whose body takes one index.
  template <class Each>
  void parallel_each(int64_t count, const Each& each) {
    parallel_for(count, [&each](IndexRange range) {
      for (int64_t i = range.begin; i < range.end; ++i) each(i);
    });
  }
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

  const int threads_, spins_;
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

// As pool's; null: the caller alone.
inline void parallel_for(ThreadPool* pool, int64_t count, const ThreadPool::Body& body) {
  if (pool != nullptr) return pool->parallel_for(count, body);
  body({0, count, 0});
}

// Threads that all do the same work at the same time, each for an index of its own. For work that waits for the others'
// (ranks of a step), or that a library binds to its thread (CUDA's current device).
// Between calls a thread spins for some microseconds, so that the next call starts at once, and then sleeps.
class BoundThreads {
 public:
  using Body = std::function<void(size_t)>;
  enum class First : uint8_t { kOwnThread, kCaller };  // who has index 0: the caller, so that it does not only wait

  // Throws Error(kIo) if the system cannot start as many.
  explicit BoundThreads(size_t count, First first = First::kOwnThread);
  ~BoundThreads() { end(); }
  BoundThreads(const BoundThreads&) = delete;
  BoundThreads& operator=(const BoundThreads&) = delete;

  [[nodiscard]] size_t count() const { return thrown_.size(); }

  // Calls body(i) on thread i, for every i at once, and returns when all are done. Returns what each of them threw, by
  // index, null for none; valid until the next call. One caller at a time.
  std::span<const std::exception_ptr> each(const Body& body);

 private:
  void work(size_t index);
  void run(size_t index);
  void end();

  const First first_;
  const Body* body_ = nullptr;  // written before generation_, read behind it
  std::vector<std::exception_ptr> thrown_;
  std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> threads_;
};

// Messages from any number of threads to one. The only channel between threads.
template <class T>
class Queue {
 public:
  void push(T message) {
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.messages.push_back(std::move(message));
    }
    shared_.wake.notify_one();
  }

  // All messages since the last call, in the order of push; may be empty.
  [[nodiscard]] std::vector<T> take() {
    const std::lock_guard lock(shared_.mutex);
    return std::exchange(shared_.messages, {});
  }

  // All messages, as take(), but sleeps until there is one.
  [[nodiscard]] std::vector<T> wait() {
    std::unique_lock lock(shared_.mutex);
    shared_.wake.wait(lock, [&] { return !shared_.messages.empty(); });
    return std::exchange(shared_.messages, {});
  }

 private:
  struct Shared {  // guarded by mutex
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<T> messages;
  };
  Shared shared_;
};

}  // namespace nibble

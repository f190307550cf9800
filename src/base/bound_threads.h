#pragma once
// Threads that all do the same work at the same time, each for an index of its own. For work that waits for the others'
// (ranks of a step), or that a library binds to its thread (CUDA's current device).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <thread>
#include <vector>

namespace nibble {

// Between calls a thread spins for some microseconds, so that the next call starts at once, and then sleeps.
class BoundThreads {
 public:
  using Body = std::function<void(size_t)>;

  // Throws Error(kIo) if the system cannot start as many.
  explicit BoundThreads(size_t count);
  ~BoundThreads();
  BoundThreads(const BoundThreads&) = delete;
  BoundThreads& operator=(const BoundThreads&) = delete;

  [[nodiscard]] size_t count() const { return thrown_.size(); }

  // Calls body(i) on thread i, for every i, and returns when all are done. Returns what each of them threw, by index,
  // null for none; valid until the next call. One caller at a time.
  std::span<const std::exception_ptr> each(const Body& body);

 private:
  void work(size_t index);
  void end();

  const Body* body_ = nullptr;  // written before generation_, read behind it
  std::vector<std::exception_ptr> thrown_;
  std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace nibble

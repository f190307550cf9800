#pragma once
// Messages from any number of threads to one. The only channel between threads.

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace nibble {

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

  // The same, but sleeps until there is one.
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

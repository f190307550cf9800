#include "base/thread_pool.h"

#include "base/error.h"

#include <algorithm>

namespace nibble {
namespace {

struct Range {
  int64_t begin, end;
};

Range share(int64_t count, int part, int parts) { return {count * part / parts, count * (part + 1) / parts}; }

}  // namespace

ThreadPool::ThreadPool(int threads) {
  check(threads >= 1, "a thread pool has at least the caller");
  workers_.reserve(static_cast<size_t>(threads - 1));
  // Workers take part numbers 1…; the caller is part 0. parts() is fixed before the first worker looks.
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this, i, threads] {
      uint64_t seen = 0;
      while (true) {
        const std::function<void(int64_t, int64_t)>* body;
        int64_t count;
        {
          std::unique_lock lock(shared_.mutex);
          shared_.wake.wait(lock, [&] { return shared_.stop || shared_.generation != seen; });
          if (shared_.stop) return;
          seen = shared_.generation;
          body = shared_.body;
          count = shared_.count;
        }
        const Range range = share(count, i, threads);
        if (range.begin < range.end) (*body)(range.begin, range.end);
        const std::lock_guard lock(shared_.mutex);
        if (--shared_.running == 0) shared_.done.notify_one();
      }
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(shared_.mutex);
    shared_.stop = true;
  }
  shared_.wake.notify_all();
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t begin, int64_t end)>& body) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) return body(0, count);
  {
    const std::lock_guard lock(shared_.mutex);
    shared_.body = &body;
    shared_.count = count;
    shared_.running = static_cast<int>(workers_.size());
    ++shared_.generation;
  }
  shared_.wake.notify_all();
  const Range mine = share(count, 0, threads());
  body(mine.begin, mine.end);
  std::unique_lock lock(shared_.mutex);
  shared_.done.wait(lock, [&] { return shared_.running == 0; });
}

}  // namespace nibble

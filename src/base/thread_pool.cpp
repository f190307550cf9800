#include "base/thread_pool.h"

#include "base/error.h"

namespace nibble {
namespace {

IndexRange range_of(int64_t count, int thread_idx, int threads) {
  return {count * thread_idx / threads, count * (thread_idx + 1) / threads, thread_idx};
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  check(threads >= 1, "a thread pool has at least the caller");
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i, threads] { work(i, threads); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(shared_.mutex);
    shared_.stop = true;
  }
  shared_.wake.notify_all();
  workers_.clear();  // joins while shared_ still lives
}

void ThreadPool::work(int thread_idx, int threads) {
  uint64_t seen = 0;
  while (true) {
    const std::function<void(IndexRange)>* body = nullptr;
    int64_t count = 0;
    {
      std::unique_lock lock(shared_.mutex);
      shared_.wake.wait(lock, [&] { return shared_.stop || shared_.generation != seen; });
      if (shared_.stop) return;
      seen = shared_.generation;
      body = shared_.body;
      count = shared_.count;
    }
    const IndexRange range = range_of(count, thread_idx, threads);
    if (range.begin < range.end) (*body)(range);
    const std::lock_guard lock(shared_.mutex);
    if (--shared_.running == 0) shared_.done.notify_one();
  }
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(IndexRange)>& body) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) return body({0, count, 0});
  {
    const std::lock_guard lock(shared_.mutex);
    shared_.body = &body;
    shared_.count = count;
    shared_.running = static_cast<int>(workers_.size());
    ++shared_.generation;
  }
  shared_.wake.notify_all();
  const IndexRange mine = range_of(count, 0, threads());
  if (mine.begin < mine.end) body(mine);
  std::unique_lock lock(shared_.mutex);
  shared_.done.wait(lock, [&] { return shared_.running == 0; });
}

}  // namespace nibble

#include "base/thread_pool.h"

#include "base/error.h"

#include <algorithm>

#include <pthread.h>
#include <sched.h>

namespace nibble {
namespace {

constexpr int kSpins = 2000;  // some 30 µs: longer than what lies between the parallel parts of a step

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when value is no longer `old`.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

// Binds each worker to a processor of its own where there is one for every thread: on a processor that two of them
// share, both would take twice as long until the kernel notices. The first processor is left to the caller. Advice: a
// kernel that refuses changes nothing but speed.
void spread(std::vector<std::jthread>& workers) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (CPU_COUNT(&allowed) != static_cast<int>(workers.size()) + 1) return;
  int cpu = 0;
  const auto next = [&] {
    while (!CPU_ISSET(cpu, &allowed)) ++cpu;
    return cpu++;
  };
  next();
  for (std::jthread& worker : workers) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(next(), &own);
    pthread_setaffinity_np(worker.native_handle(), sizeof own, &own);
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  check(threads >= 1, "a thread pool has at least the caller");
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  spread(workers_);
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++generation_;
  generation_.notify_all();
  workers_.clear();  // joins while the rest still lives
}

void ThreadPool::take(int thread_idx) {
  const Job& job = job_;
  if (job.chunk == 0) {
    const IndexRange range{job.count * thread_idx / threads_, job.count * (thread_idx + 1) / threads_, thread_idx};
    if (range.begin < range.end) (*job.body)(range);
    return;
  }
  int64_t begin = next_.load(std::memory_order_relaxed);
  while (begin < job.count) {
    const int64_t share = job.shrinks ? (job.count - begin) / (2 * threads_) / job.chunk * job.chunk : 0;
    const int64_t end = std::min(begin + std::max(share, job.chunk), job.count);
    if (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
    (*job.body)({begin, end, thread_idx});
    begin = next_.load(std::memory_order_relaxed);
  }
}

void ThreadPool::work(int thread_idx) {
  uint32_t seen = 0;
  while (true) {
    wait_while(generation_, seen);
    ++seen;  // the caller starts no further job before this one is done everywhere
    if (stop_) return;
    take(thread_idx);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void ThreadPool::start(const Job& job) {
  job_ = job;
  next_.store(0, std::memory_order_relaxed);
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take(0);
  for (int left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    wait_while(running_, left);
  }
}

void ThreadPool::parallel_for(int64_t count, const Body& body) {
  if (count <= 0) return;
  if (threads_ == 1 || count == 1) return body({0, count, 0});
  start({&body, count, 0, false});
}

void ThreadPool::parallel_chunks(int64_t count, int64_t chunk, const Body& body) {
  check(chunk >= 1, "a chunk holds at least one index");
  if (threads_ > 1 && count > chunk) return start({&body, count, chunk, false});
  for (int64_t begin = 0; begin < count; begin += chunk) body({begin, std::min(begin + chunk, count), 0});
}

void ThreadPool::parallel_ranges(int64_t count, int64_t chunk, const Body& body) {
  check(chunk >= 1, "a chunk holds at least one index");
  if (count <= 0) return;
  if (threads_ == 1 || count <= chunk) return body({0, count, 0});
  start({&body, count, chunk, true});
}

}  // namespace nibble

#include "base/thread_pool.h"

#include "base/error.h"

#include <algorithm>
#include <limits>
#include <system_error>

#include <pthread.h>
#include <sched.h>

namespace nibble {
namespace {

void pause_spinning() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // YIELD is a NOP on most cores, and does not wait at all
#endif
}

// Binds each worker to a processor of its own, if there is one for every thread. If two threads shared a processor,
// both would take twice as long until the kernel notices. The first processor is left to the caller. Advice only: it
// can change nothing but speed.
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

void wait_while(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_spinning();
  }
  value.wait(old, std::memory_order_acquire);
}

ThreadPool::ThreadPool(int threads, int spins) : threads_(threads), spins_(spins) {
  check(threads >= 1, "a thread pool has at least the caller");
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& e) {
    const size_t could = workers_.size() + 1;  // with the caller
    end();
    throw Error(Code::kIo, "cannot start {} threads: {} could be: {}", threads, could, e.code().message());
  }
  spread(workers_);
}

void ThreadPool::end() {
  stop_ = true;
  ++generation_;
  generation_.notify_all();
  workers_.clear();  // joins while the rest still lives
}

// The fields of the job that were read are valid if the exchange succeeds: the caller sets up no other job while a
// piece of this one is left.
void ThreadPool::take(int thread_idx) {
  uint64_t open = open_.load(std::memory_order_acquire);
  for (uint32_t left = 0; (left = static_cast<uint32_t>(open)) != 0;) {
    const Body* body = body_.load(std::memory_order_relaxed);
    const int64_t count = count_.load(std::memory_order_relaxed), pieces = pieces_.load(std::memory_order_relaxed);
    const int64_t chunk = chunk_.load(std::memory_order_relaxed);
    const bool shrinks = shrinks_.load(std::memory_order_relaxed);
    const uint32_t taken = shrinks ? std::max(left / (2 * static_cast<uint32_t>(threads_)), 1U) : 1;
    if (!open_.compare_exchange_weak(open, open - taken, std::memory_order_acq_rel)) continue;
    const int64_t first = pieces - left, last = first + taken;
    if (chunk == 0)
      (*body)({count * first / pieces, count * last / pieces, thread_idx});
    else
      (*body)({first * chunk, std::min(last * chunk, count), thread_idx});
    if (unfinished_.fetch_sub(taken, std::memory_order_acq_rel) == taken) unfinished_.notify_one();
    open = open_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread_idx) {
  uint32_t seen = 0;
  while (true) {
    wait_while(generation_, seen, spins_);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    take(thread_idx);
  }
}

void ThreadPool::start(const Job& job) {
  const int64_t pieces = job.chunk == 0 ? std::min<int64_t>(job.count, threads_) : (job.count - 1) / job.chunk + 1;
  check(pieces <= std::numeric_limits<uint32_t>::max(), "a job has less than 2^32 pieces");
  body_.store(&job.body, std::memory_order_relaxed);
  count_.store(job.count, std::memory_order_relaxed);
  pieces_.store(pieces, std::memory_order_relaxed);
  chunk_.store(job.chunk, std::memory_order_relaxed);
  shrinks_.store(job.shrinks, std::memory_order_relaxed);
  unfinished_.store(static_cast<uint32_t>(pieces), std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  open_.store(uint64_t{generation} << 32 | static_cast<uint64_t>(pieces), std::memory_order_release);
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();
  take(0);
  for (uint32_t left = 0; (left = unfinished_.load(std::memory_order_acquire)) != 0;) wait_while(unfinished_, left);
}

void ThreadPool::parallel_for(int64_t count, const Body& body) {
  if (count <= 0) return;
  if (threads_ == 1 || count == 1) return body({0, count, 0});
  start({body, count, 0, false});
}

void ThreadPool::parallel_chunks(int64_t count, int64_t chunk, const Body& body) {
  check(chunk >= 1, "a chunk holds at least one index");
  if (threads_ > 1 && count > chunk) return start({body, count, chunk, false});
  for (int64_t begin = 0; begin < count; begin += chunk) body({begin, std::min(begin + chunk, count), 0});
}

void ThreadPool::parallel_ranges(int64_t count, int64_t chunk, const Body& body) {
  check(chunk >= 1, "a chunk holds at least one index");
  if (count <= 0) return;
  if (threads_ == 1 || count <= chunk) return body({0, count, 0});
  start({body, count, chunk, true});
}

BoundThreads::BoundThreads(size_t count, First first) : first_(first), thrown_(count) {
  check(count >= 1, "at least one thread");
  try {
    for (size_t i = first_ == First::kCaller ? 1 : 0; i < count; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& e) {
    const size_t could = threads_.size();
    end();
    throw Error(Code::kIo, "cannot start {} threads: {} could be: {}", count, could, e.code().message());
  }
}

void BoundThreads::end() {
  stop_ = true;
  ++generation_;
  generation_.notify_all();
  threads_.clear();  // joins while the rest still lives
}

void BoundThreads::work(size_t index) {
  uint32_t seen = 0;
  while (true) {
    wait_while(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    run(index);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

void BoundThreads::run(size_t index) {
  try {
    (*body_)(index);
  } catch (...) {
    thrown_[index] = std::current_exception();
  }
}

std::span<const std::exception_ptr> BoundThreads::each(const Body& body) {
  for (std::exception_ptr& thrown : thrown_) thrown = nullptr;
  body_ = &body;
  unfinished_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  if (first_ == First::kCaller) run(0);
  for (uint32_t left = 0; (left = unfinished_.load(std::memory_order_acquire)) != 0;) wait_while(unfinished_, left);
  return thrown_;
}

}  // namespace nibble

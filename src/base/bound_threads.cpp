#include "base/bound_threads.h"

#include "base/error.h"
#include "base/spin_wait.h"

#include <system_error>

namespace nibble {

BoundThreads::BoundThreads(size_t count) : thrown_(count) {
  check(count >= 1, "at least one thread");
  try {
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& e) {
    const size_t could = threads_.size();
    end();
    throw Error(Code::kIo, "cannot start {} threads: {} could be: {}", count, could, e.code().message());
  }
}

BoundThreads::~BoundThreads() { end(); }

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
    try {
      (*body_)(index);
    } catch (...) {
      thrown_[index] = std::current_exception();
    }
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

std::span<const std::exception_ptr> BoundThreads::each(const Body& body) {
  for (std::exception_ptr& thrown : thrown_) thrown = nullptr;
  body_ = &body;
  unfinished_.store(static_cast<uint32_t>(count()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (uint32_t left = 0; (left = unfinished_.load(std::memory_order_acquire)) != 0;) wait_while(unfinished_, left);
  return thrown_;
}

}  // namespace nibble

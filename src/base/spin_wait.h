#pragma once
// Waiting for another thread that is about to arrive: spins for some microseconds without the kernel, then sleeps.

#include <atomic>

namespace nibble {

inline constexpr int kSpins = 2000;  // some 30 µs: longer than the time between the parallel parts of a step

inline void pause_spinning() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // YIELD is a NOP on most cores, and does not wait at all
#endif
}

// Returns when value is no longer `old`. REQUIRES that whoever changes it notifies.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_spinning();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace nibble

#pragma once
// Host twin of ptx/atomic.cuh.

#include "backend/cuda/emulation/device.h"

#include <cstdint>
#include <utility>

namespace nibble::backend::cuda::ptx {

inline int add_acq_rel(int* global, int value) {
  *global += value;
  return *global - value;
}

inline void add_release(int* global, int value) {
  *global += value;
  emulation::made_progress();
}
inline int load_acquire(const int* global) {
  bool others = false;  // have run
  emulation::wait_until([&] { return std::exchange(others, true); });
  return *global;
}

template <class T>
T load_relaxed(const T* global) {
  bool others = false;  // have run
  emulation::wait_until([&] { return std::exchange(others, true); });
  return *global;
}

inline void add(float* global, float value) { *global += value; }

}  // namespace nibble::backend::cuda::ptx

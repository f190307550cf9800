#pragma once
// Host twin of ptx/atomic.cuh.

namespace nibble::backend::cuda::ptx {

inline int add_acq_rel(int* global, int value) {
  *global += value;
  return *global - value;
}

inline void add(float* global, float value) { *global += value; }

}  // namespace nibble::backend::cuda::ptx

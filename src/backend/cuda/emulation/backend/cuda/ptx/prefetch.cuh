#pragma once
// Host twin of ptx/prefetch.cuh.

namespace nibble::backend::cuda::ptx {

inline void prefetch_l2(const void*) {}

inline float load_l2(const float* global) { return *global; }

}  // namespace nibble::backend::cuda::ptx

#pragma once
// Host twin of ptx/reduce.cuh.

namespace nibble::backend::cuda::ptx {

inline void add_global(float* to, float value) { *to += value; }

}  // namespace nibble::backend::cuda::ptx

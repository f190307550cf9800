#pragma once
// Host twin of ptx/load_l2.cuh.

namespace nibble::backend::cuda::ptx {

inline float load_l2(const float* global) { return *global; }
inline float4 load_l2x4(const float* global) { return {global[0], global[1], global[2], global[3]}; }

inline void prefetch_l2(const void* /*global*/) {}

}  // namespace nibble::backend::cuda::ptx

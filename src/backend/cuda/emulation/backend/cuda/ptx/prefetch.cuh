#pragma once
// Host twin of ptx/prefetch.cuh.

namespace nibble::backend::cuda::ptx {

inline void prefetch_l2(const void* /*global*/) {}

}  // namespace nibble::backend::cuda::ptx

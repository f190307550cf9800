#pragma once
// Host twin of ptx/prefetch.cuh.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

inline void prefetch_l2(const void* /*global*/) {}
inline void bulk_prefetch_l2(const void* /*global*/, uint32_t /*bytes*/) {}
inline void bulk_prefetch_l2_last(const void* /*global*/, uint32_t /*bytes*/) {}

}  // namespace nibble::backend::cuda::ptx

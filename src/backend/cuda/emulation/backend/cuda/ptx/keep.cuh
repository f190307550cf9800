#pragma once
// Host twin of ptx/keep.cuh.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

inline void keep(uint32_t&) {}
inline void keep(float&) {}

}  // namespace nibble::backend::cuda::ptx

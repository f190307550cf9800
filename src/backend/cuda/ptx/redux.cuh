#pragma once
// PTX ISA §9.7.13.8 (redux.sync); sm_80 and later. Every lane gets the result.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

__device__ __forceinline__ uint32_t warp_max_u32(uint32_t value) { return __reduce_max_sync(0xffffffffu, value); }

__device__ __forceinline__ int warp_sum_i32(int value) { return __reduce_add_sync(0xffffffffu, value); }

}  // namespace nibble::backend::cuda::ptx

#pragma once
// PTX ISA §9.7.9.16 (prefetch), §9.7.9.25 (cp.async.bulk.prefetch; sm_90 and later).

#include "backend/cuda/ptx/code.cuh"

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// The line that holds it, to L2.
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// So many bytes from there on, to L2; nothing before sm_90. REQUIRES multiples of 16.
__device__ __forceinline__ void bulk_prefetch_l2(const void* global, uint32_t bytes) {
  if constexpr (kHasBulk) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
// The same, of data that is to stay.
__device__ __forceinline__ void bulk_prefetch_l2_last(const void* global, uint32_t bytes) {
  if constexpr (kHasBulk) {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(global), "r"(bytes), "l"(policy)
                 : "memory");
  }
}

}  // namespace nibble::backend::cuda::ptx

#pragma once
// PTX ISA §9.7.9.25 (cp.async.bulk; sm_90 and later) and §9.7.9.18 (createpolicy; sm_80 and later).

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// For data that is read once: leaves L2 first.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Completes on the barrier's transaction count. REQUIRES both addresses and the size to be multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to_shared, const void* from_global, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to_shared),
      "l"(from_global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Likewise, of data that is read again.
__device__ __forceinline__ void bulk_copy(uint32_t to_shared, const void* from_global, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to_shared),
      "l"(from_global), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace nibble::backend::cuda::ptx

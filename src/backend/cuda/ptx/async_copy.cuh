#pragma once
// PTX ISA §9.7.9.25.3 (cp.async): 16 or 4 bytes at a time, in groups of the issuing thread; sm_80 and later.

#include <cstdint>

namespace nibble::backend::cuda::ptx {

enum class Fill : uint8_t { kZero, kCopy };

// kZero writes zeros and reads nothing. REQUIRES both addresses to be multiples of 16.
__device__ __forceinline__ void async_copy16(uint32_t to_shared, const void* from_global, Fill fill) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from_global),
               "r"(fill == Fill::kCopy ? 16 : 0)
               : "memory");
}

// A copy of data that `policy` (evict_first_policy) says how to keep in L2.
__device__ __forceinline__ void async_copy16(uint32_t to_shared, const void* from_global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from_global),
               "l"(policy)
               : "memory");
}

// A copy with which L2 fetches the 256 bytes where it lies: what else is in them is read soon.
__device__ __forceinline__ void async_copy16_of_256(uint32_t to_shared, const void* from_global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(to_shared),
               "l"(from_global), "l"(policy)
               : "memory");
}

// REQUIRES both addresses to be multiples of 4.
__device__ __forceinline__ void async_copy4(uint32_t to_shared, const void* from_global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from_global) : "memory");
}

// Ends the group of this thread's copies since the last commit.
__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns when at most the last kNewest groups of this thread are still under way.
template <int kNewest>
__device__ __forceinline__ void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

// PTX ISA §9.7.9.25 (cp.async.bulk; sm_90 and later) and §9.7.9.18 (createpolicy; sm_80 and later).

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

// A bulk copy of data that is read again.
__device__ __forceinline__ void bulk_copy(uint32_t to_shared, const void* from_global, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to_shared),
      "l"(from_global), "r"(bytes), "r"(barrier)
      : "memory");
}

// PTX ISA §9.7.13.4 (membar, fence); sm_90 and later.

// Between plain writes of global memory and the bulk copies that read them, on the way from one to the other.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace nibble::backend::cuda::ptx

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

// The same, of data that `policy` (bulk_copy.cuh) says how to keep in L2.
__device__ __forceinline__ void async_copy16(uint32_t to_shared, const void* from_global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from_global),
               "l"(policy)
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

}  // namespace nibble::backend::cuda::ptx

#pragma once
// PTX ISA §9.7.9.25.3 (cp.async): 16 or 4 bytes at a time, in groups of the issuing thread; sm_80 and later.

#include <cstdint>

#include "backend/cuda/ptx/code.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"

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

// Copies by a whole warp, which a barrier counts: bulk copies, and before sm_90, which has none, cp.async by every
// lane. The barrier is initialised with kCopyArrivals.

inline constexpr int kCopyLanes = kHasBulk ? 1 : 32;  // the first so many lanes copy
inline constexpr uint32_t kCopyArrivals = kCopyLanes;

// By each lane below kCopyLanes. REQUIRES multiples of 16.
__device__ __forceinline__ void counted_copy(uint32_t to_shared, const uint8_t* from_global, uint32_t bytes,
                                             uint32_t barrier, uint64_t policy) {
  if constexpr (kHasBulk) {
    mbarrier_arrive_expect_tx(barrier, bytes);
    bulk_copy(to_shared, from_global, bytes, barrier, policy);
  } else {
#pragma unroll 4
    for (uint32_t at = threadIdx.x % kCopyLanes * 16; at < bytes; at += kCopyLanes * 16)
      async_copy16(to_shared + at, from_global + at, policy);
    mbarrier_arrive_behind_copies(barrier);
  }
}

// Up to 32 rows of `bytes` each, `pitch` apart in shared memory.
struct RowsCopy {
  uint32_t to_shared, bytes, barrier;
  int pitch, rows;
};
// By all lanes: `from_global` of lane i < rows is row i's. REQUIRES multiples of 16.
__device__ __forceinline__ void counted_copy(const RowsCopy& copy, const void* from_global) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kHasBulk) {
    if (lane == 0) mbarrier_arrive_expect_tx(copy.barrier, copy.bytes * static_cast<uint32_t>(copy.rows));
    __syncwarp();
    if (lane < copy.rows)
      bulk_copy(copy.to_shared + static_cast<uint32_t>(lane * copy.pitch), from_global, copy.bytes, copy.barrier);
  } else {
    for (int row = 0; row < copy.rows; ++row) {
      const auto from = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(from_global), row);
      const uint32_t to = copy.to_shared + static_cast<uint32_t>(row * copy.pitch);
#pragma unroll 4
      for (auto at = static_cast<uint32_t>(lane * 16); at < copy.bytes; at += 32 * 16)
        async_copy16(to + at, reinterpret_cast<const uint8_t*>(from) + at, Fill::kCopy);
    }
    mbarrier_arrive_behind_copies(copy.barrier);
  }
}

}  // namespace nibble::backend::cuda::ptx

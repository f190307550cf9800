#pragma once
// Copies to shared memory by a whole warp, which a barrier counts: bulk copies, and before sm_90, which has none,
// cp.async by every lane. The barrier is initialised with kCopyArrivals.

#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/code.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"

#include <cstdint>

namespace nibble::backend::cuda::ptx {

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

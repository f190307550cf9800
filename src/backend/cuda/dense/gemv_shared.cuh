#pragma once
// The decode kernels' shared memory.

#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/dense/gemv_tile.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"

namespace nibble::backend::cuda {

inline constexpr int kRingMaxStages = 8;

// ring of chunks | partial sums [epilogues * slots][slices][32 lanes] of float4 | barriers, 256 B | routes: ids and
// weights [32], 256 B | squares [slices][8 tokens], 512 B
struct GemvShared {
  uint32_t ring, partials, barriers;
  int chunk_bytes, slices, stages, slots;

  template <class KernelArgs>
  __device__ GemvShared(const uint8_t* memory, const KernelArgs& args)
      : ring(ptx::shared_address(memory)),
        partials(ring + static_cast<uint32_t>(args.stages * args.chunk_bytes)),
        barriers(partials +
                 static_cast<uint32_t>(args.epilogues * kPartialSlots * args.slices * layout::kWarpLanes * 16)),
        chunk_bytes(args.chunk_bytes),
        slices(args.slices),
        stages(args.stages),
        slots(args.epilogues * kPartialSlots) {}

  __device__ uint32_t chunk(int stage) const { return ring + static_cast<uint32_t>(stage * chunk_bytes); }
  __device__ uint32_t partial(int slot, int slice, int lane) const {
    return partials + static_cast<uint32_t>(((slot * slices + slice) * layout::kWarpLanes + lane) * 16);
  }
  __device__ uint32_t chunk_full(int stage) const { return barriers + 8 * static_cast<uint32_t>(stage); }
  __device__ uint32_t chunk_empty(int stage) const { return chunk_full(kRingMaxStages + stage); }
  __device__ uint32_t partial_full(int slot) const { return chunk_full(2 * kRingMaxStages + slot); }
  __device__ uint32_t partial_empty(int slot) const { return partial_full(kGemvEpilogues * kPartialSlots + slot); }
  __device__ RouteShared routes() const { return {partial_empty(kGemvEpilogues * kPartialSlots), barriers + 256}; }
  __device__ uint32_t square(int slice, int token) const {
    return barriers + 512 + 4 * static_cast<uint32_t>(slice * kGemvTokens + token);
  }

  // choices: how many will be published.
  __device__ void init(int choices) const {
    const auto lanes = static_cast<uint32_t>(slices * layout::kWarpLanes);
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(chunk_full(s), ptx::kCopyArrivals);
      ptx::mbarrier_init(chunk_empty(s), lanes);
    }
    for (int s = 0; s < slots; ++s) {
      ptx::mbarrier_init(partial_full(s), lanes);
      ptx::mbarrier_init(partial_empty(s), layout::kWarpLanes);
    }
    if (choices > 0) routes().init(choices);
    ptx::fence_mbarrier_init();
  }
};
static_assert((2 * kRingMaxStages + 2 * kGemvEpilogues * kPartialSlots + 1) * 8 <= 256);

}  // namespace nibble::backend::cuda

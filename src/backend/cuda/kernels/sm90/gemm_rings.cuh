#pragma once
// sm90_gemm's tile; its shared memory and sm90_mxfp4_gemm's: rings of stages, each with a barrier that says full and
// one that says empty.

#include "backend/cuda/kernels/any/gemm_plan.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

template <layout::Packing kThePacking, int kTheTokens, int kTheRowTiles = kWgmmaRowTiles[0]>
struct WgmmaTile {
  static constexpr layout::Packing kPacking = kThePacking;
  static constexpr int kTokens = kTheTokens;
  static constexpr int kRowTiles = kTheRowTiles;
  static constexpr int kWarpTiles = kRowTiles == kWgmmaRowTiles[0] ? 1 : 2;  // row tiles of a warp
  static constexpr int kWarps = kRowTiles / kWarpTiles;                      // that multiply
  static constexpr int kConsumers = kWarps * layout::kWarpLanes;             // three or two warpgroups
  static constexpr int kCopiers = 128;  // a warpgroup: 8 threads a row tile of weights; its last warp x
  static constexpr int kWeightCopiers = 8 * kRowTiles;
  static constexpr int kThreads = kConsumers + kCopiers;
  static constexpr int kConsumerRegisters = kWarpTiles == 1 ? 160 : 232, kProducerRegisters = kWarpTiles == 1 ? 32 : 40;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of a thread; none come to a CTA later
  static_assert(kConsumers * kConsumerRegisters + kCopiers * kProducerRegisters <= kThreads * kLaunchRegisters);
  // Warps that multiply give a stage back when they take a later one, of x when wgmma is done with it: as if they had
  // had the first ones from the start, which are therefore full, of nothing, in the first round.
  static constexpr int kHeldInputs = 3 - kWarpTiles, kHeldWeights = 1;
  static constexpr int kInputStages = wgmma_rings(kTokens, kRowTiles).inputs;
  static constexpr int kWeightStages = wgmma_rings(kTokens, kRowTiles).weights;
  static constexpr int kWeightBytes = wgmma_weight_bytes(kRowTiles);
  static constexpr int kInputBytes = kTokens * layout::kAtomRowBytes;
  static constexpr int kSharedBytes = wgmma_shared_bytes(kTokens, kRowTiles);
  static_assert(kInputBytes % layout::kAtomBytes == 0);
  static_assert(kConsumers % 128 == 0 && kWeightCopiers <= kCopiers);
  static_assert(kRowTiles * layout::pair_bytes(layout::Packing::kBf16) <= kWeightBytes);
  static_assert(2 * (kInputStages + kWeightStages) * 8 <= kWgmmaBarrierBytes);
};

// The stage that a warp fills next, and the parity of its barriers in this round.
template <int kStages>
struct RingPlace {
  int stage;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1u;
  }
};

// The stage that a warp reads next: its address and that of its barrier for full; empty lies kStages barriers on. A
// stage with kBarriers of them is as many that are read together.
template <int kStages, int kBytes, int kBarriers = 1>
struct RingCursor {
  static constexpr int kStep = 8 * kBarriers;
  uint32_t stage, full, end;  // end: of the barriers for full
  uint32_t parity = 0;
  __device__ RingCursor(uint32_t first_stage, uint32_t first_full, int held)
      : stage(first_stage + static_cast<uint32_t>(held * kBytes)),
        full(first_full + static_cast<uint32_t>(held * kStep)),
        end(first_full + kStages * kStep) {}
  __device__ __forceinline__ void next() {
    stage += kBytes;
    full += kStep;
    if (full != end) return;
    stage -= kStages * kBytes;
    full -= kStages * kStep;
    parity ^= 1u;
  }
  [[nodiscard]] __device__ static uint32_t empty(uint32_t of_full) { return of_full + kStages * kStep; }
};

template <class Tile>
struct GemmRings {
  uint32_t inputs, weights, barriers;

  __device__ explicit GemmRings(const uint8_t* memory)
      : inputs((ptx::shared_address(memory) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes),
        weights(inputs + Tile::kInputStages * Tile::kInputBytes),
        barriers(weights + Tile::kWeightStages * Tile::kWeightBytes) {}

  __device__ uint32_t input_stage(int i) const { return inputs + static_cast<uint32_t>(i * Tile::kInputBytes); }
  __device__ uint32_t weight_stage(int i) const { return weights + static_cast<uint32_t>(i * Tile::kWeightBytes); }
  __device__ uint32_t input_full(int i) const { return barriers + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t input_empty(int i) const { return input_full(Tile::kInputStages + i); }
  __device__ uint32_t weight_full(int i) const { return input_full(2 * Tile::kInputStages + i); }
  __device__ uint32_t weight_empty(int i) const { return weight_full(Tile::kWeightStages + i); }

  // Full: the lane that copies x arrives, and the bytes; of weights, every lane that copies. Empty: every warp that
  // multiplies.
  __device__ void init() const {
    constexpr uint32_t kWarps = Tile::kWarps;
    for (int i = 0; i < Tile::kInputStages; ++i) {
      ptx::mbarrier_init(input_full(i), 1);
      ptx::mbarrier_init(input_empty(i), kWarps);
    }
    for (int i = 0; i < Tile::kWeightStages; ++i) {
      ptx::mbarrier_init(weight_full(i), Tile::kWeightCopiers);
      ptx::mbarrier_init(weight_empty(i), kWarps);
    }
    ptx::fence_mbarrier_init();
  }
};

}  // namespace nibble::backend::cuda

#pragma once
// Shared memory of the GEMMs on wgmma: rings of stages, each with a barrier that says full and one that says empty.

#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

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

// The stage that a warp reads next: its address and that of its barrier for full; empty lies kToEmpty barriers on. A
// stage with kBarriers of them is as many that are read together.
template <int kStages, int kBytes, int kBarriers = 1, int kToEmpty = kStages * kBarriers>
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
  [[nodiscard]] __device__ static uint32_t empty(uint32_t of_full) { return of_full + kToEmpty * 8; }
};

// Stages of x, then of weights, and behind them the barriers: of a GEMM in bf16.
template <class Tile>
struct StageRing {
  uint32_t base;

  __device__ explicit StageRing(const uint8_t* memory)
      : base((ptx::shared_address(memory) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes) {}
  __device__ uint32_t input(int stage) const { return base + static_cast<uint32_t>(stage * Tile::kStageBytes); }
  __device__ uint32_t weights(int stage) const { return input(stage) + Tile::kInputBytes; }
  __device__ uint32_t full(int stage) const {
    return base + static_cast<uint32_t>(Tile::kStages * Tile::kStageBytes + 8 * stage);
  }
  __device__ uint32_t empty(int stage) const { return full(Tile::kStages + stage); }
  // Who arrives at each.
  __device__ void init(uint32_t to_full, uint32_t to_empty) const {
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::mbarrier_init(full(i), to_full);
      ptx::mbarrier_init(empty(i), to_empty);
    }
    ptx::fence_mbarrier_init();
  }
};

// sm90_mxfp4_gemm's; its barriers lie where they do for either cut of the memory.
template <class Tile>
struct GemmRings {
  static constexpr int kInputs = 12, kWeights = 6;  // barriers of each kind, of the cut that has most
  static_assert(Tile::kInputStages <= kInputs && Tile::kWeightStages <= kWeights);
  static_assert((2 * (kInputs + kWeights) + 1) * 8 <= kWgmmaBarrierBytes);
  uint32_t barriers, inputs, weights, row_scales;

  __device__ explicit GemmRings(const uint8_t* memory)
      : barriers(ptx::shared_address(memory)),
        inputs((barriers + kWgmmaBarrierBytes + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes),
        weights(inputs + Tile::kInputStages * Tile::kInputBytes),
        row_scales(weights + Tile::kWeightStages * Tile::kWeightBytes) {}

  __device__ uint32_t input_stage(int i) const { return inputs + static_cast<uint32_t>(i * Tile::kInputBytes); }
  __device__ uint32_t weight_stage(int i) const { return weights + static_cast<uint32_t>(i * Tile::kWeightBytes); }
  __device__ uint32_t input_full(int i) const { return barriers + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t input_empty(int i) const { return input_full(kInputs + i); }
  __device__ uint32_t weight_full(int i) const { return input_full(2 * kInputs + i); }
  __device__ uint32_t weight_empty(int i) const { return weight_full(kWeights + i); }
  // Scales of the tile whose last slice of x is the `slice`th of the ring.
  __device__ uint32_t row_scales_of(uint32_t slice) const { return row_scales + slice * Tile::kTokens * 4; }
  // The barrier that all lanes that multiply arrive at when their rows of u are stored.
  __device__ uint32_t stored() const { return weight_empty(kWeights); }

  // Full: the lane that copies x arrives, and the bytes; of weights, every lane that copies. Empty: every warp that
  // multiplies; of weights, every lane, for racecheck: see gemv.cuh warp_arrive.
  __device__ void init() const {
    constexpr uint32_t kWarps = Tile::kWarps;
    for (int i = 0; i < kInputs; ++i) {
      ptx::mbarrier_init(input_full(i), 1);
      ptx::mbarrier_init(input_empty(i), kWarps);
    }
    for (int i = 0; i < kWeights; ++i) {
      ptx::mbarrier_init(weight_full(i), Tile::kWeightCopiers);
      ptx::mbarrier_init(weight_empty(i), kWarps * layout::kWarpLanes);
    }
    ptx::mbarrier_init(stored(), kWarps * layout::kWarpLanes);
    ptx::fence_mbarrier_init();
  }
};

}  // namespace nibble::backend::cuda

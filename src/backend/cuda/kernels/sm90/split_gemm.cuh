#pragma once
// sums[s] = W·x over the s-th part of K, for few tokens, W packed bf16, x bf16      source: torch/model.py, Linear;
// arguments: kernels/any/split_gemm_plan.h SplitGemmArgs
// W    layout/packed.h, read in the order in which it lies: position i of a tile is pair i / slices of slice i % slices
// x    layout/wgmma_b.h panels     sums f32 [splits, tokens, rows]
// grid one CTA per (up to kTokens tokens, 8 tiles of 16 rows, part of K), tokens fastest; warps 0 to 7, two warpgroups,
//      a row tile per warp; one lane of warp 8 copies 64 k of both operands a stage, the first weights before the
//      kernel before has ended
// mma  wgmma, weights from registers: a pair's run while the next pair's weights are loaded
// bytes, flops: cost()
// predicted (H200, 120b, 64 tokens, weights from DRAM): qkv 9 us, 5.5 behind a kernel of 3 us; o 8 us; 256 tokens: 15
// rounding: f32 sums in an order fixed by shape and card: bitwise repeatable, whatever the other tokens

#include "backend/cuda/kernels/any/split_gemm_plan.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

template <int kTheTokens, int kTheProducers = 1, int kThePositions = 1>
struct SplitTile {
  static constexpr int kTokens = kTheTokens;
  static constexpr int kColumns = kTokens < 128 ? kTokens : 128;  // of a wgmma
  static constexpr int kParts = kTokens / kColumns;
  static constexpr int kProducers = kTheProducers, kPositions = kThePositions;
  static constexpr int kConsumerWarps = kSplitRowTiles * kParts;
  static constexpr int kThreads = (kConsumerWarps + kProducers) * layout::kWarpLanes;
  static constexpr int kPanelBytes = kTokens * layout::kAtomRowBytes;
  static constexpr int kInputBytes = kPositions * kPanelBytes;
  static constexpr int kPieceBytes = kPositions * layout::pair_bytes(layout::Packing::kBf16);
  static constexpr int kWeightBytes = kSplitRowTiles * kPieceBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kStages = 200 * 1024 / kStageBytes;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kSplitBarrierBytes;
  static_assert(kInputBytes % layout::kAtomBytes == 0 && kStageBytes % layout::kAtomBytes == 0);
  static_assert(2 * kStages * 8 <= kSplitBarrierBytes);
};

// stages of {x, weights} | full and empty barriers
template <class Tile>
struct SplitRing {
  uint32_t stages, barriers;

  __device__ explicit SplitRing(const uint8_t* memory)
      : stages((ptx::shared_address(memory) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes),
        barriers(stages + Tile::kStages * Tile::kStageBytes) {}
  __device__ uint32_t input(int stage) const { return stages + static_cast<uint32_t>(stage * Tile::kStageBytes); }
  __device__ uint32_t weights(int stage) const { return input(stage) + Tile::kInputBytes; }
  __device__ uint32_t full(int stage) const { return barriers + 8 * static_cast<uint32_t>(stage); }
  __device__ uint32_t empty(int stage) const { return full(Tile::kStages + stage); }
  __device__ void init() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::mbarrier_init(full(i), Tile::kProducers);
      ptx::mbarrier_init(empty(i), Tile::kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
  }
};

// A CTA's share.
struct SplitWork {
  int split, first_row_tile, first_token, count;  // count: tokens
  int first, positions;                           // of K, 64 k each, in the weights' order

  __device__ SplitWork(const SplitGemmArgs& args, const SplitGemmPlan& plan) {
    const auto cta = static_cast<int>(blockIdx.x), block = cta / plan.token_tiles;
    const int pairs = args.cols / layout::kPanelK;
    split = block / plan.row_blocks;
    first_row_tile = block % plan.row_blocks * kSplitRowTiles;
    first_token = cta % plan.token_tiles * plan.tokens;
    count = min(plan.tokens, args.tokens - first_token);
    first = split * pairs / plan.splits;
    positions = (split + 1) * pairs / plan.splits - first;
  }
};

template <class Tile>
struct SplitProducer {
  static constexpr int kRowTiles = kSplitRowTiles / Tile::kProducers;
  const SplitGemmArgs& args;
  const SplitWork& work;
  const SplitRing<Tile>& ring;
  const int own;  // producer
  const layout::Geometry g = layout::geometry(layout::Packing::kBf16, args.cols);
  const uint64_t once = ptx::evict_first_policy();

  __device__ int positions(int i) const { return min(Tile::kPositions, work.positions - i * Tile::kPositions); }
  __device__ uint32_t panel_bytes() const {
    return static_cast<uint32_t>((work.count + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomBytes);
  }
  __device__ void copy_weights(int i, int stage) const {
    const auto bytes = static_cast<uint32_t>(positions(i) * layout::pair_bytes(layout::Packing::kBf16));
    ptx::mbarrier_arrive_expect_tx(
        ring.full(stage), kRowTiles * bytes + (own == 0 ? static_cast<uint32_t>(positions(i)) * panel_bytes() : 0u));
    const int row_tiles = args.rows / layout::kTileRows;
    const uint8_t* from =
        args.weights + int64_t{work.first + i * Tile::kPositions} * layout::pair_bytes(layout::Packing::kBf16);
#pragma unroll
    for (int t = own * kRowTiles; t < (own + 1) * kRowTiles; ++t) {
      // A row tile beyond the last is a copy of it, and not stored.
      const int64_t tile = min(work.first_row_tile + t, row_tiles - 1);
      ptx::bulk_copy(ring.weights(stage) + static_cast<uint32_t>(t * Tile::kPieceBytes), from + tile * g.tile_bytes,
                     bytes, ring.full(stage), once);
    }
  }
  __device__ void copy_input(int i, int stage) const {
    if (own != 0) return;
    for (int p = 0; p < positions(i); ++p) {
      const int position = work.first + i * Tile::kPositions + p;
      const int pair = position % g.slices * (g.blocks / 2) + position / g.slices;
      ptx::bulk_copy(ring.input(stage) + static_cast<uint32_t>(p * Tile::kPanelBytes),
                     args.x + (int64_t{pair} * args.x_rows + work.first_token) * layout::kPanelK, panel_bytes(),
                     ring.full(stage));
    }
  }
  __device__ void run() const {
    const int count = (work.positions + Tile::kPositions - 1) / Tile::kPositions, ahead = min(Tile::kStages, count);
    for (int i = 0; i < ahead; ++i) copy_weights(i, i);
    ptx::grid_dependency_wait();
    for (int i = 0; i < ahead; ++i) copy_input(i, i);
    uint32_t parity = 0;
    for (int i = ahead, stage = 0; i < count; ++i) {
      ptx::mbarrier_wait(ring.empty(stage), parity);
      copy_weights(i, stage);
      copy_input(i, stage);
      if (++stage < Tile::kStages) continue;
      stage = 0;
      parity ^= 1u;
    }
  }
};

using SplitOperand = uint32_t[4][4];
template <class Tile>
using SplitAccumulators = float[Tile::kColumns / 8][4];

// Behind the wait for the wgmmas that read them: for the compiler they end with the instruction.
__device__ __forceinline__ void keep(SplitOperand& a) {
#pragma unroll
  for (auto& step : a) {
#pragma unroll
    for (uint32_t& word : step) ptx::keep(word);
  }
}

// A warp that multiplies, where it is in the ring.
template <class Tile>
struct SplitConsumer {
  const SplitRing<Tile>& ring;
  const int row_tile = static_cast<int>(threadIdx.x) / layout::kWarpLanes % kSplitRowTiles;
  const int part = static_cast<int>(threadIdx.x) / layout::kWarpLanes / kSplitRowTiles;  // of the tokens
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  int stage = 0, done = 0;  // the next position's; the oldest that wgmma may still read
  uint32_t parity = 0;

  // sums += the position's weights · its columns, under way on return. `a`: the operand of position - 2. kOwn: parity
  // of the position.
  template <int kOwn>
  __device__ __forceinline__ void step(int position, SplitOperand& a, SplitAccumulators<Tile>& sums) {
    constexpr int kPlace = kOwn % Tile::kPositions;
    constexpr bool kLast = kPlace == Tile::kPositions - 1;
    ptx::wgmma_wait<1>();  // position - 2 is done: its operand is free, and its stage if it was the last there
    keep(a);
    if (kLast && position >= 2) {
      if (lane == 0) ptx::mbarrier_arrive(ring.empty(done));
      done = done + 1 == Tile::kStages ? 0 : done + 1;
    }
    if (kPlace == 0) ptx::mbarrier_wait(ring.full(stage), parity);
    const uint32_t piece =
        ring.weights(stage) +
        static_cast<uint32_t>(row_tile * Tile::kPieceBytes + kPlace * layout::pair_bytes(layout::Packing::kBf16) +
                              lane * layout::kLaneBytes);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint4 words = ptx::load_shared16(piece + static_cast<uint32_t>(s * layout::kStepBytes));
      a[s][0] = words.x;
      a[s][1] = words.y;
      a[s][2] = words.z;
      a[s][3] = words.w;
    }
    const uint32_t panel = ring.input(stage) + kPlace * Tile::kPanelBytes +
                           static_cast<uint32_t>(part * Tile::kColumns * layout::kAtomRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) ptx::wgmma_m64k16(sums, a[s], layout::matrix_descriptor(panel, s));
    ptx::wgmma_commit();
    if (!kLast || ++stage < Tile::kStages) return;
    stage = 0;
    parity ^= 1u;
  }

  __device__ __forceinline__ void multiply(int positions, SplitAccumulators<Tile>& sums) {
    static_assert(Tile::kPositions <= 2);
    SplitOperand even = {}, odd = {};  // wgmma reads one while the other is written
    int i = 0;
    for (; i + 1 < positions; i += 2) {
      step<0>(i, even, sums);
      step<1>(i + 1, odd, sums);
    }
    if (i < positions) step<0>(i, even, sums);
    ptx::wgmma_wait<0>();
    keep(even);
    keep(odd);
#pragma unroll
    for (auto& column : sums) {
#pragma unroll
      for (float& sum : column) ptx::keep(sum);  // no use of them above the wait
    }
  }
};

// One CTA per SM. Each thread says at once that the next kernel may start: that one waits for this one's end before it
// reads.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    sm90_split_gemm(const __grid_constant__ SplitGemmArgs args, const __grid_constant__ SplitGemmPlan plan) {
  extern __shared__ __align__(128) uint8_t smem[];
  const SplitRing<Tile> ring(smem);
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  ptx::grid_dependency_launch();
  const SplitWork work(args, plan);
  if (threadIdx.x >= Tile::kConsumerWarps * layout::kWarpLanes) {
    const auto own = static_cast<int>(threadIdx.x) - Tile::kConsumerWarps * layout::kWarpLanes;
    if (own % layout::kWarpLanes == 0) SplitProducer<Tile>{args, work, ring, own / layout::kWarpLanes}.run();
    return;
  }
  SplitConsumer<Tile> consumer{ring};
  SplitAccumulators<Tile> sums = {};
  consumer.multiply(work.positions, sums);
  const int row_tile = work.first_row_tile + consumer.row_tile, lane = consumer.lane;
  const int first = consumer.part * Tile::kColumns;
  if (row_tile >= args.rows / layout::kTileRows) return;
  float* const to = args.sums + (int64_t{work.split} * args.tokens + work.first_token + first) * args.rows +
                    row_tile * layout::kTileRows + lane / 4;
#pragma unroll
  for (int n = 0; n < Tile::kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * n + 2 * (lane % 4) + i;
      if (first + token >= work.count) continue;
      to[int64_t{token} * args.rows] = sums[n][i];
      to[int64_t{token} * args.rows + 8] = sums[n][2 + i];
    }
  }
}

}  // namespace nibble::backend::cuda

#pragma once
// sums[s] = W·x over the s-th part of K, for few tokens, W packed bf16, x bf16      source: torch/model.py, Linear;
// arguments: dense/gemm_plan.h SplitGemmArgs
// W    layout/packed.h, read in the order in which it lies: position i of a tile is pair i / slices of slice i % slices
// x    layout/wgmma_b.h panels     sums bf16 [splits], gemm_plan.h place_in_sums
// grid one CTA per (up to kTokens tokens, 8 tiles of 16 rows, part of K), tokens fastest; a row tile and up to 128
//      tokens per consumer warp; producer warps copy 64 k of both operands a stage, the first weights before the kernel
//      before has ended
// mma  wgmma, weights from registers: a pair's run while the next pair's weights are loaded
// bytes, flops: testing/costs.h
// measured 2026-11-22 H100, 120b, alone in a chain: 64 tokens qkv 11.5 us, o 9.4; 128: 12.7, 10.7; 256: 14.8, 12.7
//      (sums in f32 17.5, 15.0; no sums 13.9, 11.9). A lane that copies alone costs 2 us (H200, bulk copies of 2 KB)
// rounding: f32 sums in an order fixed by shape and card, then to bf16: bitwise repeatable, whatever the other tokens

#include "backend/cuda/arch/sm90/gemm_rings.cuh"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

template <int kTheTokens>
struct SplitTile {
  static constexpr int kTokens = kTheTokens;
  static constexpr int kColumns = kTokens < 128 ? kTokens : 128;  // of a wgmma
  static constexpr int kParts = kTokens / kColumns;               // of the tokens: each has warps of its own
  static constexpr int kConsumerWarps = kSplitRowTiles * kParts;
  // A lane each; one alone reaches 22 KB/us (H200), half of an SM's share.
  static constexpr int kProducerWarps = 4;
  static constexpr int kThreads = (kConsumerWarps + kProducerWarps) * layout::kWarpLanes;
  // Positions whose wgmmas may be under way together. 16 consumer warps have registers for one, if producers give
  // theirs.
  static constexpr int kDepth = kParts == 1 ? 2 : 1;
  static constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;
  static constexpr int kStages = split_stages(kTokens);
  static constexpr int kInputBytes = kTokens * layout::kAtomRowBytes;
  static constexpr int kPieceBytes = layout::block_pair_bytes(layout::Packing::kBf16);
  static constexpr int kStageBytes = kInputBytes + kSplitWeightBytes;
  static constexpr int kSharedBytes = split_shared_bytes(kTokens);
  static_assert(kInputBytes % layout::kAtomBytes == 0 && kStageBytes % layout::kAtomBytes == 0);
  static_assert(2 * kStages * 8 <= kSplitBarrierBytes);
};

// A CTA's share.
struct SplitWork {
  int split, first_row_tile, first_token, count;  // count: tokens
  int first, positions;                           // of K, 64 k each, in the weights' order

  __device__ SplitWork(const SplitGemmArgs& args, const SplitCut& plan) {
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

// One lane per producer warp: its share of the row tiles, and the first one x too.
template <class Tile>
struct SplitProducer {
  static constexpr int kRowTiles = kSplitRowTiles / Tile::kProducerWarps;
  const SplitGemmArgs& args;
  const SplitWork& work;
  const StageRing<Tile>& ring;
  const int own;
  const layout::Geometry g = layout::geometry(layout::Packing::kBf16, args.cols);
  const uint64_t once = ptx::evict_first_policy();

  __device__ uint32_t input_bytes() const {
    return static_cast<uint32_t>((work.count + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomBytes);
  }
  __device__ void copy_weights(int i, int stage) const {
    const int row_tiles = args.rows / layout::kTileRows;
    ptx::mbarrier_arrive_expect_tx(ring.full(stage), kRowTiles * Tile::kPieceBytes + (own == 0 ? input_bytes() : 0u));
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const int t = own * kRowTiles + n;
      // A row tile beyond the last is a copy of it, and not stored.
      const int64_t tile = min(work.first_row_tile + t, row_tiles - 1);
      ptx::bulk_copy(ring.weights(stage) + static_cast<uint32_t>(t * Tile::kPieceBytes),
                     args.weights + tile * g.tile_bytes + int64_t{work.first + i} * Tile::kPieceBytes,
                     Tile::kPieceBytes, ring.full(stage), once);
    }
  }
  __device__ void copy_input(int i, int stage) const {
    if (own != 0) return;
    const int position = work.first + i, pair = position % g.slices * (g.blocks / 2) + position / g.slices;
    ptx::bulk_copy(ring.input(stage), args.x + (int64_t{pair} * args.x_rows + work.first_token) * layout::kPanelK,
                   input_bytes(), ring.full(stage));
  }
  __device__ void run() const {
    const int ahead = min(Tile::kStages, work.positions);
    for (int i = 0; i < ahead; ++i) copy_weights(i, i);
    ptx::grid_dependency_wait();
    for (int i = 0; i < ahead; ++i) copy_input(i, i);
    uint32_t parity = 0;
    for (int i = ahead, stage = 0; i < work.positions; ++i) {
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

// A warp that multiplies, where it is in the ring.
template <class Tile>
struct SplitConsumer {
  const StageRing<Tile>& ring;
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int row_tile = warp % kSplitRowTiles, part = warp / kSplitRowTiles;
  int stage = 0, done = 0;  // the next position's; the oldest that wgmma may still read
  uint32_t parity = 0;

  // sums += the position's weights · its columns, under way on return. `a`: the operand of position - kDepth.
  __device__ __forceinline__ void step(int position, SplitOperand& a, SplitAccumulators<Tile>& sums) {
    ptx::wgmma_wait<Tile::kDepth - 1>();  // that position is done: its operand and its stage are free
    ptx::keep(a);
    if (position >= Tile::kDepth) {
      ptx::mbarrier_arrive(ring.empty(done));  // every lane, for racecheck: see gemv.cuh warp_arrive
      done = done + 1 == Tile::kStages ? 0 : done + 1;
    }
    ptx::mbarrier_wait(ring.full(stage), parity);
    const uint32_t piece =
        ring.weights(stage) + static_cast<uint32_t>(row_tile * Tile::kPieceBytes + lane * layout::kLaneBytes);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint4 words = ptx::load_shared16(piece + static_cast<uint32_t>(s * layout::kStepBytes));
      a[s][0] = words.x;
      a[s][1] = words.y;
      a[s][2] = words.z;
      a[s][3] = words.w;
    }
    const uint32_t panel = ring.input(stage) + static_cast<uint32_t>(part * Tile::kColumns * layout::kAtomRowBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) ptx::wgmma(sums, a[s], layout::matrix_descriptor(panel, s));
    ptx::wgmma_commit();
    if (++stage < Tile::kStages) return;
    stage = 0;
    parity ^= 1u;
  }

  __device__ __forceinline__ void multiply(int positions, SplitAccumulators<Tile>& sums) {
    SplitOperand operands[Tile::kDepth] = {};  // wgmma reads one while the other is written
    int i = 0;
    for (; i + Tile::kDepth <= positions; i += Tile::kDepth) {
#pragma unroll
      for (int d = 0; d < Tile::kDepth; ++d) step(i + d, operands[d], sums);
    }
    if (i < positions) step(i, operands[0], sums);
    ptx::wgmma_wait<0>();
    ptx::keep(operands);
    ptx::keep(sums);  // no use of them above the wait
  }
};

// One CTA per SM. Each thread says at once that the next kernel may start: that one waits for this one's end before it
// reads.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    sm90_split_gemm(const __grid_constant__ SplitGemmArgs args, const __grid_constant__ SplitCut plan) {
  extern __shared__ __align__(128) uint8_t smem[];
  const StageRing<Tile> ring(smem);
  if (threadIdx.x == 0) ring.init(Tile::kProducerWarps, Tile::kConsumerWarps * layout::kWarpLanes);
  __syncthreads();
  ptx::grid_dependency_launch();
  const SplitWork work(args, plan);
  const int producer = static_cast<int>(threadIdx.x) - Tile::kConsumerWarps * layout::kWarpLanes;
  if (producer >= 0) {
    if constexpr (Tile::kParts > 1) ptx::give_registers_but<Tile::kProducerRegisters>();
    if (producer % layout::kWarpLanes == 0) SplitProducer<Tile>{args, work, ring, producer / layout::kWarpLanes}.run();
    return;
  }
  if constexpr (Tile::kParts > 1) ptx::take_registers_up_to<Tile::kConsumerRegisters>();
  SplitConsumer<Tile> consumer{ring};
  SplitAccumulators<Tile> sums = {};
  consumer.multiply(work.positions, sums);
  const int row_tile = work.first_row_tile + consumer.row_tile, lane = consumer.lane;
  const int first = consumer.part * Tile::kColumns;
  if (row_tile >= args.rows / layout::kTileRows) return;
  // A warp stores whole lines; tokens that make eights whole are stored, too.
  uint16_t* const to =
      args.sums + work.split * split_pitch(args.tokens, args.rows) +
      place_in_sums(args.tokens, work.first_token + first + 2 * (lane % 4), row_tile * layout::kTileRows + lane / 4);
#pragma unroll
  for (int n = 0; n < Tile::kColumns / 8; ++n) {
    if (first + 8 * n >= work.count) break;
    for (int i = 0; i < 2; ++i)  // tokens
      *reinterpret_cast<uint32_t*>(to + n * 128 + i * 64) = ptx::pack_bf16(sums[n][i], sums[n][2 + i]);
  }
}

}  // namespace nibble::backend::cuda

#pragma once
// y = W·x for the pairs of each expert, up to 16 at a time, W MXFP4     source: torch/model.py, MLPBlock
// arguments: grouped_plan.h     W  layout/packed.h
// grid one CTA per SM; all (expert tile, row tile) in expert-major order, a range of them per CTA, whose warps take
//      them in turn: so a CTA sees few experts, and waits for new activations seldom
// warp a row tile, all of K: weights through a ring of its own (cp.async), a slice a stage, on into its next tile;
//      activations from shared memory; sums in registers. Warps meet only where the activations change.
// mma  m16n8k16 f16, weights on the m side, unscaled; a block's sums are scaled before they are added
// bytes, flops: cost()
// bounds per row tile of 2880 columns (H200, cycles): DRAM 1240; issue about 650 for 8 columns, 790 for 16; shared
//      memory 740 and 1100 (two row tiles per warp need 560 and 740, but leave fewer warps: no faster)
// measured 2026-11-21 (H200, 120b, share of read bandwidth), gate_up: 16 tokens 122 us (82 %), 32 180 us (85 %), 64
//      235 us (87 %), 256 317 us (77 %), 512 454 us; down: 68 (75 %), 97 (80 %), 125 (82 %), 162 (77 %), 233 us
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other pairs

#include "backend/cuda/kernels/any/grouped_plan.h"
#include "backend/cuda/layout/mma_m16n8k16.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

#include <cuda_fp16.h>

namespace nibble::backend::cuda {

inline constexpr int kGroupedMaxWarps = 16;
inline constexpr int kColumns = 8;  // of an mma

template <int kTheBlocks>
struct GroupedTile {
  static constexpr int kBlocks = kTheBlocks, kStages = kGroupedStages;  // blocks of a slice
  static constexpr int kPairs = kBlocks / 2;
  static constexpr int kSliceBytes = layout::slice_bytes(kBlocks);
  static constexpr int kCopies = (kSliceBytes + layout::kStepBytes - 1) / layout::kStepBytes;  // of 16 B per lane
};

// Dynamic shared memory: activations [tokens][pitch] | rings [warps][stages] of slices | barrier
template <class Tile>
struct GroupedShared {
  uint32_t x, ring, barrier;
  int pitch;

  __device__ GroupedShared(const uint8_t* memory, int cols, int tokens, int warps, int warp)
      : x(ptx::shared_address(memory)),
        ring(x + static_cast<uint32_t>(tokens * grouped_pitch(cols) + warp * Tile::kStages * Tile::kSliceBytes)),
        barrier(x + static_cast<uint32_t>(tokens * grouped_pitch(cols) + warps * Tile::kStages * Tile::kSliceBytes)),
        pitch(grouped_pitch(cols)) {}
  __device__ uint32_t stage(int i) const { return ring + static_cast<uint32_t>(i * Tile::kSliceBytes); }
};

// Row tiles [first, end) of all expert tiles, expert-major: what a CTA computes.
struct GroupedRange {
  int first, end;
  __device__ explicit GroupedRange(int tiles)
      : first(static_cast<int>(int64_t{tiles} * static_cast<int>(blockIdx.x) / static_cast<int>(gridDim.x))),
        end(static_cast<int>(int64_t{tiles} * (static_cast<int>(blockIdx.x) + 1) / static_cast<int>(gridDim.x))) {}
};

// A warp's weights, slice after slice of row tile after row tile, into its ring.
template <class Tile>
struct GroupedFeed {
  const ExpertTile* tiles;
  const uint8_t* weights;
  const GroupedShared<Tile>& shared;
  int row_tiles, slices, step, end;  // step: warps; end: of the range
  int lane;
  int row_tile;             // in the range; what is fetched next
  int slot = 0, slice = 0;  // its expert tile; within it
  int stage = 0;
  const uint8_t* from = nullptr;

  __device__ void open() {
    if (row_tile >= end) return;
    while (row_tile >= (slot + 1) * row_tiles) ++slot;
    const int64_t tile = int64_t{tiles[slot].expert} * row_tiles + row_tile - slot * row_tiles;
    from = weights + tile * (slices * Tile::kSliceBytes) + lane * layout::kLaneBytes;
  }
  // One group of copies, if only an empty one.
  __device__ void fetch() {
    if (row_tile < end) {
      const uint32_t to = shared.stage(stage) + static_cast<uint32_t>(lane * layout::kLaneBytes);
#pragma unroll
      for (int i = 0; i < Tile::kCopies; ++i)
        if (i + 1 < Tile::kCopies || lane * layout::kLaneBytes + i * layout::kStepBytes < Tile::kSliceBytes)
          ptx::async_copy16(to + static_cast<uint32_t>(i * layout::kStepBytes), from + i * layout::kStepBytes,
                            ptx::Fill::kCopy);
      from += Tile::kSliceBytes;
      if (++slice == slices) {
        slice = 0;
        row_tile += step;
        open();
      }
      stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
    }
    ptx::async_commit();
  }
};

__device__ __forceinline__ float grouped_scale(uint32_t word, int i) {
  return __uint_as_float((i == 3 ? word >> 1 : word << (23 - 8 * i)) & 0x7f800000u);
}

// sums += a slice's weights times kColumnTiles times 8 columns, whose k begin at x.
template <class Tile, int kColumnTiles>
__device__ __forceinline__ void multiply_slice(uint32_t stage, uint32_t x, int pitch, int lane,
                                               float (&sums)[kColumnTiles][4]) {
  const uint32_t codes_at = stage + static_cast<uint32_t>(layout::code_offset(0, lane));
  const uint32_t scales_at = stage + static_cast<uint32_t>(layout::scale_word_offset(Tile::kBlocks, lane / 4, 0));
#pragma unroll
  for (int q = 0; q < Tile::kPairs; ++q) {
    const uint4 codes = ptx::load_shared16(codes_at + static_cast<uint32_t>(layout::code_offset(q, 0)));
    const uint32_t scales = ptx::load_shared4(scales_at + static_cast<uint32_t>(4 * q));
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float products[kColumnTiles][4] = {};
      const layout::E2m1Pairs low = layout::widen_e2m1x8(odd == 0 ? codes.x : codes.z);
      const layout::E2m1Pairs high = layout::widen_e2m1x8(odd == 0 ? codes.y : codes.w);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const uint4 b = ptx::load_shared16(x + static_cast<uint32_t>(n * kColumns * pitch + (2 * q + odd) * 64));
        ptx::mma_m16n8k16(products[n], low.pair, b.x, b.y);
        ptx::mma_m16n8k16(products[n], high.pair, b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = grouped_scale(scales, 2 * (i / 2) + odd);
        for (int n = 0; n < kColumnTiles; ++n) sums[n][i] += scale * products[n][i];
      }
    }
  }
}

// One row tile; the warp's ring moves on.
template <class Tile, int kColumnTiles>
__device__ __forceinline__ void multiply_tile(GroupedFeed<Tile>& feed, int& stage, uint32_t x,
                                              float (&sums)[kColumnTiles][4]) {
#pragma unroll 1
  for (int slice = 0; slice < feed.slices; ++slice, x += Tile::kBlocks * 64) {
    ptx::async_wait<Tile::kStages - 2>();
    __syncwarp();  // every lane's copies are there, and the slice before this one is read
    feed.fetch();
    multiply_slice<Tile, kColumnTiles>(feed.shared.stage(stage), x, feed.shared.pitch, feed.lane, sums);
    stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
  }
}

// What the two products do around the loop. pairs: those of the lane's columns, or -1.
template <int kColumnTiles>
using ColumnPairs = int[kColumnTiles][2];

struct GroupedUp {
  using Args = GroupedUpArgs;
  const Args& a;
  __device__ int cols() const { return a.hidden; }
  __device__ int row_tiles() const { return 2 * a.inter / layout::kTileRows; }
  __device__ const F16* row(int pair) const { return a.x + int64_t{pair / a.groups.topk} * a.hidden; }

  template <int kColumnTiles>
  __device__ void finish(int expert, int row_tile, int g, const ColumnPairs<kColumnTiles>& pairs,
                         const float (&sums)[kColumnTiles][4]) const {
    const int channel = row_tile * 8 + g;
    const Bf16* bias = a.bias + (int64_t{expert} * a.inter + channel) * 2;
    const float gate_bias = bias[0].to_float(), up_bias = bias[1].to_float();
    for (int n = 0; n < kColumnTiles; ++n)
      for (int j = 0; j < 2; ++j)
        if (pairs[n][j] >= 0)
          a.u[int64_t{pairs[n][j]} * a.inter + channel] = {
              __half_as_ushort(__float2half_rn(swiglu(sums[n][j] + gate_bias, sums[n][2 + j] + up_bias)))};
  }
  // torch/model.py swiglu. |u| <= 7 * 8 for the default limit: finite in f16.
  __device__ float swiglu(float gate, float up) const {
    constexpr float kAlpha = 1.702f;
    const float limit = a.swiglu_limit;
    gate = gate > limit ? limit : gate;  // keeps NaN, which fminf would hide
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate / (1.0f + __expf(-kAlpha * gate)) * (up + 1.0f);
  }
};

struct GroupedDown {
  using Args = GroupedDownArgs;
  const Args& a;
  __device__ int cols() const { return a.inter; }
  __device__ int row_tiles() const { return a.hidden / layout::kTileRows; }
  __device__ const F16* row(int pair) const { return a.u + int64_t{pair} * a.inter; }

  template <int kColumnTiles>
  __device__ void finish(int expert, int row_tile, int g, const ColumnPairs<kColumnTiles>& pairs,
                         const float (&sums)[kColumnTiles][4]) const {
    const int row = row_tile * layout::kTileRows + g;
    const Bf16* bias = a.bias + int64_t{expert} * a.hidden + row;
    const float biases[2] = {bias[0].to_float(), bias[8].to_float()};
    for (int n = 0; n < kColumnTiles; ++n)
      for (int i = 0; i < 4; ++i)
        if (pairs[n][i % 2] >= 0)
          a.y[int64_t{pairs[n][i % 2]} * a.hidden + row + 8 * (i / 2)] = sums[n][i] + biases[i / 2];
  }
};

// The row tiles of one expert tile that fall to this warp.
template <class Tile, int kColumnTiles, class Op>
__device__ void multiply_expert(const Op& op, const ExpertTile& group, int first, int& row_tile, int end,
                                GroupedFeed<Tile>& feed, int& stage) {
  const int g = feed.lane / 4, t = feed.lane % 4;
  int pairs[kColumnTiles][2];
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n)
    for (int j = 0; j < 2; ++j) {
      const int column = n * kColumns + 2 * t + j;
      pairs[n][j] = column < group.count ? op.a.groups.pairs[group.first + column] : -1;
    }
  const uint32_t x = feed.shared.x + static_cast<uint32_t>(g * feed.shared.pitch + t * 16);
  for (; row_tile < end; row_tile += feed.step) {
    float sums[kColumnTiles][4] = {};
    multiply_tile<Tile, kColumnTiles>(feed, stage, x, sums);
    op.finish(group.expert, row_tile - first, g, pairs, sums);
  }
}

// The rows of the group's pairs to shared memory, by the first warp.
template <class Op>
__device__ __forceinline__ void copy_rows(const Op& op, const ExpertTile& group, uint32_t x, int pitch,
                                          uint32_t barrier) {
  const int lane = static_cast<int>(threadIdx.x);
  const auto bytes = static_cast<uint32_t>(op.cols() * 2);
  if (lane >= layout::kWarpLanes) return;
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(barrier, bytes * static_cast<uint32_t>(group.count));
  __syncwarp();
  if (lane < group.count)
    ptx::bulk_copy(x + static_cast<uint32_t>(lane * pitch), op.row(op.a.groups.pairs[group.first + lane]), bytes,
                   barrier);
}

template <class Tile, class Op>
__global__ void __launch_bounds__(kGroupedMaxWarps* layout::kWarpLanes, 1)
    grouped(const __grid_constant__ typename Op::Args args, const int tokens) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes,
            warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
            warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const Op op{args};
  const GroupedShared<Tile> shared(smem, op.cols(), tokens, warps, warp);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(shared.barrier, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int row_tiles = op.row_tiles();
  const GroupedRange range(*args.groups.tile_count * row_tiles);
  GroupedFeed<Tile> feed{.tiles = args.groups.tiles,
                         .weights = args.weights,
                         .shared = shared,
                         .row_tiles = row_tiles,
                         .slices = op.cols() / (Tile::kBlocks * layout::kBlockK),
                         .step = warps,
                         .end = range.end,
                         .lane = lane,
                         .row_tile = range.first + warp,
                         .slot = range.first / row_tiles};
  feed.open();
  for (int i = 0; i + 1 < Tile::kStages; ++i) feed.fetch();
  int stage = 0, row_tile = range.first + warp;
  uint32_t parity = 0;
  for (int slot = range.first / row_tiles; slot * row_tiles < range.end; ++slot, parity ^= 1) {
    const ExpertTile group = args.groups.tiles[slot];
    const int end = min(range.end, (slot + 1) * row_tiles);
    __syncthreads();  // the barrier is there, and nobody reads the activations before these
    copy_rows(op, group, shared.x, shared.pitch, shared.barrier);
    ptx::mbarrier_wait(shared.barrier, parity);
    if (group.count > kColumns) {
      multiply_expert<Tile, 2>(op, group, slot * row_tiles, row_tile, end, feed, stage);
    } else {
      multiply_expert<Tile, 1>(op, group, slot * row_tiles, row_tile, end, feed, stage);
    }
  }
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

#pragma once
// y = W·x for the pairs of each expert, up to 16 at a time, W MXFP4     source: torch/model.py, MLPBlock
// arguments: grouped_plan.h     main loop: row_warps.cuh
// grid one CTA per SM; all (expert tile, row tile) in expert-major order, a range of them per CTA, whose warps take
//      them in turn: so a CTA sees few experts, and waits for new activations seldom. Its warps meet only there.
// bytes, flops: cost()
// measured 2026-11-21 (H200, 120b, share of read bandwidth), gate_up: 16 tokens 122 us (82 %), 32 180 us (85 %), 64
//      235 us (87 %), 256 317 us (77 %), 512 454 us; down: 68 (75 %), 97 (80 %), 125 (82 %), 162 (77 %), 233 us

#include "backend/cuda/kernels/any/grouped_plan.h"
#include "backend/cuda/kernels/any/row_warps.cuh"
#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"

namespace nibble::backend::cuda {

// Row tiles [first, end) of all expert tiles, expert-major: what a CTA computes.
struct GroupedRange {
  int first, end;
  __device__ explicit GroupedRange(int tiles)
      : first(static_cast<int>(int64_t{tiles} * static_cast<int>(blockIdx.x) / static_cast<int>(gridDim.x))),
        end(static_cast<int>(int64_t{tiles} * (static_cast<int>(blockIdx.x) + 1) / static_cast<int>(gridDim.x))) {}
};

// A warp's row tiles of the range.
struct GroupedWalk {
  const ExpertTile* tiles;
  int row_tiles, step, end;  // row_tiles: of an expert; step: warps
  int row_tile, slot;        // in the range; its expert tile

  [[nodiscard]] __device__ bool valid() const { return row_tile < end; }
  [[nodiscard]] __device__ int64_t tile() {
    while (row_tile >= (slot + 1) * row_tiles) ++slot;
    return int64_t{tiles[slot].expert} * row_tiles + row_tile - slot * row_tiles;
  }
  __device__ void advance() { row_tile += step; }
};

// What the two products do around the loop. fetch: biases of a row tile's rows; pairs: those of the lane's columns, or
// -1.
template <int kColumnTiles>
using ColumnPairs = int[kColumnTiles][2];

struct GroupedUp {
  using Args = GroupedUpArgs;
  const Args& a;
  __device__ int cols() const { return a.hidden; }
  __device__ int row_tiles() const { return 2 * a.inter / layout::kTileRows; }
  __device__ const F16* row(int pair) const { return a.x + int64_t{pair / a.groups.topk} * a.hidden; }
  __device__ float2 fetch(int expert, int row_tile, int g) const {
    const Bf16* bias = a.bias + (int64_t{expert} * a.inter + row_tile * 8 + g) * 2;
    return {bias[0].to_float(), bias[1].to_float()};
  }
  template <int kColumnTiles>
  __device__ void finish(int row_tile, int g, const ColumnPairs<kColumnTiles>& pairs, const float2& bias,
                         const float (&sums)[kColumnTiles][4]) const {
    for (int n = 0; n < kColumnTiles; ++n)
      for (int j = 0; j < 2; ++j)
        if (pairs[n][j] >= 0)
          a.u[int64_t{pairs[n][j]} * a.inter + row_tile * 8 + g] =
              swiglu_f16(sums[n][j] + bias.x, sums[n][2 + j] + bias.y, a.swiglu_limit);
  }
};

struct GroupedDown {
  using Args = GroupedDownArgs;
  const Args& a;
  __device__ int cols() const { return a.inter; }
  __device__ int row_tiles() const { return a.hidden / layout::kTileRows; }
  __device__ const F16* row(int pair) const { return a.u + int64_t{pair} * a.inter; }
  __device__ float2 fetch(int expert, int row_tile, int g) const {
    const Bf16* bias = a.bias + int64_t{expert} * a.hidden + row_tile * layout::kTileRows + g;
    return {bias[0].to_float(), bias[8].to_float()};
  }
  template <int kColumnTiles>
  __device__ void finish(int row_tile, int g, const ColumnPairs<kColumnTiles>& pairs, const float2& bias,
                         const float (&sums)[kColumnTiles][4]) const {
    for (int n = 0; n < kColumnTiles; ++n)
      for (int i = 0; i < 4; ++i)
        if (pairs[n][i % 2] >= 0)
          a.y[int64_t{pairs[n][i % 2]} * a.hidden + row_tile * layout::kTileRows + g + 8 * (i / 2)] =
              sums[n][i] + (i / 2 == 0 ? bias.x : bias.y);
  }
};

// The row tiles of one expert tile, up to `end` of the range, that fall to this warp. first: the expert tile's first.
template <int kColumnTiles, class Tile, class Op>
__device__ void multiply_expert(const Op& op, const ExpertTile& group, int first, int end, GroupedWalk& at,
                                RowFeed<Tile, GroupedWalk>& feed, int& stage) {
  const int g = feed.lane / 4, t = feed.lane % 4;
  int pairs[kColumnTiles][2];
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n)
    for (int j = 0; j < 2; ++j) {
      const int column = n * kColumns + 2 * t + j;
      pairs[n][j] = column < group.count ? op.a.groups.pairs[group.first + column] : -1;
    }
  for (; at.row_tile < end; at.advance()) {
    const int row_tile = at.row_tile - first;
    const float2 bias = op.fetch(group.expert, row_tile, g);
    float sums[kColumnTiles][4] = {};
    multiply_tile<kColumnTiles>(feed, stage, sums);
    op.finish(row_tile, g, pairs, bias, sums);
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
__global__ void __launch_bounds__(kRowMaxWarps* layout::kWarpLanes, 1)
    grouped(const __grid_constant__ typename Op::Args args, const int tokens) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
            warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const Op op{args};
  const RowShared<Tile> shared(smem, op.cols(), tokens);
  const uint32_t barrier = shared.extra;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int row_tiles = op.row_tiles();
  const GroupedRange range(*args.groups.tile_count * row_tiles);
  GroupedWalk at{args.groups.tiles, row_tiles, warps, range.end, range.first + warp, range.first / row_tiles};
  RowFeed<Tile, GroupedWalk> feed(shared, at, args.weights, op.cols());
  int stage = 0;
  uint32_t parity = 0;
  for (int slot = at.slot; slot * row_tiles < range.end; ++slot, parity ^= 1) {
    const ExpertTile group = args.groups.tiles[slot];
    const int first = slot * row_tiles, end = min(range.end, first + row_tiles);
    __syncthreads();  // the barrier is there, and nobody reads the activations before these
    copy_rows(op, group, shared.x, shared.pitch, barrier);
    ptx::mbarrier_wait(barrier, parity);
    if (group.count > kColumns) {
      multiply_expert<2>(op, group, first, end, at, feed, stage);
    } else {
      multiply_expert<1>(op, group, first, end, at, feed, stage);
    }
  }
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

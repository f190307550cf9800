#pragma once
// y = W·x for the pairs of each expert, up to 24 at a time, W MXFP4     source: torch/model.py, MLPBlock
// arguments: experts.h     main loop: row_warps.cuh
// grid one CTA per SM; all (expert tile, row tile) in the order of expert tiles, a range of equal cost per CTA, whose
//      warps take them in turn: so a CTA sees few experts, and waits for new activations seldom. Its warps meet only
//      there.
// bytes, flops: testing/costs.h
// measured 2026-11-22 (H100, 120b, share of read bandwidth), gate_up: 16 tokens 173 us (88 %), 32 258 us (90 %), 64
//      338 us (91 %), 256 420 us (88 %), 512 461 us (80 %); down: 92 (83 %), 135 (86 %), 177 (87 %), 222 (83 %), 255 us

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/dense/row_warps.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"

namespace nibble::backend::cuda {

// A warp's row tiles of its CTA's range.
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

// What the two products do around the loop. fetch: biases of rows g and g + 8 of a row tile; finish: their sums for a
// pair.

struct GroupedUpOp {
  using Args = GroupedUp::Args;
  const Args& a;
  __device__ int cols() const { return a.hidden; }
  __device__ int row_tiles() const { return 2 * a.inter / layout::kTileRows; }
  __device__ const F16* row(int pair) const { return a.x + int64_t{pair / a.groups.topk} * a.hidden; }
  __device__ float2 fetch(int expert, int row_tile, int g) const {
    const Bf16* bias = a.bias + (int64_t{expert} * a.inter + row_tile * 8 + g) * 2;
    return {bias[0].to_float(), bias[1].to_float()};
  }
  __device__ void finish(int pair, int row_tile, int g, const float2& sums) const {
    store_channel(a.u, pair, a.inter, row_tile * 8 + g, swiglu_f16(sums.x, sums.y, a.swiglu_limit));
  }
};

struct GroupedDownOp {
  using Args = GroupedDown::Args;
  const Args& a;
  __device__ int cols() const { return a.inter; }
  __device__ int row_tiles() const { return a.hidden / layout::kTileRows; }
  __device__ const F16* row(int pair) const { return a.u + int64_t{pair} * a.inter; }
  __device__ float2 fetch(int expert, int row_tile, int g) const {
    const Bf16* bias = a.bias + int64_t{expert} * a.hidden + row_tile * layout::kTileRows + g;
    return {bias[0].to_float(), bias[8].to_float()};
  }
  __device__ void finish(int pair, int row_tile, int g, const float2& sums) const {
    float* y = a.y + int64_t{pair} * a.hidden + row_tile * layout::kTileRows + g;
    y[0] = sums.x;
    y[8] = sums.y;
  }
};

// What lies after the rings: a barrier, and the pairs of the activations.
__device__ inline uint32_t pairs_at(uint32_t extra) { return extra + 16; }
static_assert(16 + 4 * kGrouped.rows <= kRowExtraBytes);

// The row tiles of one expert tile, up to `end` of the range, that fall to this warp. first: the expert tile's first.
template <int kColumnTiles, class Tile, class Op>
__device__ void multiply_expert(const Op& op, const ExpertTile& group, int first, int end, GroupedWalk& at,
                                RowFeed<Tile, GroupedWalk>& feed, int& stage) {
  const int g = feed.lane / 4, t = feed.lane % 4;
  for (; at.row_tile < end; at.advance()) {
    const int row_tile = at.row_tile - first;
    const float2 bias = op.fetch(group.expert, row_tile, g);
    float sums[kColumnTiles][4] = {};
    multiply_tile<kColumnTiles>(feed, stage, feed.shared.x, sums);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
      for (int j = 0; j < 2; ++j) {
        const int column = n * kMmaColumns + 2 * t + j;
        if (column >= group.count) continue;
        const uint32_t pair = ptx::load_shared4(pairs_at(feed.shared.extra) + static_cast<uint32_t>(4 * column));
        op.finish(static_cast<int>(pair), row_tile, g, {sums[n][j] + bias.x, sums[n][2 + j] + bias.y});
      }
  }
}

// The group's pairs and their rows to shared memory, by the first warp.
template <class Tile, class Op>
__device__ __forceinline__ void copy_rows(const Op& op, const ExpertTile& group, const RowShared<Tile>& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= layout::kWarpLanes) return;
  const int pair = lane < group.count ? op.a.groups.pairs[group.first + lane] : 0;
  if (lane < group.count)
    ptx::store_shared4(pairs_at(shared.extra) + static_cast<uint32_t>(4 * lane), static_cast<uint32_t>(pair));
  __syncwarp();  // the pairs are there before the barrier can be passed
  ptx::counted_copy({.to_shared = shared.x,
                     .bytes = static_cast<uint32_t>(op.cols() * 2),
                     .barrier = shared.extra,
                     .pitch = shared.pitch,
                     .rows = group.count},
                    op.row(pair));
}

template <class Tile, class Op>
__global__ void __launch_bounds__(kRowMaxWarps* layout::kWarpLanes, 1)
    grouped(const __grid_constant__ typename Op::Args args, const int tokens) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
            warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const Op op{args};
  const RowShared<Tile> shared(smem, op.cols(), tokens);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(shared.extra, ptx::kCopyArrivals);
    ptx::fence_mbarrier_init();
  }
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int row_tiles = op.row_tiles();
  const GroupedRanges ranges(args.groups.tile_counts, row_tiles);
  const auto cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int range_first = ranges.first(cta, ctas), range_end = ranges.first(cta + 1, ctas);
  GroupedWalk at{args.groups.tiles, row_tiles, warps, range_end, range_first + warp, range_first / row_tiles};
  RowFeed<Tile, GroupedWalk> feed(shared, at, args.weights, op.cols());
  int stage = 0;
  uint32_t parity = 0;
  for (int slot = at.slot; slot * row_tiles < range_end; ++slot, parity ^= 1) {
    const ExpertTile group = args.groups.tiles[slot];
    const int first = slot * row_tiles, end = min(range_end, first + row_tiles);
    __syncthreads();  // the barrier is there, and nobody reads the activations before these
    copy_rows(op, group, shared);
    ptx::mbarrier_wait(shared.extra, parity);
    switch ((group.count + kMmaColumns - 1) / kMmaColumns) {
      case 1: multiply_expert<1>(op, group, first, end, at, feed, stage); break;
      case 2: multiply_expert<2>(op, group, first, end, at, feed, stage); break;
      default: multiply_expert<3>(op, group, first, end, at, feed, stage);
    }
  }
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

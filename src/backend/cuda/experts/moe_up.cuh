#pragma once
// u[t, k] = swiglu(W1[e] · x[t] + b1[e]) of the experts that up to 8 tokens choose     source: torch/model.py, MLPBlock
// arguments: gemv_plan.h MoeUpArgs     main loop: row_warps.cuh
// grid one CTA per SM; the row tiles of all chosen experts in turn, a CTA's to its warps in turn; column t = token t of
//      every expert, so that the activations are loaded once
// nothing starts, not even the next kernel, before the dependency wait: behind this kernel the logits are complete
// bytes, flops: cost()

#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/dense/row_warps.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"
#include "backend/cuda/ptx/atomic.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/prefetch.cuh"

namespace nibble::backend::cuda {

// Tiles in the expert-major order. A warp's first is fixed: CTA c has c, c + ctas, … for its warps in turn. Which comes
// behind it, too, or where there is a counter, the warps take tiles as they come to them, so that those that memory
// serves well do more.
struct RoutedWalk {
  const Routing& routing;
  int row_tiles, step;
  int row_tile, slot = 0;
  int* counter;
  int taken = 0;  // of lane 0: the next tile's place behind the fixed ones

  __device__ RoutedWalk(const Routing& of_step, int row_tiles_of_expert, int* the_counter)
      : routing(of_step), row_tiles(row_tiles_of_expert), counter(the_counter) {
    const auto ctas = static_cast<int>(gridDim.x);
    step = ctas * static_cast<int>(blockDim.x) / layout::kWarpLanes;
    row_tile = static_cast<int>(blockIdx.x) + static_cast<int>(threadIdx.x) / layout::kWarpLanes * ctas;
    wrap();
    take();
  }
  [[nodiscard]] __device__ bool valid() const { return slot < routing.count; }
  [[nodiscard]] __device__ int64_t tile() const { return int64_t{routing.expert_at(slot)} * row_tiles + row_tile; }
  __device__ void advance() {
    if (counter == nullptr) {
      row_tile += step;
    } else {
      row_tile = step + __shfl_sync(kEveryLane, taken, 0) - slot * row_tiles;
    }
    wrap();
    if (valid()) take();
  }

 private:
  __device__ void take() {
    if (counter == nullptr || threadIdx.x % layout::kWarpLanes != 0) return;
    taken = atomicAdd(counter, 1);
    if (taken == max(routing.count * row_tiles, step) - 1) *counter = 0;  // nobody comes behind: for the next launch
  }
  __device__ void wrap() {
    while (row_tile >= row_tiles) {
      row_tile -= row_tiles;
      ++slot;
    }
  }
};

// The first weights that the same warp of moe_down will ask for, to L2.
__device__ __forceinline__ void prefetch_down(const MoeUpArgs& args, const Routing& routing, int warp, int warps) {
  const auto cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int all = routing.count * args.down_row_tiles;
  const int at = args.down_taken ? cta + warp * ctas : all * cta / ctas + warp;
  if (at >= (args.down_taken ? all : all * (cta + 1) / ctas)) return;
  const int slot = at / args.down_row_tiles;
  const int64_t tile = int64_t{routing.expert_at(slot)} * args.down_row_tiles + (at - slot * args.down_row_tiles);
  if (threadIdx.x % layout::kWarpLanes == 0)
    ptx::bulk_prefetch_l2(args.down + tile * layout::tile_bytes(args.inter), static_cast<uint32_t>(args.down_bytes));
}

template <class Tile>
__global__ void __launch_bounds__(kRowMaxWarps* layout::kWarpLanes, 1) moe_up(const __grid_constant__ MoeUpArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, t = lane % 4,
            warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
            warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const RowShared<Tile> shared(smem, args.hidden, args.rows);
  const uint32_t rows_there = shared.extra;
  const RouteShared routes{shared.extra + 8, shared.extra + 16};
  static_assert(16 + kRouteBytes <= kRowExtraBytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(rows_there, ptx::kCopyArrivals);
    routes.init(args.tokens);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  for (int token = warp; token < args.tokens; token += warps) {
    Choice choice(args.choice, token, lane);
    while (choice.picked < choice.c.topk) choice.pick();
    choice.publish(routes);
  }
  if (warp == warps - 1)
    ptx::counted_copy({.to_shared = shared.x,
                       .bytes = static_cast<uint32_t>(args.hidden * 2),
                       .barrier = rows_there,
                       .pitch = shared.pitch,
                       .rows = args.tokens},
                      args.x + int64_t{lane} * args.hidden);
  ptx::mbarrier_wait(routes.chosen, 0);
  const Routing routing = Routing::read(routes, args.choice, args.tokens, lane);
  RowFeed<Tile, RoutedWalk> feed(shared, {routing, 2 * args.inter / layout::kTileRows, args.counter}, args.weights,
                                 args.hidden);
  ptx::mbarrier_wait(rows_there, 0);
  const uint32_t x = shared.x - static_cast<uint32_t>(max(g - args.rows + 1, 0) * shared.pitch);  // others: the last
  for (int stage = 0; feed.walk.valid();) {
    const RoutedWalk at = feed.walk;  // not yet at the next tile: a tile has more slices than the ring
    const int channel = at.row_tile * 8 + g;
    const Bf16* bias = args.bias + (int64_t{routing.expert_at(at.slot)} * args.inter + channel) * 2;
    const float gate_bias = bias[0].to_float(), up_bias = bias[1].to_float();
    float sums[1][4] = {};
    multiply_tile<1>(feed, stage, x, sums);
    const uint32_t pairs = routing.pairs_at(at.slot);
    for (int j = 0; j < 2; ++j) {
      const int pair = pair_of_token(pairs, 2 * t + j, args.tokens, args.choice.topk);
      if (pair >= 0)
        args.u[int64_t{pair} * args.inter + channel] =
            swiglu_f16(sums[0][j] + gate_bias, sums[0][2 + j] + up_bias, args.swiglu_limit);
    }
  }
  if (args.down_bytes > 0) prefetch_down(args, routing, warp, warps);
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

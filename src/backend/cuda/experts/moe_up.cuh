#pragma once
// u[t, k] = swiglu(W1[e] · x[t] + b1[e]) of the experts that up to 8 tokens choose     source: torch/model.py, MLPBlock
// arguments: gemv_plan.h MoeUpArgs     main loop: row_warps.cuh
// grid one CTA per SM; the row tiles of all chosen experts in turn, a CTA's to its warps in turn; column t = token t of
//      every expert, so that the activations are loaded once
// nothing starts, not even the next kernel, before the dependency wait: after this kernel the logits are complete
// bytes, flops: cost()

#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/dense/row_warps.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

// CTA c takes tiles c, c + ctas, … of the expert-major order; its j-th falls to warp j modulo those that work. Where
// these have several tiles each, as many work as all have the same number with: 22 tiles are two of 11 warps, not one
// of ten and two of six.
struct RoutedWalk {
  const Routing& routing;
  int row_tiles, step;
  int row_tile, slot = 0;

  __device__ RoutedWalk(const Routing& of_step, int row_tiles_of_expert)
      : routing(of_step), row_tiles(row_tiles_of_expert) {
    const auto ctas = static_cast<int>(gridDim.x), warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
    const int all = routing.count * row_tiles;
    int warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
    if (all > ctas * warps) {
      const int rounds = (all + ctas * warps - 1) / (ctas * warps);
      warps = (all + ctas * rounds - 1) / (ctas * rounds);
    }
    step = ctas * warps;
    row_tile = warp < warps ? static_cast<int>(blockIdx.x) + warp * ctas : all;
    wrap();
  }
  [[nodiscard]] __device__ bool valid() const { return slot < routing.count; }
  [[nodiscard]] __device__ int64_t tile() const { return int64_t{routing.expert_at(slot)} * row_tiles + row_tile; }
  __device__ void advance() {
    row_tile += step;
    wrap();
  }

 private:
  __device__ void wrap() {
    while (row_tile >= row_tiles) {
      row_tile -= row_tiles;
      ++slot;
    }
  }
};

template <class Tile>
__global__ void __launch_bounds__(kRowMaxWarps* layout::kWarpLanes, 1) moe_up(const __grid_constant__ MoeUpArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, t = lane % 4,
            warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
            warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const RowShared<Tile> shared(smem, args.hidden, kGemvTokens);
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
  RoutedWalk at(routing, 2 * args.inter / layout::kTileRows);
  RowFeed<Tile, RoutedWalk> feed(shared, at, args.weights, args.hidden);
  ptx::mbarrier_wait(rows_there, 0);
  for (int stage = 0; at.valid(); at.advance()) {
    const int channel = at.row_tile * 8 + g;
    const Bf16* bias = args.bias + (int64_t{routing.expert_at(at.slot)} * args.inter + channel) * 2;
    const float gate_bias = bias[0].to_float(), up_bias = bias[1].to_float();
    float sums[1][4] = {};
    multiply_tile<1>(feed, stage, shared.x, sums);
    const uint32_t pairs = routing.pairs_at(at.slot);
    for (int j = 0; j < 2; ++j) {
      const int pair = pair_of_token(pairs, 2 * t + j, args.tokens, args.choice.topk);
      if (pair >= 0)
        store_channel(args.u, pair, args.inter, channel,
                      swiglu_f16(sums[0][j] + gate_bias, sums[0][2 + j] + up_bias, args.swiglu_limit));
    }
  }
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

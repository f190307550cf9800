#pragma once
// u[t, k] = swiglu(W1[e] · x[t] + b1[e]) of the experts that up to 8 tokens choose     source: torch/model.py, MLPBlock
// arguments: experts.h MoeUp::Args     main loop: row_runs.cuh
// grid one CTA per SM; the row tiles of all chosen experts in turn; column t = token t of every expert, so that the
//      activations are loaded once
// nothing starts, not even the next kernel, before the dependency wait: after this kernel the logits are complete
// bytes, flops: testing/costs.h     rounding: row_runs.cuh

#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/dense/row_runs.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

// CTA c takes tiles c, c + ctas, … of the expert-major order.
struct UpWalk {
  const Routing& routing;
  int row_tiles;  // of an expert
  int row_tile, slot = 0;

  __device__ UpWalk(const Routing& of_step, int row_tiles_of_expert, const Runs& runs)
      : routing(of_step),
        row_tiles(row_tiles_of_expert),
        row_tile(static_cast<int>(blockIdx.x) + runs.tile * static_cast<int>(gridDim.x)) {
    wrap();
  }
  [[nodiscard]] __device__ int64_t tile() const { return int64_t{routing.expert_at(slot)} * row_tiles + row_tile; }
  __device__ void advance() {
    row_tile += static_cast<int>(gridDim.x);
    wrap();
  }
  // Tiles of this CTA, of so many in all.
  [[nodiscard]] __device__ static int own(int all) {
    return static_cast<int>((static_cast<unsigned>(all) + gridDim.x - 1 - blockIdx.x) / gridDim.x);
  }

 private:
  __device__ void wrap() {
    while (row_tile >= row_tiles) {
      row_tile -= row_tiles;
      ++slot;
    }
  }
};

struct UpOp {
  const MoeUp::Args& args;
  const Routing& routing;
  int lane;
  int channel = 0;  // of the open tile, as the others are
  uint32_t pairs = 0;
  float gate_bias = 0, up_bias = 0;

  __device__ UpOp(const MoeUp::Args& the_args, const Routing& of_step, int lane_idx)
      : args(the_args), routing(of_step), lane(lane_idx) {}
  __device__ void open(const UpWalk& at) {
    channel = at.row_tile * 8 + lane / 4;
    const Bf16* bias = args.bias + (int64_t{routing.expert_at(at.slot)} * args.inter + channel) * 2;
    gate_bias = bias[0].to_float();
    up_bias = bias[1].to_float();
    pairs = routing.pairs_at(at.slot);
  }
  __device__ void finish(const float (&sums)[4]) const {
    for (int j = 0; j < 2; ++j) {
      const int pair = pair_of_token(pairs, 2 * (lane % 4) + j, args.tokens, args.choice.topk);
      if (pair >= 0)
        store_channel(args.u, pair, args.inter, channel,
                      swiglu_f16(sums[j] + gate_bias, sums[2 + j] + up_bias, args.swiglu_limit));
    }
  }
};

template <class Tile>
__global__ void __launch_bounds__(kRowMaxWarps* layout::kWarpLanes, 1)
    moe_up(const __grid_constant__ MoeUp::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes,
            warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
            warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const RunShared<Tile> shared(smem, args.hidden, kGemvTokens, 16);
  const uint32_t rows_there = shared.extra;
  const RouteShared routes{shared.extra + 8, shared.extra + 32};
  static_assert(32 + kRouteBytes <= kRowExtraBytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(rows_there, ptx::kCopyArrivals);
    shared.init();
    routes.init(args.tokens);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  for (int token = warp; token < args.tokens; token += warps) {
    Choice choice(args.choice, token, lane);
    while (choice.picked < choice.c.topk) choice.pick();
    choice.publish_ids(routes);
    choice.leave_weights();
  }
  if (warp == warps - 1)
    ptx::counted_copy({.to_shared = shared.x,
                       .bytes = static_cast<uint32_t>(args.hidden * 2),
                       .barrier = rows_there,
                       .pitch = shared.pitch,
                       .rows = args.tokens},
                      args.x + int64_t{lane} * args.hidden);
  // While others choose: as many experts as one token has.
  const int row_tiles = 2 * args.inter / layout::kTileRows, slices = args.hidden / (Tile::kBlocks * layout::kBlockK);
  Runs runs(UpWalk::own(args.choice.topk * row_tiles), slices);
  ptx::mbarrier_wait(routes.chosen, 0);
  const Routing routing = Routing::read(routes, args.choice, args.tokens, lane);
  if (routing.count != args.choice.topk) runs = Runs(UpWalk::own(routing.count * row_tiles), slices);
  const UpWalk walk(routing, row_tiles, runs);
  RunFeed<Tile, UpWalk> feed(shared, runs, walk, args.weights, slices);
  UpOp op(args, routing, lane);
  ptx::mbarrier_wait(rows_there, 0);
  multiply_run(feed, runs, walk, op);
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

#pragma once
// y[t] = Σ_k weights[t, k] (W2[e] · u[t, k] + b2[e]), e the k-th choice, of own ones
// source: torch/model.py, MLPBlock     arguments: experts.h MoeDown::Args     main loop: row_warps.cuh
// grid one CTA per SM; the row tiles of all chosen experts in the order of experts, a range of equal length per CTA, so
//      that it sees few experts; its warps take them in turn; columns: the expert's pairs
// A row tile's experts lie in several CTAs. Each leaves its sums in global memory; the last one of a row tile adds
// those of every token, in the order of k.
// bytes, flops: testing/costs.h     rounding: f32 sums in an order fixed by the shape: bitwise repeatable

#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/dense/row_warps.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

// A warp's row tiles of its CTA's range.
struct RangeWalk {
  const Routing& routing;
  int row_tiles, step, end;  // row_tiles: of an expert
  int at, slot;              // in the range; which of the distinct experts

  [[nodiscard]] __device__ bool valid() const { return at < end; }
  [[nodiscard]] __device__ int row_tile() const { return at - slot * row_tiles; }
  [[nodiscard]] __device__ int64_t tile() const { return int64_t{routing.expert_at(slot)} * row_tiles + row_tile(); }
  __device__ void advance() {
    at += step;
    while (at >= (slot + 1) * row_tiles) ++slot;
  }
};

// The activations of `count` experts from `first` on, by one warp: a row per pair, expert after expert.
template <class Tile>
__device__ void copy_pairs(const MoeDown::Args& args, const Routing& routing, const RowShared<Tile>& shared,
                           uint32_t rows_there, int first, int count) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  int pair = 0, rows = 0;  // pair: of row `lane`
  for (int slot = first; slot < first + count; ++slot) {
    const uint32_t own = routing.pairs_at(slot);
    const int pairs = __popc(own);
    if (lane >= rows && lane < rows + pairs) pair = nth_set_bit(own, lane - rows);
    rows += pairs;
  }
  ptx::counted_copy({.to_shared = shared.x,
                     .bytes = static_cast<uint32_t>(args.inter * 2),
                     .barrier = rows_there,
                     .pitch = shared.pitch,
                     .rows = rows},
                    args.u + int64_t{pair} * args.inter);
}

// A row of a token's result. A branch between the loads would have each wait for the one before it, so a card that has
// all experts has a loop of its own.
template <bool kAll>
__device__ __forceinline__ float sum_of_experts(const MoeDown::Args& args, const RouteShared& routes, int token,
                                                int row) {
  float sum = 0;
  for (int k = 0; k < args.choice.topk; ++k) {
    const int pair = token * args.choice.topk + k;
    if constexpr (!kAll)
      if (args.choice.own.number_of(static_cast<int>(ptx::load_shared4(routes.id(pair)))) < 0) continue;
    sum += __uint_as_float(ptx::load_shared4(routes.weight(pair))) *
           ptx::load_l2(args.sums + int64_t{pair} * args.hidden + row);
  }
  return sum;
}

// What tokens get of a rank that has none of their experts.
__device__ __forceinline__ void store_zeros(const MoeDown::Args& args) {
  const auto threads = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < args.tokens * args.hidden; i += threads)
    args.y[i] = 0;
}

// The warp has left its sums of the row tiles that `walk` gives. Of those that all experts have left theirs of, it adds
// them. A lane counts for a row tile, so that all wait together, and none while there is something to multiply.
__device__ __forceinline__ void add_experts(const MoeDown::Args& args, const RouteShared& routes, RangeWalk walk,
                                            int experts) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int step = walk.step;
  const bool all = args.choice.own.all();
  for (; walk.valid(); walk.at += layout::kWarpLanes * step) {
    const int own = walk.at + lane * step, row_tile = own % walk.row_tiles;
    bool last = false;
    __syncwarp();  // the other lanes' sums are this lane's to release
    if (own < walk.end) {
      last = ptx::add_acq_rel(args.finished + row_tile, 1) == experts - 1;
      if (last) args.finished[row_tile] = 0;  // for the next launch
    }
    for (unsigned left = __ballot_sync(kEveryLane, last); left != 0; left &= left - 1) {
      const int first_row = __shfl_sync(kEveryLane, row_tile, __ffs(static_cast<int>(left)) - 1) * layout::kTileRows;
      for (int i = lane; i < args.tokens * layout::kTileRows; i += layout::kWarpLanes) {
        const int token = i / layout::kTileRows, row = first_row + i % layout::kTileRows;
        args.y[int64_t{token} * args.hidden + row] =
            all ? sum_of_experts<true>(args, routes, token, row) : sum_of_experts<false>(args, routes, token, row);
      }
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(kRowMaxWarps* layout::kWarpLanes, 1)
    moe_down(const __grid_constant__ MoeDown::Args args, const int rows) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, t = lane % 4,
            warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
            warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
  const RowShared<Tile> shared(smem, args.inter, rows);
  const uint32_t rows_there = shared.extra;
  const RouteShared routes{shared.extra + 8, shared.extra + 16};
  static_assert(16 + kRouteBytes <= kRowExtraBytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(rows_there, ptx::kCopyArrivals);
    routes.init(args.tokens);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::grid_dependency_launch();
  for (int token = warp; token < args.tokens; token += warps) {
    Choice choice(args.choice, token, lane);
    while (choice.picked < choice.c.topk) choice.pick();
    choice.publish(routes);
  }
  ptx::mbarrier_wait(routes.chosen, 0);
  const Routing routing = Routing::read(routes, args.choice, args.tokens, lane);
  const int row_tiles = args.hidden / layout::kTileRows, all = routing.count * row_tiles;
  const auto cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int first = all * cta / ctas, end = all * (cta + 1) / ctas;
  const RangeWalk own{routing, row_tiles, warps, end, first + warp, (first + warp) / row_tiles};
  RangeWalk walk = own;
  RowFeed<Tile, RangeWalk> feed(shared, own, args.weights, args.inter);
  ptx::grid_dependency_wait();
  if (routing.count == 0) store_zeros(args);
  const int held = rows / kMmaColumns;  // experts whose activations there is room for
  int stage = 0;
  uint32_t parity = 0;
  for (int slot = first / row_tiles; slot * row_tiles < end; slot += held, parity ^= 1) {
    const int held_end = min(end, (slot + held) * row_tiles);
    __syncthreads();  // nobody reads the activations before these
    if (warp == 0) copy_pairs(args, routing, shared, rows_there, slot, (held_end + row_tiles - 1) / row_tiles - slot);
    ptx::mbarrier_wait(rows_there, parity);
    for (; walk.at < held_end; walk.advance()) {
      const int row = walk.row_tile() * layout::kTileRows + g;
      const Bf16* bias = args.bias + int64_t{routing.expert_at(walk.slot)} * args.hidden + row;
      const float biases[2] = {bias[0].to_float(), bias[8].to_float()};
      int first_row = 0;  // of the expert's activations
      for (int before = slot; before < walk.slot; ++before) first_row += __popc(routing.pairs_at(before));
      float sums[1][4] = {};
      multiply_tile<1>(feed, stage, shared.x + static_cast<uint32_t>(first_row * shared.pitch), sums);
      const uint32_t pairs = routing.pairs_at(walk.slot);
      for (int j = 0; j < 2; ++j) {
        const int column = 2 * t + j;
        if (column >= __popc(pairs)) continue;
        float* to = args.sums + int64_t{nth_set_bit(pairs, column)} * args.hidden + row;
        to[0] = sums[0][j] + biases[0];
        to[8] = sums[0][2 + j] + biases[1];
      }
    }
  }
  add_experts(args, routes, own, routing.count);
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

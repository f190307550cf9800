#include "backend/cuda/experts/experts.h"

#include "backend/cuda/dense/dot.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr float kAlpha = 1.702f;  // torch/model.py swiglu

__device__ float swiglu(float gate, float up, float limit) {
  const float glu = fminf(gate, limit), linear_part = fminf(fmaxf(up, -limit), limit);
  return glu / (1.0f + expf(-kAlpha * glu)) * (linear_part + 1.0f);
}

// hidden_out[pair][i] of the tile's pairs: rows 2i (gate) and 2i + 1 (up) of one expert.
template <int kTokens>
__device__ void gate_up_unit(const PlainMoeArgs& args, const ExpertTile& tile, int i) {
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t row = int64_t{tile.expert} * 2 * args.inter + 2 * i;
  const int64_t rows[2] = {row, row + 1};
  int pairs[kTokens];
  const float* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    pairs[t] = args.pairs[tile.first + min(t, tile.count - 1)];
    x[t] = args.x + int64_t{pairs[t] / args.topk} * args.hidden;
  }
  float sums[2][kTokens];
  dot_rows<2, kTokens>(Mxfp4Rows{args.gate_up.codes, args.gate_up.scales, args.hidden}, rows, x, sums);
  const float gate_bias = args.gate_up_bias[row].to_float(), up_bias = args.gate_up_bias[row + 1].to_float();
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (lane != t || t >= tile.count) continue;
    args.hidden_out[int64_t{pairs[t]} * args.inter + i] =
        swiglu(sums[0][t] + gate_bias, sums[1][t] + up_bias, args.swiglu_limit);
  }
}

// down_out[pair][2i, 2i + 1] of the tile's pairs.
template <int kTokens>
__device__ void down_unit(const PlainMoeArgs& args, const ExpertTile& tile, int i) {
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t row = int64_t{tile.expert} * args.hidden + 2 * i;
  const int64_t rows[2] = {row, row + 1};
  int pairs[kTokens];
  const float* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    pairs[t] = args.pairs[tile.first + min(t, tile.count - 1)];
    x[t] = args.hidden_out + int64_t{pairs[t]} * args.inter;
  }
  float sums[2][kTokens];
  dot_rows<2, kTokens>(Mxfp4Rows{args.down.codes, args.down.scales, args.inter}, rows, x, sums);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (lane != t || t >= tile.count) continue;
    float* out = args.down_out + int64_t{pairs[t]} * args.hidden + 2 * i;
    out[0] = sums[0][t] + args.down_bias[row].to_float();
    out[1] = sums[1][t] + args.down_bias[row + 1].to_float();
  }
}

// Calls unit<tokens>(tile, i) of an instance that holds the tile's; every one gives the same bits.
template <class Unit>
__device__ void run_tile(const PlainMoeArgs& args, int units, const Unit& unit) {
  if (static_cast<int>(blockIdx.y) >= *args.tile_count) return;
  const ExpertTile tile = args.tiles[blockIdx.y];
  const int i = blockIdx.x * kWarps + threadIdx.x / kWarpLanes;
  if (i >= units) return;
  if (tile.count == 1)
    unit.template operator()<1>(tile, i);
  else if (tile.count == 2)
    unit.template operator()<2>(tile, i);
  else if (tile.count <= 4)
    unit.template operator()<4>(tile, i);
  else
    unit.template operator()<8>(tile, i);
}

// moe_gate_up: h[t,k,i] = swiglu(W[e] · x[t,:] + b[e]) for the topk experts e of token t
// source: torch/model.py MLPBlock, swiglu
// x f32 [tokens, hidden]     W mxfp4 [experts, 2*inter, hidden] as shipped, gate and up rows in turn
// h f32 [tokens, topk, inter]
// grid one warp per (tile of pairs, gate and up row)
// bytes per tile 2*inter*hidden*17/32 + 8*(hidden + inter)*4     flops 4 * tokens * topk * inter * hidden
// rounding: f32, order fixed by hidden
__global__ void __launch_bounds__(kThreads, 5) any_moe_gate_up_f32_mxfp4(const __grid_constant__ PlainMoeArgs args) {
  run_tile(args, args.inter, [&]<int kTokens>(const ExpertTile& tile, int i) { gate_up_unit<kTokens>(args, tile, i); });
}

// moe_down: y[t,k,:] = W[e] · h[t,k,:] + b[e]                                                 source: torch/model.py
// MLPBlock h f32 [tokens, topk, inter]     W mxfp4 [experts, hidden, inter] as shipped     y f32 [tokens, topk, hidden]
// grid one warp per (tile of pairs, two rows)     bytes per tile hidden*inter*17/32 + 8*(hidden + inter)*4
// flops 2 * tokens * topk * inter * hidden     rounding: f32, order fixed by inter
__global__ void __launch_bounds__(kThreads, 5) any_moe_down_f32_mxfp4(const __grid_constant__ PlainMoeArgs args) {
  run_tile(args, args.hidden / 2,
           [&]<int kTokens>(const ExpertTile& tile, int i) { down_unit<kTokens>(args, tile, i); });
}

// moe_combine: delta[t,:] = Σ_k weights[t,k] * y[t,k,:], k rising     source: torch/model.py MLPBlock
// y f32 [tokens, topk, hidden]
// grid one CTA per token     bytes tokens * hidden * 4 * (topk + 1)     rounding: f32
__global__ void __launch_bounds__(kThreads) any_moe_combine_f32(const __grid_constant__ PlainMoeArgs args) {
  const int64_t token = blockIdx.x;
  const float* weights = args.expert_weights + token * args.topk;
  for (int d = threadIdx.x; d < args.hidden; d += kThreads) {
    float sum = 0;
    for (int k = 0; k < args.topk; ++k)
      if (args.own.number_of(args.expert_ids[token * args.topk + k]) >= 0)
        sum = fmaf(weights[k], args.down_out[(token * args.topk + k) * args.hidden + d], sum);
    args.delta[token * args.hidden + d] = sum;
  }
}

int64_t plain_tiles(const PlainMoeArgs& args) {
  return max_expert_tiles(int64_t{args.tokens} * args.topk, args.experts, kMoeTileTokens);
}

dim3 plain_grid(const PlainMoeArgs& args, int units) {
  return dim3(static_cast<unsigned>((units + kWarps - 1) / kWarps), static_cast<unsigned>(plain_tiles(args)));
}

void require_plain(const PlainMoeArgs& args, Kernel name) {
  constexpr int kBlock = 32;
  require_shape(args.hidden % kBlock == 0, name, "hidden a multiple of 32", args.hidden);
  require_shape(args.inter % kBlock == 0, name, "inter a multiple of 32", args.inter);
  require_shape(args.tokens > 0, name, "at least one token", args.tokens);
  require_shape(args.experts > 0, name, "at least one expert", args.experts);
  require_shape(plain_tiles(args) <= 65535, name, "at most 65535 tiles of pairs", plain_tiles(args));
}

}  // namespace

void PlainGateUp::launch(const Args& args, const Launch& on) {
  require_plain(args, kName);
  any_moe_gate_up_f32_mxfp4<<<plain_grid(args, args.inter), kThreads, 0, on.stream>>>(args);
  launched(kName, on);
}

void PlainDown::launch(const Args& args, const Launch& on) {
  require_plain(args, kName);
  any_moe_down_f32_mxfp4<<<plain_grid(args, args.hidden / 2), kThreads, 0, on.stream>>>(args);
  launched(kName, on);
}

void PlainCombine::launch(const Args& args, const Launch& on) {
  require_plain(args, kName);
  any_moe_combine_f32<<<args.tokens, kThreads, 0, on.stream>>>(args);
  launched(kName, on);
}

}  // namespace nibble::backend::cuda

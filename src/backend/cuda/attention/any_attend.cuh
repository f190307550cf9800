#pragma once
// Attention for any shape and any type of pages, without tensor cores.

#include "backend/cuda/attention/page_rows.cuh"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/launch/warp.cuh"

namespace nibble::backend::cuda {

inline constexpr int kAttendWarps = 4;
inline constexpr int kTileKeys = kWarpLanes;  // a lane per key
static_assert(kPageTokens % kTileKeys == 0, "a tile lies in one page");

// q · key over head_dim; the key's row is as aligned as PageRow's load wants it.
template <class Row>
__device__ float dot_key(const float* q, const uint8_t* keys, int key, int head_dim) {
  float sum = 0;
#pragma unroll 1  // more, and ptxas spills
  for (int d = 0; d < head_dim; d += Row::kPiece) {
    float v[Row::kPiece];
    Row::load(keys + Row::code_bytes(key * head_dim + d), v);
#pragma unroll
    for (int i = 0; i < Row::kPiece; ++i) sum = fmaf(q[d + i], v[i], sum);
  }
  return sum;
}

// What one warp has seen: the softmax's running top and sum, and the weighted values of the lane's dimensions.
template <int kDims>
struct Running {
  float top = -INFINITY, sum = 0;
  float out[kDims] = {};
};

// Adds the keys [from, to] of the tile whose first key and value rows are given.
template <class Row, int kDims>
__device__ void add_tile(const AttentionArgs& args, const float* q, const uint8_t* keys, const uint8_t* values,
                         int from, int to, Running<kDims>& state) {
  const int lane = threadIdx.x % kWarpLanes;
  const bool seen = lane >= from && lane <= to;
  const float scale = 1.0f / sqrtf(static_cast<float>(args.head_dim));
  const float score = seen ? dot_key<Row>(q, keys, lane, args.head_dim) * scale : -INFINITY;
  const float top = fmaxf(state.top, warp_max(score));
  const float shrink = expf(state.top - top);  // 0 at the first tile
  const float p = seen ? expf(score - top) : 0.0f;
  state.top = top;
  state.sum = state.sum * shrink + warp_sum(p);
#pragma unroll
  for (int i = 0; i < kDims; ++i) state.out[i] *= shrink;
#pragma unroll 4
  for (int j = from; j <= to; ++j) {
    const float pj = __shfl_sync(kAllLanes, p, j);
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const int d = threadIdx.x % kWarpLanes + i * kWarpLanes;
      if (d < args.head_dim) state.out[i] = fmaf(pj, Row::value(values, j * args.head_dim + d), state.out[i]);
    }
  }
}

template <int kDims>
struct AttendShared {
  float q[kDims * kWarpLanes];
  float tops[kAttendWarps], sums[kAttendWarps];
  float outs[kAttendWarps][kDims * kWarpLanes];
};

// attend: out = Σ_j p_j v_j, p = softmax([q · k_j / sqrt(head_dim), sink]), the sink without a value; j from
//         max(0, position - window + 1) to position                                       source: torch/model.py sdpa
// q, out f32 [tokens, heads, head_dim]     sinks bf16 [heads]     keys, values of any type, as PageRow says
// grid one CTA of 4 warps per (head, token); warps take tiles of 32 keys in turn and meet at the end bytes
// heads * keys * 2 rows per token, from L2 for all but the first of a group of heads flops 4 * heads
// * keys * head_dim per token     rounding: f32, order fixed by the first and last key
template <class Row, int kDims>
__global__ void __launch_bounds__(kAttendWarps* kWarpLanes) any_attend(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  using Shared = AttendShared<kDims>;
  auto& [q, tops, sums, outs] = *reinterpret_cast<Shared*>(smem);
  const int head = blockIdx.x, token = blockIdx.y, warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int64_t at = (int64_t{token} * args.heads + head) * args.head_dim;
  for (int d = threadIdx.x; d < args.head_dim; d += kAttendWarps * kWarpLanes) q[d] = args.q[at + d];
  __syncthreads();

  const int last = args.positions[token], first = args.window > 0 ? max(0, last - args.window + 1) : 0;
  const int32_t* pages = args.pages + int64_t{args.token_row[token]} * args.pages_per_row;
  const int kv_head = head / (args.heads / args.kv_heads);
  Running<kDims> state;
  if (warp == 0 && args.sinks != nullptr) {
    state.top = args.sinks[head].to_float();
    state.sum = 1;
  }
  for (int tile = first / kTileKeys + warp; tile <= last / kTileKeys; tile += kAttendWarps) {
    const int base = tile * kTileKeys;
    const int64_t row =
        (int64_t{pages[base / kPageTokens]} * args.kv_heads + kv_head) * kPageTokens + base % kPageTokens;
    const int64_t bytes = Row::code_bytes(row) * args.head_dim;
    add_tile<Row, kDims>(args, q, static_cast<const uint8_t*>(args.kv.keys) + bytes,
                         static_cast<const uint8_t*>(args.kv.values) + bytes, max(first - base, 0),
                         min(last - base, kTileKeys - 1), state);
  }

  if (lane == 0) {
    tops[warp] = state.top;
    sums[warp] = state.sum;
  }
#pragma unroll
  for (int i = 0; i < kDims; ++i) outs[warp][lane + i * kWarpLanes] = state.out[i];
  __syncthreads();
  float top = tops[0];  // at least one warp has seen a key, so this ends finite
  for (int w = 1; w < kAttendWarps; ++w) top = fmaxf(top, tops[w]);
  for (int d = threadIdx.x; d < args.head_dim; d += kAttendWarps * kWarpLanes) {
    float sum = 0, out = 0;
    for (int w = 0; w < kAttendWarps; ++w) {
      const float share = expf(tops[w] - top);
      sum = fmaf(sums[w], share, sum);
      out = fmaf(outs[w][d], share, out);
    }
    args.out[at + d] = out / sum;
  }
}

}  // namespace nibble::backend::cuda

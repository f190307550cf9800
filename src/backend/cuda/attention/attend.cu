#include "backend/cuda/launch/kernel_table.h"

#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/launch/warp.cuh"

#include <cuda_bf16.h>

namespace nibble::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kTileKeys = kWarpLanes;  // a lane per key
static_assert(kPageTokens % kTileKeys == 0, "a tile lies in one page");

__device__ float load(const float* from) { return *from; }
__device__ float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }

// q · key over head_dim; the key's row is 16 B aligned.
__device__ float dot_key(const float* q, const float* key, int head_dim) {
  float sum = 0;
  for (int d = 0; d < head_dim; d += 4) {
    const float4 v = *reinterpret_cast<const float4*>(key + d);
    sum = fmaf(q[d], v.x, sum);
    sum = fmaf(q[d + 1], v.y, sum);
    sum = fmaf(q[d + 2], v.z, sum);
    sum = fmaf(q[d + 3], v.w, sum);
  }
  return sum;
}

__device__ float dot_key(const float* q, const __nv_bfloat16* key, int head_dim) {
  float sum = 0;
  for (int d = 0; d < head_dim; d += 8) {
    const uint4 v = *reinterpret_cast<const uint4*>(key + d);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(q[d + 2 * i], __uint_as_float(words[i] << 16), sum);
      sum = fmaf(q[d + 2 * i + 1], __uint_as_float(words[i] & 0xffff0000u), sum);
    }
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
template <class T, int kDims>
__device__ void add_tile(const AttendLaunch& args, const float* q, const T* keys, const T* values, int from, int to,
                         Running<kDims>& state) {
  const int lane = threadIdx.x % kWarpLanes;
  const bool seen = lane >= from && lane <= to;
  const float scale = 1.0f / sqrtf(static_cast<float>(args.head_dim));
  const float score = seen ? dot_key(q, keys + lane * args.head_dim, args.head_dim) * scale : -INFINITY;
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
      if (d < args.head_dim) state.out[i] = fmaf(pj, load(values + j * args.head_dim + d), state.out[i]);
    }
  }
}

// attend: out = Σ_j p_j v_j, p = softmax([q · k_j / sqrt(head_dim), sink]), the sink without a value; j from
//         max(0, position - window + 1) to position                                       source: torch/model.py sdpa
// q, out f32 [tokens, heads, head_dim]     sinks bf16 [heads]     keys, values T [page, kv_heads, kPageTokens,
// head_dim] grid one CTA of 4 warps per (head, token); warps take tiles of 32 keys in turn and meet at the end bytes
// heads * keys * head_dim * 2 * sizeof(T) per token, from L2 for all but the first of a group of heads flops 4 * heads
// * keys * head_dim per token     rounding: f32, order fixed by the first and last key
template <class T, int kDims>
__global__ void __launch_bounds__(kWarps* kWarpLanes) any_attend(const __grid_constant__ AttendLaunch args) {
  __shared__ float q[kDims * kWarpLanes];
  __shared__ float tops[kWarps], sums[kWarps];
  __shared__ float outs[kWarps][kDims * kWarpLanes];
  const int head = blockIdx.x, token = blockIdx.y, warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int64_t at = (int64_t{token} * args.heads + head) * args.head_dim;
  for (int d = threadIdx.x; d < args.head_dim; d += kWarps * kWarpLanes) q[d] = args.q[at + d];
  __syncthreads();

  const int last = args.positions[token], first = args.window > 0 ? max(0, last - args.window + 1) : 0;
  const int32_t* pages = args.pages + int64_t{args.token_row[token]} * args.pages_per_row;
  const int kv_head = head / (args.heads / args.kv_heads);
  Running<kDims> state;
  if (warp == 0 && args.sinks != nullptr) {
    state.top = args.sinks[head].to_float();
    state.sum = 1;
  }
  for (int tile = first / kTileKeys + warp; tile <= last / kTileKeys; tile += kWarps) {
    const int base = tile * kTileKeys;
    const int64_t row =
        (int64_t{pages[base / kPageTokens]} * args.kv_heads + kv_head) * kPageTokens + base % kPageTokens;
    const T* keys = static_cast<const T*>(args.kv.keys) + row * args.head_dim;
    const T* values = static_cast<const T*>(args.kv.values) + row * args.head_dim;
    add_tile<T, kDims>(args, q, keys, values, max(first - base, 0), min(last - base, kTileKeys - 1), state);
  }

  if (lane == 0) {
    tops[warp] = state.top;
    sums[warp] = state.sum;
  }
#pragma unroll
  for (int i = 0; i < kDims; ++i) outs[warp][lane + i * kWarpLanes] = state.out[i];
  __syncthreads();
  float top = tops[0];  // at least one warp has seen a key, so this ends finite
  for (int w = 1; w < kWarps; ++w) top = fmaxf(top, tops[w]);
  for (int d = threadIdx.x; d < args.head_dim; d += kWarps * kWarpLanes) {
    float sum = 0, out = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float share = expf(tops[w] - top);
      sum = fmaf(sums[w], share, sum);
      out = fmaf(outs[w][d], share, out);
    }
    args.out[at + d] = out / sum;
  }
}

template <class T>
void launch(const AttendLaunch& args, const Launch& on) {
  const dim3 grid(args.heads, args.tokens);
  constexpr int kThreads = kWarps * kWarpLanes;
  if (args.head_dim <= 32) {
    any_attend<T, 1><<<grid, kThreads, 0, on.stream>>>(args);
  } else if (args.head_dim <= 64) {
    any_attend<T, 2><<<grid, kThreads, 0, on.stream>>>(args);
  } else {
    any_attend<T, 4><<<grid, kThreads, 0, on.stream>>>(args);
  }
}

}  // namespace

void any_attend(const AttendLaunch& args, const Launch& on) {
  const bool f32 = args.kv.type == KvPages::Type::kF32;
  const Kernel kernel = f32 ? kernel::kAttendF32 : kernel::kAttendBf16;
  require_shape(f32 || args.kv.type == KvPages::Type::kBf16, kernel, "f32 or bf16 pages",
                static_cast<int64_t>(args.kv.type));
  require_shape(args.tokens > 0 && args.tokens <= 65535, kernel, "1 to 65535 tokens", args.tokens);
  require_shape(args.head_dim > 0 && args.head_dim % 8 == 0 && args.head_dim <= 128, kernel,
                "a head_dim of at most 128, a multiple of 8", args.head_dim);
  require_shape(args.kv_heads > 0 && args.heads % args.kv_heads == 0, kernel, "heads a multiple of kv_heads",
                args.heads);
  if (f32) {
    launch<float>(args, on);
  } else {
    launch<__nv_bfloat16>(args, on);
  }
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda

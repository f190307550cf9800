#pragma once
// Rows of an EAGLE-3 head's activations: norms of parts of them, and what layer 0 reads.
// rounding: f32, order fixed by the width

#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kEagle3RowThreads = 256;
// A float per warp for each of two sums, and a best row per warp.
inline constexpr int kEagle3RowShared = kEagle3RowThreads / kWarpLanes * (4 + 4 + 8);

struct Eagle3Row {
  const float* x;  // [width] or
  const Bf16* table = nullptr;
  int width = 0;

  __device__ float4 at(int four) const {
    if (table == nullptr) return reinterpret_cast<const float4*>(x)[four];
    const uint2 words = reinterpret_cast<const uint2*>(table)[four];  // two bf16 each, the first in the low half
    return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u), __uint_as_float(words.y << 16),
            __uint_as_float(words.y & 0xffff0000u)};
  }
  // 1 / sqrt(mean of squares + eps), by all threads together; `shared` holds a float per warp.
  __device__ float inverse(float eps, float* shared) const {
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < width / 4; i += kEagle3RowThreads) {
      const float4 v = at(i);
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    return 1.0f / sqrtf(block_sum<kEagle3RowThreads>(squares, shared) / static_cast<float>(width) + eps);
  }
};

__device__ __forceinline__ float4 eagle3_scaled(float4 v, float by, const float* scale, int four) {
  const float4 s = reinterpret_cast<const float4*>(scale)[four];
  return {v.x * by * s.x, v.y * by * s.y, v.z * by * s.z, v.w * by * s.w};
}

__device__ __forceinline__ void eagle3_round(Bf16* to, int four, const float4& v) {
  uint2 words;
  words.x = ptx::pack_bf16(v.x, v.y), words.y = ptx::pack_bf16(v.z, v.w);
  reinterpret_cast<uint2*>(to)[four] = words;
}

// grid (rows, segments)     bytes rows * segments * width * (4 + 2 and 4 of the results)
__global__ void __launch_bounds__(kEagle3RowThreads) any_eagle3_norm_f32(const __grid_constant__ Eagle3NormArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const auto row = static_cast<int>(blockIdx.x), segment = static_cast<int>(blockIdx.y);
  const int from = args.which == nullptr ? row : args.which[row], to = args.to == nullptr ? row : args.to[row];
  if (to < 0) return;
  const int64_t pitch = int64_t{args.segments} * args.width, first = int64_t{segment} * args.width;
  const Eagle3Row x{.x = args.x + from * pitch + first, .width = args.width};
  const float inverse = args.scale == nullptr ? 1.0f : x.inverse(args.eps, reinterpret_cast<float*>(smem));
  for (int i = static_cast<int>(threadIdx.x); i < args.width / 4; i += kEagle3RowThreads) {
    float4 v = x.at(i);
    if (args.plain != nullptr) reinterpret_cast<float4*>(args.plain + to * pitch + first)[i] = v;
    if (args.scale != nullptr) v = eagle3_scaled(v, inverse, args.scale + first, i);
    if (args.rounded != nullptr) eagle3_round(args.rounded + to * pitch + first, i, v);
    if (args.normed != nullptr) reinterpret_cast<float4*>(args.normed + to * pitch + first)[i] = v;
  }
}

// The token of the likeliest row of lm_head, by all threads together. Where all are NaN: that of row 0.
__device__ __forceinline__ int32_t eagle3_token(const Eagle3EnterArgs& args, int row, Ranked* shared) {
  constexpr int kWarps = kEagle3RowThreads / kWarpLanes;
  constexpr int32_t kNone = 0x7fffffff;
  Ranked best = {-INFINITY, kNone};
  const Eagle3Best* const of_row = args.best + int64_t{row} * args.best_tiles;
  for (int i = static_cast<int>(threadIdx.x); i < args.best_tiles; i += kEagle3RowThreads) {
    const Ranked other = {of_row[i].value, of_row[i].row};
    if (before(other, best)) best = other;
  }
  best = warp_first(best);
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = best;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w)
    if (before(shared[w], best)) best = shared[w];
  const int32_t found = best.idx == kNone ? 0 : best.idx;
  return args.target_ids == nullptr ? found : args.target_ids[found];
}

// grid a CTA per token     bytes tokens * (hidden * 14 + best_tiles * 8)
__global__ void __launch_bounds__(kEagle3RowThreads, 4)
    any_eagle3_enter_bf16(const __grid_constant__ Eagle3EnterArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  constexpr int kWarps = kEagle3RowThreads / kWarpLanes;
  auto* const sums = reinterpret_cast<float*>(smem);  // [2][warps]
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const auto row = static_cast<int>(blockIdx.x);
  const int32_t id =
      args.best == nullptr ? args.ids[row] : eagle3_token(args, row, reinterpret_cast<Ranked*>(sums + 2 * kWarps));
  if (args.best != nullptr && threadIdx.x == 0) args.ids[row] = id;
  if (args.x == nullptr) return;
  const int64_t hidden = args.hidden;
  const Eagle3Row embedded{.x = nullptr, .table = args.embedding + id * hidden, .width = args.hidden};
  const Eagle3Row feature{.x = args.feature + row * hidden, .width = args.hidden};
  const float of_embedded = embedded.inverse(args.eps, sums), of_feature = feature.inverse(args.eps, sums + kWarps);
  Bf16* const x = args.x + 2 * row * hidden;
  for (int i = static_cast<int>(threadIdx.x); i < args.hidden / 4; i += kEagle3RowThreads) {
    eagle3_round(x, i, eagle3_scaled(embedded.at(i), of_embedded, args.input_norm, i));
    const float4 plain = feature.at(i), normed = eagle3_scaled(plain, of_feature, args.hidden_norm, i);
    eagle3_round(x + hidden, i, normed);
    reinterpret_cast<float4*>(args.residual + row * hidden)[i] = args.norm_before_residual ? normed : plain;
  }
}

}  // namespace nibble::backend::cuda

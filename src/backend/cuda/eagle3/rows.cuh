#pragma once
// Rows of an EAGLE-3 head's activations: norms of parts of them, and what layer 0 reads.
// rounding: f32, order fixed by the width

#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kEagle3RowThreads = 512;
// A float per warp for each of two sums.
inline constexpr int kEagle3RowShared = kEagle3RowThreads / kWarpLanes * (4 + 4);

// A thread's floats of a row, four at a time, all of them asked for at once.
template <int kFours>
struct Eagle3Row {
  static constexpr int kWidth = 4 * kFours * kEagle3RowThreads;  // the widest row
  float4 four[kFours];

  template <class At>
  __device__ void load(int width, const At& at) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kEagle3RowThreads;
      four[j] = i < width / 4 ? at(i) : float4{0, 0, 0, 0};
    }
  }
  __device__ void load(int width, const float* row) {
    load(width, [&](int i) { return reinterpret_cast<const float4*>(row)[i]; });
  }
  // visit(i, four) of each there is.
  template <class Visit>
  __device__ void each(int width, const Visit& visit) const {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kEagle3RowThreads;
      if (i < width / 4) visit(i, four[j]);
    }
  }
  // times `by` and times scale's
  __device__ Eagle3Row scaled(float by, const Eagle3Row& scale) const {
    Eagle3Row result;
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const float4 v = four[j], s = scale.four[j];
      result.four[j] = {v.x * by * s.x, v.y * by * s.y, v.z * by * s.z, v.w * by * s.w};
    }
    return result;
  }
  // 1 / sqrt(mean of squares + eps), by all threads together; `shared` holds a float per warp.
  __device__ float inverse(int width, float eps, float* shared) const {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const float4 v = four[j];
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    return 1.0f / sqrtf(block_sum<kEagle3RowThreads>(squares, shared) / static_cast<float>(width) + eps);
  }
};

__device__ __forceinline__ void eagle3_round(Bf16* to, int four, const float4& v) {
  uint2 words;
  words.x = ptx::pack_bf16(v.x, v.y), words.y = ptx::pack_bf16(v.z, v.w);
  reinterpret_cast<uint2*>(to)[four] = words;
}

// grid (rows, segments)     bytes rows * segments * width * (4 + 2 and 4 of the results)
__global__ void __launch_bounds__(kEagle3RowThreads, 1)
    any_eagle3_norm_f32(const __grid_constant__ Eagle3Norm::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  using Row = Eagle3Row<8>;
  static_assert(Row::kWidth == kEagle3MostWidth);
  ptx::grid_dependency_launch();
  const auto row = static_cast<int>(blockIdx.x), segment = static_cast<int>(blockIdx.y);
  const int64_t pitch = int64_t{args.segments} * args.width, first = int64_t{segment} * args.width;
  Row scale;
  if (args.scale != nullptr) scale.load(args.width, args.scale + first);
  ptx::grid_dependency_wait();
  const int from = args.which == nullptr ? row : args.which[row];
  const int64_t at = row * pitch + first;
  Row x;
  x.load(args.width, args.x + from * pitch + first);
  if (args.plain != nullptr)
    x.each(args.width, [&](int i, const float4& v) { reinterpret_cast<float4*>(args.plain + at)[i] = v; });
  if (args.scale != nullptr) x = x.scaled(x.inverse(args.width, args.eps, reinterpret_cast<float*>(smem)), scale);
  x.each(args.width, [&](int i, const float4& v) {
    if (args.rounded != nullptr) eagle3_round(args.rounded + at, i, v);
    if (args.normed != nullptr) reinterpret_cast<float4*>(args.normed + at)[i] = v;
  });
}

// grid a CTA per token     bytes tokens * hidden * 14
__global__ void __launch_bounds__(kEagle3RowThreads, 1)
    any_eagle3_enter_bf16(const __grid_constant__ Eagle3Enter::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  using Row = Eagle3Row<4>;
  static_assert(Row::kWidth == kEagle3MostHidden);
  constexpr int kWarps = kEagle3RowThreads / kWarpLanes;
  auto* const sums = reinterpret_cast<float*>(smem);  // [2][warps]
  ptx::grid_dependency_launch();
  const auto row = static_cast<int>(blockIdx.x);
  const int64_t hidden = args.hidden;
  Row input_norm, hidden_norm, feature, embedded;
  input_norm.load(args.hidden, args.input_norm);
  hidden_norm.load(args.hidden, args.hidden_norm);
  ptx::grid_dependency_wait();
  const int named = args.ids[row], from = -1 - named;
  feature.load(args.hidden, named < 0 ? args.features + from * hidden : args.residual + row * hidden);
  int id = named;
  if (named < 0) {
    id = max(0, args.sampled[from]);  // a draw that failed may be any token
    if (args.target_ids != nullptr) id = args.target_ids[id];
  }
  embedded.load(args.hidden, [&](int i) -> float4 {
    const uint2 words = reinterpret_cast<const uint2*>(args.embedding + id * hidden)[i];  // two bf16 each, the first in
    return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),       // the low half
            __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u)};
  });
  Bf16* const x = args.x + 2 * row * hidden;
  embedded.scaled(embedded.inverse(args.hidden, args.eps, sums), input_norm)
      .each(args.hidden, [&](int i, const float4& v) { eagle3_round(x, i, v); });
  const Row normed = feature.scaled(feature.inverse(args.hidden, args.eps, sums + kWarps), hidden_norm);
  normed.each(args.hidden, [&](int i, const float4& v) { eagle3_round(x + hidden, i, v); });
  auto* const residual = reinterpret_cast<float4*>(args.residual + row * hidden);
  const auto store = [&](int i, const float4& v) { residual[i] = v; };
  if (args.norm_before_residual)
    normed.each(args.hidden, store);
  else
    feature.each(args.hidden, store);
}

}  // namespace nibble::backend::cuda

#pragma once
// router: sum = x, or x + delta + rest; logits[t, e] = rmsnorm(sum[t]) · W[e] + b[e], and the rmsnorm for the experts
// source: torch/model.py MLPBlock
// x, delta, sum f32 [tokens, hidden]     logits f32     normed f16     W bf16 [experts, hidden]
// grid one CTA per expert: weights wait in registers for x, so that the chain sees one read of x and one reduction
// bytes, flops: testing/costs.h     rounding: f32, order fixed by hidden

#include "backend/cuda/dense/gemv_ops.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kRouterWarps = kRouterThreads / layout::kWarpLanes;
inline constexpr int kRouterTogether = 2;  // tokens whose loads are under way at once
inline constexpr int kRouterSharedBytes = kGemvTokens * kRouterWarps * 8;

__device__ __forceinline__ void read_bf16(const Bf16* from, float (&v)[8]) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
  for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
}

// The lanes' sum, in a fixed order.
__device__ __forceinline__ float lanes_sum(float value) {
  for (int step = 1; step < layout::kWarpLanes; step *= 2) value += __shfl_xor_sync(kEveryLane, value, step);
  return value;
}

// What the router reads, from value `at` on: their sum is the residual.
struct RouterRow {
  float x[8], delta[8] = {}, rest[8] = {};

  __device__ __forceinline__ void load(const Router::Args& a, int64_t at) {
    read_floats(a.x + at, x);
    if (a.delta != nullptr) read_floats(a.delta + at, delta);
    if (a.rest != nullptr) read_floats(a.rest + at, rest);
  }
  __device__ __forceinline__ float sum(int i) const { return x[i] + delta[i] + rest[i]; }
};

// sum and normed, which the CTAs share: this one has groups of eight columns blockIdx.x, blockIdx.x + grid, …,
// a warp those of a token.
template <class Inverse>
__device__ __forceinline__ void write_normed(const Router::Args& a, const Inverse& inverse_of) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes;
  const int grid = static_cast<int>(gridDim.x), groups = a.hidden / 8;
  for (int t = thread / layout::kWarpLanes; t < a.tokens; t += kRouterWarps)
    for (int group = static_cast<int>(blockIdx.x) + lane * grid; group < groups; group += layout::kWarpLanes * grid) {
      const int64_t at = int64_t{t} * a.hidden + 8 * group;
      RouterRow row;
      row.load(a, at);
      float x[8], factor[8];
      read_bf16(a.norm + 8 * group, factor);
      const float inverse = inverse_of(t);
      for (int i = 0; i < 8; ++i) x[i] = row.sum(i);
      if (a.sum != nullptr) write_floats(a.sum + at, x);
      for (int i = 0; i < 8; ++i) x[i] *= inverse * factor[i];
      uint32_t pairs[4];
      for (int i = 0; i < 4; ++i) pairs[i] = ptx::pack_f16(x[2 * i], x[2 * i + 1]);
      *reinterpret_cast<uint4*>(a.normed + at) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
}

// Each warp's parts of the sums of squares and products of tokens first, first + 1, …, at most kTokens, into shared
// memory. All loads go out before the first use.
template <int kTokens>
__device__ __forceinline__ void add_tokens(const Router::Args& a, int first, const float (&weight)[kRouterParts][8],
                                           uint32_t sums) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes;
  const int warp = thread / layout::kWarpLanes, groups = a.hidden / 8;
  float squares_of[kTokens] = {}, dot_of[kTokens] = {};
#pragma unroll
  for (int p = 0; p < kRouterParts; ++p) {
    const int group = p * kRouterThreads + thread;
    if (group >= groups) break;
    RouterRow rows[kTokens];
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      if (kTokens > 1 && first + n >= a.tokens) break;
      rows[n].load(a, int64_t{first + n} * a.hidden + 8 * group);
    }
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      if (kTokens > 1 && first + n >= a.tokens) break;
      for (int i = 0; i < 8; ++i) {
        const float v = rows[n].sum(i);
        squares_of[n] += v * v;
        dot_of[n] += v * weight[p][i];
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    const float squares = lanes_sum(squares_of[n]), dot = lanes_sum(dot_of[n]);
    if (lane > 1 || first + n >= a.tokens) continue;
    ptx::store_shared4(sums + static_cast<uint32_t>((((first + n) * kRouterWarps + warp) * 2 + lane) * 4),
                       std::bit_cast<uint32_t>(lane == 0 ? squares : dot));
  }
}

__global__ void __launch_bounds__(kRouterThreads) any_router_f32_bf16(const __grid_constant__ Router::Args a) {
  extern __shared__ __align__(128) uint8_t smem[];
  const uint32_t sums = ptx::shared_address(smem);  // [tokens][warps] {squares, dot}
  const int thread = static_cast<int>(threadIdx.x), expert = static_cast<int>(blockIdx.x), groups = a.hidden / 8;
  ptx::grid_dependency_launch();
  float weight[kRouterParts][8] = {};  // times norm
#pragma unroll
  for (int p = 0; p < kRouterParts; ++p) {
    const int group = p * kRouterThreads + thread;
    if (group >= groups) continue;
    float norm[8];
    read_bf16(a.norm + 8 * group, norm);
    read_bf16(a.weight + int64_t{expert} * a.hidden + 8 * group, weight[p]);
    for (int i = 0; i < 8; ++i) weight[p][i] *= norm[i];
  }
  const float bias = widen(a.bias[expert]);
  ptx::grid_dependency_wait();
  if (a.tokens == 1)
    add_tokens<1>(a, 0, weight, sums);
  else
    for (int first = 0; first < a.tokens; first += kRouterTogether) add_tokens<kRouterTogether>(a, first, weight, sums);
  __syncthreads();
  const auto sum_of = [&](int t, int i) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kRouterWarps; ++w)
      total += __uint_as_float(ptx::load_shared4(sums + static_cast<uint32_t>(((t * kRouterWarps + w) * 2 + i) * 4)));
    return total;
  };
  const auto inverse_of = [&](int t) { return 1.0f / sqrtf(sum_of(t, 0) / static_cast<float>(a.hidden) + a.eps); };
  if (thread < a.tokens) a.logits[int64_t{thread} * a.experts + expert] = sum_of(thread, 1) * inverse_of(thread) + bias;
  write_normed(a, inverse_of);
}

}  // namespace nibble::backend::cuda

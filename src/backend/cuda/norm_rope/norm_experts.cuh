#pragma once
// norm_sums of experts in bf16, for steps of more tokens than run at once: x[t] += Σ_k weights[t, k] sums[t, k];
// rmsnorm(x[t]) * norm     arguments: around_gemm.h NormSums::Args; the same bits as norm_sums.cuh
// grid as many CTAs as run at once, which take tokens in turn; a warp copies 256 columns of the next one while it sums
//      those of this one, eight a thread
// bytes, flops: cost()
// measured 2026-11-26 (H200, 2880, four experts): alone 120 us at 8192 tokens, 30 at 2048; in a prompt 115 and 31,
//      where 139 and 36 were taken when each token had a CTA of its own, which waits for its rows before it stores

#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/ptx/async_copy.cuh"

namespace nibble::backend::cuda {

// Dynamic shared memory: two stages of the experts' rows, then x's; each warp's weights of both; two of warps' squares.
struct NormExpertsShared {
  uint32_t base;
  int hidden, topk;

  static constexpr int kStages = 2;
  [[nodiscard]] static constexpr int64_t stage_bytes(int hidden, int topk) { return (2 * topk + 4) * int64_t{hidden}; }
  [[nodiscard]] static constexpr int64_t bytes(int hidden, int topk) {
    const int warps = norm_threads(hidden) / kWarpLanes;
    return kStages * (stage_bytes(hidden, topk) + int64_t{4} * warps * topk + kNormSharedBytes);
  }
  [[nodiscard]] __device__ uint32_t stage(int idx) const {
    return base + static_cast<uint32_t>(idx * stage_bytes(hidden, topk));
  }
  [[nodiscard]] __device__ uint32_t expert(int idx, int e, int k) const {
    return stage(idx) + static_cast<uint32_t>(2 * (e * hidden + k));
  }
  [[nodiscard]] __device__ uint32_t x(int idx, int k) const {
    return stage(idx) + static_cast<uint32_t>(2 * topk * hidden + 4 * k);
  }
  [[nodiscard]] __device__ uint32_t weight(int idx, int warp, int e) const {
    return stage(kStages) + static_cast<uint32_t>(4 * ((idx * (norm_threads(hidden) / kWarpLanes) + warp) * topk + e));
  }
  [[nodiscard]] __device__ uint32_t squares(int idx) const {
    return weight(kStages, 0, 0) + static_cast<uint32_t>(idx * kNormSharedBytes);
  }
};

// The warp's columns of a token.
__device__ __forceinline__ void copy_token(const NormSums::Args& a, const NormExpertsShared& shared, int64_t token,
                                           int stage) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  const int k = kNormColumns * thread, topk = a.sums.splits;
  if (k < a.hidden)
    for (int e = 0; e < topk; ++e)
      ptx::async_copy16(shared.expert(stage, e, k),
                        static_cast<const Bf16*>(a.sums.at) + (token * topk + e) * a.hidden + k, ptx::Fill::kCopy);
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const int own = kNormColumns * kWarpLanes * warp + 4 * (kWarpLanes * q + lane);
    if (own < a.hidden) ptx::async_copy16(shared.x(stage, own), a.x + token * a.hidden + own, ptx::Fill::kCopy);
  }
  if (lane < topk) ptx::async_copy4(shared.weight(stage, warp, lane), a.sums.weights + token * topk + lane);
}

// x += what the experts made of the thread's columns.
__device__ __forceinline__ void add_copied(const NormExpertsShared& shared, int stage, Quad (&x)[2]) {
  const int thread = static_cast<int>(threadIdx.x), k = kNormColumns * thread;
  for (int q = 0; q < 2; ++q) {
    const uint4 words = ptx::load_shared16(shared.x(stage, k + 4 * q));
    x[q] = {{__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)}};
  }
#pragma unroll 4
  for (int e = 0; e < shared.topk; ++e) {
    const uint4 words = ptx::load_shared16(shared.expert(stage, e, k));
    const Quad y[2] = {Quad::of(uint2{words.x, words.y}), Quad::of(uint2{words.z, words.w})};
    const float w = __uint_as_float(ptx::load_shared4(shared.weight(stage, thread / kWarpLanes, e)));
#pragma unroll
    for (int c = 0; c < kNormColumns; ++c) x[c / 4].v[c % 4] = fmaf(w, y[c / 4].v[c % 4], x[c / 4].v[c % 4]);
  }
}

inline constexpr int kNormFewThreads = 384,
                     kNormExpertsCtas = 3;  // what gpt-oss takes, and how many an SM has room for

// REQUIRES a topk of up to 32.
template <int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads, kNormExpertsCtas* kNormFewThreads / kMaxThreads)
    any_norm_experts_f32(const __grid_constant__ NormSums::Args a) {
  extern __shared__ __align__(128) uint8_t smem[];
  const NormExpertsShared shared{ptx::shared_address(smem), a.hidden, a.sums.splits};
  const int k = kNormColumns * static_cast<int>(threadIdx.x), step = static_cast<int>(gridDim.x);
  const bool mine = k < a.hidden;
  ptx::grid_dependency_launch();
  uint4 norm{};
  if (mine && a.norm != nullptr) norm = *reinterpret_cast<const uint4*>(a.norm + k);
  ptx::grid_dependency_wait();
  int stage = 0;
  copy_token(a, shared, static_cast<int>(blockIdx.x), stage);
  ptx::async_commit();
#pragma unroll 1
  for (auto token = static_cast<int>(blockIdx.x); token < a.tokens; token += step, stage ^= 1) {
    __syncwarp();  // its lanes have read the other stage
    if (token + step < a.tokens) copy_token(a, shared, token + step, stage ^ 1);
    ptx::async_commit();
    ptx::async_wait<1>();
    __syncwarp();
    Quad x[2];
    if (mine) add_copied(shared, stage, x);
    float squares = 0, v[kNormColumns];
#pragma unroll
    for (int c = 0; c < kNormColumns; ++c) {
      v[c] = x[c / 4].v[c % 4];
      squares += v[c] * v[c];
    }
    const int64_t row = int64_t{token} * a.hidden + k;
    if (mine)
      for (int q = 0; q < 2; ++q) x[q].store(a.x + row + 4 * q);
    if (a.norm == nullptr) continue;
    const float mean = norm_sum(squares, shared.squares(stage)) / static_cast<float>(a.hidden);
    const float inverse = 1.0f / sqrtf(mean + a.eps);
    const Quad scale[2] = {Quad::of(uint2{norm.x, norm.y}), Quad::of(uint2{norm.z, norm.w})};
#pragma unroll
    for (int c = 0; c < kNormColumns; ++c) v[c] *= inverse * scale[c / 4].v[c % 4];
    if (mine && a.normed != nullptr)
      for (int q = 0; q < 2; ++q)
        *reinterpret_cast<float4*>(a.normed + row + 4 * q) = {v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]};
    if (a.rounded.at != nullptr) GemmInputRow{a.rounded, token, a.hidden}.store8(k, mine, v);
  }
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

#pragma once
// route_sums: x[t] += bias + sums[t]; inverse[t] = 1 / rms(x[t]); logits[t, e] = inverse[t] (norm * x[t]) · W[e]
// + b[e]; the topk largest and their softmax     source: torch/model.py RMSNorm, MLPBlock; arguments: around_gemm.h
// RouteSumsArgs
// x f32 [tokens, hidden]     sums f32 [tokens, hidden]     W bf16 [experts, hidden] row-major
// grid one CTA per 16 or 32 tokens; its warps take blocks of 32 columns in turn, all experts of them; the next block is
//      on its way to L2 meanwhile
// mma  m16n8k16 in bf16: norm * x as the sum of two bf16, what it lacks of that is below 2^-17 of it
// bytes, flops: cost(); W once per CTA from L2
// predicted (H100, 128 experts x 2880): 8192 tokens 110 us, 2048 35 us. Measured 2026-11-22 in a prompt, when one warp
//      still stored all logits: 188 and 52 us; apart, as norm_sums, linear_many and top_experts, 257 and 79. Alone:
//      165 and 51; with 16 tokens a CTA for 8192, one or two on an SM, 195: what a CTA reads of W counts
// rounding: f32, order fixed by hidden: bitwise repeatable, whatever the other tokens

#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/experts/top_experts.cuh"
#include "backend/cuda/layout/mma_m16n8k16.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/prefetch.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

template <int kTheTokenTiles, int kTheExpertTiles>
struct RouteSumsTile {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarpLanes;
  static constexpr int kExpertTiles = kTheExpertTiles;  // of 8
  static constexpr int kExperts = 8 * kExpertTiles;
  static constexpr int kTokenTiles = kTheTokenTiles;  // of 16
  static constexpr int kTokens = 16 * kTokenTiles;
  static constexpr int kStepK = 32, kStride = kWarps * kStepK;  // columns of a step; to a warp's next
  static constexpr int kPad = 8;                                // floats behind a token's sums: no bank conflict
  static constexpr int kSumBytes = kWarps / 2 * kTokens * (kExperts + kPad) * 4;
  static constexpr int kSharedBytes = kSumBytes + (kWarps + 1) * kTokens * 4;  // squares by warp, inverse
  static_assert(kSharedBytes <= 99 * 1024, "the least that any card has per block");
};

// Eight floats of a token as bf16 pairs: to the nearest, and what that leaves.
struct SplitFloats {
  uint32_t high[4], low[4];
  __device__ void set(const Quad (&v)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = v[i / 2].v[i % 2 * 2], b = v[i / 2].v[i % 2 * 2 + 1];
      high[i] = ptx::pack_bf16(a, b);
      low[i] = ptx::pack_bf16(a - __uint_as_float(high[i] << 16), b - __uint_as_float(high[i] & 0xffff0000u));
    }
  }
};

template <class Tile>
using RouteLogits = float[Tile::kTokenTiles][Tile::kExpertTiles][4];

// Columns k to k + 7 of the lane's tokens, `group` + 8 i: x gets the delta, `squares` x's, `split` norm * x.
template <class Tile>
__device__ __forceinline__ void take_columns(const RouteSumsArgs& a, int first_token, int k,
                                             SplitFloats (&split)[Tile::kTokenTiles][2],
                                             float (&squares)[2 * Tile::kTokenTiles]) {
  const int group = static_cast<int>(threadIdx.x) % kWarpLanes / 4;
  Quad norm[2], bias[2], x[2 * Tile::kTokenTiles][2], delta[2 * Tile::kTokenTiles][2];
  Quad::of8(a.norm + k, norm);
  if (a.bias != nullptr) Quad::of8(a.bias + k, bias);
  const auto token_at = [&](int i) { return first_token + group + 8 * i; };
#pragma unroll
  for (int i = 0; i < 2 * Tile::kTokenTiles; ++i) {
    const int64_t at = int64_t{min(token_at(i), a.tokens - 1)} * a.hidden + k;  // what lies beyond is not stored
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      x[i][q].add(a.x + at + 4 * q);
      if (a.sums.splits > 0) delta[i][q].add(static_cast<const float*>(a.sums.at) + at + 4 * q);
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * Tile::kTokenTiles; ++i) {
    const int64_t at = int64_t{min(token_at(i), a.tokens - 1)} * a.hidden + k;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& v = x[i][q].v[c];
        v += bias[q].v[c] + delta[i][q].v[c];
        squares[i] += v * v;
      }
      if (a.sums.splits > 0 && token_at(i) < a.tokens) x[i][q].store(a.x + at + 4 * q);
#pragma unroll
      for (int c = 0; c < 4; ++c) x[i][q].v[c] *= norm[q].v[c];
    }
    split[i / 2][i % 2].set(x[i]);
  }
}

// Adds 32 columns: a lane has eight neighbours of them, from k on, which it brings to the same slots of both operands.
template <class Tile>
__device__ __forceinline__ void multiply_columns(const RouteSumsArgs& a, int k,
                                                 const SplitFloats (&x)[Tile::kTokenTiles][2],
                                                 RouteLogits<Tile>& logits) {
  constexpr int kBatch = 4;  // loads of W that are under way together; more would spill
  uint32_t quad = threadIdx.x % kWarpLanes / 4;
  ptx::keep(quad);  // else every row's address waits in registers, and others spill
  const int group = static_cast<int>(quad);
#pragma unroll
  for (int from = 0; from < Tile::kExpertTiles; from += kBatch) {
    uint4 w[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int expert = min(8 * (from + n) + group, a.experts - 1);
      w[n] = *reinterpret_cast<const uint4*>(a.weight + int64_t{expert} * a.hidden + k);
    }
#pragma unroll
    for (int m = 0; m < Tile::kTokenTiles; ++m)
#pragma unroll
      for (int p = 0; p < 4; p += 2) {  // pairs of columns
        const SplitFloats(&own)[2] = x[m];
        const uint32_t high[4] = {own[0].high[p], own[1].high[p], own[0].high[p + 1], own[1].high[p + 1]};
        const uint32_t low[4] = {own[0].low[p], own[1].low[p], own[0].low[p + 1], own[1].low[p + 1]};
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
          const uint32_t b0 = p == 0 ? w[n].x : w[n].z, b1 = p == 0 ? w[n].y : w[n].w;
          ptx::mma_m16n8k16_bf16(logits[m][from + n], low, b0, b1);
          ptx::mma_m16n8k16_bf16(logits[m][from + n], high, b0, b1);
        }
      }
  }
}

// The CTA's rows of x and of the first split, 128 bytes of each, from k on, to L2.
template <class Tile>
__device__ __forceinline__ void prefetch_columns(const RouteSumsArgs& a, int first_token, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes, token = first_token + lane % Tile::kTokens;
  if (k >= a.hidden || token >= a.tokens) return;
  const int64_t at = int64_t{token} * a.hidden + k;
  if (Tile::kTokens == kWarpLanes || lane < Tile::kTokens) ptx::prefetch_l2(a.x + at);
  if (a.sums.splits > 0 && (Tile::kTokens == kWarpLanes || lane >= Tile::kTokens))
    ptx::prefetch_l2(static_cast<const float*>(a.sums.at) + at);
}

// Adds up the warps' squares; every token's inverse is in shared memory behind the next barrier.
template <class Tile>
__device__ __forceinline__ void invert_norms(const RouteSumsArgs& a, int first_token, uint32_t squares_at,
                                             float (&squares)[2 * Tile::kTokenTiles]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  const auto place = [&](int row, int token) {
    return squares_at + static_cast<uint32_t>((row * Tile::kTokens + token) * 4);
  };
#pragma unroll
  for (int i = 0; i < 2 * Tile::kTokenTiles; ++i) {
    float& own = squares[i];
    own += __shfl_xor_sync(kAllLanes, own, 1);
    own += __shfl_xor_sync(kAllLanes, own, 2);
    if (lane % 4 == 0) ptx::store_shared4(place(warp, lane / 4 + 8 * i), __float_as_uint(own));
  }
  __syncthreads();
  if (thread >= Tile::kTokens) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Tile::kWarps; ++w) sum += __uint_as_float(ptx::load_shared4(place(w, thread)));
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(a.hidden) + a.eps);
  ptx::store_shared4(place(Tile::kWarps, thread), __float_as_uint(inverse));
  if (first_token + thread < a.tokens) a.inverse[first_token + thread] = inverse;
}

// Half of the warps hands its sums to the other half, down to warp 0, which leaves them in shared memory; then each
// warp stores the logits of some tokens and chooses.
template <class Tile>
__device__ __forceinline__ void store_choices(const RouteSumsArgs& a, int first_token, uint32_t shared,
                                              RouteLogits<Tile>& logits) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  const auto each = [&](const auto& visit) {  // its token and expert within the CTA's
#pragma unroll
    for (int m = 0; m < Tile::kTokenTiles; ++m)
#pragma unroll
      for (int n = 0; n < Tile::kExpertTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          visit(logits[m][n][i], 16 * m + layout::d_row(lane, i), 8 * n + layout::d_col(lane, i));
  };
  const auto place = [&](int of_warp, int token, int expert) {
    return shared +
           static_cast<uint32_t>(((of_warp * Tile::kTokens + token) * (Tile::kExperts + Tile::kPad) + expert) * 4);
  };
  const auto hand_on = [&](int to_warp) {
    each([&](float sum, int token, int expert) {
      ptx::store_shared4(place(to_warp, token, expert), __float_as_uint(sum));
    });
  };
#pragma unroll 1
  for (int rest = Tile::kWarps / 2; rest > 0; rest /= 2) {
    if (warp >= rest && warp < 2 * rest) hand_on(warp - rest);
    __syncthreads();
    if (warp < rest)
      each([&](float& sum, int token, int expert) {
        sum += __uint_as_float(ptx::load_shared4(place(warp, token, expert)));
      });
    __syncthreads();
  }
  if (warp == 0) hand_on(0);
  __syncthreads();
  constexpr int kOwn = (Tile::kExperts + kWarpLanes - 1) / kWarpLanes;  // experts of a lane
  float bias[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) bias[i] = a.router_bias[min(lane + i * kWarpLanes, a.experts - 1)].to_float();
  for (int own = warp; own < min(Tile::kTokens, a.tokens - first_token); own += Tile::kWarps) {
    const int64_t token = first_token + own;
    const float inverse = __uint_as_float(
        ptx::load_shared4(shared + static_cast<uint32_t>(Tile::kSumBytes + (Tile::kWarps * Tile::kTokens + own) * 4)));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int expert = lane + i * kWarpLanes;
      if (expert < a.experts)
        a.logits[token * a.experts + expert] =
            inverse * __uint_as_float(ptx::load_shared4(place(0, own, expert))) + bias[i];
    }
    __syncwarp();
    choose_experts({.logits = a.logits, .ids = a.ids, .weights = a.weights, .experts = a.experts, .topk = a.topk},
                   token, lane);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) any_route_sums(const __grid_constant__ RouteSumsArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes;
  const int warp = thread / kWarpLanes, first_token = static_cast<int>(blockIdx.x) * Tile::kTokens;
  const uint32_t shared = ptx::shared_address(smem);
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  RouteLogits<Tile> logits = {};
  float squares[2 * Tile::kTokenTiles] = {};
#pragma unroll 1
  for (int k = warp * Tile::kStepK; k < a.hidden; k += Tile::kStride) {
    SplitFloats x[Tile::kTokenTiles][2];
    prefetch_columns<Tile>(a, first_token, k + Tile::kStride);
    take_columns<Tile>(a, first_token, k + lane % 4 * 8, x, squares);
    multiply_columns<Tile>(a, k + lane % 4 * 8, x, logits);
  }
  invert_norms<Tile>(a, first_token, shared + static_cast<uint32_t>(Tile::kSumBytes), squares);
  store_choices<Tile>(a, first_token, shared, logits);
}

}  // namespace nibble::backend::cuda

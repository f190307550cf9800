#pragma once
// route_sums: x[t] += bias + sums[t]; inverse[t] = 1 / rms(x[t]); logits[t, e] = inverse[t] (norm * x[t]) · W[e]
// + b[e]; the topk largest and their softmax     source: torch/model.py RMSNorm, MLPBlock; arguments: around_gemm.h
// RouteSumsArgs
// x f32 [tokens, hidden]     sums f32 [tokens, hidden], or bf16 by tiles     W bf16 [experts, hidden] row-major
// grid one CTA per 32 or 64 tokens
// warps four by columns, 16 of a step's 64; the others by tokens, 16 each. Some steps ahead a warp copies what it
//      multiplies of x, all of them together W
// mma  m16n8k16 in bf16: norm * x as the sum of two bf16, what it lacks of that is below 2^-17 of it
// bytes, flops: cost(); W once per CTA from L2
// predicted (H200, 128 experts x 2880): 8192 tokens 80 us, 2048 24 us; until 2026-11-26, when each warp loaded its own
//      columns of W: 182, 46
// rounding: f32, order fixed by hidden: bitwise repeatable, whatever the other tokens

#include "backend/cuda/experts/expert_ranges.cuh"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/layout/mma_m16n8k16.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/matrix_load.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

template <int kTheTokens, int kTheExpertTiles, int kTheStages>
struct RouteSumsTile {
  static constexpr int kTokens = kTheTokens, kExpertTiles = kTheExpertTiles, kStages = kTheStages;
  static constexpr int kExperts = 8 * kExpertTiles;
  static constexpr int kColumnWarps = 4, kWarps = kColumnWarps * kTokens / 16, kThreads = kWarps * kWarpLanes;
  static constexpr int kStepK = 64, kWarpK = kStepK / kColumnWarps;
  // A stage: x, then sums, of 16 tokens and columns a warp; W; norm and bias.
  static constexpr int kChunks = 2, kInputBytes = kChunks * kThreads * 16;
  static constexpr int kWeightRowBytes = kStepK * 2, kWeightsAt = 2 * kInputBytes;
  static constexpr int kNormAt = kWeightsAt + kExperts * kWeightRowBytes, kBiasAt = kNormAt + kStepK * 2;
  static constexpr int kStageBytes = kBiasAt + kStepK * 2;
  // When all is multiplied: two areas of logits; squares by warp of columns, inverse; RangeShared.
  static constexpr int kPitch = kExperts + 4;  // floats of a token's logits: no bank conflict
  static constexpr int kAreaBytes = kTokens * kPitch * 4, kSquaresAt = 2 * kAreaBytes;
  static constexpr int kCountsAt = kSquaresAt + (kColumnWarps + 1) * kTokens * 4;
  static constexpr int kRanges = kTokens / kRangeTokens;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kThreads % kExperts == 0 && kTokens == 4 * kWarps);
};
// What every card has room for; and what takes half of W's reads where one of them per multiprocessor is enough.
template <int kExpertTiles>
using RouteSumsFew = RouteSumsTile<32, kExpertTiles, 3>;
template <int kExpertTiles>
using RouteSumsMany = RouteSumsTile<64, kExpertTiles, 4>;
static_assert(RouteSumsFew<16>::kSharedBytes <= 99 * 1024, "the least that any card has per block");

// A token's four columns as bf16 pairs: to the nearest, and what that leaves.
struct SplitFloats {
  uint32_t high[2], low[2];
  __device__ void set(const Quad& v) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float a = v.v[2 * i], b = v.v[2 * i + 1];
      high[i] = ptx::pack_bf16(a, b);
      low[i] = ptx::pack_bf16(a - __uint_as_float(high[i] << 16), b - __uint_as_float(high[i] & 0xffff0000u));
    }
  }
};

template <class Tile>
struct RouteSums {
  const RouteSumsArgs& a;
  const uint32_t shared;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  const int first_token = static_cast<int>(blockIdx.x) * Tile::kTokens;
  // The lane multiplies tokens own_token and own_token + 8 of the CTA's, of a step's columns own_k, its neighbour, and
  // the two that are 8 behind these.
  const int own_token = warp / Tile::kColumnWarps * 16 + lane / 4, column_warp = warp % Tile::kColumnWarps;
  const int first_k = column_warp * Tile::kWarpK, own_k = first_k + lane % 4 * 2;
  float logits[Tile::kExpertTiles][4] = {};
  float squares[Tile::kChunks] = {};

  __device__ RouteSums(const RouteSumsArgs& args, uint32_t shared_address) : a(args), shared(shared_address) {}

  [[nodiscard]] __device__ int token(int i) const { return first_token + own_token + 8 * i; }
  // Its columns from k on; what lies beyond the tokens is not stored.
  [[nodiscard]] __device__ int64_t place_in_rows(int i, int k) const {
    return int64_t{min(token(i), a.tokens - 1)} * a.hidden + k;
  }
  [[nodiscard]] __device__ bool by_tiles() const { return a.sums.order == SplitSums::Order::kTiles; }
  [[nodiscard]] __device__ uint32_t stage(int step) const {
    return shared + static_cast<uint32_t>(step % Tile::kStages * Tile::kStageBytes);
  }
  // Of x, or of sums in rows: four columns of the token that the lane multiplies; two tokens' lie in different banks.
  [[nodiscard]] __device__ uint32_t input(int step, int i, int chunk) const {
    const int group = lane / 4;
    return stage(step) +
           static_cast<uint32_t>((i * Tile::kThreads + warp * kWarpLanes + group * 4 + (chunk ^ (group & 2))) * 16);
  }
  // Of sums by tiles: the token's 16 columns.
  [[nodiscard]] __device__ uint32_t input_tile(int step, int i) const {
    constexpr int kTokenBytes = Tile::kWarpK * 2, kWarpBytes = 16 * kTokenBytes;
    return stage(step) +
           static_cast<uint32_t>(Tile::kInputBytes + warp * kWarpBytes + (i * 8 + lane / 4) * kTokenBytes);
  }
  // Eight columns of an expert; those of eight experts lie in different banks.
  [[nodiscard]] __device__ static uint32_t weight_place(int expert, int chunk) {
    return static_cast<uint32_t>(Tile::kWeightsAt + expert * Tile::kWeightRowBytes + (chunk ^ expert % 8) * 16);
  }

  // Of a step beyond the last column nothing is read, and zeros arrive.
  __device__ __forceinline__ void copy_weights(int step) const {
    const int chunks = Tile::kStepK / 8, first = step * Tile::kStepK;
#pragma unroll
    for (int i = thread; i < Tile::kExperts * chunks; i += Tile::kThreads) {
      const int expert = i / chunks, k = first + i % chunks * 8;
      const bool there = expert < a.experts && k < a.hidden;
      ptx::async_copy16(stage(step) + weight_place(expert, i % chunks),
                        a.weight + (there ? int64_t{expert} * a.hidden + k : 0),
                        there ? ptx::Fill::kCopy : ptx::Fill::kZero);
    }
    if (thread >= 2 * chunks) return;
    const int k = first + thread % chunks * 8;
    const Bf16* const from = thread < chunks ? a.norm : a.bias;
    const bool there = from != nullptr && k < a.hidden;
    ptx::async_copy16(stage(step) + static_cast<uint32_t>(Tile::kNormAt + thread * 16),
                      (there ? from : a.norm) + (there ? k : 0), there ? ptx::Fill::kCopy : ptx::Fill::kZero);
  }
  __device__ __forceinline__ void copy_rows(int step) const {
    const int first = step * Tile::kStepK + first_k, chunk = lane % 4;
    const bool there = first < a.hidden;
    const ptx::Fill fill = there ? ptx::Fill::kCopy : ptx::Fill::kZero;
    const bool rows = a.sums.splits > 0 && !by_tiles();
#pragma unroll
    for (int i = 0; i < Tile::kChunks; ++i) {
      const int64_t at = place_in_rows(i, there ? first + chunk * 4 : 0);
      ptx::async_copy16(input(step, i, chunk), a.x + at, fill);
      if (rows)
        ptx::async_copy16(input(step, Tile::kChunks + i, chunk), static_cast<const float*>(a.sums.at) + at, fill);
    }
    if (a.sums.splits == 0 || rows) return;
    const int i = chunk / 2, half = chunk % 2;  // a token's 16 columns are two chunks
    const int64_t at = place_in_sums(a.tokens, min(token(i), a.tokens - 1), there ? first : 0) + half * 8;
    ptx::async_copy16(input_tile(step, i) + static_cast<uint32_t>(half * 16),
                      static_cast<const uint16_t*>(a.sums.at) + at, fill);
  }

  // The lane's four columns of a token, in their order.
  [[nodiscard]] __device__ Quad floats(int step, int i) const {
    const auto half = static_cast<uint32_t>(lane % 2 * 8);
    const uint2 low = ptx::load_shared8(input(step, i, lane % 4 / 2) + half),
                high = ptx::load_shared8(input(step, i, 2 + lane % 4 / 2) + half);
    return {{__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(high.x), __uint_as_float(high.y)}};
  }
  [[nodiscard]] __device__ Quad tile_sums(int step, int i) const {
    const uint2 pairs = ptx::load_shared8(input_tile(step, i) + static_cast<uint32_t>(lane % 4 * 8));
    return {{__uint_as_float(pairs.x << 16), __uint_as_float(pairs.y << 16), __uint_as_float(pairs.x & 0xffff0000u),
             __uint_as_float(pairs.y & 0xffff0000u)}};
  }
  // Of norm or bias.
  [[nodiscard]] __device__ Quad of_columns(int step, int at) const {
    const uint32_t from = stage(step) + static_cast<uint32_t>(at + own_k * 2);
    return Quad::of(uint2{ptx::load_shared4(from), ptx::load_shared4(from + 16)});
  }
  __device__ __forceinline__ void store_x(int i, int k, const Quad& x) const {
    if (token(i) >= a.tokens || k >= a.hidden) return;
    float* const to = a.x + place_in_rows(i, k);
    *reinterpret_cast<float2*>(to) = {x.v[0], x.v[1]};
    *reinterpret_cast<float2*>(to + 8) = {x.v[2], x.v[3]};
  }

  // x gets the delta, `squares` x's, `split` norm * x.
  __device__ __forceinline__ void take_columns(int step, SplitFloats (&split)[Tile::kChunks]) {
    const Quad norm = of_columns(step, Tile::kNormAt), bias = of_columns(step, Tile::kBiasAt);
#pragma unroll
    for (int i = 0; i < Tile::kChunks; ++i) {
      Quad x = floats(step, i);
      if (a.sums.splits > 0) {
        const Quad sum = by_tiles() ? tile_sums(step, i) : floats(step, Tile::kChunks + i);
#pragma unroll
        for (int c = 0; c < 4; ++c) x.v[c] += bias.v[c] + sum.v[c];
        store_x(i, step * Tile::kStepK + own_k, x);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        squares[i] += x.v[c] * x.v[c];
        x.v[c] *= norm.v[c];
      }
      split[i].set(x);
    }
  }

  __device__ __forceinline__ void multiply_columns(int step, const SplitFloats (&x)[Tile::kChunks]) {
    const uint32_t high[4] = {x[0].high[0], x[1].high[0], x[0].high[1], x[1].high[1]};
    const uint32_t low[4] = {x[0].low[0], x[1].low[0], x[0].low[1], x[1].low[1]};
    // Lanes name the rows of two tiles of experts, their first eight columns and their second.
    const uint32_t own = stage(step) + weight_place(lane / 16 * 8 + lane % 8, first_k / 8 + lane / 8 % 2);
#pragma unroll
    for (int n = 0; n < Tile::kExpertTiles; n += 2) {
      uint32_t w[4];
      ptx::load_matrices(w, own + static_cast<uint32_t>(n * 8 * Tile::kWeightRowBytes));
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        ptx::mma_m16n8k16_bf16(logits[n + t], low, w[2 * t], w[2 * t + 1]);
        ptx::mma_m16n8k16_bf16(logits[n + t], high, w[2 * t], w[2 * t + 1]);
      }
    }
  }

  // W's first steps do not wait for the kernel before.
  __device__ __forceinline__ void multiply() {
    const int steps = (a.hidden + Tile::kStepK - 1) / Tile::kStepK;
#pragma unroll
    for (int s = 0; s < Tile::kStages - 1; ++s) copy_weights(s);
    ptx::grid_dependency_wait();
#pragma unroll
    for (int s = 0; s < Tile::kStages - 1; ++s) {
      copy_rows(s);
      ptx::async_commit();
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      ptx::async_wait<Tile::kStages - 2>();
      __syncthreads();  // all of the step is there, and nobody reads the stage of the step before
      if (const int next = step + Tile::kStages - 1; next < steps) {
        copy_weights(next);
        copy_rows(next);
      }
      ptx::async_commit();
      SplitFloats x[Tile::kChunks];
      take_columns(step, x);
      multiply_columns(step, x);
    }
    ptx::async_wait<0>();
    __syncthreads();  // nobody reads a stage
  }

  [[nodiscard]] __device__ uint32_t squares_place(int row, int of_token) const {
    return shared + static_cast<uint32_t>(Tile::kSquaresAt + (row * Tile::kTokens + of_token) * 4);
  }
  [[nodiscard]] __device__ uint32_t logit_place(int area, int of_token, int expert) const {
    return shared + static_cast<uint32_t>(area * Tile::kAreaBytes + (of_token * Tile::kPitch + expert) * 4);
  }
  template <class Visit>
  __device__ __forceinline__ void each_logit(int area, const Visit& visit) {
#pragma unroll
    for (int n = 0; n < Tile::kExpertTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        visit(logits[n][i],
              logit_place(area, own_token - lane / 4 + layout::d_row(lane, i), 8 * n + layout::d_col(lane, i)));
  }
  __device__ __forceinline__ void hand_on(int area) {
    each_logit(area, [](float sum, uint32_t at) { ptx::store_shared4(at, __float_as_uint(sum)); });
  }
  __device__ __forceinline__ void add_area(int area) {
    each_logit(area, [](float& sum, uint32_t at) { sum += __uint_as_float(ptx::load_shared4(at)); });
  }

  // Adds up what the warps of columns have of a token: its logits, in area 0, and its inverse.
  __device__ __forceinline__ void add_up() {
#pragma unroll
    for (int i = 0; i < Tile::kChunks; ++i) {
      float& own = squares[i];
      own += __shfl_xor_sync(kAllLanes, own, 1);
      own += __shfl_xor_sync(kAllLanes, own, 2);
      if (lane % 4 == 0) ptx::store_shared4(squares_place(column_warp, own_token + 8 * i), __float_as_uint(own));
    }
    if (column_warp >= 2) hand_on(column_warp - 2);
    __syncthreads();
    if (column_warp < 2) add_area(column_warp);
    if (column_warp == 1) hand_on(1);
    if (thread < Tile::kTokens) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < Tile::kColumnWarps; ++w) sum += __uint_as_float(ptx::load_shared4(squares_place(w, thread)));
      const float inverse = 1.0f / sqrtf(sum / static_cast<float>(a.hidden) + a.eps);
      ptx::store_shared4(squares_place(Tile::kColumnWarps, thread), __float_as_uint(inverse));
      if (first_token + thread < a.tokens) a.inverse[first_token + thread] = inverse;
    }
    __syncthreads();
    if (column_warp == 0) {
      add_area(1);
      hand_on(0);
    }
    __syncthreads();
  }

  // Eight lanes choose for a token, a warp for four. counts: pairs of each expert by range.
  __device__ __forceinline__ void choose(int* counts) const {
    constexpr int kLanes = 8, kOwn = Tile::kExperts / kLanes;
    constexpr int32_t kNone = 0x7fffffff;
    const int own = thread / kLanes, part = thread % kLanes, of_token = first_token + own;
    const bool there = of_token < a.tokens;
    const float inverse = __uint_as_float(ptx::load_shared4(squares_place(Tile::kColumnWarps, own)));
    float logit[kOwn] = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int expert = part + kLanes * i;
      if (expert >= a.experts) continue;
      logit[i] =
          inverse * __uint_as_float(ptx::load_shared4(logit_place(0, own, expert))) + a.router_bias[expert].to_float();
      if (there) a.logits[int64_t{of_token} * a.experts + expert] = logit[i];
    }
    __syncwarp();                   // the token's logits in shared memory give way to its weights
    Ranked found = {INFINITY, -1};  // before every expert
    float first = 0, sum = 0;
    for (int k = 0; k < a.topk; ++k) {
      Ranked best = {-INFINITY, kNone};
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const Ranked candidate = {logit[i], part + kLanes * i};
        if (candidate.idx < a.experts && before(found, candidate) && before(candidate, best)) best = candidate;
      }
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) {
        const Ranked other = {__shfl_xor_sync(kAllLanes, best.value, step), __shfl_xor_sync(kAllLanes, best.idx, step)};
        if (before(other, best)) best = other;
      }
      found = best;
      if (found.idx == kNone) found.idx = k;  // only NaN logits come here: any expert, but one that exists
      if (k == 0) first = found.value;
      const float weight = expf(found.value - first);
      sum += weight;
      if (part != 0) continue;
      ptx::store_shared4(logit_place(0, own, k), __float_as_uint(weight));
      if (!there) continue;
      a.ids[int64_t{of_token} * a.topk + k] = found.idx;
      atomicAdd(counts + own / kRangeTokens * Tile::kExperts + found.idx, 1);
    }
    __syncwarp();
    for (int k = part; there && k < a.topk; k += kLanes)
      a.weights[int64_t{of_token} * a.topk + k] = __uint_as_float(ptx::load_shared4(logit_place(0, own, k))) / sum;
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) any_route_sums(const __grid_constant__ RouteSumsArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  static_assert(Tile::kCountsAt + sizeof(RangeShared<Tile>) <= Tile::kSharedBytes);
  auto& ranges = *reinterpret_cast<RangeShared<Tile>*>(smem + Tile::kCountsAt);
  RouteSums<Tile> cta(a, ptx::shared_address(smem));
  ptx::grid_dependency_launch();
  cta.multiply();
  for (int i = cta.thread; i < Tile::kRanges * Tile::kExperts; i += Tile::kThreads) ranges.counts[i] = 0;
  cta.add_up();
  cta.choose(ranges.counts);
  if (a.ranges.starts != nullptr) store_ranges(a, ranges);
}

}  // namespace nibble::backend::cuda

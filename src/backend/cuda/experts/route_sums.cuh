#pragma once
// route_sums: x[t] += bias + sums[t]; inverse[t] = 1 / rms(x[t]); logits[t, e] = inverse[t] (norm * x[t]) · W[e]
// + b[e]; the topk largest and their softmax     source: torch/model.py RMSNorm, MLPBlock
// arguments: route.h RouteSums::Args
// x f32 [tokens, hidden]     sums f32 [tokens, hidden], or bf16 by tiles, of one split or two
// W bf16 [experts, hidden] row-major
// grid one CTA per 32 or 64 tokens
// warps four by columns, 16 of a step's 64; the others by tokens, 16 each. Some steps ahead a warp copies what it
//      multiplies of x, all of them together W
// mma  m16n8k16 in bf16: norm * x as the sum of two bf16, what it lacks of that is below 2^-17 of it
// bytes, flops: testing/costs.h; W once per CTA from L2
// measured 2026-11-26 (H100, 128 experts x 2880, bf16 sums): 107 us at 8192 tokens (2.25 TB/s), of which 14 after the
//      last product, half of these for ranges that it told then; 36.5 at 2048. 255 instructions of a warp a step
// rounding: f32, order fixed by hidden: bitwise repeatable, whatever the other tokens

#include "backend/cuda/experts/route.h"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/layout/mma_fragments.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/mma.cuh"

namespace nibble::backend::cuda {

// kTheSplits: of sums by tiles alone, of so many splits; 0: of any sums, or none.
template <int kTheTokens, int kTheExpertTiles, int kTheStages, int kTheSplits>
struct RouteSumsTile {
  static constexpr int kSplits = kTheSplits;
  static constexpr int kTokens = kTheTokens, kExpertTiles = kTheExpertTiles, kStages = kTheStages;
  static constexpr int kExperts = 8 * kExpertTiles;
  static constexpr int kColumnWarps = 4, kWarps = kColumnWarps * kTokens / 16, kThreads = kWarps * kWarpLanes;
  static constexpr int kStepK = 64, kWarpK = kStepK / kColumnWarps;
  // A stage: x, then sums, of 16 tokens and columns a warp; W; norm and bias.
  static constexpr int kInputBytes = 2 * kThreads * 16;
  static constexpr int kWeightRowBytes = kStepK * 2, kWeightsAt = 2 * kInputBytes;
  static constexpr int kNormAt = kWeightsAt + kExperts * kWeightRowBytes, kBiasAt = kNormAt + kStepK * 2;
  static constexpr int kStageBytes = kBiasAt + kStepK * 2;
  // When all is multiplied: two areas of logits; squares by warp of columns, inverse.
  static constexpr int kPitch = kExperts + 4;  // floats of a token's logits: no bank conflict
  static constexpr int kAreaBytes = kTokens * kPitch * 4, kSquaresAt = 2 * kAreaBytes;
  static constexpr int kBarriersAt = kStages * kStageBytes;  // of each stage: it is there; all have read it
  static constexpr int kSharedBytes = kBarriersAt + kStages * 16;
  static_assert(kThreads % kExperts == 0 && kTokens == 4 * kWarps);
  static_assert(kSquaresAt + (kColumnWarps + 1) * kTokens * 4 <= kSharedBytes);
};
// What every card has room for; with a ring that few tokens need, since few CTAs ask for all of it; and with half of
// W's reads, where one CTA per multiprocessor is enough.
template <int kExpertTiles>
using RouteSumsAny = RouteSumsTile<32, kExpertTiles, 3, 0>;
template <int kExpertTiles, int kSplits>
using RouteSumsFew = RouteSumsTile<32, kExpertTiles, 6, kSplits>;
template <int kExpertTiles, int kSplits>
using RouteSumsMany = RouteSumsTile<64, kExpertTiles, 4, kSplits>;
static_assert(RouteSumsAny<16>::kSharedBytes <= 99 * 1024, "the least that any card has per block");

// Known when compiled where sums come by tiles alone: a tenth of a prompt's time (H100, 2048 tokens).
template <class Tile>
__device__ __forceinline__ bool has_sums(const RouteSums::Args& a) {
  return Tile::kSplits > 0 || a.sums.splits > 0;
}
template <class Tile>
__device__ __forceinline__ bool by_tiles(const RouteSums::Args& a) {
  return Tile::kSplits > 0 || a.sums.order == SplitSums::Order::kTiles;
}
template <class Tile>
__device__ __forceinline__ bool in_two(const RouteSums::Args& a) {
  return Tile::kSplits > 0 ? Tile::kSplits == 2 : a.sums.splits == 2;
}

// Where a thread is in the ring, and where its parts of a stage lie: what a loop over steps would work out each time.
template <class Tile>
struct RouteStage {
  uint32_t first, at, full, parity = 0;

  __device__ explicit RouteStage(uint32_t shared)
      : first(shared), at(shared), full(shared + static_cast<uint32_t>(Tile::kBarriersAt)) {}
  [[nodiscard]] __device__ uint32_t read() const { return full + 8; }
  __device__ __forceinline__ void next() {
    const bool last = at + Tile::kStageBytes == first + Tile::kBarriersAt;
    at = last ? first : at + Tile::kStageBytes;
    full = last ? first + static_cast<uint32_t>(Tile::kBarriersAt) : full + 16;
    parity ^= last ? 1 : 0;
  }
  // Where x, or sums in rows, lie: four columns of the token that the lane multiplies; two tokens' lie in different
  // banks.
  [[nodiscard]] __device__ static uint32_t input(int thread, int chunk) {
    return static_cast<uint32_t>((thread / 4 * 4 + (chunk ^ (thread / 4 & 2))) * 16);
  }
  static constexpr int kInputPitch = Tile::kThreads * 16;  // to the lane's other token
  // Where sums by tiles lie: the token's 16 columns.
  [[nodiscard]] __device__ static uint32_t input_tile(int thread) {
    constexpr int kTokenBytes = Tile::kWarpK * 2, kWarpBytes = 16 * kTokenBytes;
    return static_cast<uint32_t>(Tile::kInputBytes + thread / kWarpLanes * kWarpBytes +
                                 thread % kWarpLanes / 4 * kTokenBytes);
  }
  static constexpr int kTilePitch = 8 * Tile::kWarpK * 2;
  static constexpr uint32_t kSplitPitch = Tile::kThreads * 16;  // to the second split's
  // Eight columns of an expert; those of eight experts lie in different banks.
  [[nodiscard]] __device__ static uint32_t weight(int expert, int chunk) {
    return static_cast<uint32_t>(Tile::kWeightsAt + expert * Tile::kWeightRowBytes + (chunk ^ expert % 8) * 16);
  }
};

// Which of the CTA's tokens and of a step's columns a lane has: tokens `token` and token + 8; columns k, k + 1, k + 8
// and k + 9, of its warp's 16 from first_k on.
template <class Tile>
struct RouteLane {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  const int column_warp = warp % Tile::kColumnWarps, first_k = column_warp * Tile::kWarpK;
  const int token = warp / Tile::kColumnWarps * 16 + lane / 4, k = first_k + lane % 4 * 2;
};

// What a thread copies, step by step; of columns beyond the last one, and of experts that there are not, zeros.
template <class Tile>
struct RouteCopies {
  static constexpr int kWeights = Tile::kExperts * 8 / Tile::kThreads > 0 ? Tile::kExperts * 8 / Tile::kThreads : 1;
  const RouteSums::Args& a;
  RouteStage<Tile> weights_stage, rows_stage;
  uint32_t own_weight, own_input, own_tile;
  int weights_k, rows_k;           // of the next step
  int weight_at, x_at[2], sum_at;  // elements of W, x, sums by tiles
  bool has_expert[kWeights];

  __device__ RouteCopies(const RouteSums::Args& args, uint32_t shared, int first_token)
      : a(args), weights_stage(shared), rows_stage(shared) {
    const RouteLane<Tile> own;
    const int expert = own.thread / 8, chunk = own.thread % 8, row_chunk = own.lane % 4;
    own_weight = RouteStage<Tile>::weight(expert, chunk);
    own_input = RouteStage<Tile>::input(own.thread, row_chunk);
    // A token's 16 columns by tiles are two chunks.
    own_tile = RouteStage<Tile>::input_tile(own.thread) +
               static_cast<uint32_t>(row_chunk / 2 * RouteStage<Tile>::kTilePitch + row_chunk % 2 * 16);
    weights_k = chunk * 8;
    rows_k = own.first_k;
    weight_at = expert * a.hidden + weights_k;
#pragma unroll
    for (int j = 0; j < kWeights; ++j)
      has_expert[j] = expert + j * (Tile::kThreads / 8) < min(a.experts, Tile::kExperts);
    const auto token = [&](int i) { return min(first_token + own.token + 8 * i, a.tokens - 1); };
    for (int i = 0; i < 2; ++i) x_at[i] = token(i) * a.hidden + rows_k + row_chunk * 4;
    sum_at = static_cast<int>(place_in_sums(a.tokens, token(row_chunk / 2), rows_k)) + row_chunk % 2 * 8;
  }
  __device__ static ptx::Fill fill(bool there) { return there ? ptx::Fill::kCopy : ptx::Fill::kZero; }

  __device__ __forceinline__ void copy_weights() {
    const bool there = weights_k < a.hidden;
    if (Tile::kThreads <= 8 * Tile::kExperts || static_cast<int>(threadIdx.x) < 8 * Tile::kExperts) {
#pragma unroll
      for (int j = 0; j < kWeights; ++j) {
        constexpr int kExperts = Tile::kThreads / 8;
        ptx::async_copy16(weights_stage.at + own_weight + static_cast<uint32_t>(j * kExperts * Tile::kWeightRowBytes),
                          a.weight + weight_at + j * kExperts * a.hidden, fill(there && has_expert[j]));
      }
    }
    if (static_cast<int>(threadIdx.x) < 16) {  // norm, then bias
      const Bf16* const from = threadIdx.x < 8 || a.bias == nullptr ? a.norm : a.bias;
      ptx::async_copy16(weights_stage.at + static_cast<uint32_t>(Tile::kNormAt) + threadIdx.x * 16, from + weights_k,
                        fill(there && (threadIdx.x < 8 || a.bias != nullptr)));
    }
    weights_k += Tile::kStepK;
    weight_at += Tile::kStepK;
    weights_stage.next();
  }
  __device__ __forceinline__ void copy_rows() {
    const ptx::Fill all = fill(rows_k < a.hidden);
    const uint32_t to = rows_stage.at + own_input;
    const bool sums = has_sums<Tile>(a), tiles = by_tiles<Tile>(a);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      constexpr int kPitch = RouteStage<Tile>::kInputPitch;
      ptx::async_copy16(to + static_cast<uint32_t>(i * kPitch), a.x + x_at[i], all);
      if (sums && !tiles)
        ptx::async_copy16(to + static_cast<uint32_t>((2 + i) * kPitch), static_cast<const float*>(a.sums.at) + x_at[i],
                          all);
      x_at[i] += Tile::kStepK;
    }
    if (sums && tiles) {
      const auto* const from = static_cast<const uint16_t*>(a.sums.at) + sum_at;
      ptx::async_copy16(rows_stage.at + own_tile, from, all);
      if (in_two<Tile>(a))
        ptx::async_copy16(rows_stage.at + own_tile + RouteStage<Tile>::kSplitPitch,
                          from + split_pitch(a.tokens, a.hidden), all);
    }
    sum_at += Tile::kStepK * ((a.tokens + 7) / 8 * 8);
    rows_k += Tile::kStepK;
    ptx::mbarrier_arrive_behind_copies(rows_stage.full);
    rows_stage.next();
  }
  // For all warps to have read what was in the stage.
  __device__ __forceinline__ void wait_for_room() const {
    ptx::mbarrier_wait(rows_stage.read(), rows_stage.parity ^ 1);
  }
};

template <class Tile>
struct RouteSumsCta {
  const RouteSums::Args& a;
  const uint32_t shared;
  const RouteLane<Tile> own{};
  const int first_token = static_cast<int>(blockIdx.x) * Tile::kTokens;
  float logits[Tile::kExpertTiles][4] = {};
  float squares[2] = {};

  __device__ RouteSumsCta(const RouteSums::Args& args, uint32_t shared_address) : a(args), shared(shared_address) {}

  // The lane's columns of a token, of norm or of bias, in their order; at: of the first.
  [[nodiscard]] __device__ static Quad floats(uint32_t low_at, uint32_t high_at) {
    const uint2 low = ptx::load_shared8(low_at), high = ptx::load_shared8(high_at);
    return {{__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(high.x), __uint_as_float(high.y)}};
  }
  [[nodiscard]] __device__ static Quad tile_sums(uint32_t at) {
    const uint2 pairs = ptx::load_shared8(at);
    return {{__uint_as_float(pairs.x << 16), __uint_as_float(pairs.y << 16), __uint_as_float(pairs.x & 0xffff0000u),
             __uint_as_float(pairs.y & 0xffff0000u)}};
  }
  [[nodiscard]] __device__ static Quad of_columns(uint32_t at) {
    return Quad::of(uint2{ptx::load_shared4(at), ptx::load_shared4(at + 16)});
  }

  __device__ __forceinline__ void init_barriers() const {
    if (own.thread == 0) {
      RouteStage<Tile> stage(shared);
      for (int s = 0; s < Tile::kStages; ++s, stage.next()) {
        ptx::mbarrier_init(stage.full, Tile::kThreads);
        ptx::mbarrier_init(stage.read(), Tile::kThreads);
      }
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }

  // W's first steps do not wait for the kernel before. Warps wait for copies, and to copy for what others still read
  // of the step before, but not for each other: while some add up and round, others multiply.
  __device__ __forceinline__ void multiply() {
    using Stage = RouteStage<Tile>;
    const int steps = (a.hidden + Tile::kStepK - 1) / Tile::kStepK;
    RouteCopies<Tile> copies(a, shared, first_token);
    init_barriers();
#pragma unroll 1
    for (int s = 0; s < Tile::kStages - 1; ++s) copies.copy_weights();
    ptx::grid_dependency_wait();
#pragma unroll 1
    for (int s = 0; s < Tile::kStages - 1; ++s) copies.copy_rows();
    Stage stage(shared);
    const auto half = static_cast<uint32_t>(own.lane % 2 * 8);
    const uint32_t low_input = Stage::input(own.thread, own.lane % 4 / 2) + half,
                   high_input = Stage::input(own.thread, 2 + own.lane % 4 / 2) + half,
                   tile = Stage::input_tile(own.thread) + static_cast<uint32_t>(own.lane % 4 * 8),
                   columns = static_cast<uint32_t>(own.k * 2);
    // Lanes name the rows of two tiles of experts, their first eight columns and their second.
    const uint32_t weights = Stage::weight(own.lane / 16 * 8 + own.lane % 8, own.first_k / 8 + own.lane / 8 % 2);
    float* x_to = a.x + int64_t{first_token + own.token} * a.hidden + own.k;
    const bool sums = has_sums<Tile>(a), tiles = by_tiles<Tile>(a);
    bool stores[2];
    for (int i = 0; i < 2; ++i) stores[i] = sums && first_token + own.token + 8 * i < a.tokens;
    int rest = a.hidden - own.first_k;  // columns from the warp's on
#pragma unroll 1
    for (int step = 0; step < steps; ++step, stage.next(), x_to += Tile::kStepK, rest -= Tile::kStepK) {
      ptx::mbarrier_wait(stage.full, stage.parity);
      Quad x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t at = stage.at + static_cast<uint32_t>(i * Stage::kInputPitch);
        x[i] = floats(at + low_input, at + high_input);
      }
      const Quad norm = of_columns(stage.at + columns + Tile::kNormAt);
      if (sums) {
        const Quad bias = of_columns(stage.at + columns + Tile::kBiasAt);
        Quad sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t in_rows = stage.at + static_cast<uint32_t>(i * Stage::kInputPitch + Tile::kInputBytes);
          const uint32_t in_tile = stage.at + tile + static_cast<uint32_t>(i * Stage::kTilePitch);
          sum[i] = tiles ? tile_sums(in_tile) : floats(in_rows + low_input, in_rows + high_input);
          if (!in_two<Tile>(a)) continue;
          const Quad second = tile_sums(in_tile + Stage::kSplitPitch);
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[i].v[c] += second.v[c];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) x[i].v[c] += bias.v[c] + sum[i].v[c];
      }
      SplitFloats split[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (stores[i] && rest > 0) {
          auto* const to = reinterpret_cast<float2*>(x_to + i * 8 * int64_t{a.hidden});
          to[0] = {x[i].v[0], x[i].v[1]};
          to[4] = {x[i].v[2], x[i].v[3]};
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          squares[i] += x[i].v[c] * x[i].v[c];
          x[i].v[c] *= norm.v[c];
        }
        split[i].set(x[i]);
      }
      multiply_columns(stage.at + weights, split);
      ptx::mbarrier_arrive(stage.read());  // every lane, for racecheck: see gemv.cuh warp_arrive
      if (step + Tile::kStages - 1 < steps) {
        copies.wait_for_room();
        copies.copy_weights();
        copies.copy_rows();
      }
    }
    ptx::async_wait<0>();
    __syncthreads();  // nobody reads a stage
  }

  __device__ __forceinline__ void multiply_columns(uint32_t weights, const SplitFloats (&x)[2]) {
    const uint32_t high[4] = {x[0].high[0], x[1].high[0], x[0].high[1], x[1].high[1]};
    const uint32_t low[4] = {x[0].low[0], x[1].low[0], x[0].low[1], x[1].low[1]};
    constexpr int kTogether = 4;  // tiles of experts: what adds to one sum waits for no other
#pragma unroll
    for (int n = 0; n < Tile::kExpertTiles; n += kTogether) {
      uint32_t w[kTogether / 2][4];
#pragma unroll
      for (int t = 0; t < kTogether; t += 2)
        ptx::load_matrices(w[t / 2], weights + static_cast<uint32_t>((n + t) * 8 * Tile::kWeightRowBytes));
#pragma unroll
      for (int t = 0; t < kTogether; ++t)
        ptx::mma_m16n8k16_bf16(logits[n + t], low, w[t / 2][t % 2 * 2], w[t / 2][t % 2 * 2 + 1]);
#pragma unroll
      for (int t = 0; t < kTogether; ++t)
        ptx::mma_m16n8k16_bf16(logits[n + t], high, w[t / 2][t % 2 * 2], w[t / 2][t % 2 * 2 + 1]);
    }
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
        visit(logits[n][i], logit_place(area, own.token - own.lane / 4 + layout::d_row(own.lane, i),
                                        8 * n + layout::d_col(own.lane, i)));
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
    for (int i = 0; i < 2; ++i) {
      float& sum = squares[i];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (own.lane % 4 == 0)
        ptx::store_shared4(squares_place(own.column_warp, own.token + 8 * i), __float_as_uint(sum));
    }
    if (own.column_warp >= 2) hand_on(own.column_warp - 2);
    __syncthreads();
    if (own.column_warp < 2) add_area(own.column_warp);
    if (own.column_warp == 1) hand_on(1);
    if (own.thread < Tile::kTokens) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < Tile::kColumnWarps; ++w)
        sum += __uint_as_float(ptx::load_shared4(squares_place(w, own.thread)));
      const float inverse = 1.0f / sqrtf(sum / static_cast<float>(a.hidden) + a.eps);
      ptx::store_shared4(squares_place(Tile::kColumnWarps, own.thread), __float_as_uint(inverse));
      if (first_token + own.thread < a.tokens) a.inverse[first_token + own.thread] = inverse;
    }
    __syncthreads();
    if (own.column_warp == 0) {
      add_area(1);
      hand_on(0);
    }
    __syncthreads();
  }

  // Floats as integers that rise with them: -0 as 0. And back.
  [[nodiscard]] __device__ static int ordered(float value) {
    const auto bits = static_cast<int>(__float_as_uint(value + 0.0f));
    return bits ^ (bits >> 31 & 0x7fffffff);
  }
  [[nodiscard]] __device__ static float in_order(int order) {
    return __uint_as_float(static_cast<uint32_t>(order ^ (order >> 31 & 0x7fffffff)));
  }

  // Eight lanes choose for a token, a warp for four. NaN logits are chosen when no other are left: any expert, but one
  // that exists.
  __device__ __forceinline__ void choose() const {
    constexpr int kLanes = 8, kOwn = Tile::kExperts / kLanes;
    constexpr int kNone = 0x7fffffff, kNever = -kNone - 1;  // NaN, and experts that there are not
    const int row = own.thread / kLanes, part = own.thread % kLanes, of_token = first_token + row;
    const bool there = of_token < a.tokens;
    const float inverse = __uint_as_float(ptx::load_shared4(squares_place(Tile::kColumnWarps, row)));
    int order[kOwn];  // of the logits, as integers
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int expert = part + kLanes * i, known = min(expert, a.experts - 1);
      const float logit =
          inverse * __uint_as_float(ptx::load_shared4(logit_place(0, row, known))) + a.router_bias[known].to_float();
      order[i] = expert < a.experts && logit == logit ? ordered(logit) : kNever;
      if (there && expert < a.experts) a.logits[int64_t{of_token} * a.experts + expert] = logit;
    }
    __syncwarp();  // the token's logits in shared memory give way to its weights
    float first = 0, sum = 0;
    for (int k = 0; k < a.topk; ++k) {
      int best = kNever;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) best = max(best, order[i]);
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, step));
      int expert = kNone;
#pragma unroll
      for (int i = kOwn - 1; i >= 0; --i) expert = order[i] == best ? part + kLanes * i : expert;
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) expert = min(expert, __shfl_xor_sync(kAllLanes, expert, step));
#pragma unroll
      for (int i = 0; i < kOwn; ++i) order[i] = expert == part + kLanes * i ? kNever : order[i];
      const RankedValue found = best == kNever ? RankedValue{-INFINITY, k} : RankedValue{in_order(best), expert};
      if (k == 0) first = found.value;
      const float weight = expf(found.value - first);
      sum += weight;
      if (part != 0) continue;
      ptx::store_shared4(logit_place(0, row, k), __float_as_uint(weight));
      if (there) a.ids[int64_t{of_token} * a.topk + k] = found.idx;
    }
    __syncwarp();
    for (int k = part; there && k < a.topk; k += kLanes)
      a.weights[int64_t{of_token} * a.topk + k] = __uint_as_float(ptx::load_shared4(logit_place(0, row, k))) / sum;
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) any_route_sums(const __grid_constant__ RouteSums::Args a) {
  extern __shared__ __align__(128) uint8_t smem[];
  RouteSumsCta<Tile> cta(a, ptx::shared_address(smem));
  ptx::grid_dependency_launch();
  cta.multiply();
  cta.add_up();
  cta.choose();
}

}  // namespace nibble::backend::cuda

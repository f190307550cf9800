#pragma once
// norm_route: x[t] += bias + Σ_s sums[s, t]; normed[t] = rmsnorm(x[t]) * norm, in f32 and rounded; logits[t, e] =
// normed[t] · W[e] + b[e]; the topk largest and their softmax     source: torch/model.py RMSNorm, MLPBlock; arguments:
// around_gemm.h NormRouteArgs
// x, normed f32 [tokens, hidden]     sums as any_norm_sums takes them     W bf16 [experts, hidden] row-major
// grid one cluster of eight CTAs per 8 or 16 tokens, a CTA per eighth of the columns: it adds up and multiplies these
//      for all experts; W's come before the kernel before has ended. Then each reads what the others have of its
//      tokens, chooses, and stores what is normed of its columns
// mma  m16n8k16, weights on the m side; norm * x as two bf16, which keep 16 bits
// bytes, flops: cost(); W once per cluster from L2
// rounding: f32, order fixed by hidden: bitwise repeatable, whatever the other tokens

#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/cluster.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

template <int kTheTokens>
struct NormRouteTile {
  static constexpr int kTokens = kTheTokens;
  static constexpr int kWarps = 16, kThreads = kWarps * layout::kWarpLanes;
  static constexpr int kCtas = kTokens == 8 ? 2 : 1;  // of an SM
  static constexpr int kFours = kTokens / 4;          // of tokens: a warp's task is four of them and a panel
  static constexpr int kTasks = (kNormRoutePanels * kFours + kWarps - 1) / kWarps;
  static constexpr int kOwn = kTokens / kNormRouteCtas;  // whose experts a CTA chooses
};

// W | norm * x, the high parts and the low ones; when these are multiplied, logits | squares | the columns' norm and
// bias | a barrier
template <class Tile>
struct NormRouteShared {
  uint32_t base;
  int pitch, experts;  // bytes of a row

  __device__ NormRouteShared(const uint8_t* memory, int hidden, int of_experts)
      : base(ptx::shared_address(memory)), pitch(norm_route_pitch(hidden)), experts(of_experts) {}
  __device__ uint32_t weight(int expert) const { return base + static_cast<uint32_t>(expert * pitch); }
  __device__ uint32_t x(int part, int token) const {
    return weight(norm_route_rows(experts)) + static_cast<uint32_t>((part * Tile::kTokens + token) * pitch);
  }
  // Lanes of an mma's result store to different banks.
  __device__ uint32_t logit(int token, int expert) const {
    return x(0, 0) + static_cast<uint32_t>(token * kNormRouteLogitBytes + 4 * expert);
  }
  __device__ uint32_t squares(int panel, int token) const {
    return x(2, 0) + static_cast<uint32_t>((panel * Tile::kTokens + token) * 4);
  }
  __device__ uint32_t norm(int column) const {
    return squares(kNormRoutePanels, 0) + static_cast<uint32_t>(2 * column);
  }
  __device__ uint32_t bias(int column) const {
    return norm(kNormRoutePanels * layout::kPanelK) + static_cast<uint32_t>(2 * column);
  }
  __device__ uint32_t barrier() const { return bias(kNormRoutePanels * layout::kPanelK); }
};

// Half a row tile of a token, of the task's panel: lanes 8 t to 8 t + 7 have the panel of token t of the even four, or
// of the odd ones, of eight.
template <class Tile>
struct NormRouteHalf {
  bool mine;
  int panel, token, column;  // panel, column: of the CTA's; token: of the tile
  Quad x[2];

  __device__ void start(const NormSumsArgs& a, int task, const NormRoutePart& part, int first_token) {
    const auto lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
    panel = task / Tile::kFours;
    token = task % Tile::kFours / 2 * 8 + task % 2 + lane / 8 * 2;
    column = panel * layout::kPanelK + lane % 8 / 2 * layout::kTileRows + lane % 2 * 4;
    mine = panel < part.panels && first_token + token < a.tokens;
  }
  __device__ void add(const NormSumsArgs& a, const NormRouteShared<Tile>& shared, int first_column, int first_token) {
    if (!mine) return;
    const int k = first_column + column;
    float* const row = a.x + int64_t{first_token + token} * a.hidden + k;
    for (int q = 0; q < 2; ++q) x[q] = Quad::of(*reinterpret_cast<const float4*>(row + 8 * q));
    Quad delta[2];
    const HalfTile half{a.tokens, a.hidden, first_token + token, k / layout::kTileRows * 2 + k % layout::kTileRows / 4};
    const auto start = [&] {
      if (a.bias == nullptr) return;
      ptx::mbarrier_wait(shared.barrier(), 0);
      for (int q = 0; q < 2; ++q) delta[q] = Quad::of(ptx::load_shared8(shared.bias(column + 8 * q)));
    };
    half.add<5>(a.sums, start, delta[0], delta[1]);
    for (int q = 0; q < 2; ++q) {
      for (int c = 0; c < 4; ++c) x[q].v[c] += delta[q].v[c];
      x[q].store(row + 8 * q);
    }
  }
  // To shared memory: the token's squares, of this panel; norm * x.
  __device__ void hand_on(const NormRouteShared<Tile>& shared, const NormRoutePart& part) const {
    if (panel >= part.panels) return;
    float squares = 0;
    for (int q = 0; q < 2; ++q)
      for (int c = 0; c < 4; ++c) squares += x[q].v[c] * x[q].v[c];
    for (int step = 1; step < 8; step *= 2) squares += __shfl_xor_sync(kEveryLane, squares, step);
    if (column % layout::kPanelK == 0) ptx::store_shared4(shared.squares(panel, token), __float_as_uint(squares));
    for (int q = 0; q < 2; ++q) {
      const Quad scale = Quad::of(ptx::load_shared8(shared.norm(column + 8 * q)));
      for (int i = 0; i < 4; i += 2) {
        const float a = x[q].v[i] * scale.v[i], b = x[q].v[i + 1] * scale.v[i + 1];
        const uint32_t high = ptx::pack_bf16(a, b), at = static_cast<uint32_t>((column + 8 * q + i) * 2);
        ptx::store_shared4(shared.x(0, token) + at, high);
        ptx::store_shared4(shared.x(1, token) + at,
                           ptx::pack_bf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000u)));
      }
    }
  }
  // By all lanes of the warp.
  __device__ void store(const NormSumsArgs& a, const NormRouteShared<Tile>& shared, int first_column, int first_token,
                        float inverse) const {
    float v[8];
    for (int q = 0; q < 2; ++q) {
      const Quad scale = Quad::of(ptx::load_shared8(shared.norm(column + 8 * q)));
      for (int i = 0; i < 4; ++i) v[4 * q + i] = x[q].v[i] * (inverse * scale.v[i]);
    }
    const int64_t row = first_token + token;
    const int k = first_column + column;
    if (mine && a.normed != nullptr)
      for (int q = 0; q < 2; ++q)
        *reinterpret_cast<float4*>(a.normed + row * a.hidden + k + 8 * q) = {v[4 * q], v[4 * q + 1], v[4 * q + 2],
                                                                             v[4 * q + 3]};
    if (a.rounded.at != nullptr) GemmInputRow{a.rounded, row, a.hidden}.store_half_tile(k, mine, v);
  }
};

// Of a token of the tile, from what all CTAs of the cluster have of it: known to each of the eight lanes that ask.
template <class Tile>
__device__ __forceinline__ float inverse_of(const NormSumsArgs& a, const NormRouteShared<Tile>& shared, int token) {
  const auto rank = static_cast<int>(threadIdx.x) % kNormRouteCtas;
  const int panels = NormRoutePart(a.hidden, rank).panels;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kNormRoutePanels; ++p)
    if (p < panels) squares += ptx::load_cluster4(ptx::cluster_address(shared.squares(p, token), rank));
  for (int step = 1; step < kNormRouteCtas; step *= 2) squares += __shfl_xor_sync(kEveryLane, squares, step);
  return 1.0f / sqrtf(squares / static_cast<float>(a.hidden) + a.eps);
}

// sums[n]: the warp's 16 experts times the tokens from 8 n on.
template <class Tile>
__device__ __forceinline__ void multiply_part(const NormRouteShared<Tile>& shared, int first_expert, int steps,
                                              float (&sums)[Tile::kTokens / 8][4]) {
  const auto lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  float low[Tile::kTokens / 8][4] = {};
  // Rows that the lane names: W's of an A operand; x's high parts, then the low ones.
  uint32_t w_at = shared.weight(first_expert + lane % 16) + static_cast<uint32_t>(lane / 16 * 16);
  uint32_t x_at = shared.x(lane / 16, lane % 8) + static_cast<uint32_t>(lane / 8 % 2 * 16);
#pragma unroll 4
  for (int step = 0; step < steps; ++step, w_at += 32, x_at += 32) {
    uint32_t w[4];
    ptx::load_matrices(w, w_at);
#pragma unroll
    for (int n = 0; n < Tile::kTokens / 8; ++n) {
      uint32_t x[4];
      ptx::load_matrices(x, x_at + static_cast<uint32_t>(8 * n * shared.pitch));
      ptx::mma_m16n8k16_bf16(sums[n], w, x[0], x[1]);
      ptx::mma_m16n8k16_bf16(low[n], w, x[2], x[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n)
    for (int i = 0; i < 4; ++i) sums[n][i] += low[n][i];
}

// A token's experts, by a warp.
template <class Tile>
__device__ __forceinline__ void choose_token(const RouteTokensArgs& a, const NormRouteShared<Tile>& shared, int token,
                                             int64_t row, float inverse) {
  const auto lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int expert = ExpertPicks::kOwn * lane;
  float4 logits{};
  if (expert < a.experts) {
    Quad sum;
#pragma unroll 4
    for (int rank = 0; rank < kNormRouteCtas; ++rank)
      sum.add(ptx::load_cluster16(ptx::cluster_address(shared.logit(token, expert), rank)));
    const Quad bias = Quad::of(a.bias + expert);
    for (int i = 0; i < 4; ++i) sum.v[i] = fmaf(sum.v[i], inverse, bias.v[i]);
    logits = {sum.v[0], sum.v[1], sum.v[2], sum.v[3]};
    sum.store(a.logits + row * a.experts + expert);
  }
  ExpertPicks picks(lane);
  if (expert < a.experts) picks.start(logits);
  picks.store(a.topk, a.ids + row * a.topk, a.weights + row * a.topk);
}

template <class Tile>
__global__ void __cluster_dims__(kNormRouteCtas, 1, 1) __launch_bounds__(Tile::kThreads, Tile::kCtas)
    sm90_norm_route(const __grid_constant__ NormRouteArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const NormSumsArgs& a = args.norm;
  const RouteTokensArgs& route = args.route;
  const NormRouteShared<Tile> shared(smem, a.hidden, route.experts);
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes,
             warp = thread / layout::kWarpLanes;
  const auto rank = static_cast<int>(blockIdx.x) % kNormRouteCtas;
  const int first_token = static_cast<int>(blockIdx.x) / kNormRouteCtas * Tile::kTokens;
  const NormRoutePart part(a.hidden, rank);
  const int first_column = part.first * layout::kPanelK;
  if (thread == 0) {
    ptx::mbarrier_init(shared.barrier(), 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp == 0) {
    const auto bytes = static_cast<uint32_t>(part.panels * layout::kPanelK * 2);
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(shared.barrier(),
                                     bytes * static_cast<uint32_t>(route.experts + (a.bias == nullptr ? 1 : 2)));
      ptx::bulk_copy(shared.norm(0), a.norm + first_column, bytes, shared.barrier());
      if (a.bias != nullptr) ptx::bulk_copy(shared.bias(0), a.bias + first_column, bytes, shared.barrier());
    }
    __syncwarp();
    for (int e = lane; e < route.experts; e += layout::kWarpLanes)
      ptx::bulk_copy(shared.weight(e), route.weight + int64_t{e} * a.hidden + first_column, bytes, shared.barrier());
  }
  NormRouteHalf<Tile> halves[Tile::kTasks];
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i) halves[i].start(a, i * Tile::kWarps + warp, part, first_token);
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i) halves[i].add(a, shared, first_column, first_token);
  ptx::mbarrier_wait(shared.barrier(), 0);
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i) halves[i].hand_on(shared, part);
  __syncthreads();
  const int first_expert = warp * layout::kTileRows;
  float sums[Tile::kTokens / 8][4] = {};
  if (first_expert < route.experts)
    multiply_part<Tile>(shared, first_expert, part.panels * layout::kPanelK / layout::kTileRows, sums);
  __syncthreads();  // x gives way to logits
  if (first_expert < route.experts) {
#pragma unroll
    for (int n = 0; n < Tile::kTokens / 8; ++n)
      for (int i = 0; i < 4; ++i)
        ptx::store_shared4(shared.logit(8 * n + lane % 4 * 2 + i % 2, first_expert + lane / 4 + i / 2 * 8),
                           __float_as_uint(sums[n][i]));
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const int token = rank * Tile::kOwn + warp;
  if (warp < Tile::kOwn && first_token + token < a.tokens)
    choose_token<Tile>(route, shared, token, first_token + token, inverse_of<Tile>(a, shared, token));
  float inverse[Tile::kTasks];
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i)
    inverse[i] = halves[i].panel < part.panels ? inverse_of<Tile>(a, shared, halves[i].token) : 0.0f;
  ptx::cluster_arrive();
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i)
    if (halves[i].panel < part.panels) halves[i].store(a, shared, first_column, first_token, inverse[i]);
  ptx::cluster_wait();  // nobody ends while others read what it has
}

}  // namespace nibble::backend::cuda

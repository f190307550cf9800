#pragma once
// norm_route: x[t] += bias + Σ_s sums[s, t]; normed[t] = rmsnorm(x[t]) * norm, in f32 and rounded; logits[t, e] =
// normed[t] · W[e] + b[e]; the topk largest and their softmax     source: torch/model.py RMSNorm, MLPBlock
// arguments: experts/route.h NormRouteArgs
// x, normed f32 [tokens, hidden]     sums as any_norm_sums takes them     W bf16 [experts, hidden] row-major
// grid one cluster of eight CTAs per 8, 16 or 32 tokens, a CTA per eighth of the columns: it adds these up and
//      multiplies them for all experts; W's come while the kernel before ends. Squares go to all CTAs, a token's parts
//      of the logits to the one that chooses for it. Then each chooses, and stores what is normed of its columns
// mma  m16n8k16, weights on the m side; norm * x as two bf16, which keep 16 bits
// bytes, flops: testing/costs.h; W once per cluster from L2
// measured 2026-11-26 (H100, 128 experts x 2880, five splits, in a chain): 16 tokens 5.4 us, 32 5.5, 64 6.2; with
//      clusters of 16 tokens 128 10.4, of 32 tokens 256 16.3
// rounding: f32, order fixed by hidden: bitwise repeatable, whatever the other tokens

#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/dense/quad.cuh"
#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

static_assert(kNormRouteExperts <= Choice::kOwn * layout::kWarpLanes);

// kTheTokens: of a cluster.
template <int kTheTokens>
struct NormRouteTile {
  static constexpr int kTokens = kTheTokens;
  static constexpr int kWarps = kNormRouteThreads / layout::kWarpLanes;
  static constexpr int kFours = kTokens / 4;  // of tokens: a warp's task is four of them and a panel
  static constexpr int kTasks = (kNormRoutePanels * kFours + kWarps - 1) / kWarps;
  static constexpr int kOwn = kTokens / kNormRouteCtas;  // whose experts a CTA chooses
  // A warp multiplies 16 experts by all of the tokens, or by half of them.
  static constexpr int kExpertWarps = kNormRouteExperts / layout::kTileRows;
  static constexpr int kSets = kTokens == 8 ? 1 : kWarps / kExpertWarps, kEights = kTokens / 8 / kSets;
};

// W | norm * x, the high parts and the low ones | the columns' norm and bias | what comes from all CTAs: squares by
// panel, logits of own tokens | barriers: of W, norm and bias; of what comes
template <class Tile>
struct NormRouteShared {
  uint32_t base;
  int pitch, rows, panels;  // bytes of a row, rows of W, panels of all CTAs

  __device__ NormRouteShared(const uint8_t* memory, int hidden, int experts)
      : base(ptx::shared_address(memory)),
        pitch(norm_route_pitch(hidden)),
        rows(norm_route_rows(experts)),
        panels(hidden / layout::kPanelK) {}
  __device__ uint32_t weight(int expert) const { return base + static_cast<uint32_t>(expert * pitch); }
  __device__ uint32_t x(int part, int token) const {
    return weight(rows) + static_cast<uint32_t>((part * Tile::kTokens + token) * pitch);
  }
  __device__ uint32_t norm(int column) const { return x(2, 0) + static_cast<uint32_t>(2 * column); }
  __device__ uint32_t bias(int column) const { return norm(0) + static_cast<uint32_t>(pitch + 2 * column); }
  __device__ uint32_t squares(int panel, int token) const {
    return bias(0) + static_cast<uint32_t>(pitch + (panel * Tile::kTokens + token) * 4);
  }
  __device__ uint32_t logit(int rank, int own, int expert) const {
    return squares(panels, 0) + static_cast<uint32_t>(((rank * Tile::kOwn + own) * rows + expert) * 4);
  }
  __device__ uint32_t loaded() const { return logit(kNormRouteCtas, 0, 0); }
  __device__ uint32_t come() const { return loaded() + 8; }
  __device__ uint32_t end() const { return come() + 8; }
  __device__ uint32_t come_bytes() const { return loaded() - squares(0, 0); }
};

// Half a row tile of a token, of a task's panel: lanes 8 t to 8 t + 7 have that of token t of the even four, or of the
// odd ones, of eight.
template <class Tile>
struct NormRouteHalf {
  bool mine;
  int panel, token, column;  // panel, column: of the CTA's; token: of the tile
  Quad x[2];

  __device__ void start(const NormSums::Args& a, int task, const NormRoutePart& part, int first_token) {
    const auto lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
    panel = task / Tile::kFours;
    token = task % Tile::kFours / 2 * 8 + task % 2 + lane / 8 * 2;
    column = panel * layout::kPanelK + lane % 8 / 2 * layout::kTileRows + lane % 2 * 4;
    mine = panel < part.panels && first_token + token < a.tokens;
  }
  __device__ void add(const NormSums::Args& a, const NormRouteShared<Tile>& shared, int first_column, int first_token) {
    if (!mine) return;
    const int k = first_column + column;
    float* const row = a.x + int64_t{first_token + token} * a.hidden + k;
    for (int q = 0; q < 2; ++q) x[q] = Quad::of(*reinterpret_cast<const float4*>(row + 8 * q));
    Quad delta[2];
    const HalfTile half{a.tokens, a.hidden, first_token + token, k / layout::kTileRows * 2 + k % layout::kTileRows / 4};
    const auto start = [&] {
      if (a.bias == nullptr) return;
      ptx::mbarrier_wait(shared.loaded(), 0);
      for (int q = 0; q < 2; ++q) delta[q] = Quad::of(ptx::load_shared8(shared.bias(column + 8 * q)));
    };
    half.add<5>(a.sums, start, delta[0], delta[1]);
    for (int q = 0; q < 2; ++q)
      for (int c = 0; c < 4; ++c) x[q].v[c] += delta[q].v[c];
  }
  // The token's squares, of this panel, to all CTAs; norm * x to shared memory.
  __device__ void hand_on(const NormRouteShared<Tile>& shared, const NormRoutePart& part) const {
    if (panel >= part.panels) return;
    float squares = 0;
    for (int q = 0; q < 2; ++q)
      for (int c = 0; c < 4; ++c) squares += x[q].v[c] * x[q].v[c];
    for (int step = 1; step < 8; step *= 2) squares += __shfl_xor_sync(kEveryLane, squares, step);
    const auto to = static_cast<int>(threadIdx.x) % kNormRouteCtas;
    ptx::send4(ptx::cluster_address(shared.squares(part.first + panel, token), to), squares,
               ptx::cluster_address(shared.come(), to));
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
  __device__ void store(const NormSums::Args& a, const NormRouteShared<Tile>& shared, int first_column, int first_token,
                        float inverse) const {
    if (!mine) return;
    float v[8];
    for (int q = 0; q < 2; ++q) {
      const Quad scale = Quad::of(ptx::load_shared8(shared.norm(column + 8 * q)));
      for (int i = 0; i < 4; ++i) v[4 * q + i] = x[q].v[i] * (inverse * scale.v[i]);
    }
    const int k = first_column + column;
    const GemmInputRow to{a.rounded, first_token + token, a.hidden};
    for (int q = 0; q < 2; ++q) {
      const float* const four = v + 4 * q;
      const int64_t at = to.row * a.hidden + k + 8 * q;
      x[q].store(a.x + at);
      *reinterpret_cast<float4*>(a.normed + at) = {four[0], four[1], four[2], four[3]};
      if (a.rounded.at != nullptr)
        *reinterpret_cast<uint2*>(a.rounded.at + at) = {to.pack(four[0], four[1]), to.pack(four[2], four[3])};
    }
  }
};

// The norm's factor of a token of the tile, once all has come: known to each of the eight lanes that ask.
template <class Tile>
__device__ __forceinline__ float inverse_of(const NormSums::Args& a, const NormRouteShared<Tile>& shared, int token) {
  float squares = 0;
  for (auto p = static_cast<int>(threadIdx.x) % 8; p < shared.panels; p += 8)
    squares += __uint_as_float(ptx::load_shared4(shared.squares(p, token)));
  for (int step = 1; step < 8; step *= 2) squares += __shfl_xor_sync(kEveryLane, squares, step);
  return 1.0f / sqrtf(squares / static_cast<float>(a.hidden) + a.eps);
}

// The CTA's part of the logits of 16 experts and the tokens from 8 first_eight on, to who chooses for these.
template <class Tile>
__device__ __forceinline__ void multiply_part(const NormRouteShared<Tile>& shared, int first_expert, int first_eight,
                                              int steps) {
  const auto lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes,
             rank = static_cast<int>(blockIdx.x) % kNormRouteCtas;
  float high[Tile::kEights][4] = {}, low[Tile::kEights][4] = {};
  // Rows that the lane names: W's of an A operand; x's high parts, then the low ones.
  uint32_t w_at = shared.weight(first_expert + lane % 16) + static_cast<uint32_t>(lane / 16 * 16);
  uint32_t x_at = shared.x(lane / 16, 8 * first_eight + lane % 8) + static_cast<uint32_t>(lane / 8 % 2 * 16);
#pragma unroll 4
  for (int step = 0; step < steps; ++step, w_at += 32, x_at += 32) {
    uint32_t w[4];
    ptx::load_matrices(w, w_at);
#pragma unroll
    for (int n = 0; n < Tile::kEights; ++n) {
      uint32_t x[4];
      ptx::load_matrices(x, x_at + static_cast<uint32_t>(8 * n * shared.pitch));
      ptx::mma_m16n8k16_bf16(high[n], w, x[0], x[1]);
      ptx::mma_m16n8k16_bf16(low[n], w, x[2], x[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < Tile::kEights; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 8 * (first_eight + n) + lane % 4 * 2 + i % 2, to = token / Tile::kOwn;
      const uint32_t at = shared.logit(rank, token % Tile::kOwn, first_expert + lane / 4 + i / 2 * 8);
      ptx::send4(ptx::cluster_address(at, to), high[n][i] + low[n][i], ptx::cluster_address(shared.come(), to));
    }
}

// The experts of an own token, by a warp.
template <class Tile>
__device__ __forceinline__ void choose_token(const NormRouteArgs& a, const NormRouteShared<Tile>& shared, int own,
                                             int64_t row, float inverse) {
  const auto lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int expert = Choice::kOwn * lane;
  const ExpertChoice of{.experts = a.experts, .topk = a.topk};
  Choice choice(of, lane);
  if (expert < a.experts) {
    Quad sum;
#pragma unroll
    for (int rank = 0; rank < kNormRouteCtas; ++rank) {
      const uint4 part = ptx::load_shared16(shared.logit(rank, own, expert));
      sum.add(
          float4{__uint_as_float(part.x), __uint_as_float(part.y), __uint_as_float(part.z), __uint_as_float(part.w)});
    }
    const Quad bias = Quad::of(a.bias + expert);
    for (int i = 0; i < 4; ++i) sum.v[i] = fmaf(sum.v[i], inverse, bias.v[i]);
    choice.start({sum.v[0], sum.v[1], sum.v[2], sum.v[3]});
    sum.store(a.logits + row * a.experts + expert);
  }
  while (choice.picked < a.topk) choice.pick();
  const float weight = choice.softmax();
  if (lane >= a.topk) return;
  a.ids[row * a.topk + lane] = choice.id;
  a.weights[row * a.topk + lane] = weight;
}

template <class Tile>
__global__ void __cluster_dims__(kNormRouteCtas, 1, 1) __launch_bounds__(kNormRouteThreads, 1)
    sm90_norm_route(const __grid_constant__ NormRouteArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const NormSums::Args& a = args.norm;
  const NormRouteShared<Tile> shared(smem, a.hidden, args.experts);
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % layout::kWarpLanes,
             warp = thread / layout::kWarpLanes;
  const auto rank = static_cast<int>(blockIdx.x) % kNormRouteCtas;
  const int first_token = static_cast<int>(blockIdx.x) / kNormRouteCtas * Tile::kTokens;
  const NormRoutePart part(a.hidden, rank);
  const int first_column = part.first * layout::kPanelK;
  const auto bytes = static_cast<uint32_t>(part.panels * layout::kPanelK * 2);
  if (thread == 0) {
    ptx::mbarrier_init(shared.loaded(), 1 + kNormRouteThreads);
    ptx::mbarrier_init(shared.come(), 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(shared.come(), shared.come_bytes());
    ptx::mbarrier_arrive_expect_tx(shared.loaded(), bytes * static_cast<uint32_t>(a.bias == nullptr ? 1 : 2));
  }
  __syncthreads();
  ptx::cluster_arrive();
  if (warp == 0) {
    if (lane == 0) ptx::bulk_copy(shared.norm(0), a.norm + first_column, bytes, shared.loaded());
    if (lane == 1 && a.bias != nullptr) ptx::bulk_copy(shared.bias(0), a.bias + first_column, bytes, shared.loaded());
  }
  // Not a bulk copy per row: 64 tokens would take 7.2 us.
  for (int e = warp; e < args.experts; e += Tile::kWarps)
    for (int k = 8 * lane; k < part.panels * layout::kPanelK; k += 8 * layout::kWarpLanes)
      ptx::async_copy16(shared.weight(e) + static_cast<uint32_t>(2 * k),
                        args.weight + int64_t{e} * a.hidden + first_column + k, ptx::Fill::kCopy);
  ptx::mbarrier_arrive_behind_copies(shared.loaded());
  NormRouteHalf<Tile> halves[Tile::kTasks];
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i) halves[i].start(a, i * Tile::kWarps + warp, part, first_token);
  ptx::grid_dependency_launch();
  ptx::cluster_wait();  // all have barriers for what comes
  ptx::grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i) halves[i].add(a, shared, first_column, first_token);
  ptx::mbarrier_wait(shared.loaded(), 0);
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i) halves[i].hand_on(shared, part);
  __syncthreads();
  const int first_expert = warp % Tile::kExpertWarps * layout::kTileRows, set = warp / Tile::kExpertWarps;
  if (first_expert < args.experts && set < Tile::kSets)
    multiply_part<Tile>(shared, first_expert, set * Tile::kEights, part.panels * layout::kPanelK / layout::kTileRows);
  ptx::mbarrier_wait(shared.come(), 0);
  // The last warps choose: they have a panel of the widest rows only.
  const int own = warp - (Tile::kWarps - Tile::kOwn), token = rank * Tile::kOwn + own;
  if (own >= 0 && first_token + token < a.tokens)
    choose_token<Tile>(args, shared, own, first_token + token, inverse_of<Tile>(a, shared, token));
#pragma unroll
  for (int i = 0; i < Tile::kTasks; ++i)
    if (halves[i].panel < part.panels)
      halves[i].store(a, shared, first_column, first_token, inverse_of<Tile>(a, shared, halves[i].token));
}

}  // namespace nibble::backend::cuda

#pragma once
// round: Round::Args (gemm_plan.h), to nearest, or as codes; group_round: GroupTiles::Args' lists too
// grid one CTA per token, a thread per chunk of 8 slots; of group_round each places its token's pairs, after those of
//      all tokens, which it counts, and its warps list an expert's tiles each
// bytes tokens * cols * (4 + 2 copies); group_round: and of ids, from L2, tokens^2 * topk * 4
// measured 2026-11-21 (H200), panels: 8192 x 2880 37 µs, with 4 copies 93 µs (67 % of read speed); 2026-11-22 (H100),
//      in a step of 20b, 256 x 2880 with 4 copies: group_round 5.9 µs, moe_group and round 8.3; 2026-11-26 (H200), 4
//      copies: 8192 round 88 µs, moe_group 19

#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/experts/moe_group.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kRoundTokenThreads = 512;
[[nodiscard]] constexpr int round_threads(int cols) {
  const int threads = (cols / 8 + 31) / 32 * 32;
  return threads < kRoundTokenThreads ? threads : kRoundTokenThreads;
}

// Eight columns of a token, k, k + 1, k + 8, … k + 25: a chunk of the panels.
struct RoundChunk {
  int k;
  float2 v[4];

  __device__ RoundChunk(const Round::Args& args, int64_t token, int chunk)
      : k(chunk / 4 * layout::kBlockK + chunk % 4 * 2) {
    const auto* from = reinterpret_cast<const float2*>(args.from + token * args.cols + k);
#pragma unroll
    for (int t = 0; t < 4; ++t) v[t] = from[4 * t];
    if (args.norm == nullptr) return;
    const float inverse = args.inverse[token];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint32_t norm = *reinterpret_cast<const uint32_t*>(args.norm + k + 8 * t);
      v[t].x *= inverse * __uint_as_float(norm << 16);
      v[t].y *= inverse * __uint_as_float(norm & 0xffff0000u);
    }
  }
  // As they are stored.
  __device__ void pack(const Round::Args& args, uint32_t (&words)[4]) const {
    const GemmInputRow to{args.to, 0, args.cols};
#pragma unroll
    for (int t = 0; t < 4; ++t) words[t] = to.pack(v[t].x, v[t].y);
  }
  // To each copy's row.
  template <class RowOf>
  __device__ void store(const Round::Args& args, const RowOf& row_of) const {
    GemmInputRow to{args.to, 0, args.cols};
    uint32_t words[4];
    pack(args, words);
    for (int copy = 0; copy < args.copies; ++copy) {
      to.row = row_of(copy);
      if (to.row >= 0) to.store_chunk(k, words);
    }
  }
};

__global__ void __launch_bounds__(kRoundTokenThreads) any_round_f32(const __grid_constant__ Round::Args args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const int chunks = args.cols / 8;
  for (int first = 0; first < chunks; first += static_cast<int>(blockDim.x)) {  // whole warps: blocks' lanes meet
    const int i = first + static_cast<int>(threadIdx.x);
    const bool mine = i < chunks;
    RoundChunk chunk(args, token, mine ? i : static_cast<int>(threadIdx.x) % 4);
    if (in_codes(args.to.type)) {
      GemmInputRow{args.to, token, args.cols}.store_chunk_codes(chunk.k, mine, chunk.v);
      continue;
    }
    if (!mine) continue;
    chunk.store(args, [&](int copy) {
      return args.places == nullptr ? token : int64_t{args.places[token * args.copies + copy]};
    });
  }
}

// Dynamic shared memory.
struct GroupRoundShared {
  int counts[kGroupMaxExperts];  // pairs of each expert
  int experts[32], before[32];   // of the token's pairs: the expert, and its pairs before this one
  int places[32];
};

// Lists the tiles of some experts: of as many CTAs as there are, then of their warps, the last one first, since the
// others store beside it.
__device__ __forceinline__ void store_own_tiles(const GroupTiles::Args& group, const int* counts) {
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int e = static_cast<int>(blockIdx.x) + (warps - 1 - warp) * group.tokens; e < group.experts;
       e += warps * group.tokens)
    store_tiles(group, counts, e, first_place(counts, e));
}

// REQUIRES topk up to 32, and a thread per chunk.
__global__ void __launch_bounds__(kRoundTokenThreads)
    any_group_round_f32(const __grid_constant__ GroupTiles::Args group, const __grid_constant__ Round::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<GroupRoundShared*>(smem);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int threads = static_cast<int>(blockDim.x), warps = threads / 32, token = static_cast<int>(blockIdx.x);
  const int first_pair = token * group.topk, pairs = group.tokens * group.topk;
  for (int e = tid; e < group.experts; e += threads) shared.counts[e] = 0;
  if (tid < 32) shared.before[tid] = 0;
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  constexpr int kTogether = 4;  // pairs of a thread whose loads are under way together, the first ones with those of x
  int own[kTogether];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      own[i] = first + i * threads < pairs ? group.own.number_of(group.expert_ids[first + i * threads]) : -1;
  };
  load(tid);
  const bool mine = tid < args.cols / 8;
  const RoundChunk chunk(args, token, mine ? tid : 0);
  if (tid < group.topk) shared.experts[tid] = group.own.number_of(group.expert_ids[first_pair + tid]);
  __syncthreads();
  for (int first = tid; first < pairs; first += kTogether * threads) {
    if (first != tid) load(first);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (own[i] < 0) continue;
      atomicAdd(&shared.counts[own[i]], 1);
      for (int k = 0; k < group.topk; ++k)
        if (own[i] == shared.experts[k] && first + i * threads < first_pair + k) atomicAdd(&shared.before[k], 1);
    }
  }
  __syncthreads();
  for (int k = warp; k < group.topk; k += warps) {
    const bool is_own = shared.experts[k] >= 0;
    const int place = is_own ? first_place(shared.counts, shared.experts[k]) + shared.before[k] : -1;
    if (lane != 0) continue;
    shared.places[k] = place;
    group.places[first_pair + k] = place;
    if (is_own) group.pairs[place] = first_pair + k;
  }
  __syncthreads();
  store_own_tiles(group, shared.counts);
  if (mine) chunk.store(args, [&](int copy) { return int64_t{shared.places[copy]}; });
}

}  // namespace nibble::backend::cuda

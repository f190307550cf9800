#pragma once
// moe_group: gemm_plan.h GroupTiles::Args     expert_ids int32 [tokens, topk]
// grid one CTA of 1024 threads per expert; each counts all pairs and lists its own     bytes 3 * tokens * topk * 4, and
// experts * tokens * topk * 8 from L2     measured 2026-11-21 (H200): 8192 tokens 14 µs, 2048 6 µs,
// 512 4 µs
// A pair's rank within its expert: those of earlier warps, which have consecutive ranges, of earlier rounds of 32, of
// earlier lanes. Atomics add up counts only: the same lists every time.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/registers.cuh"

namespace nibble::backend::cuda {

[[nodiscard]] __device__ constexpr int aligned_count(int count) {
  return (count + kGroupAlign - 1) / kGroupAlign * kGroupAlign;
}
// Where an expert's pairs begin; by a warp, from all experts' counts.
__device__ inline int first_place(const int* counts, int expert) {
  int first = 0;
  for (int e = static_cast<int>(threadIdx.x) % 32; e < expert; e += 32) first += aligned_count(counts[e]);
  return ptx::warp_sum_i32(first);
}

inline constexpr int kGroupWarps = 32;
inline constexpr int kGroupThreads = kGroupWarps * 32;
static_assert(kGroupThreads >= kGroupMaxExperts);

// Dynamic shared memory.
struct GroupShared {
  int counts[kGroupMaxExperts];  // pairs of each expert
  int own[kGroupWarps];          // the CTA's expert's, of each warp's range
  int first;                     // place of the CTA's expert
};

// The warp's range of pairs, 32 at a time: visit(pair, its expert's own number or -1), by all lanes together.
template <class Visit>
__device__ void each_pair(const GroupTiles::Args& args, const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int pairs = args.tokens * args.topk, range = (pairs + kGroupThreads - 1) / kGroupThreads * 32;
#pragma unroll 8
  for (int base = warp * range; base < min(pairs, (warp + 1) * range); base += 32)
    visit(base + lane, base + lane < pairs ? args.own.number_of(args.expert_ids[base + lane]) : -1);
}

// The expert's tiles, and -1 in the gap after its last place; by a warp. Tiles lie by falling size, so that the last
// work tiles of a launch are its shortest.
__device__ inline void store_tiles(const GroupTiles::Args& args, const int* counts, int expert, int first) {
  const int own = counts[expert], lane = static_cast<int>(threadIdx.x) % 32;
  const int own_size = even_tile(max(own, 1), args.tile_tokens);
  int before = 0, tile_counts[kTileCounts] = {};
  for (int e = lane; e < args.experts; e += 32) {
    if (counts[e] == 0) continue;
    const int size = even_tile(counts[e], args.tile_tokens), tiles = (counts[e] + size - 1) / size;
    if (size > own_size || (size == own_size && e < expert)) before += tiles;
    for (int i = 0; i < kTileCounts; ++i) tile_counts[i] += size > 8 * i ? tiles : 0;
  }
  before = ptx::warp_sum_i32(before);
  for (int from = lane * own_size; from < own; from += 32 * own_size)
    args.tiles[before + from / own_size] = {expert, first + from, min(own_size, own - from)};
  if (lane < aligned_count(own) - own) args.pairs[first + own + lane] = -1;
  for (int i = 0; i < kTileCounts && expert == 0; ++i) {
    const int all = ptx::warp_sum_i32(tile_counts[i]);
    if (lane == 0) args.tile_counts[i] = all;
  }
}

__global__ void __launch_bounds__(kGroupThreads) any_moe_group_tiles(const __grid_constant__ GroupTiles::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<GroupShared*>(smem);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32,
            expert = static_cast<int>(blockIdx.x);
  if (tid < args.experts) shared.counts[tid] = 0;
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  __syncthreads();
  int own = 0;
  each_pair(args, [&](int, int e) {
    if (e >= 0) atomicAdd(&shared.counts[e], 1);
    own += __popc(__ballot_sync(0xffffffffu, e == expert));
  });
  if (lane == 0) shared.own[warp] = own;
  __syncthreads();
  if (warp == 0) {
    const int first = first_place(shared.counts, expert);
    if (lane == 0) shared.first = first;
    store_tiles(args, shared.counts, expert, first);
  }
  __syncthreads();
  int place = shared.first;
  for (int w = 0; w < warp; ++w) place += shared.own[w];
  each_pair(args, [&](int pair, int e) {
    const uint32_t same = __ballot_sync(0xffffffffu, e == expert);
    if (e == expert) {
      const int at = place + __popc(same & ((1u << lane) - 1));
      args.pairs[at] = pair;
      if (args.places != nullptr) args.places[pair] = at;
    } else if (e < 0 && expert == 0 && args.places != nullptr && pair < args.tokens * args.topk) {
      args.places[pair] = -1;
    }
    place += __popc(same);
  });
}

}  // namespace nibble::backend::cuda

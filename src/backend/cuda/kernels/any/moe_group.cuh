#pragma once
// moe_group: gemm_plan.h GroupArgs     expert_ids int32 [tokens, topk]
// grid one CTA of 1024 threads per expert; each counts all pairs and lists its own     bytes 3 * tokens * topk * 4, and
// experts * tokens * topk * 8 from L2     measured 2026-11-21 (H200): 8192 tokens 14 µs, 2048 6 µs,
// 512 4 µs
// A pair's rank within its expert: those of earlier warps, which have consecutive ranges, of earlier rounds of 32, of
// earlier lanes. Atomics add up counts only: the same lists every time.

#include "backend/cuda/kernels/any/gemm_plan.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kGroupWarps = 32;
inline constexpr int kGroupThreads = kGroupWarps * 32;
static_assert(kGroupThreads >= kGroupMaxExperts);

// Dynamic shared memory.
struct GroupShared {
  int counts[kGroupMaxExperts];  // pairs of each expert
  int own[kGroupWarps];          // the CTA's expert's, of each warp's range
  int first, first_tile;         // the CTA's expert's
  int tile_counts[kTileCounts];  // GroupArgs
};

// The warp's range of pairs, 32 at a time: visit(pair, its expert or -1), by all lanes together.
template <class Visit>
__device__ void each_pair(const GroupArgs& args, const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int pairs = args.tokens * args.topk, range = (pairs + kGroupThreads - 1) / kGroupThreads * 32;
#pragma unroll 8
  for (int base = warp * range; base < min(pairs, (warp + 1) * range); base += 32)
    visit(base + lane, base + lane < pairs ? args.expert_ids[base + lane] : -1);
}

// Tiles lie by falling size, so that the last works of a launch are its shortest.
__device__ inline bool tiles_before(const GroupArgs& args, const GroupShared& shared, int a, int b) {
  const int size_a = even_tile(shared.counts[a], args.tile_tokens),
            size_b = even_tile(shared.counts[b], args.tile_tokens);
  return size_a > size_b || (size_a == size_b && a < b);
}

// The expert's tiles, and -1 in the gap behind its last place.
__device__ inline void store_tiles(const GroupArgs& args, const GroupShared& shared, int expert) {
  const int count = shared.counts[expert], tid = static_cast<int>(threadIdx.x);
  const int size = even_tile(max(count, 1), args.tile_tokens), tiles = (count + size - 1) / size;
  for (int i = tid; i < tiles; i += kGroupThreads)
    args.tiles[shared.first_tile + i] = {expert, shared.first + i * size, min(size, count - i * size)};
  if (count % kGroupAlign != 0 && tid < kGroupAlign - count % kGroupAlign) args.pairs[shared.first + count + tid] = -1;
  if (expert == 0 && tid < kTileCounts) args.tile_counts[tid] = shared.tile_counts[tid];
}

__global__ void __launch_bounds__(kGroupThreads) any_moe_group_tiles(const __grid_constant__ GroupArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<GroupShared*>(smem);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32,
            expert = static_cast<int>(blockIdx.x);
  if (tid < args.experts) shared.counts[tid] = 0;
  if (tid == 0) shared.first = shared.first_tile = 0;
  if (tid < kTileCounts) shared.tile_counts[tid] = 0;
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
  if (tid < args.experts && shared.counts[tid] > 0) {
    const int count = shared.counts[tid], tiles = (count + args.tile_tokens - 1) / args.tile_tokens;
    if (tid < expert) atomicAdd(&shared.first, (count + kGroupAlign - 1) / kGroupAlign * kGroupAlign);
    if (shared.counts[expert] > 0 && tiles_before(args, shared, tid, expert)) atomicAdd(&shared.first_tile, tiles);
    const int size = even_tile(count, args.tile_tokens);
    for (int i = 0; i < kTileCounts && size > 8 * i; ++i) atomicAdd(&shared.tile_counts[i], tiles);
  }
  __syncthreads();
  store_tiles(args, shared, expert);
  int place = shared.first;
  for (int w = 0; w < warp; ++w) place += shared.own[w];
  each_pair(args, [&](int pair, int e) {
    const uint32_t same = __ballot_sync(0xffffffffu, e == expert);
    if (e == expert) {
      const int at = place + __popc(same & ((1u << lane) - 1));
      args.pairs[at] = pair;
      if (args.places != nullptr) args.places[pair] = at;
    }
    place += __popc(same);
  });
}

}  // namespace nibble::backend::cuda

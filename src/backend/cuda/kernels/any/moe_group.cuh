#pragma once
// moe_group: gemm_plan.h GroupArgs     expert_ids int32 [tokens, topk]
// grid one CTA of 1024 threads     bytes 3 * tokens * topk * 4     predicted (H200): 8192 tokens 40 µs, 32 tokens 4 µs
// The rank of a pair within its expert: pairs of earlier rounds of 1024, of earlier warps of its round, of earlier
// lanes. No atomic decides an order: the same list every time.

#include "backend/cuda/kernels/any/gemm_plan.h"

namespace nibble::backend::cuda {

inline constexpr int kGroupWarps = 32;
inline constexpr int kGroupThreads = kGroupWarps * 32;

// Dynamic shared memory.
struct GroupShared {
  int counts[kGroupWarps][kGroupMaxExperts];  // of a round, by warp; then what lies before the warp
  int next[kGroupMaxExperts];                 // place of the expert's next pair
  int total[kGroupMaxExperts];
};

// Counts one round by warp: counts[warp][e]. Returns the expert of the thread's pair (-1: none) and its rank in the
// warp.
struct Ranked32 {
  int expert = -1, rank = 0;
};
__device__ inline Ranked32 count_round(const GroupArgs& args, GroupShared& shared, int pair) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int e = lane; e < args.experts; e += 32) shared.counts[warp][e] = 0;
  __syncwarp();
  const int expert = pair < args.tokens * args.topk ? args.expert_ids[pair] : -1;
  const uint32_t same = __match_any_sync(0xffffffffu, expert);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (expert >= 0 && rank == 0) shared.counts[warp][expert] = __popc(same);
  return {expert, rank};
}

__global__ void __launch_bounds__(kGroupThreads) any_moe_group_tiles(const __grid_constant__ GroupArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<GroupShared*>(smem);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, pairs = args.tokens * args.topk;
  if (tid < args.experts) shared.total[tid] = 0;
  for (int base = 0; base < pairs; base += kGroupThreads) {
    count_round(args, shared, base + tid);
    __syncthreads();
    if (tid < args.experts)
      for (int w = 0; w < kGroupWarps; ++w) shared.total[tid] += shared.counts[w][tid];
    __syncthreads();
  }
  if (tid == 0) {
    int place = 0, tiles = 0;
    for (int e = 0; e < args.experts; ++e) {
      const int count = shared.total[e];
      shared.next[e] = place;
      for (int from = 0; from < count; from += args.tile_tokens)
        args.tiles[tiles++] = {e, place + from, min(args.tile_tokens, count - from)};
      place += count;
    }
    *args.tile_count = tiles;
  }
  __syncthreads();
  for (int base = 0; base < pairs; base += kGroupThreads) {
    const Ranked32 own = count_round(args, shared, base + tid);
    __syncthreads();
    if (tid < args.experts) {
      int before = shared.next[tid];
      for (int w = 0; w < kGroupWarps; ++w) {
        const int count = shared.counts[w][tid];
        shared.counts[w][tid] = before;
        before += count;
      }
      shared.next[tid] = before;
    }
    __syncthreads();
    if (own.expert >= 0) args.pairs[shared.counts[warp][own.expert] + own.rank] = base + tid;
    __syncthreads();  // counts are zeroed next
  }
}

}  // namespace nibble::backend::cuda

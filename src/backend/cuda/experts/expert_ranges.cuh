#pragma once
// The end of any_route_sums: where the pairs of each range of tokens lie once pairs are sorted by expert
// (gemm_plan.h ExpertRanges). The last CTA turns all CTAs' counts into places; who rounds a token's row finds its own
// there (quantise/round.cuh).
// bytes 12 per range and expert, by one CTA, from L2     rounding: none; atomics add up counts only

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/ptx/memory.cuh"
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

// Shared memory. REQUIRES Tile: kThreads, a multiple of kExperts, of which both are of 32; kRanges of a CTA.
template <class Tile>
struct RangeShared {
  int counts[Tile::kRanges * Tile::kExperts];  // the CTA's pairs, by range and expert
  int totals[Tile::kThreads];                  // pairs by part of the ranges and expert
  int all[Tile::kExperts];                     // of all ranges
  int is_last;
};

// A thread has an expert and a part of the ranges, whose counts become places.
template <class Tile>
__device__ void place_ranges(const RouteSums::Args& a, RangeShared<Tile>& shared) {
  constexpr int kParts = Tile::kThreads / Tile::kExperts, kTogether = 32;  // loads under way
  const int thread = static_cast<int>(threadIdx.x), expert = thread % Tile::kExperts, part = thread / Tile::kExperts;
  const int ranges = static_cast<int>(expert_ranges(a.tokens)), share = (ranges + kParts - 1) / kParts;
  const int first = part * share, end = expert < a.experts ? min(ranges, first + share) : first;
  int32_t* const column = a.ranges.starts + expert;
  const auto load = [&](int from, int(&counts)[kTogether]) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) counts[i] = from + i < end ? column[int64_t{from + i} * a.experts] : 0;
  };
  int own = 0;
  for (int from = first; from < end; from += kTogether) {
    int counts[kTogether];
    load(from, counts);
#pragma unroll
    for (const int count : counts) own += count;
  }
  shared.totals[thread] = own;
  __syncthreads();
  int before = 0, all = 0;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const int total = shared.totals[p * Tile::kExperts + expert];
    before += p < part ? total : 0;
    all += total;
  }
  if (part == 0) {
    shared.all[expert] = all;
    if (expert < a.experts) a.ranges.counts[expert] = all;
  }
  __syncthreads();
  const int lane = expert % kWarpLanes;
  int place = before + first_place(shared.all, expert - lane);
#pragma unroll
  for (int e = 0; e < kWarpLanes; ++e) {
    const int other = __shfl_sync(kAllLanes, aligned_count(all), e);
    place += e < lane ? other : 0;
  }
  for (int from = first; from < end; from += kTogether) {
    int counts[kTogether];
    load(from, counts);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (from + i < end) column[int64_t{from + i} * a.experts] = place;
      place += counts[i];
    }
  }
}

// After the choice of all of the CTA's tokens.
template <class Tile>
__device__ void store_ranges(const RouteSums::Args& a, RangeShared<Tile>& shared) {
  const int thread = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * Tile::kRanges;
  __syncthreads();
  for (int i = thread; i < Tile::kRanges * Tile::kExperts; i += Tile::kThreads) {
    const int range = first + i / Tile::kExperts, expert = i % Tile::kExperts;
    if (range < expert_ranges(a.tokens) && expert < a.experts)
      a.ranges.starts[int64_t{range} * a.experts + expert] = shared.counts[i];
  }
  __syncthreads();
  if (thread == 0) {
    shared.is_last = ptx::add_acq_rel(a.ranges.finished, 1) == static_cast<int>(gridDim.x) - 1 ? 1 : 0;
    if (shared.is_last != 0) *a.ranges.finished = 0;
  }
  __syncthreads();
  if (shared.is_last != 0) place_ranges(a, shared);
}

}  // namespace nibble::backend::cuda

#pragma once
// Attention of an EAGLE-3 head over its own pages. Up to eight heads that share keys to a CTA, so that a key is read
// once for them; few rows with many keys are cut among CTAs, and the last of them to end adds up.
// grid     (tokens * kv_heads * head groups, splits), 4 warps; a warp takes 32 keys at a time: a key a lane for the
//          scores, two dims a lane for the values
// bytes    keys * kv_heads * head_dim * 4
// rounding f32, order fixed by first, end and splits

#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/memory.cuh"

namespace nibble::backend::cuda {

inline constexpr int kEagle3AttendWarps = 4, kEagle3GroupHeads = 8;
inline constexpr int kEagle3SplitKeys = 128;  // that are worth a CTA
[[nodiscard]] constexpr int eagle3_attend_shared(int head_dim) {
  // queries [heads][dim] | weights [warps][keys][heads] | sums [warps][heads][2 + dim] | whether it is the last
  return 4 * (kEagle3GroupHeads * head_dim + kEagle3AttendWarps * kWarpLanes * kEagle3GroupHeads +
              kEagle3AttendWarps * kEagle3GroupHeads * (head_dim + 2) + 4);
}

// Sums of weighted values relative to the largest score, as they lie in memory: largest, sum of weights, values.
struct Eagle3Sums {
  float largest = -INFINITY, weights = 0;

  // What `other`, added to this, is to be multiplied with, and the other way round.
  struct Factors {
    float own, theirs;
  };
  __device__ Factors add(float their_largest, float their_weights) {
    const float both = fmaxf(largest, their_largest);
    if (both == -INFINITY) return {0, 0};  // no key in either
    const Factors factors = {__expf(largest - both), __expf(their_largest - both)};
    largest = both;
    weights = weights * factors.own + their_weights * factors.theirs;
    return factors;
  }
};

// A value of some sums, added up in their order; `load` gives a float of sums i.
template <class Load>
__device__ __forceinline__ float eagle3_merge(int count, int d, Eagle3Sums& all, const Load& load) {
  float value = 0;
  for (int i = 0; i < count; ++i) {
    const Eagle3Sums::Factors factors = all.add(load(i, 0), load(i, 1));
    value = value * factors.own + load(i, 2 + d) * factors.theirs;
  }
  return value;
}

template <int kPairs>  // of dims of a lane: head_dim up to 64 * kPairs
__global__ void __launch_bounds__(kEagle3AttendWarps* kWarpLanes, kPairs == 1 ? 3 : 2)
    any_eagle3_attend_bf16(const __grid_constant__ Eagle3AttendArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  constexpr int kAtOnce = 8;  // of a key, 16 bytes each
  constexpr int kHeads = kEagle3GroupHeads, kThreads = kEagle3AttendWarps * kWarpLanes;
  const auto tid = static_cast<int>(threadIdx.x), cta = static_cast<int>(blockIdx.x);
  const int lane = tid % kWarpLanes, warp = tid / kWarpLanes, dim = args.head_dim;
  const int shared_by = args.heads / args.kv_heads, groups = (shared_by + kHeads - 1) / kHeads;
  const int group = cta % groups, kv_head = cta / groups % args.kv_heads, row = cta / groups / args.kv_heads;
  const int first_head = kv_head * shared_by + group * kHeads, heads = min(kHeads, shared_by - group * kHeads);
  auto* const queries = reinterpret_cast<float*>(smem);
  float* const weights = queries + kHeads * dim + warp * kWarpLanes * kHeads;  // the warp's
  float* const sums = queries + kHeads * dim + kEagle3AttendWarps * kWarpLanes * kHeads;
  auto* const last = reinterpret_cast<int*>(sums + kEagle3AttendWarps * kHeads * (dim + 2));
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int first = args.first[row], count = args.end[row] - first;
  const int even = (count + args.splits - 1) / args.splits;
  const int share = max(kEagle3SplitKeys, (even + kWarpLanes - 1) / kWarpLanes * kWarpLanes);
  const int active = (count + share - 1) / share, split = static_cast<int>(blockIdx.y);
  if (split >= active) return;
  const int begin = first + split * share, end = min(first + count, begin + share);
  const float scale = 1.0f / sqrtf(static_cast<float>(dim));
  const int64_t heads_at = (int64_t{row} * args.heads + first_head) * dim;
  for (int i = tid; i < kHeads * dim; i += kThreads) queries[i] = i < heads * dim ? args.q[heads_at + i] * scale : 0.0f;
  __syncthreads();

  const int32_t* const pages = args.page_ids + args.pages_at[row];
  float most[kHeads], total[kHeads], values[kHeads][2 * kPairs] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) most[h] = -INFINITY, total[h] = 0;
#pragma unroll 1
  for (int tile = begin + warp * kWarpLanes; tile < end; tile += kThreads) {
    const int key = min(tile + lane, end - 1);
    const int at = (pages[key / kEagle3PageRows] * args.kv_heads + kv_head) * kEagle3PageRows + key % kEagle3PageRows;
    float score[kHeads] = {};
    const Bf16* const k = args.pages.keys + int64_t{at} * dim;
#pragma unroll 1
    for (int from = 0; from < dim; from += 8 * kAtOnce) {
      uint4 of_key[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        of_key[i] = from + 8 * i < dim ? *reinterpret_cast<const uint4*>(k + from + 8 * i) : uint4{0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (from + 8 * i >= dim) break;
        const uint32_t pairs[4] = {of_key[i].x, of_key[i].y, of_key[i].z, of_key[i].w};
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const auto* const q = reinterpret_cast<const float4*>(queries + h * dim + from + 8 * i);
          const float4 low = q[0], high = q[1];
          const float of_q[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
          for (int n = 0; n < 8; ++n)
            score[h] += of_q[n] * __uint_as_float(n % 2 == 0 ? pairs[n / 2] << 16 : pairs[n / 2] & 0xffff0000u);
        }
      }
    }
    __syncwarp();  // the weights before these are read
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float own = tile + lane < end ? score[h] : -INFINITY;
      const float now = fmaxf(most[h], warp_max(own)), kept = __expf(most[h] - now), weight = __expf(own - now);
      most[h] = now;
      total[h] = total[h] * kept + weight;
      for (float& value : values[h]) value *= kept;
      weights[lane * kHeads + h] = weight;
    }
    __syncwarp();
    const int keys = min(kWarpLanes, end - tile);
#pragma unroll 8
    for (int j = 0; j < keys; ++j) {
      const Bf16* const v = args.pages.values + int64_t{__shfl_sync(kAllLanes, at, j)} * dim;
      const auto* const weights_of = reinterpret_cast<const float4*>(weights + j * kHeads);
      const float4 low = weights_of[0], high = weights_of[1];
      const float weight[kHeads] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int d = 2 * lane + 64 * i;
        if (d >= dim) continue;
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(v + d);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          values[h][2 * i] += weight[h] * __uint_as_float(pair << 16);
          values[h][2 * i + 1] += weight[h] * __uint_as_float(pair & 0xffff0000u);
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float* const own = sums + (warp * kHeads + h) * (dim + 2);
    const float of_warp = warp_sum(total[h]);
    if (lane == 0) own[0] = most[h], own[1] = of_warp;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int d = 2 * lane + 64 * i;
      if (d < dim) own[2 + d] = values[h][2 * i], own[3 + d] = values[h][2 * i + 1];
    }
  }
  __syncthreads();
  const auto store = [&](int i, float value) {
    args.out[heads_at + i] = {static_cast<uint16_t>(ptx::pack_bf16(value, 0.0f))};
  };
  float* const parts = args.parts + int64_t{cta} * args.splits * kHeads * (dim + 2);
  for (int i = tid; i < heads * dim; i += kThreads) {
    const int h = i / dim, d = i % dim;
    Eagle3Sums all;
    const float value = eagle3_merge(kEagle3AttendWarps, d, all,
                                     [&](int w, int which) { return sums[(w * kHeads + h) * (dim + 2) + which]; });
    if (active == 1) {
      store(i, value / all.weights);
      continue;
    }
    float* const own = parts + (split * kHeads + h) * (dim + 2);
    if (d == 0) own[0] = all.largest, own[1] = all.weights;
    own[2 + d] = value;
  }
  if (active == 1) return;
  __syncthreads();
  if (tid == 0) *last = ptx::add_acq_rel(args.finished + cta, 1) == active - 1 ? 1 : 0;
  __syncthreads();
  if (*last == 0) return;
  if (tid == 0) args.finished[cta] = 0;  // for the next launch
  for (int i = tid; i < heads * dim; i += kThreads) {
    const int h = i / dim, d = i % dim;
    Eagle3Sums all;
    const float value = eagle3_merge(
        active, d, all, [&](int s, int which) { return ptx::load_l2(parts + (s * kHeads + h) * (dim + 2) + which); });
    store(i, value / all.weights);
  }
}

}  // namespace nibble::backend::cuda

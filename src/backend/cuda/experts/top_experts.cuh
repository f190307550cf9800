#pragma once
// One token's experts, by one warp: any_top_experts, and the end of any_route_tokens.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/launch/warp.cuh"

namespace nibble::backend::cuda {

inline constexpr int kMaxTopk = kWarpLanes;

// ids and weights of `token`, whose logits every lane can see.
__device__ inline void choose_experts(const TopExpertsLaunch& args, int64_t token, int lane) {
  constexpr int32_t kNone = 0x7fffffff;
  const float* logits = args.logits + token * args.experts;
  Ranked found = {INFINITY, -1};  // before every expert
  float first = 0, sum = 0, mine = 0;
  for (int k = 0; k < args.topk; ++k) {
    Ranked best = {-INFINITY, kNone};
    for (int e = lane; e < args.experts; e += kWarpLanes) {
      const Ranked candidate = {logits[e], e};
      if (before(found, candidate) && before(candidate, best)) best = candidate;
    }
    found = warp_first(best);
    if (found.idx == kNone) found.idx = k;  // only NaN logits come here: any expert, but one that exists
    if (k == 0) first = found.value;
    const float weight = expf(found.value - first);
    sum += weight;
    if (lane == k) {
      mine = weight;
      args.ids[token * args.topk + k] = found.idx;
    }
  }
  if (lane < args.topk) args.weights[token * args.topk + lane] = mine / sum;
}

}  // namespace nibble::backend::cuda

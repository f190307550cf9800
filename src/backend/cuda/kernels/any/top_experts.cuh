#pragma once
// One token's experts, by one warp: any_top_experts, and the end of any_route_tokens.

#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/gemv_shared.cuh"
#include "backend/cuda/kernels/any/warp.cuh"
#include "backend/cuda/ptx/redux.cuh"

namespace nibble::backend::cuda {

inline constexpr int kMaxTopk = kWarpLanes;

// An expert and the rank of its logit (gemv_shared.cuh): the higher rank first, the lower expert on a tie.
struct RankedExpert {
  uint32_t rank = 0;  // 0: none
  int expert = 0;
  [[nodiscard]] __device__ bool before(const RankedExpert& other) const {
    return rank > other.rank || (rank == other.rank && expert < other.expert);
  }
};

// ids and weights of `token`, whose logits lie in L2. Experts without a number come last.
__device__ inline void choose_experts(const TopExpertsLaunch& args, int64_t token, int lane) {
  constexpr int kHeld = 8;  // of a lane, in registers; what lies beyond is read for each choice
  const float* logits = args.logits + token * args.experts;
  const auto expert_of = [&](int i) { return lane + i * kWarpLanes; };
  const auto rank_at = [&](int e) { return e < args.experts ? rank_of(__ldcg(logits + e) + 0.0f) : 0u; };  // -0 is 0
  uint32_t held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = rank_at(expert_of(i));
  RankedExpert found = {0xffffffffu, -1};  // before every expert
  float first = 0, sum = 0, mine = 0;
  for (int k = 0; k < args.topk; ++k) {
    RankedExpert best;
    const auto consider = [&](const RankedExpert& own) {
      if (found.before(own) && own.before(best)) best = own;
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) consider({held[i], expert_of(i)});
    for (int i = kHeld; expert_of(i) < args.experts; ++i) consider({rank_at(expert_of(i)), expert_of(i)});
    const uint32_t rank = ptx::warp_max_u32(best.rank);
    const uint32_t own = best.rank == rank ? ~static_cast<uint32_t>(best.expert) : 0u;
    found = {rank, static_cast<int>(~ptx::warp_max_u32(own))};
    const float value = logit_of(rank);
    if (k == 0) first = value;
    const float weight = expf(value - first);
    sum += weight;
    if (lane == k) {
      mine = weight;
      args.ids[token * args.topk + k] = found.expert;
    }
  }
  if (lane < args.topk) args.weights[token * args.topk + lane] = mine / sum;
}

}  // namespace nibble::backend::cuda

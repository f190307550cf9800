#pragma once
// The choice of a step's experts, by every CTA for itself, which all its warps read from shared memory.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

#include <bit>

namespace nibble::backend::cuda {

inline constexpr unsigned kEveryLane = 0xffffffffu;

// Where a CTA's choices lie: a barrier that each choice arrives at, ids and weights [32].
inline constexpr int kRouteBytes = 2 * kGemvRoutes * 4;
struct RouteShared {
  uint32_t chosen, ids;
  // choices: how many will be published.
  __device__ void init(int choices) const {
    ptx::mbarrier_init(chosen, static_cast<uint32_t>(choices * layout::kWarpLanes));
  }
  __device__ uint32_t id(int pair) const { return ids + 4 * static_cast<uint32_t>(pair); }
  __device__ uint32_t weight(int pair) const { return id(kGemvRoutes + pair); }
};

// Rises with the logit; NaN below every number, 0 below every logit.
__device__ __forceinline__ uint32_t rank_of(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t rank) {
  return __uint_as_float((rank & 0x80000000u) != 0 ? rank & 0x7fffffffu : ~rank);
}

// One token's choice, by one warp, expert by expert, so that what needs the first need not wait for the last. Every CTA
// reads the same few lines, so each asks for a line once: lane l has experts 4l to 4l + 3.
struct Choice {
  static constexpr int kOwn = kGemvExperts / layout::kWarpLanes;
  static_assert(kOwn == 4);
  const ExpertChoice& c;
  int token, lane, picked = 0;
  uint32_t ranks[kOwn] = {};
  int id = 0;       // of pick `lane`
  float logit = 0;  // of pick `lane`

  __device__ Choice(const ExpertChoice& choice, int of_token, int lane_idx)
      : c(choice), token(of_token), lane(lane_idx) {
    const float* logits = c.logits + int64_t{token} * c.experts;
    if (kOwn * lane >= c.experts) return;
    start(ptx::load_l2x4(logits + kOwn * lane));
  }
  // four: the lane's logits.
  __device__ __forceinline__ void start(const float4& four) {
    ranks[0] = rank_of(four.x);
    ranks[1] = rank_of(four.y);
    ranks[2] = rank_of(four.z);
    ranks[3] = rank_of(four.w);
  }
  // A choice among logits that nobody has stored; start() follows, in lanes that have experts.
  __device__ Choice(const ExpertChoice& choice, int lane_idx) : c(choice), token(0), lane(lane_idx) {}
  // The next expert, known to every lane.
  __device__ int pick() {
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own = ranks[i] > own ? ranks[i] : own;
    int lowest = 0;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i)
      if (ranks[i] == own) lowest = i;
    const uint32_t best = ptx::warp_max_u32(own);
    const int winner = __ffs(static_cast<int>(__ballot_sync(kEveryLane, own == best))) - 1;
    const int expert = kOwn * winner + __shfl_sync(kEveryLane, lowest, winner);
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (expert == kOwn * lane + i) ranks[i] = 0;
    if (lane == picked) {
      id = expert;
      logit = logit_of(best);
    }
    ++picked;
    return expert;
  }
  // All picks, for who needs no weights.
  __device__ void publish_ids(const RouteShared& shared) const {
    if (lane < c.topk) {
      const int pair = token * c.topk + lane;
      ptx::store_shared4(shared.id(pair), static_cast<uint32_t>(id));
      if (blockIdx.x == 0 && c.expert_ids != nullptr) c.expert_ids[pair] = id;
    }
    ptx::mbarrier_arrive(shared.chosen);
  }
  // Their softmax, by the first CTA, in global memory.
  __device__ void leave_weights() const {
    if (blockIdx.x != 0 || c.expert_weights == nullptr) return;
    const float weight = softmax();
    if (lane < c.topk) c.expert_weights[token * c.topk + lane] = weight;
  }
  // All picks and their softmax, into the shared routes; the first CTA leaves them in global memory, too.
  __device__ void publish(const RouteShared& shared) const {
    const float weight = softmax();
    if (lane < c.topk) {
      const int pair = token * c.topk + lane;
      ptx::store_shared4(shared.id(pair), static_cast<uint32_t>(id));
      ptx::store_shared4(shared.weight(pair), std::bit_cast<uint32_t>(weight));
      if (blockIdx.x == 0 && c.expert_ids != nullptr) c.expert_ids[pair] = id;
      if (blockIdx.x == 0 && c.expert_weights != nullptr) c.expert_weights[pair] = weight;
    }
    ptx::mbarrier_arrive(shared.chosen);
  }
  // The weight of pick `lane`.
  __device__ __forceinline__ float softmax() const {
    const float mine = expf(logit - __shfl_sync(kEveryLane, logit, 0));
    float sum = 0;
    for (int k = 0; k < c.topk; ++k) sum += __shfl_sync(kEveryLane, mine, k);
    return mine / sum;
  }
};

// Which bit of `bits` is its n-th set one, from 0; any bit when there are fewer.
__device__ __forceinline__ int nth_set_bit(uint32_t bits, int n) {
  int at = 0;
  for (int half = 16; half > 0; half /= 2) {
    const int below = __popc(bits >> at & ((1u << half) - 1));
    if (n >= below) {
      n -= below;
      at += half;
    }
  }
  return at;
}

// The step's distinct experts, of the rank's own, in order of first use. Lane d of the warp holds the d-th.
struct Routing {
  int count = 0;       // distinct experts
  int expert = 0;      // of lane d < count, by its own number
  uint32_t pairs = 0;  // bit t * topk + k: this expert is the k-th of token t

  // Once the choices are published.
  __device__ static Routing read(const RouteShared& shared, const ExpertChoice& choice, int tokens, int lane) {
    const int pair_count = tokens * choice.topk;
    const int id = lane < pair_count ? static_cast<int>(ptx::load_shared4(shared.id(lane))) : -1 - lane;
    if (tokens == 1 && choice.own.all()) return {choice.topk, id, 1u << lane};  // a token's choices differ
    const int own = lane < pair_count ? choice.own.number_of(id) : -1;
    const uint32_t same = __match_any_sync(kEveryLane, id);
    const bool is_first = own >= 0 && __ffs(static_cast<int>(same)) - 1 == lane;
    const uint32_t firsts = __ballot_sync(kEveryLane, is_first);
    const int from = nth_set_bit(firsts, lane);
    return {__popc(firsts), __shfl_sync(kEveryLane, own, from), __shfl_sync(kEveryLane, same, from)};
  }
  __device__ int expert_at(int slot) const { return __shfl_sync(kEveryLane, expert, slot); }
  __device__ uint32_t pairs_at(int slot) const { return __shfl_sync(kEveryLane, pairs, slot); }
};

// The pair t * topk + k of a token in an expert's pairs; -1 when the expert is not among its topk.
__device__ __forceinline__ int pair_of_token(uint32_t pairs, int token, int tokens, int topk) {
  if (token >= tokens) return -1;
  const uint32_t own = pairs >> (token * topk) & ((1u << topk) - 1);
  return own == 0 ? -1 : token * topk + __ffs(static_cast<int>(own)) - 1;
}

}  // namespace nibble::backend::cuda

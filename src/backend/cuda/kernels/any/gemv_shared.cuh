#pragma once
// The decode kernels' shared memory, and the choice of experts, which all warps of a CTA read from it.

#include "backend/cuda/kernels/any/gemv_plan.h"
#include "backend/cuda/kernels/any/gemv_tile.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/load_l2.cuh"
#include "backend/cuda/ptx/redux.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

#include <bit>

namespace nibble::backend::cuda {

inline constexpr int kRingMaxStages = 8;

// ring of chunks | partial sums [epilogues * slots][slices][32 lanes] of float4 | barriers, 256 B | routes: ids and
// weights [32], 256 B | squares [slices][8 tokens], 512 B
struct GemvShared {
  uint32_t ring, partials, barriers;
  int chunk_bytes, slices, stages, slots;

  template <class KernelArgs>
  __device__ GemvShared(const uint8_t* memory, const KernelArgs& args)
      : ring(ptx::shared_address(memory)),
        partials(ring + static_cast<uint32_t>(args.stages * args.chunk_bytes)),
        barriers(partials +
                 static_cast<uint32_t>(args.epilogues * kPartialSlots * args.slices * layout::kWarpLanes * 16)),
        chunk_bytes(args.chunk_bytes),
        slices(args.slices),
        stages(args.stages),
        slots(args.epilogues * kPartialSlots) {}

  __device__ uint32_t chunk(int stage) const { return ring + static_cast<uint32_t>(stage * chunk_bytes); }
  __device__ uint32_t partial(int slot, int slice, int lane) const {
    return partials + static_cast<uint32_t>(((slot * slices + slice) * layout::kWarpLanes + lane) * 16);
  }
  __device__ uint32_t chunk_full(int stage) const { return barriers + 8 * static_cast<uint32_t>(stage); }
  __device__ uint32_t chunk_empty(int stage) const { return chunk_full(kRingMaxStages + stage); }
  __device__ uint32_t partial_full(int slot) const { return chunk_full(2 * kRingMaxStages + slot); }
  __device__ uint32_t partial_empty(int slot) const { return partial_full(kGemvEpilogues * kPartialSlots + slot); }
  __device__ uint32_t chosen() const { return partial_empty(kGemvEpilogues * kPartialSlots); }
  __device__ uint32_t route_id(int pair) const { return barriers + 256 + 4 * static_cast<uint32_t>(pair); }
  __device__ uint32_t route_weight(int pair) const { return route_id(kGemvRoutes + pair); }
  __device__ uint32_t square(int slice, int token) const {
    return barriers + 512 + 4 * static_cast<uint32_t>(slice * kGemvTokens + token);
  }

  // choices: how many will be published.
  __device__ void init(int choices) const {
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(chunk_full(s), 1);
      ptx::mbarrier_init(chunk_empty(s), static_cast<uint32_t>(slices));
    }
    for (int s = 0; s < slots; ++s) {
      ptx::mbarrier_init(partial_full(s), static_cast<uint32_t>(slices));
      ptx::mbarrier_init(partial_empty(s), 1);
    }
    if (choices > 0) ptx::mbarrier_init(chosen(), static_cast<uint32_t>(choices));
    ptx::fence_mbarrier_init();
  }
};
static_assert((2 * kRingMaxStages + 2 * kGemvEpilogues * kPartialSlots + 1) * 8 <= 256);

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
  float logit = 0;  // likewise

  __device__ Choice(const ExpertChoice& choice, int of_token, int lane_idx)
      : c(choice), token(of_token), lane(lane_idx) {
    const float* logits = c.logits + int64_t{token} * c.experts;
    if (kOwn * lane >= c.experts) return;
    const float4 four = ptx::load_l2x4(logits + kOwn * lane);
    ranks[0] = rank_of(four.x);
    ranks[1] = rank_of(four.y);
    ranks[2] = rank_of(four.z);
    ranks[3] = rank_of(four.w);
  }
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
  // All picks and their softmax, into the shared routes; the first CTA leaves them in global memory, too.
  __device__ void publish(const GemvShared& shared) const {
    const float mine = expf(logit - __shfl_sync(kEveryLane, logit, 0));
    float sum = 0;
    for (int k = 0; k < c.topk; ++k) sum += __shfl_sync(kEveryLane, mine, k);
    if (lane < c.topk) {
      const int pair = token * c.topk + lane;
      ptx::store_shared4(shared.route_id(pair), static_cast<uint32_t>(id));
      ptx::store_shared4(shared.route_weight(pair), std::bit_cast<uint32_t>(mine / sum));
      if (blockIdx.x == 0 && c.expert_ids != nullptr) c.expert_ids[pair] = id;
      if (blockIdx.x == 0 && c.expert_weights != nullptr) c.expert_weights[pair] = mine / sum;
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(shared.chosen());
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

// The step's distinct experts in order of first use. Lane d of the warp holds the d-th.
struct Routing {
  int count = 0;       // distinct experts
  int expert = 0;      // of lane d < count
  uint32_t pairs = 0;  // bit t * topk + k: this expert is the k-th of token t

  // Once the choices are published.
  __device__ static Routing read(const GemvShared& shared, int tokens, int topk, int lane) {
    const int pair_count = tokens * topk;
    const int id = lane < pair_count ? static_cast<int>(ptx::load_shared4(shared.route_id(lane))) : -1 - lane;
    if (tokens == 1) return {topk, id, 1u << lane};  // a token's choices differ
    const uint32_t same = __match_any_sync(kEveryLane, id);
    const bool is_first = lane < pair_count && __ffs(static_cast<int>(same)) - 1 == lane;
    const uint32_t firsts = __ballot_sync(kEveryLane, is_first);
    const int from = nth_set_bit(firsts, lane);
    return {__popc(firsts), __shfl_sync(kEveryLane, id, from), __shfl_sync(kEveryLane, same, from)};
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

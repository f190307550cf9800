#pragma once
// sums.h on the device
// mailboxes [phases][ranks][words] of 64 bits     values f32 or bf16     own, all f32
// grid: 1024 words per CTA, in turns where there are more     bytes, flops: testing/costs.h
// measured (2 x H100, NVLink): docs/decisions/0046-sums-on-the-way.md
// rounding: f32 in the order of the ranks; bf16 once, at the end

#include "backend/cuda/comm/sums.h"
#include "backend/cuda/comm/sum_parts.cuh"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/sampling/sample.h"

namespace nibble::backend::cuda {

// Which round it is; nothing waits for the answer before it is used. On a card of its own the next kernel may begin
// now; on a shared one it would take the place of what this one waits for.
__device__ __forceinline__ uint32_t begin_round(const PushLink& link, int cta) {
  if (!link.shares_card) ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  return ptx::load_relaxed(link.rounds->of_cta + cta);
}

__device__ __forceinline__ void end_round(const PushLink& link, uint32_t round, const PushShare& share) {
  __syncthreads();  // the CTA's threads have asked
  count_round(link.rounds->of_cta, round_after(round), share);
}

// Four words to every other rank, the next one first.
__device__ __forceinline__ void send(const PushLink& link, uint32_t round, int64_t at, const uint4& words) {
  const int64_t to = link.shape.first_word(phase_of(round), link.rank) + at;
  for (int i = 1; i < link.shape.ranks; ++i) {
    const int rank = link.rank + i < link.shape.ranks ? link.rank + i : link.rank + i - link.shape.ranks;
    uint64_t* const mailbox = link.mailboxes[rank] + to;
    ptx::store_peer2(mailbox, tagged(words.x, round), tagged(words.y, round));
    ptx::store_peer2(mailbox + 2, tagged(words.z, round), tagged(words.w, round));
  }
}

// The sender's four words, if all of them have come.
__device__ __forceinline__ bool receive(const PushLink& link, uint32_t round, int sender, int64_t at, uint4& words) {
  const uint64_t* const from = link.mailboxes[link.rank] + link.shape.first_word(phase_of(round), sender) + at;
  uint64_t w[kVectorWords];
  ptx::load_peer2(from, w[0], w[1]);
  ptx::load_peer2(from + 2, w[2], w[3]);
  words = {data_of(w[0]), data_of(w[1]), data_of(w[2]), data_of(w[3])};
  return is_of(w[0], round) && is_of(w[1], round) && is_of(w[2], round) && is_of(w[3], round);
}

// By the first CTA: clears what of this round's words lies after the sender's message.
__device__ __forceinline__ void sweep(const PushLink& link, uint32_t round, int sender, int64_t message) {
  const int64_t at = first_swept(round, link.shape.words) + 2 * int64_t{threadIdx.x};
  if (2 * threadIdx.x >= kSweptWords || at < message) return;
  ptx::store_peer2(link.mailboxes[link.rank] + link.shape.first_word(phase_of(round), sender) + at, 0, 0);
}

// own_words(vector): the rank's values; where they are made here, they are kept in a.values until the others' have
// come.
template <DeltaValues::Type kType, class Own>
__device__ __forceinline__ void push_reduce(const PushReduce::Args& a, const Own& own_words, const PushShare& share) {
  const uint32_t round = begin_round(a.link, share.cta);
  const int ranks = a.link.shape.ranks;
  auto* const values = static_cast<uint4*>(a.values);
  for (int64_t i = share.first(); i < a.words / kVectorWords; i += share.step()) {
    const uint4 words = own_words(i);
    if constexpr (Own::kMade) values[i] = words;
    send(a.link, round, kVectorWords * i, words);
  }
  if (share.cta == 0)
    for (int sender = 0; sender < ranks; ++sender) sweep(a.link, round, sender, a.words);
  for (int64_t i = share.first(); i < a.words / kVectorWords; i += share.step()) {
    const uint4 own = Own::kMade ? values[i] : own_words(i);
    uint4 before = {};  // what the sum is added to
    if constexpr (kType == DeltaValues::Type::kF32)
      if (a.into != nullptr) before = reinterpret_cast<const uint4*>(a.into)[i];
    uint4 part[kMaxPushRanks] = {};
    int looks = 0;
    for (bool all = false; !all && !gives_up(a.link, looks);) {
      all = true;
#pragma unroll
      for (int sender = 0; sender < kMaxPushRanks; ++sender)
        if (sender < ranks && sender != a.link.rank)
          all = receive(a.link, round, sender, kVectorWords * i, part[sender]) && all;
    }
    PushValues<kType> sum;
#pragma unroll
    for (int sender = 0; sender < kMaxPushRanks; ++sender) {
      uint4 words = part[sender];
      if (sender == a.link.rank) words = own;
      if (sender < ranks) sum.add(words);
    }
    if constexpr (kType == DeltaValues::Type::kF32)
      if (a.into != nullptr) {
        PushValues<kType> after;
        after.add(before);
        after.add(sum.words());
        reinterpret_cast<uint4*>(a.into)[i] = after.words();
        continue;
      }
    values[i] = sum.words();
  }
  end_round(a.link, round, share);
}

template <DeltaValues::Type kType>
__global__ void __launch_bounds__(kPushThreads) any_push_reduce(const __grid_constant__ PushReduce::Args a) {
  push_reduce<kType>(a, OwnValues{static_cast<const uint4*>(a.values), reinterpret_cast<const uint4*>(a.rest)},
                     {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)});
}

template <SplitSums::Order kOrder>
__global__ void __launch_bounds__(kPushThreads)
    any_push_combine(const __grid_constant__ PushReduce::Args a, const __grid_constant__ OwnParts parts) {
  push_reduce<DeltaValues::Type::kBf16>(a, OwnCombined<kOrder>{parts.of, parts.first},
                                        {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)});
}

__device__ __forceinline__ void push_gather(const PushGather::Args& a, const PushShare& share) {
  const uint32_t round = begin_round(a.link, share.cta);
  const int ranks = a.link.shape.ranks, rank = a.link.rank;
  const auto* const own = reinterpret_cast<const uint4*>(a.own);
  for (int64_t i = share.first(); i < a.rows * a.count[rank] / kVectorWords; i += share.step())
    send(a.link, round, kVectorWords * i, own[i]);
  for (int sender = 0; sender < ranks; ++sender) {
    const int64_t count = a.count[sender], message = a.rows * count;
    if (share.cta == 0) sweep(a.link, round, sender, message);
    for (int64_t i = share.first(); i < message / kVectorWords; i += share.step()) {
      const int64_t at = kVectorWords * i;
      uint4 words;
      if (sender == rank) {
        words = own[i];
      } else {
        int looks = 0;
        while (!receive(a.link, round, sender, at, words) && !gives_up(a.link, looks)) {
        }
      }
      *reinterpret_cast<uint4*>(a.all + at / count * a.width + a.first[sender] + at % count) = words;
    }
  }
  end_round(a.link, round, share);
}

__global__ void __launch_bounds__(kPushThreads) any_push_gather(const __grid_constant__ PushGather::Args a) {
  push_gather(a, {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)});
}

// Rows go by in the same order on all ranks: who waits for a row's candidates waits for nobody who waits for a later
// one.
__device__ __forceinline__ void push_pick(const PushPick::Args& a, const PushShare& share) {
  const uint32_t round = begin_round(a.link, share.cta);
  const int ranks = a.link.shape.ranks, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  if (share.cta == 0)
    for (int sender = 0; sender < ranks; ++sender) sweep(a.link, round, sender, kVectorWords * int64_t{a.rows});
  constexpr int kWarps = kPushThreads / kWarpLanes;
  for (int row = share.cta * kWarps + static_cast<int>(threadIdx.x) / kWarpLanes; row < a.rows;
       row += share.ctas * kWarps) {
    RankedValue best = {-INFINITY, kNoToken};
    for (int part = lane; part < a.parts; part += kWarpLanes) {
      const int64_t at = int64_t{row} * a.pitch + part;
      const RankedValue next = {a.value[at], a.token[at]};
      if (before(next, best)) best = next;
    }
    best = warp_first(best);
    const int64_t at = kVectorWords * int64_t{row};
    if (lane == 0) send(a.link, round, at, {__float_as_uint(best.value), static_cast<uint32_t>(best.idx), 0, 0});
    if (lane < ranks && lane != a.link.rank) {
      uint4 words = {};
      int looks = 0;
      while (!receive(a.link, round, lane, at, words) && !gives_up(a.link, looks)) {
      }
      best = {__uint_as_float(words.x), static_cast<int32_t>(words.y)};
    }
    best = warp_first(best);
    if (lane == 0) a.tokens[row] = best.idx == kNoToken ? kNothingAllowed : best.idx;
  }
  end_round(a.link, round, share);
}

__global__ void __launch_bounds__(kPushThreads) any_push_pick(const __grid_constant__ PushPick::Args a) {
  push_pick(a, {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)});
}

__device__ __forceinline__ void push_barrier(const PushLink& link) {
  const uint32_t round = begin_round(link, 0);
  for (int sender = 0; sender < link.shape.ranks; ++sender) sweep(link, round, sender, kVectorWords);
  if (threadIdx.x == 0) {
    ptx::fence_system();
    send(link, round, 0, {});
    for (int sender = 0; sender < link.shape.ranks; ++sender) {
      uint4 words;
      int looks = 0;
      while (sender != link.rank && !receive(link, round, sender, 0, words) && !gives_up(link, looks)) {
      }
    }
    ptx::fence_system();
  }
  end_round(link, round, {0, 1});
}

__global__ void __launch_bounds__(kPushThreads) any_push_barrier(const __grid_constant__ PushLink link) {
  push_barrier(link);
}

}  // namespace nibble::backend::cuda

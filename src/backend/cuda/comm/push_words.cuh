#pragma once
// Words of the push protocol (README.md) on the device: sent, received, swept, and the count of rounds.

#include "backend/cuda/comm/mailbox.h"
#include "backend/cuda/ptx/atomic.cuh"
#include "backend/cuda/ptx/peer_memory.cuh"

namespace nibble::backend::cuda {

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

// By the first threads of the first CTA: clears what of this round's words lies behind the sender's message.
__device__ __forceinline__ void sweep(const PushLink& link, uint32_t round, int sender, int64_t message, int threads) {
  for (auto i = 2 * static_cast<int>(threadIdx.x); i < kSweptWords; i += 2 * threads) {
    const int64_t at = first_swept(round, link.shape.words) + i;
    if (at >= message)
      ptx::store_peer2(link.mailboxes[link.rank] + link.shape.first_word(phase_of(round), sender) + at, 0, 0);
  }
}

// After a look that found nothing.
template <class Link>
__device__ __forceinline__ bool gives_up(const Link& link, int& looks) {
  if (++looks < link.looks_between || link.given_up == nullptr) return false;
  looks = 0;
  return ptx::load_host(link.given_up) != 0;
}

// By threads of a CTA whose threads have asked for their round, thread 0 among them: the next one of its own, and of
// those CTAs that this launch has not, in turns. Another launch may have them.
template <class Round>
__device__ __forceinline__ void count_round(Round (&of_cta)[kMostPushCtas], Round next, int cta, int ctas, int thread,
                                            int threads) {
  for (int64_t own = cta + int64_t{thread} * ctas; own < kMostPushCtas; own += int64_t{threads} * ctas)
    of_cta[own] = next;
}

// A launch of the model that adds up two ranks' floats where it reads them: every CTA reads all of the message, and of
// each eight words one sends the rank's own.
struct TwoRanks {
  static constexpr bool kAdds = true;
  const PushLink& link;
  uint32_t round, guess;

  // What the round probably is, to be asked before the launch before has ended. A wrong one costs a look.
  __device__ static uint32_t guess_round(const PushLink& link) {
    return ptx::load_relaxed(link.rounds->of_cta + blockIdx.x);
  }
  // REQUIRES that the launch before has ended.
  __device__ TwoRanks(const PushLink& of, uint32_t round_guess)
      : link(of), round(ptx::load_relaxed(of.rounds->of_cta + blockIdx.x)), guess(round_guess) {}
  // Eight words from `at` on.
  __device__ __forceinline__ void send8(int64_t at, const float (&own)[8]) const {
    uint64_t* const to = link.mailboxes[1 - link.rank] + link.shape.first_word(phase_of(round), link.rank) + at;
#pragma unroll
    for (int i = 0; i < 8; i += 2)
      ptx::store_peer2(to + i, tagged(__float_as_uint(own[i]), round), tagged(__float_as_uint(own[i + 1]), round));
  }
  // Callers add what they have loaded behind this, so that all of it is under way together, and the round with it.
  __device__ __forceinline__ void receive8(int64_t at, float (&other)[8]) const {
    uint32_t look = guess;
    int looks = 0;
    for (bool all = false; !all && !gives_up(link, looks); look = round) {
      const uint64_t* const from =
          link.mailboxes[link.rank] + link.shape.first_word(phase_of(look), 1 - link.rank) + at;
      uint64_t words[8];
#pragma unroll
      for (int i = 0; i < 8; i += 2) ptx::load_peer2(from + i, words[i], words[i + 1]);
      all = true;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        all = all && is_of(words[i], round);
        other[i] = __uint_as_float(data_of(words[i]));
      }
    }
  }
  // By the first threads of the CTA, once all have asked for the round.
  __device__ __forceinline__ void end(int64_t words, int threads) const {
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread >= threads) return;
    if (blockIdx.x == 0)
      for (int sender = 0; sender < 2; ++sender) sweep(link, round, sender, words, threads);
    count_round(link.rounds->of_cta, round_after(round), static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                thread, threads);
  }
};

// One rank alone, or whose deltas are added up before.
struct NoRanks {
  static constexpr bool kAdds = false;
  __device__ NoRanks(const PushLink& /*of*/, uint32_t /*round_guess*/) {}
};

}  // namespace nibble::backend::cuda

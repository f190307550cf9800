#pragma once
// sums.h on the device
// values f32 or bf16     boxes: mailbox.h     own, all f32
// grid: a CTA per chunk of 16 KB, in turns where there are more     bytes, flops: testing/costs.h
// measured (2 x H200, NVLink): docs/decisions/0046-sums-on-the-way.md
// rounding: f32 in the order of the ranks; bf16 once, at the end

#include "backend/cuda/comm/sums.h"
#include "backend/cuda/comm/sum_parts.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int64_t kChunkVectors = kChunkWords / kVectorWords;
inline constexpr int kThreadVectors = static_cast<int>(kChunkVectors / kPushThreads);

// The thread's vectors of 16 bytes of a chunk: body(which of its own, which of the chunk's).
template <class Body>
__device__ __forceinline__ void each_vector(int64_t words, int64_t chunk, const Body& body) {
  const int64_t left = words - chunk * kChunkWords;
  const auto count = static_cast<int>((left < kChunkWords ? left : kChunkWords) / kVectorWords);
#pragma unroll
  for (int k = 0; k < kThreadVectors; ++k) {
    const int i = k * kPushThreads + static_cast<int>(threadIdx.x);
    if (i < count) body(k, i);
  }
}

__device__ __forceinline__ void store_vector(uint64_t* to, const uint4& words) {
  ptx::store_peer2(to, words.x | uint64_t{words.y} << 32, words.z | uint64_t{words.w} << 32);
}
__device__ __forceinline__ uint4 load_vector(const uint64_t* from) {
  uint64_t low, high;
  ptx::load_peer2(from, low, high);
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
          static_cast<uint32_t>(high >> 32)};
}

// Whose part of a chunk is there, and the address that the sum is to go to.
__device__ __forceinline__ void flag_part(const ShareReduce::Args& a, uint64_t round, int64_t chunk) {
  const ShareShape& shape = a.link.shape;
  uint64_t* const flag = a.link.boxes[shape.owner(chunk)] + shape.part_flag(a.link.rank, chunk);
  ptx::store_peer2(flag, 0, reinterpret_cast<uint64_t>(a.values));
  ptx::store_release_system(flag, round);
}

// Its part of every chunk that another rank adds up, to that rank.
__device__ __forceinline__ void send_parts(const ShareReduce::Args& a, uint64_t round, const PushShare& share) {
  const ShareShape& shape = a.link.shape;
  for (int64_t chunk = share.cta; chunk < chunks_of(a.words); chunk += share.ctas) {
    if (shape.owner(chunk) == a.link.rank) continue;
    const auto* const values = static_cast<const uint4*>(a.values) + chunk * kChunkVectors;
    uint64_t* const part = a.link.boxes[shape.owner(chunk)] + shape.first_part(a.link.rank, chunk);
    uint4 own[kThreadVectors];  // all are read before the first is sent
    each_vector(a.words, chunk, [&](int k, int i) { own[k] = values[i]; });
    each_vector(a.words, chunk, [&](int k, int i) { store_vector(part + 2 * int64_t{i}, own[k]); });
    __syncthreads();  // so that the flag is after all threads' words
    if (threadIdx.x == 0) flag_part(a, round, chunk);
  }
}

// For a part that the launch before has sent.
__device__ __forceinline__ void flag_parts(const ShareReduce::Args& a, uint64_t round, const PushShare& share) {
  for (int64_t chunk = share.first(); chunk < chunks_of(a.words); chunk += share.step())
    if (a.link.shape.owner(chunk) != a.link.rank) flag_part(a, round, chunk);
}

__device__ __forceinline__ void await_flag(const ShareLink& link, const uint64_t* flag, uint64_t round) {
  int looks = 0;
  while (ptx::load_acquire_system(flag) != round && !gives_up(link, looks)) {
  }
}

// All ranks' parts of a chunk, added up and written where each rank has its values; nothing where one has given up.
template <DeltaValues::Type kType>
__device__ __forceinline__ void sum_chunk(const ShareReduce::Args& a, uint64_t round, int64_t chunk) {
  const ShareShape& shape = a.link.shape;
  const int ranks = shape.ranks;
  const uint64_t* const box = a.link.boxes[a.link.rank];
  uint64_t* to[kMaxPushRanks] = {};
#pragma unroll
  for (int rank = 0; rank < kMaxPushRanks; ++rank) {
    if (rank >= ranks) continue;
    uint64_t begin = reinterpret_cast<uint64_t>(a.values), flag = round;
    if (rank != a.link.rank) ptx::load_peer2(box + shape.part_flag(rank, chunk), flag, begin);
    if (flag != round) return;
    to[rank] = reinterpret_cast<uint64_t*>(begin) + chunk * (kChunkWords / 2);
  }
  PushValues<kType> sums[kThreadVectors];
#pragma unroll
  for (int rank = 0; rank < kMaxPushRanks; ++rank) {
    if (rank >= ranks) continue;
    uint4 words[kThreadVectors];
    if (rank == a.link.rank) {
      const auto* const values = static_cast<const uint4*>(a.values) + chunk * kChunkVectors;
      each_vector(a.words, chunk, [&](int k, int i) { words[k] = values[i]; });
    } else {
      const uint64_t* const part = box + shape.first_part(rank, chunk);
      each_vector(a.words, chunk, [&](int k, int i) { words[k] = load_vector(part + 2 * int64_t{i}); });
    }
    each_vector(a.words, chunk, [&](int k, int) { sums[k].add(words[k]); });
  }
#pragma unroll
  for (int rank = 0; rank < kMaxPushRanks; ++rank)
    if (rank < ranks)
      each_vector(a.words, chunk, [&](int k, int i) { store_vector(to[rank] + 2 * int64_t{i}, sums[k].words()); });
}

template <DeltaValues::Type kType>
__device__ __forceinline__ void sum_share(const ShareReduce::Args& a, uint64_t round, const PushShare& share) {
  const ShareShape& shape = a.link.shape;
  const int64_t chunks = chunks_of(a.words), step = int64_t{share.ctas} * shape.ranks;
  for (int64_t chunk = int64_t{share.cta} * shape.ranks + a.link.rank; chunk < chunks; chunk += step) {
    const auto other = static_cast<int>(threadIdx.x);
    if (other < shape.ranks && other != a.link.rank)
      await_flag(a.link, a.link.boxes[a.link.rank] + shape.part_flag(other, chunk), round);
    __syncthreads();
    sum_chunk<kType>(a, round, chunk);
    __syncthreads();
    if (other < shape.ranks && other != a.link.rank)
      ptx::store_release_system(a.link.boxes[other] + shape.sum_flag(chunk), round);
  }
}

__device__ __forceinline__ void await_sums(const ShareReduce::Args& a, uint64_t round, const PushShare& share) {
  const ShareShape& shape = a.link.shape;
  for (int64_t chunk = share.first(); chunk < chunks_of(a.words); chunk += share.step())
    if (shape.owner(chunk) != a.link.rank) await_flag(a.link, a.link.boxes[a.link.rank] + shape.sum_flag(chunk), round);
}

template <DeltaValues::Type kType, bool kSent = false>
__device__ __forceinline__ void share_reduce(const ShareReduce::Args& a, const PushShare& share) {
  if (!a.link.shares_card) ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const uint64_t round = ptx::load_relaxed(a.link.rounds->of_cta + share.cta);
  if constexpr (kSent)
    flag_parts(a, round, share);
  else
    send_parts(a, round, share);
  sum_share<kType>(a, round, share);
  await_sums(a, round, share);
  __syncthreads();
  count_round(a.link.rounds->of_cta, round + 1, share);
}

// kSent: any_share_sum, of parts that the launch before has sent.
template <DeltaValues::Type kType, bool kSent = false>
__global__ void __launch_bounds__(kPushThreads, kShareCtas)
    any_share_reduce(const __grid_constant__ ShareReduce::Args a) {
  share_reduce<kType, kSent>(a, {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)});
}

}  // namespace nibble::backend::cuda

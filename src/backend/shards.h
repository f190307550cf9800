#pragma once
// Who of several ranks holds what of a model. Ranks share every step: each computes with its shard, the parts of
// `delta` are summed, the logits gathered. Pure.
//
// Attention is split by heads, the unembedding by rows. Experts are split by their inner width in whole blocks of 32,
// the first ranks taking as many as the next (the last ones fewer, or none), so that no rank cuts a block; or they stay
// whole and each rank has some. Router, norms and embedding are on every rank. o's bias, and down's where experts
// are split, are on the first rank alone; a whole expert's is with its expert.

#include "backend/dims.h"
#include "backend/weights.h"

#include <cstdint>
#include <span>

namespace nibble::backend {

struct Ranks {
  int count = 1;
  bool whole_experts = false;  // a rank has some experts, not a part of each

  friend constexpr bool operator==(const Ranks&, const Ranks&) = default;
};

struct Shard {
  int rank = 0;
  Range heads, kv_heads;  // ranks that outnumber the KV heads share them
  Range experts;          // by the router's ids
  Range inter;            // of each of its experts
  Range vocab;            // rows of the unembedding
  bool whole_experts = false;
};

// Throws Error(kInvalidRequest) for a number of ranks that these heads cannot be dealt to.
// Whole experts want layers that have as many (experts_of).
void validate(const Ranks& ranks, const Dims& dims, std::span<const int64_t> layer_experts = {});

// REQUIRES valid ranks, and 0 <= rank < ranks.count.
[[nodiscard]] Shard shard_of(const Dims& dims, const Ranks& ranks, int rank);

// The rank's part of a tensor of the whole model.
[[nodiscard]] Slice slice_of(WeightRole role, const Dims& dims, const Shard& shard);
// The rank's part of this tensor, whose layer may have fewer experts than `dims`.
[[nodiscard]] Slice slice_of(const HostWeight& weight, Dims dims, const Shard& shard);
// All of it.
[[nodiscard]] Slice whole_of(WeightRole role, const Dims& dims);

// What the rank's backend computes with: its heads, inner width and rows of logits. Experts are as the router counts
// them.
[[nodiscard]] Dims dims_of(Dims dims, const Shard& shard);

// The rank's share of a process's threads, but at least one.
[[nodiscard]] int threads_of(int rank, const Ranks& ranks, int threads);

}  // namespace nibble::backend

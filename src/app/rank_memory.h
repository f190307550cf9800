#pragma once
// What each of several ranks holds of a model. Pure.

#include "backend/cost.h"
#include "backend/shards.h"
#include "model/config.h"

#include <cstdint>
#include <vector>

namespace nibble::app {

struct RankMemory {  // bytes
  backend::Shard shard;
  int64_t weights = 0;
  int64_t copied = 0;  // the part of `weights` that is copied on a host, where files are mapped (memory_budget.h)
  int64_t kv = 0;      // of one sequence
};

// `cost`: of the whole model. REQUIRES valid ranks. Cards pad widths (backend/cuda/cuda_backend.h: cuda_shard).
enum class RanksOn : uint8_t { kHost, kCards };
[[nodiscard]] std::vector<RankMemory> rank_memory(const backend::CostModel& cost, const model::ModelConfig& config,
                                                  const backend::Ranks& ranks, int64_t context,
                                                  RanksOn on = RanksOn::kHost);

// Bytes of one sequence on one rank: a sliding layer holds only its window.
[[nodiscard]] int64_t kv_of_rank(const backend::CostModel& cost, const model::ModelConfig& config,
                                 const backend::Shard& shard, int64_t context);

// How many tokens of keys and values, in all full layers, fit into `memory` next to the rank's weights. 0 if the
// weights alone do not fit.
[[nodiscard]] int64_t kv_tokens_beside(const backend::CostModel& cost, const model::ModelConfig& config,
                                       const RankMemory& of, int64_t memory);

}  // namespace nibble::app

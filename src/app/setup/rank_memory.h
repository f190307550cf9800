#pragma once
// What each of several ranks holds of a model. Pure.

#include "backend/cost.h"
#include "backend/shards.h"
#include "model/config.h"

#include "backend/run_config.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
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

// What each rank holds, of `context` tokens of one sequence; on cards with this much memory for it also how many tokens
// of KV cache the weights and what sums take leave room for, in all full layers.
[[nodiscard]] nlohmann::ordered_json ranks_json(const backend::CostModel& cost, const model::ModelConfig& config,
                                                const backend::Ranks& ranks, int64_t context,
                                                std::optional<int64_t> card_bytes);
// A table of that: a head and a line for each rank.
[[nodiscard]] std::string ranks_text(const nlohmann::ordered_json& ranks);
// What --gpu-memory-utilization leaves of an empty card's memory.
[[nodiscard]] int64_t memory_of_a_card(int64_t card_bytes, const backend::RunConfig& run);

}  // namespace nibble::app

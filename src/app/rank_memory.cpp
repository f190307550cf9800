#include "app/rank_memory.h"

#include "app/memory_budget.h"

#include <algorithm>

namespace nibble::app {

int64_t kv_of_rank(const backend::CostModel& cost, const model::ModelConfig& config, const backend::Shard& shard,
                   int64_t context) {
  const int64_t windowed = std::min(context, config.dims.sliding_window);
  const int64_t keys =
      config.layers_of(model::LayerKind::kFull) * context + config.layers_of(model::LayerKind::kSliding) * windowed;
  return 2 * keys * backend::dims_of(config.dims, shard).kv_heads * cost.kv_row_bytes();
}

std::vector<RankMemory> rank_memory(const backend::CostModel& cost, const model::ModelConfig& config,
                                    const backend::Ranks& ranks, int64_t context, RanksOn on) {
  std::vector<RankMemory> all;
  for (int rank = 0; rank < ranks.count; ++rank) {
    backend::CostModel own = cost;
    own.shard = backend::shard_of(config.dims, ranks, rank);
    all.push_back({.shard = *own.shard,
                   .weights = (on == RanksOn::kCards ? of_a_card(cost, ranks, rank) : own).weight_bytes(),
                   .copied = bytes_copied(own, ranks),
                   .kv = kv_of_rank(cost, config, *own.shard, context)});
  }
  return all;
}

int64_t kv_tokens_beside(const backend::CostModel& cost, const model::ModelConfig& config, const RankMemory& of,
                         int64_t memory) {
  const int64_t window = config.dims.sliding_window;
  const int64_t token = kv_of_rank(cost, config, of.shard, window + 1) - kv_of_rank(cost, config, of.shard, window);
  return std::max<int64_t>(0, memory - of.weights) / token;
}

}  // namespace nibble::app

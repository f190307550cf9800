#pragma once
// Does it fit? Asked before anything large is allocated; the answer names the flags that would make it fit.

#include "app/options/options.h"
#include "backend/backend.h"
#include "backend/cost.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/run_config.h"
#include "backend/shards.h"
#include "model/config.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string where;  // "this machine has 3.20 GB available"
};

// The largest value from 1 to `most` whose needs fit; none when not even 1 does. `needs` must not fall as it rises.
[[nodiscard]] std::optional<int64_t> largest_that_fits(const MemoryLimit& limit, int64_t most,
                                                       const std::function<backend::MemoryNeeds(int64_t)>& needs);

// How many tokens a KV cache gets if nobody asked for a size: as many as fit within `limit`, of which a 32nd stays
// free. `least` if those do not fit, or are more than `most`.
[[nodiscard]] int64_t kv_tokens_that_fit(const MemoryLimit& limit, int64_t least, int64_t most,
                                         const std::function<backend::MemoryNeeds(int64_t)>& needs);

// How few of `most` layers must leave their experts to the host for the rest to fit, `needs` of so many; none: all of
// them are too few.
[[nodiscard]] std::optional<int> least_host_layers(const MemoryLimit& limit, int most,
                                                   const std::function<backend::MemoryNeeds(int64_t)>& needs);
// "experts of 12 of 36 layers on the host: 20.3 GB of its memory; a token reads 635 MB there, 3.72 GB on the card".
// Empty where there are none. REQUIRES resolved options.
[[nodiscard]] std::string describe_host_layers(const ModelOptions& options, const backend::CostModel& cost,
                                               std::span<const backend::LayerKind> layer_kinds);

// "12.0 GB: weights 11.0 GB, KV cache 0.5 GB, …"; parts of size 0 are left out.
[[nodiscard]] std::string describe(const backend::MemoryNeeds& needs);

// Throws Error(kOutOfMemory) unless the needs fit; the message lists flag values that would fit: `advice`,
// "--max-model-len 4096".
void require_fit(const backend::MemoryNeeds& needs, const MemoryLimit& limit, std::span<const std::string> advice);

// A share of a card's memory, but no more than is free. `used` names the share in the message.
[[nodiscard]] MemoryLimit device_limit(int64_t free_bytes, int64_t total_bytes, double utilization);
// The smallest --gpu-memory-utilization, in hundredths, with which the needs fit; none if they never do.
[[nodiscard]] std::optional<double> utilization_that_fits(const backend::MemoryNeeds& needs, int64_t free_bytes,
                                                          int64_t total_bytes);

// How much of the weights on a host ranks copy, because their columns are not contiguous. For one rank if the cost is
// one rank's.
[[nodiscard]] int64_t bytes_copied(const backend::CostModel& cost, const backend::Ranks& ranks);

// What a model's backend allocates, and the memory that is there for it. On a host, weights that are mapped from files
// or made as dummies do not count. With several cards: what the first rank allocates, and the memory of the card with
// the least free. A draft model's backend counts as well. Throws what a backend throws if it cannot run.
struct Budget {
  backend::MemoryNeeds needs;
  MemoryLimit limit;
};
[[nodiscard]] Budget budget_of(const ModelOptions& options, const backend::BackendConfig& config,
                               const backend::CostModel& cost);
// What a card of this size would hold, by shapes alone.
[[nodiscard]] Budget budget_on(int64_t card_bytes, const ModelOptions& options, const backend::BackendConfig& config,
                               const backend::CostModel& cost);
// The cards that the options' backend uses.
[[nodiscard]] std::vector<int> cards_of(const ModelOptions& options);
// The memory of the card with the least free. Throws Error(kUnsupported) if there are fewer cards.
[[nodiscard]] backend::CudaMemory fullest_card(const ModelOptions& options);

// What a rank's card holds, reads and computes; with one rank, the whole model.
[[nodiscard]] backend::CostModel of_a_card(backend::CostModel cost, const backend::Ranks& ranks, int rank = 0);

// The budget of `count` such backends in one memory.
[[nodiscard]] Budget times(int count, Budget budget);

// Weights that --load-format dummy makes in the host's memory, on every backend; 0 for files.
[[nodiscard]] int64_t dummy_bytes(const ModelOptions& options, const model::ModelConfig& config);
[[nodiscard]] MemoryLimit host_limit();

// Throws Error(kOutOfMemory) if the backend will not fit; the message has the flag values that would.
Budget check_budget(const ModelOptions& options, const backend::BackendConfig& config, const backend::CostModel& cost);

// Bytes of one head's key, or value, of one token, as the backend holds it.
[[nodiscard]] int64_t kv_row_bytes(const ModelOptions& options, const backend::Dims& dims);

// What each of several ranks holds of a model. Pure.

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

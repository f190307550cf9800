#include "app/setup/rank_memory.h"

#include "app/setup/memory_budget.h"
#include "app/setup/terminal.h"
#include "backend/cuda/comm/mailbox.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

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

int64_t memory_of_a_card(int64_t card_bytes, const backend::RunConfig& run) {
  return device_limit(card_bytes, card_bytes, *backend::with_defaults(run).gpu_memory_utilization).bytes;
}

Json ranks_json(const backend::CostModel& cost, const model::ModelConfig& config, const backend::Ranks& ranks,
                int64_t context, std::optional<int64_t> card_bytes) {
  Json json = Json::array();
  const RanksOn on = card_bytes ? RanksOn::kCards : RanksOn::kHost;
  for (const RankMemory& of : rank_memory(cost, config, ranks, context, on)) {
    const backend::Shard& s = of.shard;
    Json& rank = json.emplace_back(Json{{"rank", s.rank},
                                        {"heads", s.heads.count},
                                        {"kv_heads", s.kv_heads.count},
                                        {"experts", s.experts.count},
                                        {"inter", s.inter.count},
                                        {"weight_bytes", of.weights},
                                        {"kv_context", context},
                                        {"kv_bytes", of.kv}});
    if (card_bytes) {
      const int64_t mailbox = backend::cuda::comm_bytes(ranks.count);
      rank["memory_bytes"] = *card_bytes;
      rank["mailbox_bytes"] = mailbox;
      rank["kv_tokens"] = kv_tokens_beside(cost, config, of, *card_bytes - mailbox);
    } else {
      rank["copied_bytes"] = of.copied;
    }
  }
  return json;
}

std::string ranks_text(const Json& ranks) {
  const bool card = ranks.front().contains("kv_tokens");
  const auto bytes = [](const Json& value) { return format_bytes(value.get<double>()); };
  std::string out = fmt::format("  {:>4}  {:>5}  {:>8}  {:>7}  {:>5}  {:>9}  {:>9}  {:>20}", "rank", "heads",
                                "KV heads", "experts", "width", "weights", card ? "of" : "copied",
                                fmt::format("KV of {} tokens", ranks.front()["kv_context"].get<int64_t>()));
  out += card ? fmt::format("  {:>12}\n", "KV tokens") : "\n";
  for (const Json& rank : ranks) {
    const auto number = [&](const char* name) { return rank[name].get<int64_t>(); };
    out += fmt::format("  {:>4}  {:>5}  {:>8}  {:>7}  {:>5}  {:>9}  {:>9}  {:>20}", number("rank"), number("heads"),
                       number("kv_heads"), number("experts"), number("inter"), bytes(rank["weight_bytes"]),
                       bytes(rank[card ? "memory_bytes" : "copied_bytes"]), bytes(rank["kv_bytes"]));
    out += !card                     ? "\n"
           : number("kv_tokens") > 0 ? fmt::format("  {:>12}\n", number("kv_tokens"))
                                     : fmt::format("  {:>12}\n", "does not fit");
  }
  return out;
}

}  // namespace nibble::app

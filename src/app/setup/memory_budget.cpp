#include "app/setup/memory_budget.h"

#include "app/setup/loaded_model.h"
#include "app/setup/terminal.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/comm/mailbox.h"
#include "base/error.h"
#include "base/machine.h"
#include "engine/draft_model_proposer.h"
#include "model/eagle3/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace nibble::app {

using backend::MemoryNeeds;

backend::CudaMemory fullest_card(const ModelOptions& options) {
  const int ranks = options.run.ranks.count;
  if (ranks > 1 && options.group.count == 1)
    backend::require_cards(ranks, fmt::format("--tensor-parallel-size {}", ranks));
  std::optional<backend::CudaMemory> fullest;
  for (const int card : cards_of(options)) {
    const backend::CudaMemory memory = backend::cuda_memory(card);
    if (!fullest || memory.free_bytes < fullest->free_bytes) fullest = memory;
  }
  return *fullest;
}

backend::CostModel of_a_card(backend::CostModel cost, const backend::Ranks& ranks, int rank) {
  if (ranks.count == 1) return cost;
  cost.shard = backend::cuda_shard(backend::shard_of(cost.dims, ranks, rank));
  cost.down_cols = backend::cuda_down_cols(*cost.shard);
  return cost;
}

std::optional<int64_t> largest_that_fits(const MemoryLimit& limit, int64_t most,
                                         const std::function<MemoryNeeds(int64_t)>& needs) {
  const auto fits = [&](int64_t value) { return needs(value).total() <= limit.bytes; };
  if (most < 1 || !fits(1)) return std::nullopt;
  int64_t good = 1, bad = most + 1;  // the largest known to fit, and the smallest known not to (or not asked for)
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

int64_t kv_tokens_that_fit(const MemoryLimit& limit, int64_t least, int64_t most,
                           const std::function<MemoryNeeds(int64_t)>& needs) {
  const auto more = largest_that_fits({.bytes = limit.bytes - limit.bytes / 32, .where = {}}, most - least,
                                      [&](int64_t count) { return needs(least + count); });
  return least + more.value_or(0);
}

std::optional<int> least_host_layers(const MemoryLimit& limit, int most,
                                     const std::function<MemoryNeeds(int64_t)>& needs) {
  for (int layers = 0; layers <= most; ++layers)
    if (needs(layers).total() <= limit.bytes) return layers;
  return std::nullopt;
}

std::string describe_host_layers(const ModelOptions& options, const backend::CostModel& cost,
                                 std::span<const backend::LayerKind> layer_kinds) {
  const int layers = backend::host_layers(options.run, cost.dims.layers);
  if (layers == 0) return "";
  const std::array row = {backend::Row{.tokens = 1, .context = 1}};
  const backend::StepShape step{.rows = row, .logit_rows = 1};
  const double there = layers * cost.of(backend::Stage::kMoe, backend::LayerKind::kFull, step).bytes,
               all = cost.of_step(layer_kinds, step).bytes;
  const int copied = options.run.expert_copy_tokens;
  return fmt::format(
      "experts of {} of {} layers on the host: {} of its memory; a token reads {} there, {} on the card{}", layers,
      cost.dims.layers, format_bytes(static_cast<double>(cost.expert_bytes(layers))), format_bytes(there),
      format_bytes(all - there),
      copied > 0 ? fmt::format("; steps of {} tokens and more copy them to the card", copied) : "");
}

std::string describe(const MemoryNeeds& needs) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : {std::pair{"weights", needs.weights},
                                    {"KV cache", needs.kv},
                                    {"activations", needs.activations},
                                    {"graphs", needs.graphs},
                                    {"upload", needs.upload}}) {
    if (bytes > 0) parts.push_back(fmt::format("{} {}", name, format_bytes(static_cast<double>(bytes))));
  }
  return fmt::format("{}: {}", format_bytes(static_cast<double>(needs.total())), fmt::join(parts, ", "));
}

void require_fit(const MemoryNeeds& needs, const MemoryLimit& limit, std::span<const std::string> advice) {
  if (needs.total() <= limit.bytes) return;
  throw Error(Code::kOutOfMemory, "want {}; {}, {} too little; {}", describe(needs), limit.where,
              format_bytes(static_cast<double>(needs.total() - limit.bytes)),
              advice.empty() ? "nothing smaller would fit" : fmt::format("would fit: {}", fmt::join(advice, " or ")));
}

int64_t kv_row_bytes(const ModelOptions& options, const backend::Dims& dims) {
  if (options.run.backend == BackendKind::kReference) return int64_t{sizeof(double)} * dims.head_dim;
  return backend::row_bytes(backend::type_of(options.run.kv_type()), dims.head_dim);
}

MemoryLimit host_limit() {
  const auto bytes = available_memory();
  if (!bytes) return {.bytes = std::numeric_limits<int64_t>::max(), .where = {}};
  return {.bytes = *bytes,
          .where = fmt::format("this machine has {} available", format_bytes(static_cast<double>(*bytes)))};
}

MemoryLimit device_limit(int64_t free_bytes, int64_t total_bytes, double utilization) {
  const auto share = static_cast<int64_t>(static_cast<double>(total_bytes) * utilization);
  const auto free = static_cast<double>(free_bytes), total = static_cast<double>(total_bytes);
  if (free_bytes <= share)
    return {.bytes = free_bytes,
            .where = fmt::format("the card has {} free of {}", format_bytes(free), format_bytes(total))};
  return {.bytes = share,
          .where = fmt::format("--gpu-memory-utilization {:.2f} gives {} of the card's {}", utilization,
                               format_bytes(static_cast<double>(share)), format_bytes(total))};
}

std::optional<double> utilization_that_fits(const MemoryNeeds& needs, int64_t free_bytes, int64_t total_bytes) {
  if (needs.total() > free_bytes || total_bytes <= 0) return std::nullopt;
  const double hundredths = std::ceil(100 * static_cast<double>(needs.total()) / static_cast<double>(total_bytes));
  return hundredths <= 100 ? std::optional(hundredths / 100) : std::nullopt;
}

int64_t dummy_bytes(const ModelOptions& options, const model::ModelConfig& config) {
  if (options.load_format != LoadFormat::kDummy) return 0;
  return model::cost_of(config, backend::StoredFormats::as_shipped()).weight_bytes();
}

int64_t bytes_copied(const backend::CostModel& cost, const backend::Ranks& ranks) {
  using enum backend::WeightRole;
  if (ranks.count == 1) return 0;
  const double layer = cost.bytes_of(kO) + (ranks.whole_experts ? 0 : cost.bytes_of(kDown));
  return static_cast<int64_t>(layer * static_cast<double>(cost.dims.layers));
}

std::vector<int> cards_of(const ModelOptions& options) {
  const auto count = options.cards.count > 0 ? static_cast<int>(options.cards.count) : options.run.ranks.count;
  std::vector<int> cards(static_cast<size_t>(count));
  std::iota(cards.begin(), cards.end(), static_cast<int>(options.cards.first));
  return cards;
}

namespace {

constexpr std::array kParts = {&MemoryNeeds::weights, &MemoryNeeds::kv, &MemoryNeeds::activations, &MemoryNeeds::graphs,
                               &MemoryNeeds::upload};

int64_t weights_on_card(const ModelOptions& options, const backend::CostModel& cost) {
  return of_a_card(cost, options.run.ranks).weight_bytes() -
         cost.expert_bytes(backend::host_layers(options.run, cost.dims.layers));
}

Budget budget_alone(const ModelOptions& options, const backend::BackendConfig& config, const backend::CostModel& cost) {
  if (options.run.backend == BackendKind::kCuda) {
    const auto [free, total] = fullest_card(options);
    const auto in = options.group.count > 1 ? backend::RanksIn::kSeveralProcesses : backend::RanksIn::kOneProcess;
    MemoryNeeds needs = backend::cuda_memory_needs(config, options.run, in);
    needs.weights += weights_on_card(options, cost);
    return {needs, device_limit(free, total, *backend::with_defaults(options.run).gpu_memory_utilization)};
  }
  const int64_t value_bytes = options.run.backend == BackendKind::kReference ? 8 : 4;
  const GroupOptions& group = options.group;  // in a group this process is one rank
  MemoryNeeds needs{.weights = (bytes_copied(cost, options.run.ranks) + cost.formats.copied_bytes) / group.count};
  const int first = group.rank, end = group.count > 1 ? first + 1 : options.run.ranks.count;
  for (int rank = first; rank < end; ++rank) {
    const auto of_rank = backend::config_of(config, backend::shard_of(config.dims, options.run.ranks, rank));
    needs.kv += backend::kv_bytes(of_rank, kv_row_bytes(options, config.dims));
    needs.activations += backend::slot_bytes(of_rank, value_bytes);
  }
  if (options.run.backend == BackendKind::kCpu) {
    const auto head = static_cast<size_t>(backend::WeightRole::kUnembedding);
    needs.weights += backend::cpu_screened_bytes(cost.dims, cost.formats.of_role[head], options.run);
  }
  for (int r = 0; r < backend::kWeightRoles; ++r) {  // requantised weights are copies
    const auto role = static_cast<backend::WeightRole>(r);
    const int64_t layers = role == backend::WeightRole::kUnembedding ? 1 : cost.dims.layers;
    if (config.dense.of(role)) needs.weights += layers * static_cast<int64_t>(cost.bytes_of(role));
  }
  return {needs, host_limit()};
}

}  // namespace

namespace {

// A head's, whose config.json alone is read.
MemoryNeeds head_needs(const ModelOptions& options, const backend::BackendConfig& target) {
  const model::eagle3::Head head = model::eagle3::read_head_config(options.speculative_model, target.dims);
  const backend::BackendConfig config =
      model::eagle3::backend_config(head, engine::head_step_limits({.kv_pages = target.kv_pages}));
  const backend::RunConfig run = head_run(options.run);
  if (run.backend == BackendKind::kCuda) return backend::cuda_memory_needs(config, run);
  return {.kv = backend::kv_bytes(config, backend::row_bytes(backend::type_of(run.kv_type()), config.dims.head_dim)),
          .activations = backend::slot_bytes(config, run.backend == BackendKind::kReference ? 8 : 4)};
}

}  // namespace

Budget budget_of(const ModelOptions& options, const backend::BackendConfig& config, const backend::CostModel& cost) {
  Budget budget = budget_alone(options, config, cost);
  if (options.speculation.method == engine::DraftMethod::kEagle3 && !options.speculative_model.empty()) {
    const MemoryNeeds more = head_needs(options, config);
    for (int64_t MemoryNeeds::* part : kParts) budget.needs.*part += more.*part;
  }
  if (options.speculation.method != engine::DraftMethod::kDraft) return budget;
  const ModelOptions draft = draft_options(options);
  const model::ModelConfig drafts = open_config(draft).config;
  const model::StepLimits steps = engine::draft_step_limits(
      {.max_tokens = config.max_tokens, .max_rows = config.max_rows, .kv_pages = config.kv_pages});
  const MemoryNeeds more = budget_alone(draft, model::backend_config(drafts, steps, draft.run.dense),
                                        model::cost_of(drafts, stored_formats(draft, {})))
                               .needs;
  for (int64_t MemoryNeeds::* part : kParts) budget.needs.*part += more.*part;
  return budget;
}

Budget budget_on(int64_t card_bytes, const ModelOptions& options, const backend::BackendConfig& config,
                 const backend::CostModel& cost) {
  constexpr int64_t kUpload = int64_t{256} << 20;  // slabs of weights on their way
  return {{.weights = weights_on_card(options, cost),
           .kv = backend::kv_bytes(config, kv_row_bytes(options, config.dims)),
           .activations = backend::slot_bytes(config, sizeof(float)),
           .upload = kUpload},
          device_limit(card_bytes, card_bytes, *backend::with_defaults(options.run).gpu_memory_utilization)};
}

Budget times(int count, Budget budget) {
  for (int64_t MemoryNeeds::* part : kParts) budget.needs.*part *= count;
  return budget;
}

Budget check_budget(const ModelOptions& options, const backend::BackendConfig& config, const backend::CostModel& cost) {
  const Budget budget = budget_of(options, config, cost);
  if (budget.needs.total() <= budget.limit.bytes) return budget;
  std::vector<std::string> advice;
  const auto most_pages = *std::max_element(config.kv_pages.begin(), config.kv_pages.end());
  const auto pages = largest_that_fits(budget.limit, most_pages - 1, [&](int64_t count) {
    backend::BackendConfig smaller = config;
    for (int32_t& kind : smaller.kv_pages) kind = std::min(kind, static_cast<int32_t>(count));
    return budget_of(options, smaller, cost).needs;
  });
  if (pages) advice.push_back(fmt::format("--max-model-len {}", *pages * backend::kPageTokens));
  const auto tokens = largest_that_fits(budget.limit, config.max_tokens - 1, [&](int64_t count) {
    backend::BackendConfig smaller = config;
    smaller.max_tokens = static_cast<int>(count);
    smaller.max_rows = std::min(smaller.max_rows, smaller.max_tokens);
    return budget_of(options, smaller, cost).needs;
  });
  if (tokens) advice.push_back(fmt::format("--max-num-batched-tokens {}", *tokens));
  if (options.run.backend == BackendKind::kCuda) {
    const auto [free, total] = fullest_card(options);
    if (const auto share = utilization_that_fits(budget.needs, free, total))
      advice.push_back(fmt::format("--gpu-memory-utilization {:.2f}", *share));
  }
  require_fit(budget.needs, budget.limit, advice);
  return budget;
}

namespace {

using Json = nlohmann::ordered_json;

}  // namespace

int64_t kv_of_rank(const backend::CostModel& cost, const model::ModelConfig& config, const backend::Shard& shard,
                   int64_t context) {
  return 2 * config.keys_of(context) * backend::dims_of(config.dims, shard).kv_heads * cost.kv_row_bytes();
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
  const int64_t window = std::max(config.dims.sliding_window, config.dims.wide_window);
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

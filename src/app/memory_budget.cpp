#include "app/memory_budget.h"

#include "app/terminal.h"
#include "base/error.h"
#include "base/memory.h"

#include <fmt/format.h>

#include <limits>
#include <utility>
#include <vector>

namespace nibble::app {

using backend::MemoryNeeds;

std::optional<int64_t> largest_that_fits(const MemoryLimit& limit, int64_t most,
                                         const std::function<MemoryNeeds(int64_t)>& needs) {
  const auto fits = [&](int64_t value) { return needs(value).total() <= limit.bytes; };
  if (most < 1 || !fits(1)) return std::nullopt;
  int64_t good = 1, bad = most + 1;  // of those that fit, and of those that do not (or are not asked for)
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

std::string describe(const MemoryNeeds& needs) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : {std::pair{"weights", needs.weights},
                                    {"KV cache", needs.kv},
                                    {"activations", needs.activations},
                                    {"upload", needs.upload}}) {
    if (bytes > 0) parts.push_back(fmt::format("{} {}", name, format_bytes(static_cast<double>(bytes))));
  }
  return fmt::format("{}: {}", format_bytes(static_cast<double>(needs.total())), fmt::join(parts, ", "));
}

void require_fit(const MemoryNeeds& needs, const MemoryLimit& limit, std::span<const std::string> advice) {
  if (needs.total() <= limit.bytes) return;
  throw Error(Code::kOutOfMemory, "[memory] want {}; {}; {}", describe(needs), limit.where,
              advice.empty() ? "nothing smaller would fit" : fmt::format("would fit: {}", fmt::join(advice, " or ")));
}

int64_t kv_value_bytes(const ModelOptions& options) {
  if (options.backend == BackendKind::kReference) return 8;
  return options.kv_cache_dtype == KvCacheDtype::kF32 ? 4 : 2;
}

MemoryNeeds memory_needs(const ModelOptions& options, const backend::BackendConfig& config,
                         const backend::CostModel& cost) {
  const int64_t value_bytes = options.backend == BackendKind::kReference ? 8 : 4;
  MemoryNeeds needs{.weights = 0,
                    .kv = backend::kv_bytes(config, kv_value_bytes(options)),
                    .activations = backend::slot_bytes(config, value_bytes),
                    .upload = 0};
  // As they come in memory, and what is made of them.
  const backend::CostModel shipped{cost.dims, backend::StoredFormats::as_shipped()};
  if (options.load_format == LoadFormat::kDummy) needs.weights += shipped.weight_bytes();
  for (int r = 0; r < backend::kWeightRoles; ++r) {
    const auto role = static_cast<backend::WeightRole>(r);
    const int64_t layers = role == backend::WeightRole::kUnembedding ? 1 : cost.dims.layers;
    if (config.dense.of(role)) needs.weights += layers * static_cast<int64_t>(cost.bytes_of(role));
  }
  return needs;
}

MemoryLimit memory_limit(const ModelOptions& /*options*/) {
  const auto bytes = available_memory();
  if (!bytes) return {.bytes = std::numeric_limits<int64_t>::max(), .where = {}};
  return {.bytes = *bytes,
          .where = fmt::format("this machine has {} available", format_bytes(static_cast<double>(*bytes)))};
}

}  // namespace nibble::app

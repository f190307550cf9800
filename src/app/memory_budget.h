#pragma once
// Does it fit? Asked before anything large is allocated; the answer names the flags that would make it fit.

#include "app/options.h"
#include "backend/cost.h"
#include "backend/memory.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace nibble::app {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string where;  // "this machine has 3.2 GB available"
};

// The largest value from 1 to `most` whose needs fit; none when not even 1 does. `needs` must not fall as it rises.
[[nodiscard]] std::optional<int64_t> largest_that_fits(const MemoryLimit& limit, int64_t most,
                                                       const std::function<backend::MemoryNeeds(int64_t)>& needs);

// "12.0 GB: weights 11.0 GB, KV cache 0.5 GB, …"; what is nothing is left out.
[[nodiscard]] std::string describe(const backend::MemoryNeeds& needs);

// Throws Error(kOutOfMemory) unless the needs fit; the message says what would: `advice`, "--max-model-len 4096".
void require_fit(const backend::MemoryNeeds& needs, const MemoryLimit& limit, std::span<const std::string> advice);

// What a model on a backend takes in the memory that the limit is of. Mapped files do not count on a host: their pages
// give way.
[[nodiscard]] backend::MemoryNeeds memory_needs(const ModelOptions& options, const backend::BackendConfig& config,
                                                const backend::CostModel& cost);
[[nodiscard]] MemoryLimit memory_limit(const ModelOptions& options);

[[nodiscard]] int64_t kv_value_bytes(const ModelOptions& options);

}  // namespace nibble::app

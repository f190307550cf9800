#pragma once
// What a backend will allocate, computed before it does. Pure.

#include "backend/backend.h"

#include <cstdint>

namespace nibble::backend {

struct MemoryNeeds {  // bytes
  int64_t weights = 0;
  int64_t kv = 0;
  int64_t activations = 0;
  int64_t graphs = 0;  // of captured steps
  int64_t upload = 0;  // pinned or staging memory while loading

  [[nodiscard]] constexpr int64_t total() const { return weights + kv + activations + graphs + upload; }
};

[[nodiscard]] int64_t kv_bytes(const BackendConfig& config, double value_bytes);
// All slots, each value of them so large.
[[nodiscard]] int64_t slot_bytes(const BackendConfig& config, int64_t value_bytes);

}  // namespace nibble::backend

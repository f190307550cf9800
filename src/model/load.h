#pragma once
// Hands a model's weights to a backend.

#include "backend/backend.h"
#include "model/gpt_oss.h"

#include <cstdint>
#include <functional>
#include <span>

namespace nibble::model {

struct LoadProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
};

// `weights` as bind() or DummyWeights give them: complete and of the right shapes.
[[nodiscard]] GptOss load(backend::Backend& be, const ModelConfig& config, std::span<const backend::HostWeight> weights,
                          const std::function<void(const LoadProgress&)>& progress = {});

}  // namespace nibble::model

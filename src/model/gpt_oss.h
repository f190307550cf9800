#pragma once
// The model: openai/gpt-oss torch/model.py, stage by stage through the waist.

#include "backend/backend.h"
#include "backend/stage.h"
#include "model/config.h"
#include "model/step.h"

#include <functional>
#include <optional>

namespace nibble::model {

struct GptOss {
  ModelConfig config;
  backend::Weights weights;
  bool attention_sinks = true;  // off only to measure what the sinks do
};

using backend::Stage;

// Called after each stage; layer is -1 outside the layers. For compare and tests.
using Probe = std::function<void(Stage stage, int layer)>;

// What a backend must know of a model. max_rows and kv_pages as in BackendConfig.
struct StepLimits {
  int max_tokens = 0;
  int max_rows = 0;
  std::array<int32_t, backend::kLayerKinds> kv_pages{};
};
[[nodiscard]] backend::BackendConfig backend_config(const ModelConfig& config, const StepLimits& limits,
                                                    const backend::DenseFormats& dense = {});

// Enqueues one step. The ticket is set when the step samples.
std::optional<backend::Ticket> forward(backend::Backend& be, const GptOss& model, const Step& step,
                                       const Probe& probe = {});

}  // namespace nibble::model

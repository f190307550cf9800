#pragma once
// The model: openai/gpt-oss torch/model.py, stage by stage through the waist.

#include "backend/args.h"
#include "backend/backend.h"
#include "backend/stage.h"
#include "model/config.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace nibble::model {

struct GptOss {
  ModelConfig config;
  backend::Weights weights;
  bool attention_sinks = true;  // off only to measure what the sinks do
};

// What a backend must know about a model. max_rows and kv_pages: as in BackendConfig.
struct StepLimits {
  int max_tokens = 0;
  int max_rows = 0;
  std::array<int32_t, backend::kLayerKinds> kv_pages{};
};
[[nodiscard]] backend::BackendConfig backend_config(const ModelConfig& config, const StepLimits& limits,
                                                    const backend::DenseFormats& dense = {});

struct LoadProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
};

// Passes the weights to a backend. `weights`: from bind_weights() or DummyWeights, complete and of the right shapes.
[[nodiscard]] GptOss load(backend::Backend& be, const ModelConfig& config, std::span<const backend::HostWeight> weights,
                          const std::function<void(const LoadProgress&)>& progress = {});

// One forward pass as plain data, complete when built.
struct Step {
  std::vector<int32_t> token_ids;  // [tokens]
  std::vector<int32_t> positions;  // [tokens]
  std::vector<backend::Row> rows;  // the sequences, covering the tokens in order
  struct Kv {
    std::vector<int32_t> slots;     // [tokens] where the tokens' keys and values go
    std::vector<int32_t> page_ids;  // [rows, pages_per_row]
    int32_t pages_per_row = 0;
  };
  std::array<Kv, backend::kLayerKinds> kv;      // by LayerKind
  std::vector<int32_t> logit_tokens;            // indices of the tokens that get a row of logits
  std::vector<backend::SampleRow> sample_rows;  // empty, or one per row of logits
};

using backend::Stage;

// Called after each stage; layer is -1 outside the layers. For compare and tests.
using Probe = std::function<void(Stage stage, int layer)>;

// The residual stream of all tokens of a step at chosen boundaries of layers, including the delta that is added next.
// Boundary b lies before layer b: 0 is the embedding, and `layers` is what the final norm reads.
struct Taps {
  std::vector<int> boundaries;  // what is asked for, rising
  std::vector<float> values;    // [tokens, boundaries, hidden] of the step
};

// Enqueues one step. The ticket is set when the step samples. With `taps` that ask for boundaries the step is walked
// verb by verb, and they are filled when this returns; throws Error(kUnsupported) for a backend that does not show its
// residuals (Backend::peek).
std::optional<backend::Ticket> forward(backend::Backend& be, const GptOss& model, const Step& step,
                                       const Probe& probe = {}, Taps* taps = nullptr);

}  // namespace nibble::model

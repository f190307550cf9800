#pragma once
// The model: openai/gpt-oss torch/model.py, stage by stage through the waist.

#include "backend/args.h"
#include "backend/backend.h"
#include "backend/cost.h"
#include "backend/dims.h"
#include "base/buffer.h"
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
  bool attention_sinks = true;    // off only to measure what the sinks do
  std::vector<Buffer> routers{};  // of layers with fewer experts, which a host's backend reads where they are
};

// What a backend must know about a model. max_rows and kv_pages: as in BackendConfig.
struct StepLimits {
  int max_tokens = 0, max_rows = 0;
  std::array<int32_t, backend::kLayerKinds> kv_pages{};
  // As in BackendConfig.
  std::vector<int> taps{};
};
[[nodiscard]] backend::BackendConfig backend_config(const ModelConfig& config, const StepLimits& limits,
                                                    const backend::DenseFormats& dense = {});

// What its steps cost, of weights held in these formats.
[[nodiscard]] inline backend::CostModel cost_of(const ModelConfig& config, const backend::StoredFormats& formats) {
  return {config.dims, formats, std::nullopt, 0, config.layer_experts};
}

struct LoadProgress {
  int64_t done_bytes = 0, total_bytes = 0;
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
  std::span<const float> taps{};                // of a head: EmbedArgs
};

using backend::Stage;

using Probe = backend::AfterStage;  // for compare and tests

// The residual stream of all tokens of a step at chosen boundaries of layers, including the delta that is added next.
// Boundary b lies before layer b: 0 is the embedding, and `layers` is what the final norm reads.
struct Taps {
  std::vector<int> boundaries;                     // what is asked for, rising
  std::vector<float> values{};                     // [tokens, boundaries, hidden] of the step, or
  bool kept = false;                               // they are with the backend, until the next step is enqueued
  std::optional<backend::TapTicket> on_the_way{};  // they have been fetched
};
// Enqueues the copy of what is kept, once.
void fetch(backend::Backend& be, Taps& taps);
// [tokens, boundaries, hidden]: waits for what was fetched, whose bytes live as Backend::wait_taps says; empty where
// nobody fetched what was kept.
[[nodiscard]] std::span<const float> residuals(backend::Backend& be, const Taps& taps);

// Enqueues one step. The ticket is set when the step samples. Of `taps` that ask for boundaries the residuals are kept
// where the backend keeps these (Backend::keeps_taps); else they are read behind its stages, and their values are there
// when this returns. Throws Error(kUnsupported) for a backend that does neither keep nor show them (Backend::peek).
std::optional<backend::Ticket> forward(backend::Backend& be, const GptOss& model, const Step& step,
                                       const Probe& probe = {}, Taps* taps = nullptr);

}  // namespace nibble::model

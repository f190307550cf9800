#include "model/gpt_oss.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace nibble::model {

using backend::WeightRole;

namespace {

// YaRN: rotary frequencies stretched for contexts past the one the model was first trained on.
struct RopeTable {
  std::vector<float> inv_freq;  // [head_dim / 2], radians per position
  float concentration = 1.0f;   // multiplies both cos and sin, at every position
};

// openai/gpt-oss torch/model.py RotaryEmbedding; rounded to float where it and transformers round.
RopeTable make_rope_table(const RopeConfig& rope, int head_dim) {
  const int half = head_dim / 2;
  // The dimension whose wave turns `rotations` times within the original context.
  const auto dim_of = [&](double rotations) {
    return half * std::log(static_cast<double>(rope.original_context) / (rotations * 2 * std::numbers::pi)) /
           std::log(rope.theta);
  };
  double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;  // as transformers: no division by zero
  RopeTable table;
  table.concentration = static_cast<float>(rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1.0 : 1.0);
  for (int i = 0; i < half; ++i) {
    const auto freq =
        static_cast<float>(std::pow(rope.theta, static_cast<float>(2 * i) / static_cast<float>(head_dim)));
    const float extrapolated = 1.0f / freq;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * freq);
    const auto ramp = static_cast<float>((i - low) / (high - low));
    const float share = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    table.inv_freq.push_back(interpolated * (1.0f - share) + extrapolated * share);
  }
  return table;
}

}  // namespace

backend::BackendConfig backend_config(const ModelConfig& config, const StepLimits& limits,
                                      const backend::DenseFormats& dense) {
  RopeTable rope = make_rope_table(config.rope, config.dims.head_dim);
  return {.dims = config.dims,
          .layer_kinds = config.layer_kinds,
          .rope_inv_freq = std::move(rope.inv_freq),
          .rope_concentration = rope.concentration,
          .rms_eps = config.rms_eps,
          .swiglu_limit = config.swiglu_limit,
          .dense = dense,
          .max_tokens = limits.max_tokens,
          .max_rows = limits.max_rows,
          .kv_pages = limits.kv_pages};
}

GptOss load(backend::Backend& be, const ModelConfig& config, std::span<const backend::HostWeight> weights,
            const std::function<void(const LoadProgress&)>& progress) {
  const auto bytes = [](const backend::HostWeight& w) {
    return static_cast<int64_t>(w.values.bytes.size() + w.scales.bytes.size() + w.odd.bytes.size());
  };
  LoadProgress state;
  for (const backend::HostWeight& weight : weights) state.total_bytes += bytes(weight);
  GptOss model;
  model.config = config;
  model.weights.layers.resize(static_cast<size_t>(config.dims.layers));
  for (const backend::HostWeight& weight : weights) {
    backend::LayerWeights& layer =
        weight.layer < 0 ? model.weights.outer : model.weights.layers[static_cast<size_t>(weight.layer)];
    layer[weight.role] = be.upload(weight);
    state.done_bytes += bytes(weight);
    if (progress) progress(state);
  }
  be.finish_upload();
  return model;
}

std::optional<backend::Ticket> forward(backend::Backend& be, const GptOss& model, const Step& step,
                                       const Probe& probe) {
  const auto after = [&](Stage stage, int layer) {
    if (probe) probe(stage, layer);
  };
  const auto kv_of = [&](backend::LayerKind kind) -> const Step::Kv& { return step.kv[static_cast<size_t>(kind)]; };
  const auto pages_of = [&](backend::LayerKind kind) {
    return backend::PageTable{.ids = kv_of(kind).page_ids, .pages_per_row = kv_of(kind).pages_per_row};
  };
  using enum backend::LayerKind;
  const backend::StepArgs whole{.weights = &model.weights,
                                .ids = step.token_ids,
                                .positions = step.positions,
                                .kv_slots = {kv_of(kSliding).slots, kv_of(kFull).slots},
                                .pages = {pages_of(kSliding), pages_of(kFull)},
                                .rows = step.rows,
                                .logit_tokens = step.logit_tokens,
                                .sample_rows = step.sample_rows,
                                .sinks = model.attention_sinks};
  if (!probe) {
    if (const std::optional<backend::Ran> ran = be.run(whole)) return ran->ticket;
  }
  be.begin(whole);
  const backend::Weights& w = model.weights;
  be.embed({.ids = step.token_ids, .table = w.outer[WeightRole::kEmbedding]});
  after(Stage::kEmbed, -1);
  for (int l = 0; l < model.config.dims.layers; ++l) {
    const backend::LayerKind kind = model.config.layer_kinds[static_cast<size_t>(l)];
    const backend::LayerWeights& layer = w.layers[static_cast<size_t>(l)];
    be.attn_in({.layer = layer, .layer_idx = l});
    after(Stage::kAttnIn, l);
    be.attend({.layer = layer,
               .layer_idx = l,
               .kind = kind,
               .sinks = model.attention_sinks,
               .positions = step.positions,
               .kv_slots = kv_of(kind).slots,
               .rows = step.rows,
               .pages = pages_of(kind)});
    after(Stage::kAttend, l);
    be.attn_out({.layer = layer});
    after(Stage::kAttnOut, l);
    be.route({.layer = layer});
    after(Stage::kRoute, l);
    be.moe({.layer = layer});
    after(Stage::kMoe, l);
  }
  if (step.logit_tokens.empty()) return std::nullopt;
  be.logits({.tokens = step.logit_tokens,
             .norm = w.outer[WeightRole::kFinalNorm],
             .table = w.outer[WeightRole::kUnembedding]});
  after(Stage::kLogits, -1);
  if (step.sample_rows.empty()) return std::nullopt;
  return be.sample({.rows = step.sample_rows});
}

}  // namespace nibble::model

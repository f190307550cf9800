#include "model/gpt_oss.h"

#include "model/rope.h"

namespace nibble::model {

using backend::WeightRole;

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

#include "model/gpt_oss.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::model {

using backend::WeightRole;

backend::BackendConfig backend_config(const ModelConfig& config, const StepLimits& limits,
                                      const backend::DenseFormats& dense) {
  RopeTable rope = yarn_rope(config.rope, config.dims.head_dim);
  return {.dims = config.dims,
          .layer_kinds = config.layer_kinds,
          .layer_experts = config.layer_experts,
          .rope_inv_freq = std::move(rope.inv_freq),
          .rope_concentration = rope.concentration,
          .rms_eps = config.rms_eps,
          .swiglu_limit = config.swiglu_limit,
          .dense = dense,
          .max_tokens = limits.max_tokens,
          .max_rows = limits.max_rows,
          .kv_pages = limits.kv_pages,
          .taps = limits.taps};
}

namespace {

// A router, or its bias, of as many experts as any layer has. Those that this one lacks have the least logit that bf16
// can say, so no token draws them.
backend::HostWeight as_wide(const backend::HostWeight& router, int64_t experts, std::vector<Buffer>& copies) {
  constexpr Bf16 kLeast{0xFF7F};
  const std::vector<float> values = backend::floats_of(router.values);
  const int64_t cols = std::ssize(values) / router.values.shape[0];
  Buffer& wide = copies.emplace_back(Buffer::zeroed(experts * cols * int64_t{sizeof(Bf16)}));
  std::ranges::transform(values, wide.as<Bf16>(), Bf16::from_float);
  if (router.role == WeightRole::kRouterBias)
    std::fill(wide.as<Bf16>() + values.size(), wide.as<Bf16>() + experts, kLeast);
  backend::HostWeight result = router;
  result.format = backend::WeightFormat::kBf16;
  result.values.dtype = DType::kBf16;
  result.values.shape[0] = experts;
  result.values.bytes = {wide.as<std::byte>(), static_cast<size_t>(wide.bytes())};
  return result;
}

// Reads boundary `at`, if it was asked for, once everything before it has run.
void read_taps(backend::Backend& be, int at, Taps& taps) {
  for (size_t i = 0; i < taps.boundaries.size(); ++i) {
    if (taps.boundaries[i] != at) continue;
    const backend::SlotData residual = be.peek(backend::Slot::kResidual), delta = be.peek(backend::Slot::kDelta);
    if (residual.shape.empty() || delta.shape.empty())
      throw Error(Code::kUnsupported, "{}: want residuals that a head can read, found none that are kept", be.name());
    const auto tokens = static_cast<size_t>(residual.shape[0]), hidden = static_cast<size_t>(residual.shape[1]);
    const size_t width = taps.boundaries.size() * hidden;
    taps.values.resize(tokens * width);
    for (size_t t = 0; t < tokens; ++t)
      for (size_t d = 0; d < hidden; ++d)
        taps.values[t * width + i * hidden + d] = residual.values[t * hidden + d] + delta.values[t * hidden + d];
  }
}

backend::StepArgs step_args(const GptOss& model, const Step& step) {
  const auto kv_of = [&](backend::LayerKind kind) -> const Step::Kv& { return step.kv[static_cast<size_t>(kind)]; };
  const auto pages_of = [&](backend::LayerKind kind) {
    return backend::PageTable{.ids = kv_of(kind).page_ids, .pages_per_row = kv_of(kind).pages_per_row};
  };
  using enum backend::LayerKind;
  return {.weights = &model.weights,
          .ids = step.token_ids,
          .positions = step.positions,
          .kv_slots = {kv_of(kSliding).slots, kv_of(kFull).slots, kv_of(kWide).slots},
          .pages = {pages_of(kSliding), pages_of(kFull), pages_of(kWide)},
          .rows = step.rows,
          .logit_tokens = step.logit_tokens,
          .sample_rows = step.sample_rows,
          .sinks = model.attention_sinks,
          .taps = step.taps};
}

}  // namespace

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
    const bool narrow = (weight.role == WeightRole::kRouter || weight.role == WeightRole::kRouterBias) &&
                        weight.values.shape[0] < config.dims.experts;
    layer[weight.role] = be.upload(narrow ? as_wide(weight, config.dims.experts, model.routers) : weight);
    state.done_bytes += bytes(weight);
    if (progress) progress(state);
  }
  be.finish_upload();
  return model;
}

void fetch(backend::Backend& be, Taps& taps) {
  if (taps.kept && !taps.on_the_way) taps.on_the_way = be.copy_taps();
}

std::span<const float> residuals(backend::Backend& be, const Taps& taps) {
  return taps.on_the_way ? be.wait_taps(*taps.on_the_way) : taps.values;
}

std::optional<backend::Ticket> forward(backend::Backend& be, const GptOss& model, const Step& step, const Probe& probe,
                                       Taps* taps) {
  const bool tapped = taps != nullptr && !taps->boundaries.empty(), kept = tapped && be.keeps_taps(taps->boundaries);
  const backend::StepArgs args = step_args(model, step);
  backend::AfterStage after;
  if (probe || tapped != kept)
    after = [&](Stage stage, int layer) {
      if (probe) probe(stage, layer);
      if (tapped && !kept && (stage == Stage::kEmbed || stage == Stage::kMoe)) read_taps(be, layer + 1, *taps);
    };
  std::optional<backend::StepRun> ran = be.run(args, after);
  if (!ran) {
    be.begin(args);
    ran = backend::StepRun{backend::walk(be, args, model.config.layer_kinds, after)};
  }
  if (kept) taps->kept = true;
  return ran->ticket;
}

}  // namespace nibble::model

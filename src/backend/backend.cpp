#include "backend/backend.h"

#include "backend/run_config.h"
#include "backend/shards.h"
#include "base/error.h"

#include <algorithm>

namespace nibble::backend {

std::string_view name_of(Slot slot) {
  constexpr std::array<std::string_view, kSlots> kNames = {
      "residual",      "delta",      "normed",         "qkv",           "q",     "attn",
      "router_logits", "expert_ids", "expert_weights", "expert_hidden", "logits"};
  return kNames[static_cast<size_t>(slot)];
}

std::vector<float> floats_of(const RawTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / static_cast<size_t>(bytes_of(tensor.dtype)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float_at(tensor, static_cast<int64_t>(i));
  return values;
}

SlotRows Backend::rows(Slot slot) {
  throw Error(Code::kUnsupported, "{}: want a backend whose {} can be summed over ranks", name(), name_of(slot));
}

void Backend::refuse_verb() const { throw Error(Code::kUnsupported, "{}: want a whole step, found a verb", name()); }

KernelFamily Backend::kernel_family() const { return KernelFamily::kAuto; }

TapTicket Backend::copy_taps() {
  throw Error(Code::kUnsupported, "{}: want a backend that keeps residuals for a head", name());
}
std::span<const float> Backend::wait_taps(TapTicket /*ticket*/) {
  throw Error(Code::kUnsupported, "{}: want a backend that keeps residuals for a head", name());
}

std::optional<Ticket> walk(Backend& be, const StepArgs& step, std::span<const LayerKind> layer_kinds,
                           const AfterStage& after) {
  const auto did = [&](Stage stage, int layer) {
    if (after) after(stage, layer);
  };
  const Weights& w = *step.weights;
  be.embed({.ids = step.ids,
            .table = w.outer[WeightRole::kEmbedding],
            .taps = step.taps,
            .tap_norm = w.outer[WeightRole::kTapNorm],
            .tap_fc = w.outer[WeightRole::kTapFc]});
  did(Stage::kEmbed, -1);
  for (size_t l = 0; l < layer_kinds.size(); ++l) {
    const int layer_idx = static_cast<int>(l);
    const LayerKind kind = layer_kinds[l];
    const auto of_kind = static_cast<size_t>(kind);
    const LayerWeights& layer = w.layers[l];
    be.attn_in({.layer = layer, .layer_idx = layer_idx});
    did(Stage::kAttnIn, layer_idx);
    be.attend({.layer = layer,
               .layer_idx = layer_idx,
               .kind = kind,
               .sinks = step.sinks,
               .positions = step.positions,
               .kv_slots = step.kv_slots[of_kind],
               .rows = step.rows,
               .pages = step.pages[of_kind]});
    did(Stage::kAttend, layer_idx);
    be.attn_out({.layer = layer});
    did(Stage::kAttnOut, layer_idx);
    be.route({.layer = layer});
    did(Stage::kRoute, layer_idx);
    be.moe({.layer = layer});
    did(Stage::kMoe, layer_idx);
  }
  if (step.logit_tokens.empty()) return std::nullopt;
  be.logits({.tokens = step.logit_tokens,
             .norm = w.outer[WeightRole::kFinalNorm],
             .table = w.outer[WeightRole::kUnembedding]});
  did(Stage::kLogits, -1);
  if (step.sample_rows.empty()) return std::nullopt;
  return be.sample({.rows = step.sample_rows});
}

BackendConfig config_of(BackendConfig config, const Shard& shard) {
  config.dims = dims_of(config.dims, shard);
  config.own_experts = shard.experts;
  return config;
}

int64_t kv_bytes(const BackendConfig& config, int64_t row_bytes) {
  int64_t pages = 0;
  for (const LayerKind kind : config.layer_kinds) pages += config.kv_pages[static_cast<size_t>(kind)];
  int64_t bytes = pages;
  for (const int64_t factor : {int64_t{2} * kPageTokens, config.dims.kv_heads, row_bytes})
    if (__builtin_mul_overflow(bytes, factor, &bytes))
      throw Error(Code::kUnsupported, "KV cache: want fewer than 2^63 bytes, found {} pages of {} heads of {} bytes",
                  pages, config.dims.kv_heads, row_bytes);
  return bytes;
}

int64_t slot_bytes(const BackendConfig& config, int64_t value_bytes) {
  const Dims& d = config.dims;
  const int64_t tokens = config.max_tokens, rows = config.max_rows;
  const int64_t per_token = d.hidden + 2 * d.q_width() + 2 * d.kv_width() + d.experts + 2 * d.topk + d.topk * d.inter;
  return value_bytes * (tokens * per_token + std::max(tokens, rows) * d.hidden + rows * d.vocab);
}

}  // namespace nibble::backend

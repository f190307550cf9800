#include "model/inspect.h"

#include "base/error.h"
#include "model/manifest.h"

#include <algorithm>

namespace nibble::model {
namespace {

constexpr int64_t kKvElementBytes = 2;  // bf16

WeightClass class_of(WeightRole role) {
  using enum WeightRole;
  switch (role) {
    case kEmbedding: return WeightClass::kEmbedding;
    case kUnembedding: return WeightClass::kUnembedding;
    case kFinalNorm:
    case kAttnNorm:
    case kMlpNorm: return WeightClass::kNorms;
    case kQ:
    case kK:
    case kV:
    case kO: return WeightClass::kAttention;
    case kQBias:
    case kKBias:
    case kVBias:
    case kOBias:
    case kSinks: return WeightClass::kAttentionBias;
    case kRouter:
    case kRouterBias: return WeightClass::kRouter;
    case kGateUp:
    case kGate:
    case kUp:
    case kDown: return WeightClass::kExperts;
    case kGateUpBias:
    case kGateBias:
    case kUpBias:
    case kDownBias: return WeightClass::kExpertBias;
  }
  check(false, "every role has a class");
  return {};
}

int64_t parameters_of(const ManifestItem& item) {
  if (item.dtype == DType::kBf16) return item.bytes() / bytes_of(item.dtype);
  return item.part == Part::kValues ? 2 * item.bytes() : 0;  // two codes per byte
}

void add(ClassNumbers& to, const ManifestItem& item) {
  ++to.tensors;
  to.bytes += item.bytes();
  to.parameters += parameters_of(item);
}

int64_t kv_bytes_per_token_layer(const backend::Dims& d) { return 2 * d.kv_width() * kKvElementBytes; }

}  // namespace

std::string_view name_of(WeightClass weight_class) {
  switch (weight_class) {
    case WeightClass::kEmbedding: return "embedding";
    case WeightClass::kUnembedding: return "unembedding";
    case WeightClass::kAttention: return "attention";
    case WeightClass::kAttentionBias: return "attention biases and sinks";
    case WeightClass::kNorms: return "norms";
    case WeightClass::kRouter: return "router";
    case WeightClass::kExperts: return "experts";
    case WeightClass::kExpertBias: return "expert biases";
  }
  return "?";
}

ModelNumbers numbers_of(const ModelConfig& config) {
  const backend::Dims& d = config.dims;
  ModelNumbers n;
  for (const ManifestItem& item : manifest(config, Naming::kHuggingFace)) {
    add(n.classes[static_cast<size_t>(class_of(item.role))], item);
    add(n.total, item);
  }
  using enum WeightClass;
  const int64_t all_experts = d.layers * d.experts;
  const int64_t expert_bytes = n.of(kExperts).bytes + n.of(kExpertBias).bytes;
  const int64_t expert_parameters = n.of(kExperts).parameters + n.of(kExpertBias).parameters;
  n.bytes_per_expert = expert_bytes / all_experts;
  n.active_parameters = n.total.parameters - n.of(kEmbedding).parameters - expert_parameters +
                        expert_parameters / all_experts * d.layers * d.topk;
  n.decode = {
      .experts = n.bytes_per_expert * d.layers * d.topk,
      .attention = n.of(kAttention).bytes,
      .unembedding = n.of(kUnembedding).bytes,
      .rest = n.of(kNorms).bytes + n.of(kRouter).bytes + n.of(kAttentionBias).bytes + n.of(kEmbedding).bytes / d.vocab};
  const int64_t per_token = kv_bytes_per_token_layer(d);
  n.kv = {.bytes_per_token_full = per_token * config.layers_of(LayerKind::kFull),
          .sliding_bytes = per_token * config.layers_of(LayerKind::kSliding) * d.sliding_window,
          .bytes_per_token_no_window = per_token * d.layers};
  return n;
}

int64_t kv_bytes(const ModelConfig& config, int64_t context) {
  check(context >= 0, "a context has a length");
  const int64_t windowed = std::min(context, config.dims.sliding_window);
  return kv_bytes_per_token_layer(config.dims) *
         (config.layers_of(LayerKind::kFull) * context + config.layers_of(LayerKind::kSliding) * windowed);
}

}  // namespace nibble::model

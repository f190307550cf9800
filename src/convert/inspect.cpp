#include "convert/inspect.h"

#include "backend/kv_dtype.h"
#include "base/error.h"
#include "model/manifest.h"

#include <vector>

namespace nibble::convert {

using model::LayerKind;
using model::manifest;
using model::ManifestItem;
using model::Naming;
using model::Part;
using model::shape_of;
using model::WeightRole;
namespace {

WeightClass class_of(WeightRole role) {
  using enum WeightRole;
  if (role == kEmbedding) return WeightClass::kEmbedding;
  if (role == kUnembedding) return WeightClass::kUnembedding;
  if (role == kFinalNorm || role == kAttnNorm || role == kMlpNorm) return WeightClass::kNorms;
  if (role == kRouter || role == kRouterBias) return WeightClass::kRouter;
  if (has_experts(role)) return is_matrix(role) ? WeightClass::kExperts : WeightClass::kExpertBias;
  return is_matrix(role) ? WeightClass::kAttention : WeightClass::kAttentionBias;
}

struct TensorNumbers {
  WeightRole role;
  ClassNumbers numbers;
};

TensorNumbers numbers_of_tensor(const ManifestItem& item) {
  const int64_t bytes = item.bytes();
  int64_t parameters = bytes / bytes_of(item.dtype);
  if (item.dtype != DType::kBf16) parameters = item.part == Part::kValues ? 2 * bytes : 0;  // two codes per byte
  return {.role = item.role, .numbers = {.tensors = 1, .bytes = bytes, .parameters = parameters}};
}

TensorNumbers numbers_of_tensor(const backend::HostWeight& weight, const ModelConfig& config) {
  backend::Dims dims = config.dims;
  dims.experts = experts_of(dims, config.layer_experts, weight.layer);
  int64_t parameters = 1;
  for (const int64_t d : shape_of(weight.role, dims)) parameters *= d;
  const size_t bytes = weight.values.bytes.size() + weight.scales.bytes.size() + weight.odd.bytes.size();
  return {.role = weight.role,
          .numbers = {.tensors = weight.scales.bytes.empty() && weight.odd.bytes.empty() ? 1 : 2,
                      .bytes = static_cast<int64_t>(bytes),
                      .parameters = parameters}};
}

void add(ClassNumbers& to, const ClassNumbers& more) {
  to.tensors += more.tensors;
  to.bytes += more.bytes;
  to.parameters += more.parameters;
}

int64_t kv_bytes_per_token_layer(const backend::Dims& d) {
  return 2 * d.kv_heads * row_bytes(backend::type_of(backend::KvDtype::kBf16), d.head_dim);
}

ModelNumbers sum_of(const ModelConfig& config, const std::vector<TensorNumbers>& all) {
  const backend::Dims& d = config.dims;
  ModelNumbers n;
  for (const TensorNumbers& s : all) {
    add(n.classes[static_cast<size_t>(class_of(s.role))], s.numbers);
    add(n.total, s.numbers);
  }
  using enum WeightClass;
  int64_t all_experts = 0;
  for (const model::LayerConfig& layer : layers_of(config)) all_experts += layer.experts;
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
  n.kv_bytes_per_token = kv_bytes_per_token_layer(d) * config.layers_of(LayerKind::kFull);
  return n;
}

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
  std::vector<TensorNumbers> all;
  for (const ManifestItem& item : manifest(config, Naming::kHuggingFace)) all.push_back(numbers_of_tensor(item));
  return sum_of(config, all);
}

ModelNumbers numbers_of(const ModelConfig& config, std::span<const backend::HostWeight> weights) {
  std::vector<TensorNumbers> all;
  for (const backend::HostWeight& weight : weights) all.push_back(numbers_of_tensor(weight, config));
  return sum_of(config, all);
}

int64_t kv_bytes(const ModelConfig& config, int64_t context) {
  check(context >= 0, "a context has a length");
  return kv_bytes_per_token_layer(config.dims) * config.keys_of(context);
}

}  // namespace nibble::convert

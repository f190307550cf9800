#pragma once
// What a model weighs, computed from its config and manifest alone: the numbers behind `nibble inspect`.

#include "backend/weights.h"
#include "model/config.h"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace nibble::convert {

using model::ModelConfig;

enum class WeightClass : uint8_t {
  kEmbedding,
  kUnembedding,
  kAttention,      // q, k, v, o
  kAttentionBias,  // their biases and the sinks
  kNorms,
  kRouter,   // with its bias
  kExperts,  // with their scales
  kExpertBias,
};
constexpr int kWeightClasses = 8;

[[nodiscard]] std::string_view name_of(WeightClass weight_class);

struct ClassNumbers {
  int64_t tensors = 0;  // as the files store them
  int64_t bytes = 0;
  int64_t parameters = 0;  // a value is one, a block's scale none
};

struct DecodeBytes {      // of weights, read for one token at batch 1; KV is apart
  int64_t experts = 0;    // topk experts of each layer, with biases
  int64_t attention = 0;  // q, k, v, o
  int64_t unembedding = 0;
  int64_t rest = 0;  // norms, router, attention biases, one row of the embedding
  [[nodiscard]] int64_t total() const { return experts + attention + unembedding + rest; }
};

struct ModelNumbers {
  std::array<ClassNumbers, kWeightClasses> classes;  // by WeightClass
  ClassNumbers total;
  int64_t active_parameters = 0;  // used for one token, unembedding included, embedding not
  int64_t bytes_per_expert = 0;   // of one layer, biases included
  DecodeBytes decode;
  int64_t kv_bytes_per_token = 0;  // bf16, over all full layers: what each further token costs

  [[nodiscard]] const ClassNumbers& of(WeightClass weight_class) const {
    return classes[static_cast<size_t>(weight_class)];
  }
};

// As Hugging Face's layout stores the model. REQUIRES: a valid config.
[[nodiscard]] ModelNumbers numbers_of(const ModelConfig& config);
// As these weights, all of the model's, are stored. REQUIRES: a valid config.
[[nodiscard]] ModelNumbers numbers_of(const ModelConfig& config, std::span<const backend::HostWeight> weights);

// KV memory of one sequence of `context` tokens: sliding layers keep their window only.
[[nodiscard]] int64_t kv_bytes(const ModelConfig& config, int64_t context);

}  // namespace nibble::convert

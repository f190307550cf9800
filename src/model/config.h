#pragma once
// What a gpt-oss model is, apart from its weights.

#include "backend/dims.h"
#include "checkpoint/hf_config.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace nibble::model {

using backend::LayerKind;

// YaRN (gpt_oss/torch/model.py, RotaryEmbedding).
struct RopeConfig {
  double theta = 150000;
  double factor = 32;
  double beta_fast = 32;  // OpenAI: rope_ntk_beta
  double beta_slow = 1;   // OpenAI: rope_ntk_alpha
  int64_t original_context = 4096;
  bool truncate = false;  // round the ramp's ends to whole dimensions
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  backend::Dims dims;
  RopeConfig rope;
  float rms_eps = 1e-5f;
  float swiglu_limit = 7.0f;
  std::vector<LayerKind> layer_kinds;  // [layers]
  // Token ids as the checkpoint's files give them; OpenAI's original/ gives none.
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  std::vector<int32_t> eos_ids;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  [[nodiscard]] int64_t layers_of(LayerKind kind) const;
};

// Even layers slide, odd layers see everything (gpt_oss/torch/model.py, AttentionBlock).
[[nodiscard]] std::vector<LayerKind> alternating_layers(int64_t layers);

// Throws what validate throws.
[[nodiscard]] ModelConfig from_hf(const checkpoint::HfConfig& hf);

// What the file behind a config calls the values that validate() checks.
struct ConfigKeys {
  std::string_view layers = "num_hidden_layers", hidden = "hidden_size", heads = "num_attention_heads",
                   kv_heads = "num_key_value_heads", head_dim = "head_dim", inter = "intermediate_size",
                   experts = "num_local_experts", topk = "num_experts_per_tok", vocab = "vocab_size",
                   sliding_window = "sliding_window", max_context = "max_position_embeddings",
                   layer_kinds = "layer_types", theta = "rope_theta", factor = "factor", beta_fast = "beta_fast",
                   beta_slow = "beta_slow", original_context = "original_max_position_embeddings",
                   rms_eps = "rms_norm_eps", swiglu_limit = "swiglu_limit", bos = "bos_token_id", pad = "pad_token_id",
                   eos = "eos_token_id";
};

// Throws Error(kCorrupt) for values that contradict each other, and Error(kUnsupported) for shapes that the formats or
// kernels cannot hold. Each message names `where`, the key and the values.
void validate(const ModelConfig& config, std::string_view where = "the model", const ConfigKeys& keys = {});

// `config` with its first `layers` layers only. Throws Error(kInvalidRequest) unless 1 <= layers <= config's.
[[nodiscard]] ModelConfig truncated(const ModelConfig& config, int64_t layers);

[[nodiscard]] ModelConfig gpt_oss_20b();
[[nodiscard]] ModelConfig gpt_oss_120b();
// Has every feature of the large models in 54 MB, nearly all of it embeddings, since it has their vocabulary.
[[nodiscard]] ModelConfig tiny();
// "gpt-oss-20b", "gpt-oss-120b", "tiny"; throws Error(kInvalidRequest) listing them for another name.
[[nodiscard]] ModelConfig preset(std::string_view name);

// Rotary frequencies: the angle by which each pair of dimensions rotates, per position.
struct RopeTable {
  std::vector<float> inv_freq;  // [head_dim / 2], radians per position
  float concentration = 1.0f;   // multiplies both cos and sin, at every position
};

[[nodiscard]] RopeTable plain_rope(double theta, int64_t head_dim);

// YaRN: stretched for contexts longer than the one in training (openai/gpt-oss torch/model.py, RotaryEmbedding). Rounds
// to float where that and transformers round.
[[nodiscard]] RopeTable yarn_rope(const RopeConfig& rope, int64_t head_dim);

// Llama 3's stretching: waves with fewer than low_rotations in the original context are slowed by the factor; those
// with more than high_rotations are kept (transformers/modeling_rope_utils.py, _compute_llama3_parameters).
struct Llama3Rope {
  double theta = 500000, factor = 8, low_rotations = 1, high_rotations = 4;
  int64_t original_context = 8192;
};
[[nodiscard]] RopeTable llama3_rope(const Llama3Rope& rope, int64_t head_dim);

}  // namespace nibble::model

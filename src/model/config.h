#pragma once
// What a gpt-oss model is, apart from its weights.

#include "backend/backend.h"
#include "backend/dims.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::model {

using backend::LayerKind;

// YaRN (gpt_oss/torch/model.py, RotaryEmbedding).
struct RopeConfig {
  double theta = 150000, factor = 32;
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
  std::vector<int64_t> layer_experts;  // experts_of
  // Token ids as the checkpoint's files give them; OpenAI's original/ gives none.
  std::optional<int32_t> bos_id, pad_id;
  std::vector<int32_t> eos_ids;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  [[nodiscard]] int64_t layers_of(LayerKind kind) const {
    return std::count(layer_kinds.begin(), layer_kinds.end(), kind);
  }
  // Keys that all layers together keep of a sequence.
  [[nodiscard]] int64_t keys_of(int64_t context) const;
};

// What layers may differ in.
struct LayerConfig {
  int64_t window = 0;  // keys that it sees; 0: all
  int64_t experts = 0;
};
[[nodiscard]] std::vector<LayerConfig> layers_of(const ModelConfig& config);
// Sets what of a configuration follows from its layers. Throws Error(kUnsupported), naming `where`, for more windows
// than there are kinds of layers.
void set_layers(ModelConfig& config, std::span<const LayerConfig> layers, std::string_view where);

// Even layers slide, odd layers see everything (gpt_oss/torch/model.py, AttentionBlock).
[[nodiscard]] std::vector<LayerKind> alternating_layers(int64_t layers);

// Whose names a file uses: Hugging Face's config.json, OpenAI's own (original/config.json), llama.cpp's GGUF.
enum class Naming : uint8_t { kHuggingFace, kOriginal, kGguf };

// One number of a configuration: its names, by Naming, and its range. What reads or writes one, and validate(), walk
// the list below.
struct ConfigField {
  std::variant<int64_t backend::Dims::*, int64_t RopeConfig::*, double RopeConfig::*, float ModelConfig::*> member;
  std::array<std::string_view, 3> names;  // empty: the file does not say it
  double least, most;                     // far above any gpt-oss, and far below what could overflow a product of a few
  bool has_usual = false;                 // a file may leave it out, and means ModelConfig's; OpenAI's own never does

  [[nodiscard]] bool is_integer() const { return member.index() < 2; }
  [[nodiscard]] bool is_of_rope() const { return member.index() == 1 || member.index() == 2; }
  [[nodiscard]] double of(const ModelConfig& config) const;
  void set(ModelConfig& config, double value) const;
};

// In the order of GGUF's metadata.
inline constexpr auto kConfigFields = [] {
  using D = backend::Dims;
  using R = RopeConfig;
  using M = ModelConfig;
  constexpr double kMostDim = 1 << 20, kMostContext = 1 << 24;
  return std::to_array<ConfigField>({
      {&D::layers, {"num_hidden_layers", "num_hidden_layers", "gpt-oss.block_count"}, 1, 1024},
      {&D::max_context, {"max_position_embeddings", "", "gpt-oss.context_length"}, 1, kMostContext},
      {&D::hidden, {"hidden_size", "hidden_size", "gpt-oss.embedding_length"}, 1, kMostDim},
      {&D::inter, {"intermediate_size", "intermediate_size", "gpt-oss.expert_feed_forward_length"}, 1, kMostDim},
      {&D::experts, {"num_local_experts", "num_experts", "gpt-oss.expert_count"}, 1, 65536},
      {&D::topk, {"num_experts_per_tok", "experts_per_token", "gpt-oss.expert_used_count"}, 1, 1024},
      {&D::heads, {"num_attention_heads", "num_attention_heads", "gpt-oss.attention.head_count"}, 1, 4096},
      {&D::kv_heads, {"num_key_value_heads", "num_key_value_heads", "gpt-oss.attention.head_count_kv"}, 1, 4096},
      {&D::head_dim, {"head_dim", "head_dim", "gpt-oss.attention.key_length"}, 1, 4096},
      {&M::rms_eps, {"rms_norm_eps", "", "gpt-oss.attention.layer_norm_rms_epsilon"}, 1e-12, 1e-1},
      {&D::sliding_window, {"sliding_window", "sliding_window", "gpt-oss.attention.sliding_window"}, 1, kMostContext},
      {&R::theta, {"rope_theta", "rope_theta", "gpt-oss.rope.freq_base"}, 1.5, 1e12},
      {&R::factor, {"factor", "rope_scaling_factor", "gpt-oss.rope.scaling.factor"}, 1, 1e6},
      {&R::original_context,
       {"original_max_position_embeddings", "initial_context_length", "gpt-oss.rope.scaling.original_context_length"},
       1,
       kMostContext},
      {&R::beta_fast, {"beta_fast", "rope_ntk_beta", "gpt-oss.rope.scaling.yarn_beta_fast"}, 1e-3, 1e6, true},
      {&R::beta_slow, {"beta_slow", "rope_ntk_alpha", "gpt-oss.rope.scaling.yarn_beta_slow"}, 1e-3, 1e6, true},
      {&D::vocab, {"vocab_size", "vocab_size", "tokenizer.ggml.tokens"}, 1, 1 << 24},  // GGUF: counted
      {&M::swiglu_limit, {"swiglu_limit", "swiglu_limit", ""}, 1e-3, 1e6, true},
  });
}();
template <class T, class Owner>
[[nodiscard]] constexpr const ConfigField& field_of(T Owner::* member) {
  size_t at = 0;
  while (kConfigFields[at].member != decltype(ConfigField::member)(member)) ++at;
  return kConfigFields[at];
}
// What is no number, by Naming.
inline constexpr std::array<std::string_view, 3> kLayerKindsNames = {"layer_types", "",
                                                                     "gpt-oss.attention.sliding_window_pattern"},
                                                 kBosNames = {"bos_token_id", "", "tokenizer.ggml.bos_token_id"},
                                                 kPadNames = {"pad_token_id", "", "tokenizer.ggml.padding_token_id"},
                                                 kEosNames = {"eos_token_id", "", "tokenizer.ggml.eos_token_id"};

// Throws Error(kCorrupt) for values that are out of range or contradict each other, and Error(kUnsupported) for shapes
// that the formats or kernels cannot hold. Each message names `where`, the value by `naming`, and what was found.
void validate(const ModelConfig& config, std::string_view where = "the model", Naming naming = Naming::kHuggingFace);

// `config` with its first `layers` layers only. Throws Error(kInvalidRequest) unless 1 <= layers <= config's.
[[nodiscard]] ModelConfig truncated(const ModelConfig& config, int64_t layers);

[[nodiscard]] ModelConfig gpt_oss_20b();
[[nodiscard]] ModelConfig gpt_oss_120b();
// nvidia's: 120b with fewer experts in late layers and windows in some that had none.
[[nodiscard]] ModelConfig gpt_oss_puzzle_88b();
// Has every feature of the large models in 54 MB, nearly all of it embeddings, since it has their vocabulary.
[[nodiscard]] ModelConfig tiny();
// "gpt-oss-20b", "gpt-oss-120b", "gpt-oss-puzzle-88b", "tiny"; throws Error(kInvalidRequest) listing them for another
// name.
[[nodiscard]] ModelConfig preset(std::string_view name);
// "gpt-oss:20b" or "gpt-oss:120b", if it has the layers and experts of that model; else empty.
[[nodiscard]] std::string_view ollama_name(const ModelConfig& config);

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

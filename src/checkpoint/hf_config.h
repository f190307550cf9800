#pragma once
// config.json and generation_config.json of a gpt-oss checkpoint as typed, range-checked values. Two spellings exist:
// Hugging Face's (model_type gpt_oss) and OpenAI's own (original/config.json; gpt_oss/torch/model.py, ModelConfig).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::checkpoint {

enum class Naming : uint8_t { kHuggingFace, kOriginal };

struct HfConfig {
  std::string where;  // as parse_hf_config was told
  Naming naming = Naming::kHuggingFace;
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t vocab_size = 0;
  int64_t sliding_window = 0;
  int64_t max_position_embeddings = 0;

  double rms_norm_eps = 0;
  double swiglu_limit = 0;
  double rope_theta = 0;
  double rope_factor = 0;
  double rope_beta_fast = 0;
  double rope_beta_slow = 0;
  int64_t rope_original_context = 0;
  bool rope_truncate = false;

  std::optional<std::vector<bool>> layer_is_sliding;  // when the file lists layer_types

  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;
  std::vector<int64_t> eos_token_ids;  // generation_config.json's, else config.json's; may be empty

  std::vector<std::string> notes;  // what the user should know about the file, one line each
};

// Throws Error(kUnsupported) for another model, or a variant that nothing here computes, and Error(kCorrupt) for a
// missing key, a wrong type or a value out of range. Each message names `where`, the key and the value.
[[nodiscard]] HfConfig parse_hf_config(std::string_view text, std::string_view where);

// Replaces the token ids of `config` with those of generation_config.json; same errors. Its other keys say how to
// sample, which is up to requests here.
void apply_generation_config(std::string_view text, std::string_view where, HfConfig& config);

// Reads config.json and, where it exists, generation_config.json; also Error(kIo).
[[nodiscard]] HfConfig read_hf_config(const std::filesystem::path& directory);

}  // namespace nibble::checkpoint

#pragma once
// config.json and generation_config.json of a gpt-oss checkpoint. Two spellings exist: Hugging Face's (model_type
// gpt_oss, or gpt_oss_puzzle for layers that differ) and OpenAI's own (original/config.json; gpt_oss/torch/model.py,
// ModelConfig).

#include "model/config.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::model {

struct HfConfig {
  ModelConfig config;
  std::vector<std::string> notes;  // what the user should know about the file, one line each
};

// Throws Error(kUnsupported) for another model, or a variant that nothing here computes, and Error(kCorrupt) for a
// missing key, a wrong type or a value out of range, and what validate() throws. Each message names `where`, the key
// and the value.
[[nodiscard]] HfConfig parse_hf_config(std::string_view text, std::string_view where);

// Replaces the token ids of `config` with those of generation_config.json; same errors. Its other keys say how to
// sample, which is up to requests here.
void apply_generation_config(std::string_view text, std::string_view where, ModelConfig& config);

// Reads config.json and, where it exists, generation_config.json; also Error(kIo).
[[nodiscard]] HfConfig read_hf_config(const std::filesystem::path& directory);

}  // namespace nibble::model

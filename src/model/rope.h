#pragma once
// YaRN: rotary frequencies stretched for contexts past the one the model was first trained on.

#include "model/config.h"

#include <vector>

namespace nibble::model {

struct RopeTable {
  std::vector<float> inv_freq;  // [head_dim / 2], radians per position
  float concentration = 1.0f;   // multiplies both cos and sin, at every position
};

// openai/gpt-oss torch/model.py RotaryEmbedding; rounded to float where it and transformers round.
[[nodiscard]] RopeTable make_rope_table(const RopeConfig& rope, int head_dim);

}  // namespace nibble::model

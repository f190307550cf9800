#pragma once
// Rotary frequencies: by what angle each pair of dimensions rotates, per position.

#include "model/config.h"

#include <cstdint>
#include <vector>

namespace nibble::model {

struct RopeTable {
  std::vector<float> inv_freq;  // [head_dim / 2], radians per position
  float concentration = 1.0f;   // multiplies both cos and sin, at every position
};

[[nodiscard]] RopeTable plain_rope(double theta, int64_t head_dim);

// YaRN: stretched for contexts past the one the model was first trained on (openai/gpt-oss torch/model.py,
// RotaryEmbedding); rounded to float where it and transformers round.
[[nodiscard]] RopeTable yarn_rope(const RopeConfig& rope, int64_t head_dim);

// Llama 3's stretching: waves of fewer than low_rotations in the original context are slowed by the factor,
// those of more than high_rotations are kept (transformers/modeling_rope_utils.py, _compute_llama3_parameters).
struct Llama3Rope {
  double theta = 500000, factor = 8, low_rotations = 1, high_rotations = 4;
  int64_t original_context = 8192;
};
[[nodiscard]] RopeTable llama3_rope(const Llama3Rope& rope, int64_t head_dim);

}  // namespace nibble::model

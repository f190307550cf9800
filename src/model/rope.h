#pragma once
// Rotary frequencies: the angle by which each pair of dimensions rotates, per position.

#include "model/config.h"

#include <cstdint>
#include <vector>

namespace nibble::model {

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

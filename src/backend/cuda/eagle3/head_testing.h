#pragma once
// An EAGLE-3 head of random weights, for tests and benches. No CUDA.

#include "backend/draft_head.h"
#include "base/dtype.h"

#include <cmath>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

// Of published heads of gpt-oss: a layer, three taps.
inline constexpr HeadDims kEagle3Of120b = {.hidden = 2880,
                                           .target_hidden = 2880,
                                           .taps = 3,
                                           .heads = 64,
                                           .kv_heads = 8,
                                           .head_dim = 64,
                                           .inter = 17280,
                                           .vocab = 201088,
                                           .draft_vocab = 32000};

struct RandomHead {
  explicit RandomHead(const HeadDims& dims) {
    weights.dims = dims;
    const int64_t hidden = dims.hidden, taps = dims.taps * dims.target_hidden;
    weights.fc = matrix(hidden, taps);
    HeadLayer layer;
    layer.input_norm = norm(hidden), layer.hidden_norm = norm(hidden), layer.post_attention_norm = norm(hidden);
    layer.q = matrix(dims.heads * dims.head_dim, 2 * hidden);
    layer.k = matrix(dims.kv_heads * dims.head_dim, 2 * hidden);
    layer.v = matrix(dims.kv_heads * dims.head_dim, 2 * hidden);
    layer.o = matrix(hidden, dims.heads * dims.head_dim);
    layer.gate = matrix(dims.inter, hidden), layer.up = matrix(dims.inter, hidden);
    layer.down = matrix(hidden, dims.inter);
    weights.layers.push_back(layer);
    weights.norm = norm(hidden);
    weights.embedding = matrix(dims.vocab, hidden);
    weights.lm_head = matrix(dims.draft_vocab, hidden);
    if (dims.vocab != dims.draft_vocab) {
      for (int64_t i = 0; i < dims.draft_vocab; ++i)
        weights.target_ids.push_back(static_cast<int32_t>(i * dims.vocab / dims.draft_vocab));
    }
    for (int64_t i = 0; i < dims.head_dim / 2; ++i)
      weights.rope_inv_freq.push_back(
          std::pow(150000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(dims.head_dim)));
    weights.rms_eps = 1e-5;
  }
  RandomHead(const RandomHead&) = delete;
  RandomHead& operator=(const RandomHead&) = delete;

  // Uniform in [-1, 1).
  float value() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state_ >> 40) * 0x1p-23f - 1.0f;
  }
  std::vector<float> floats(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& each : values) each = value();
    return values;
  }

  HeadWeights weights;

 private:
  // Sums of as many products as columns stay near 1 in size.
  HeadMatrix matrix(int64_t rows, int64_t cols) {
    std::vector<Bf16>& values = storage_.emplace_back(static_cast<size_t>(rows * cols));
    const float size = std::sqrt(3.0f / static_cast<float>(cols));
    for (Bf16& each : values) each = Bf16::from_float(size * value());
    return {.values = {.dtype = DType::kBf16, .shape = {rows, cols}, .bytes = std::as_bytes(std::span(values))},
            .bias = {}};
  }
  std::vector<float> norm(int64_t width) {
    std::vector<float> values = floats(width);
    for (float& each : values) each = 1.0f + 0.25f * each;
    return values;
  }

  uint64_t state_ = 1;
  std::deque<std::vector<Bf16>> storage_;
};

}  // namespace nibble::backend::cuda

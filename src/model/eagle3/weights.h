#pragma once
// An EAGLE-3 head as it is published: config.json and model.safetensors in a directory. A head is a small Llama that
// reads the target's residuals and drafts what comes next.

#include "backend/weights.h"
#include "base/tensor.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/eagle3_config.h"
#include "model/config.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace nibble::model::eagle3 {

// Rows of bf16, f16 or f32 where they lie.
struct Matrix {
  RawTensor values;         // [rows, cols]
  std::vector<float> bias;  // [rows]; empty: none

  [[nodiscard]] int64_t rows() const { return values.shape[0]; }
  [[nodiscard]] int64_t cols() const { return values.shape[1]; }
  // Copies a row, as floats, to out [cols].
  void decode(int64_t row, float* out) const;
};

struct Layer {
  std::vector<float> input_norm, hidden_norm, post_attention_norm;  // [hidden]; hidden_norm: of layer 0 only
  Matrix q, k, v;  // [heads or kv_heads * head_dim, 2 * hidden in layer 0, else hidden]
  Matrix o;        // [hidden, heads * head_dim]
  Matrix gate, up, down;
};

struct Weights {
  checkpoint::Eagle3Config config;
  std::vector<int> boundaries;                  // of the target's residuals that it reads (model/gpt_oss.h: Taps)
  std::optional<checkpoint::Checkpoint> files;  // what matrices point into
  std::optional<Matrix> fc;                     // [hidden, taps * target hidden]; none: it reads the last state
  std::vector<std::vector<float>> tap_norms;    // one of all taps together, one for each, or none at all
  std::vector<float> target_norm;               // the target's final one, where there is no fc
  float target_eps = 0;
  std::vector<Layer> layers;
  std::vector<float> norm;
  Matrix embedding;                 // [vocab, hidden]
  Matrix lm_head;                   // [draft vocab, hidden]
  std::vector<int32_t> target_ids;  // [draft vocab] what a row of lm_head is to the target; empty: the same
};

using checkpoint::TapReading;

// The boundaries that `config` means of a target with so many layers. Throws Error(kCorrupt) where there is none such.
[[nodiscard]] std::vector<int> boundaries_of(const checkpoint::Eagle3Config& config, int64_t layers,
                                             TapReading reading);

// What the head is for. A head without embedding or lm_head uses the target's; the bytes live as long as the head.
struct Target {
  const ModelConfig& config;
  std::span<const backend::HostWeight> weights;
};

// Throws what read_eagle3_config() and Checkpoint::open() throw, Error(kCorrupt) for a tensor that is missing, of the
// wrong shape or type or not of such a head, naming it, and for a head of another target; Error(kUnsupported) for a
// target whose shared tensors are quantised.
[[nodiscard]] Weights load(const std::filesystem::path& directory, const Target& target, TapReading reading);

}  // namespace nibble::model::eagle3

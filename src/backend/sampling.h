#pragma once
// What sampling means, for every backend; and the host's implementation of it.
//
// From a row of logits, in this order (vLLM's, v1/sample/sampler.py):
//   logprobs taken → what the mask forbids is dropped → logit_bias added → repetition penalty (prompt and output) →
//   presence and frequency penalty (output only) → temperature below kGreedyBelow: the largest logit, lowest id on a
//   tie → else logits / temperature → min_p (keep p >= min_p * p_max) → top_k → top_p (smallest set of the largest with
//     sum >= top_p, ties with the last one by lower id) → draw.
// The draw is the Gumbel maximum over what is kept: argmax(logit/T - log(-log(u))), u = philox(seed; id, position), so
// a token depends on its own row, seed and position only: not on neighbours, batch shape or the order of a sum.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nibble::backend {

inline constexpr float kGreedyBelow = 1e-6f;  // logits divided by less could leave the floats
inline constexpr float kMaxTemperature = 100;

struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy; at most kMaxTemperature
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  int top_k = 0;                    // 0: all
  float repetition_penalty = 1.0f;  // > 0; divides positive and multiplies negative logits of tokens seen
  float presence_penalty = 0.0f;    // [-2, 2]
  float frequency_penalty = 0.0f;   // [-2, 2]
  std::vector<std::pair<int32_t, float>> logit_bias{};  // token id, bias in [-100, 100]
  uint64_t seed = 0;

  // What was drawn before counts.
  [[nodiscard]] bool counts_tokens() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

// Throws Error(kInvalidRequest) naming the first field out of range; vocab bounds the ids of logit_bias.
void validate(const SamplingParams& params, int64_t vocab);

struct SampleRow {
  const SamplingParams* params = nullptr;
  int64_t position = 0;               // of the token to be drawn
  std::span<const int32_t> prompt{};  // both may be empty when no penalty is set
  std::span<const int32_t> output{};
  std::span<const uint32_t> mask{};  // bit t % 32 of word t / 32: token t may be drawn; empty: all may
  int logprobs = -1;                 // -1: none; n: of the token and of the n likeliest
  int32_t given = -1;                // >= 0: nothing is drawn, this is the token (for its logprobs)
};

// Throws Error(kCorrupt) when a row of logits holds NaN or infinity: the model's weights do.
void check_logits(std::span<const float> logits);

// The drawing alone: no mask, no logprobs. REQUIRES that no logit is NaN or +infinity and one is finite.
[[nodiscard]] int32_t sample_row(std::span<float> logits, const SampleRow& row);

}  // namespace nibble::backend

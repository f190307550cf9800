#pragma once
// What sample() makes of a row of logits beyond sampling.h: masks, log probabilities, a row's own failure; and the
// host's implementation of it. Apart from sampling.h because device code reads that one, and errors bring in fmt.

#include "backend/sampling.h"
#include "base/error.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace nibble::backend {

// Natural logarithms of the softmax of the logits as the model gave them, before every parameter and mask.
struct Logprob {
  int32_t token = 0;
  double value = 0;
};
struct TokenLogprobs {
  double value = 0;          // of the token itself
  std::vector<Logprob> top;  // likeliest first, lower id first on a tie
};

// What became of one row. A failure is the row's own: the rows beside it are drawn.
struct DrawnToken {
  int32_t token = -1;  // -1: none, `error` says why
  std::optional<TokenLogprobs> logprobs{};
  std::optional<Error> error{};
};

// The errors a row can have. kCorrupt: its logits hold NaN or infinity; kInvalidRequest: its mask allows no token.
[[nodiscard]] Error not_finite(std::string_view found);
[[nodiscard]] Error nothing_allowed(int64_t position);

// REQUIRES finite logits and 0 <= token < vocab.
[[nodiscard]] TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int top);

// One row on the host: mask, logprobs and all of sampling.h. Changes logits [vocab]; errors are in the result.
[[nodiscard]] DrawnToken draw(std::span<float> logits, const SampleRow& row);

}  // namespace nibble::backend

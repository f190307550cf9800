#pragma once
// What the engine is asked and what it answers. Token ids only: text is another room's.

#include "backend/sampling.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace nibble::engine {

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 0;       // most tokens to generate
  backend::SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // generation ends after one of these; it is delivered
};

enum class FinishReason : uint8_t { kStop, kLength, kContext, kCancelled };

[[nodiscard]] constexpr std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";            // a stop id
    case FinishReason::kLength: return "length";        // max_tokens reached
    case FinishReason::kContext: return "context";      // no room left in the KV cache
    case FinishReason::kCancelled: return "cancelled";  // the receiver said so
  }
  return "?";
}

struct Finished {
  FinishReason reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, not computed again
  int64_t generated_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // from the first token on
};

}  // namespace nibble::engine

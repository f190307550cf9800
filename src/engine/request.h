#pragma once
// What the engine is asked and what it answers. Token ids only: text is another room's.

#include "backend/draw.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::engine {

using RequestId = uint64_t;
inline constexpr int kMaxLogprobs = 20;  // likeliest tokens per position (OpenAI's top_logprobs has the same bound)

// Which tokens may come next, decided from what was drawn: a grammar, seen from here. Used on the engine's thread only;
// what its functions throw fails the request.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets bit t % 32 of word t / 32 where token t may come, clears the others. False: all may, nothing was written.
  virtual bool fill(std::span<uint32_t> mask) = 0;
  virtual void accept(int32_t token) = 0;  // was drawn
  // The last so many accepted tokens, at most kMostUndone, were not drawn after all.
  virtual void undo(int tokens) = 0;
  static constexpr int kMostUndone = 32;
};

struct Request {
  std::vector<int32_t> prompt{};  // at least one token
  int64_t max_tokens = 0;         // most tokens to generate
  int64_t min_tokens = 0;         // before that many, stop_ids are not drawn
  backend::SamplingParams sampling{};
  std::vector<int32_t> stop_ids{};    // generation ends after one of these; it is delivered
  int logprobs = -1;                  // -1: none; n: of the drawn token and of the n likeliest
  int prompt_logprobs = -1;           // the same for the prompt's tokens after the first (echo)
  std::shared_ptr<TokenMask> mask{};  // null: none
  int64_t priority = 0;               // a lower one goes first
  bool prefix_cache = true;           // false: takes nothing from it and leaves nothing there
  bool leaves_prefix = true;          // false: takes from it, and leaves there what it took and nothing of its own
};

using backend::kMaxTemperature;
using backend::Logprob;
using backend::TokenLogprobs;

struct TokenEvent {
  int32_t token = 0;
  bool of_prompt = false;  // from the second prompt token on, before the generated ones; with prompt_logprobs only
  std::optional<TokenLogprobs> logprobs{};
};

enum class FinishReason : uint8_t { kStop, kLength, kContext, kCancelled, kFailed };

[[nodiscard]] constexpr std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";            // a stop id
    case FinishReason::kLength: return "length";        // max_tokens reached
    case FinishReason::kContext: return "context";      // no room left in the KV cache
    case FinishReason::kCancelled: return "cancelled";  // the receiver said so
    case FinishReason::kFailed: return "failed";        // the backend failed: Finished::message
  }
  return "?";
}

struct Finished {
  FinishReason reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, not computed again
  int64_t generated_tokens = 0;
  int64_t drafted_tokens = 0;  // guesses that were verified, and of them those that were drawn
  int64_t accepted_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // from the first token on
  double queue_seconds = 0;   // before its first step
  Code code{};                // kFailed: of what kind, and what happened
  std::string message{};
};

using Event = std::variant<TokenEvent, Finished>;
using Receiver = std::function<void(const Event&)>;

}  // namespace nibble::engine

#pragma once
// What the engine is asked and what it answers. Token ids only: text is another room's work.

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

// Decides which tokens may come next, given what was drawn: a grammar, as the engine sees it. Used on the engine's
// thread only. An exception from it fails the request.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets bit t % 32 of word t / 32 if token t may come, and clears the others. False: all may, and nothing was written.
  virtual bool fill(std::span<uint32_t> mask) = 0;
  virtual void accept(int32_t token) = 0;
  // What comes where `drawn` was drawn, or guessed: it, or another token in its place. Accepts that.
  virtual int32_t take(int32_t drawn) {
    accept(drawn);
    return drawn;
  }
  // Takes back the last `tokens` accepted tokens, at most kMostUndone.
  virtual void undo(int tokens) = 0;
  static constexpr int kMostUndone = 32;
  // Whether take() led to the end, so that it came within max_tokens.
  [[nodiscard]] virtual bool cut() const { return false; }
};

struct Request {
  std::vector<int32_t> prompt{};  // at least one token
  int64_t max_tokens = 0;         // most tokens to generate
  int64_t min_tokens = 0;         // stop_ids are not drawn before this many tokens
  backend::SamplingParams sampling{};
  std::vector<int32_t> stop_ids{};    // generation ends after one of these; it is delivered
  int logprobs = -1;                  // -1: none; n: of the drawn token and of the n likeliest
  int prompt_logprobs = -1;           // the same for the prompt's tokens after the first (echo)
  std::shared_ptr<TokenMask> mask{};  // null: none
  int64_t priority = 0;               // a lower one goes first
  bool progress = false;              // tells PromptProgress
  bool prefix_cache = true;           // false: takes nothing from it and leaves nothing in it
  bool leaves_prefix = true;          // false: takes from it, and leaves in it what it took but nothing of its own
};

using backend::kMaxTemperature;
using backend::Logprob;
using backend::TokenLogprobs;

struct TokenEvent {
  int32_t token = 0;
  bool of_prompt =
      false;  // for a prompt token, from the second on; before the generated ones, and only with prompt_logprobs
  std::optional<TokenLogprobs> logprobs{};
};

// After each step that reads the prompt, before its first token.
struct PromptProgress {
  int64_t done = 0, total = 0;  // tokens
  int64_t cached = 0;           // of those done, not computed again
};

enum class FinishReason : uint8_t { kStop, kLength, kContext, kCancelled, kFailed };

[[nodiscard]] constexpr std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";            // a stop id
    case FinishReason::kLength: return "length";        // max_tokens reached, or ended because of it (TokenMask::cut)
    case FinishReason::kContext: return "context";      // no room left in the KV cache
    case FinishReason::kCancelled: return "cancelled";  // the receiver or a caller said so
    case FinishReason::kFailed: return "failed";        // see Finished::message
  }
  return "?";
}

struct Finished {
  FinishReason reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, not computed again
  int64_t generated_tokens = 0;
  int64_t drafted_tokens = 0;  // guesses that were verified, and how many of them were drawn
  int64_t accepted_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;  // from the first token on
  double queue_seconds = 0;   // before its first step
  Code code{};                // kFailed: the kind of error, and what happened
  std::string message{};
};

using Event = std::variant<TokenEvent, PromptProgress, Finished>;
using Receiver = std::function<void(const Event&)>;

}  // namespace nibble::engine

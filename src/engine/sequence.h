#pragma once
// One request while it is served. Its lengths follow from what it holds.

#include "engine/draft_controller.h"
#include "engine/pages.h"
#include "engine/proposer.h"
#include "engine/request.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nibble::engine {

struct Sequence {
  using Time = std::chrono::steady_clock::time_point;

  Sequence(RequestId of, Request what, Receiver who, Time now)
      : id(of),
        request(std::move(what)),
        receiver(std::move(who)),
        tokens(std::move(request.prompt)),
        prompt_count(static_cast<int64_t>(tokens.size())),
        submitted(now) {}

  RequestId id;
  Request request;  // its prompt has moved to `tokens`
  Receiver receiver;
  std::vector<int32_t> tokens;  // the prompt, then what was drawn and read
  int64_t prompt_count;

  SequencePages pages;
  int64_t computed = 0;  // tokens whose keys and values are in the cache, or will be once the enqueued steps have run
  int pending = 0;       // tokens drawn by steps in flight and not read yet, not counting those after guesses; at
                         // most 1 when a step is scheduled
  int32_t pending_row = 0;  // its row of that step's logits
  int64_t scored = 0;       // prompt tokens whose successor's logprobs are delivered or enqueued
  int steps_in_flight = 0;
  bool ended = false;  // Finished was sent; it stays only until the steps in flight are read

  // Guesses of the tokens after those known, which the step that is scheduled or in flight verifies; and the masks of
  // its draws: one more than guesses, an empty one for none.
  Draft draft;
  std::vector<std::vector<uint32_t>> masks;
  DraftRates draft_rates;
  int right = 0;                      // guesses of the step that is being read that were drawn
  bool waits = false;                 // a draft is in flight, or is to be made once what is in flight is read
  int64_t drafted = 0, accepted = 0;  // guesses so far
  bool draft_reads = false;           // who drafts has begun to read the text, and will read it to its end

  Time submitted, started{}, first_token{};
  bool running = false;  // has a seat and pages
  int passed = 0;        // others that were admitted before it while it was its turn
  int64_t from_cache =
      0;               // tokens that the prefix cache gave it; while it waits: that it would give, when last checked
  int64_t cached = 0;  // prompt tokens from the cache when it began

  [[nodiscard]] std::span<const int32_t> prompt() const {
    return std::span(tokens).first(static_cast<size_t>(prompt_count));
  }
  [[nodiscard]] std::span<const int32_t> output() const {
    return std::span(tokens).subspan(static_cast<size_t>(prompt_count));
  }
  // Tokens that are known and computed, at the latest by enqueued steps, and that the prefix cache may keep.
  [[nodiscard]] std::span<const int32_t> settled() const {
    if (!request.prefix_cache) return {};
    int64_t most = std::min(computed, static_cast<int64_t>(tokens.size()));
    if (!request.leaves_prefix) most = std::min(most, from_cache / backend::kPageTokens * backend::kPageTokens);
    return std::span(tokens).first(static_cast<size_t>(most));
  }
  // What the prefix cache may give it: not the tokens to be computed for its logprobs, nor the last one, after which a
  // token is drawn.
  [[nodiscard]] std::span<const int32_t> skippable() const {
    if (!request.prefix_cache) return {};
    const auto known = static_cast<int64_t>(tokens.size());
    return std::span(tokens).first(static_cast<size_t>(scored < to_score() ? scored : known - 1));
  }
  // Prompt tokens whose successor's logprobs were asked for.
  [[nodiscard]] int64_t to_score() const { return request.prompt_logprobs < 0 ? 0 : prompt_count - 1; }
  // The next draw depends on tokens drawn before, so the host has to see them first.
  [[nodiscard]] bool needs_host() const { return request.mask != nullptr || request.sampling.counts_tokens(); }
  // Its next step needs a token that a step in flight draws.
  [[nodiscard]] bool waits_for_token() const { return pending > 0 && (waits || needs_host()); }
  // Tokens that can be computed now.
  [[nodiscard]] int64_t remaining(int64_t max_context) const {
    if (request.max_tokens == 0) return prompt_count - 1 - computed;
    if (waits_for_token()) return 0;
    const int64_t length = static_cast<int64_t>(tokens.size()) + pending;
    if (length - prompt_count >= request.max_tokens || length >= max_context) return 0;
    return length - computed;
  }
};

}  // namespace nibble::engine

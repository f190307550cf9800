#pragma once
// Turns a batch into the model's step.

#include "engine/scheduler.h"
#include "model/gpt_oss.h"

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace nibble::engine {

// What one row of logits is for.
struct LogitUse {
  Sequence* sequence;   // null: dropped
  int64_t scored = -1;  // >= 0: for the logprobs of this prompt token's successor; otherwise to draw the next token
  int32_t after = 0;  // it follows this many guesses of the sequence's draft, and counts only if all of them were drawn
  int32_t guess = -1;  // the guess for the drawn token; -1: none
};

class StepBuilder {
 public:
  // Both are valid until the next call. REQUIRES that the batch has rows, and that their sequences do not change until
  // the step is enqueued, since its sample rows point into them.
  struct Result {
    const model::Step& step;
    const std::vector<LogitUse>& uses;  // per row of logits
  };
  // kOneAtLeast: if no row draws, one token is drawn and dropped, so that one can wait for the step's end.
  enum class Draws : uint8_t { kAsked, kOneAtLeast };
  [[nodiscard]] Result build(const Batch& batch, Draws draws = Draws::kAsked);

 private:
  void add_tokens(const Batch::Row& row);
  void add_logits(const Batch::Row& row, int32_t first_token);
  void add_tables(const Batch& batch);

  model::Step step_;
  std::vector<LogitUse> uses_;
  std::deque<std::vector<int32_t>> outputs_;          // with guesses, of sequences whose penalties count them
  backend::SamplingParams greedy_{.temperature = 0};  // of rows that draw nothing
};

// What a step appends to a sequence of `computed` tokens, whose page p is page pages[p] of each kind. A page that is
// only read may stand for several.
struct StepPart {
  std::vector<int32_t> ids;
  int64_t computed = 0;
  std::vector<int32_t> pages{};
};
// Nothing is drawn. For compare, verify and tests.
[[nodiscard]] model::Step step_of(std::span<const StepPart> parts);
// A step of one sequence that has the cache to itself: its page p is page p.
[[nodiscard]] model::Step step_alone(std::span<const int32_t> ids, int64_t computed = 0);

}  // namespace nibble::engine

#pragma once
// Runs one sequence alone on a backend, for tests that compare whole models.

#include "backend/backend.h"
#include "base/random.h"
#include "engine/loop.h"
#include "engine/step_builder.h"
#include "model/gpt_oss.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace nibble::test {

// Token ids that are the same in every run.
inline std::vector<int32_t> prompt_of(size_t tokens, int64_t vocab) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<int32_t>(philox(5, i)[0] % static_cast<uint32_t>(vocab)));
  return ids;
}

struct OneSequence {
  int64_t max_context = 0;
  int chunk_tokens = 0;    // in one step
  int max_logit_rows = 1;  // chunk_tokens for all_logits()
};

// All pages of both kinds, so that steps of step_alone() find theirs.
inline model::StepLimits step_limits(const OneSequence& of) {
  const auto pages = static_cast<int32_t>(engine::pages_for(of.max_context));
  return {.max_tokens = of.chunk_tokens, .max_rows = of.max_logit_rows, .kv_pages = {pages, pages}};
}

inline engine::EngineLimits engine_limits(const OneSequence& of) {
  return {.max_context = of.max_context,
          .max_sequences = 1,
          .max_batched_tokens = of.chunk_tokens,
          .max_logit_rows = of.max_logit_rows,
          .async_scheduling = false};
}

// Logits [tokens, vocab], computed `chunk` tokens at a time. kGuesses: all tokens of a chunk but the first are guesses.
enum class Tokens : uint8_t { kPrompt, kGuesses };
inline std::vector<float> all_logits(backend::Backend& be, const model::GptOss& gpt, std::span<const int32_t> ids,
                                     int chunk, Tokens tokens = Tokens::kPrompt) {
  std::vector<float> all;
  for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(chunk)) {
    const auto part = ids.subspan(at, std::min(ids.size() - at, static_cast<size_t>(chunk)));
    model::Step step = engine::step_alone(part, static_cast<int64_t>(at));
    if (tokens == Tokens::kGuesses) step.rows[0].drafted = static_cast<int32_t>(part.size()) - 1;
    step.logit_tokens.resize(part.size());
    std::iota(step.logit_tokens.begin(), step.logit_tokens.end(), 0);
    model::forward(be, gpt, step);
    const std::vector<float> logits = be.peek(backend::Slot::kLogits).values;
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

struct Output {
  std::vector<int32_t> tokens;
  engine::Finished finished;
};

inline Output generate(engine::Loop& loop, const engine::Request& request) {
  Output out;
  out.finished = loop.serve(request, [&](const engine::TokenEvent& event) {
    out.tokens.push_back(event.token);
    return true;
  });
  return out;
}

}  // namespace nibble::test

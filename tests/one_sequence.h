#pragma once
// Runs one sequence alone on a backend, for tests that compare whole models.

#include "backend/backend.h"
#include "backend/sampling.h"
#include "base/random.h"
#include "engine/loop.h"
#include "engine/step_builder.h"
#include "model/gpt_oss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
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
  return {.max_tokens = of.chunk_tokens, .max_rows = of.max_logit_rows, .kv_pages = {pages, pages, pages}};
}

inline engine::EngineLimits engine_limits(const OneSequence& of) {
  return {.max_context = of.max_context,
          .max_sequences = 1,
          .max_batched_tokens = of.chunk_tokens,
          .target_itl_seconds = std::numeric_limits<double>::infinity(),  // the same chunks in every run
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

// This many rows of one token each, at position 0 of a page of its own. params must outlive the step.
inline model::Step first_tokens(int rows, const backend::SamplingParams& params) {
  model::Step step;
  for (int r = 0; r < rows; ++r) {
    step.token_ids.push_back(r);
    step.positions.push_back(0);
    step.rows.push_back({.first_token = r, .tokens = 1, .context = 1});
    step.logit_tokens.push_back(r);
    step.sample_rows.push_back({.params = &params, .position = 0});
    for (auto& kv : step.kv) {
      kv.pages_per_row = 1;
      kv.slots.push_back(r * backend::kPageTokens);
      kv.page_ids.push_back(r);
    }
  }
  return step;
}

// Tests Backend::copy_page, for every backend.

// Computes `count` tokens at positions `from` and on, in page `page` of both kinds, and returns the logits of the last.
inline std::vector<float> logits_on_page(backend::Backend& be, const model::GptOss& gpt, std::array<int32_t, 3> what) {
  const auto [page, from, count] = what;
  model::Step step;
  step.rows = {{.first_token = 0, .tokens = count, .context = from + count}};
  step.logit_tokens = {count - 1};
  for (int32_t t = 0; t < count; ++t) {
    step.token_ids.push_back((from + t) * 7 % 100);
    step.positions.push_back(from + t);
    for (auto& kv : step.kv) kv.slots.push_back(page * backend::kPageTokens + from + t);
  }
  for (auto& kv : step.kv) {
    kv.pages_per_row = 1;
    kv.page_ids = {page};
  }
  (void)model::forward(be, gpt, step);
  return be.peek(backend::Slot::kLogits).values;
}

// REQUIRES three pages of each kind.
inline void expect_page_copies(backend::Backend& be, const model::GptOss& gpt) {
  (void)logits_on_page(be, gpt, {0, 0, 40});
  for (const auto kind : {backend::LayerKind::kSliding, backend::LayerKind::kFull})
    be.copy_page({.kind = kind, .from = 0, .to = 2});
  (void)logits_on_page(be, gpt, {1, 0, 40});  // the neighbour is left alone
  const std::vector<float> copied = logits_on_page(be, gpt, {2, 40, 3});
  EXPECT_EQ(copied, logits_on_page(be, gpt, {0, 40, 3}));
  EXPECT_EQ(copied, logits_on_page(be, gpt, {1, 40, 3}));
  EXPECT_EQ(copied.at(0), copied.at(0)) << "NaN";
}

}  // namespace nibble::test

#pragma once
// Tests Backend::copy_page, for every backend.

#include "backend/backend.h"
#include "model/gpt_oss.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace nibble {

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

}  // namespace nibble

#pragma once
// A step without a text, for tests of launches and draws.

#include "backend/backend.h"
#include "backend/sampling.h"
#include "model/gpt_oss.h"

namespace nibble::test {

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

}  // namespace nibble::test

#pragma once
// How well a model predicts a text.

#include "app/setup/loaded_model.h"
#include "app/setup/terminal.h"

#include <cmath>
#include <cstdint>
#include <span>

namespace nibble::app {

struct Score {
  double nats = 0;     // -sum of the tokens' log probabilities
  int64_t scored = 0;  // tokens
  [[nodiscard]] double perplexity() const { return std::exp(nats / static_cast<double>(scored)); }
};

struct ScoreArgs {
  const ModelSource& source;
  const ModelOptions& model;     // resolved
  std::span<const int32_t> ids;  // of the text
  int64_t window;  // tokens; each but the first of a window is scored, given those before it in the window
};
// Shows its progress. REQUIRES two tokens in the text and in a window.
[[nodiscard]] Score score(const ScoreArgs& args, Terminal& terminal);

}  // namespace nibble::app

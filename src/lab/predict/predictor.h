#pragma once
// Predicts rows of a benchmark on a card that is not here: the steps of a row, the time of each, and the memory.

#include "app/options/options.h"
#include "app/setup/memory_budget.h"
#include "backend/cuda/card/cards.h"
#include "backend/cuda/program/predict.h"
#include "model/config.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::app {

// As BenchRow's: a prompt of so many tokens, or `batch` sequences that draw one token each, behind `depth` tokens.
struct PredictShape {
  int64_t prompt = 0;
  int batch = 1;
  int64_t depth = 0;

  [[nodiscard]] std::string name() const;  // "pp512", "tg @ d2048, batch 8"
  [[nodiscard]] int64_t tokens() const { return prompt > 0 ? prompt : batch; }
};

// What the engine computes for it, step by step: a prompt in steps of at most `step_tokens`.
[[nodiscard]] std::vector<std::vector<backend::Row>> steps_of(const PredictShape& shape, int64_t step_tokens);

struct PredictedRow {
  PredictShape shape;
  double seconds = 0;
  double limit_seconds = 0;                      // as bench's limit
  std::vector<backend::cuda::NodeTime> nodes{};  // over all steps
  backend::MemoryNeeds needs{};
  MemoryLimit room{};
  int host_layers = 0;  // whose experts stay on the host

  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(shape.tokens()) / seconds; }
  [[nodiscard]] double limit_tokens_per_second() const { return static_cast<double>(shape.tokens()) / limit_seconds; }
  [[nodiscard]] double of_limit() const { return limit_seconds / seconds; }
  [[nodiscard]] bool fits() const { return needs.total() <= room.bytes; }
};

struct Predictor {
  const ModelOptions& options;  // backend cuda; kv, kernels and activations
  const model::ModelConfig& config;
  backend::DenseFormats dense;
  backend::cuda::KnownCard card;
  backend::cuda::PredictArgs::Host host{};  // where the card has no room for all experts
  backend::cuda::KnownLink
      link{};  // between several ranks (options.run.ranks); a row is the first rank's, which has the most work

  // Throws Error(kInvalidRequest) for a shape beyond the model's context, and what make_program() and predict_step()
  // throw.
  [[nodiscard]] PredictedRow row(const PredictShape& shape) const;

 private:
  // With so many layers' experts on the host.
  [[nodiscard]] backend::MemoryNeeds needs(const PredictShape& shape, int host_layers) const;
};

// The output of `nibble predict`. Pure.

// A row as --json prints it; the table is made of it.
[[nodiscard]] nlohmann::ordered_json json_of(const PredictedRow& row);
// What the figures of such a result rest on, a line each. `link`: between its ranks.
[[nodiscard]] std::vector<std::string> assumptions(const nlohmann::ordered_json& result,
                                                   const backend::cuda::KnownCard& card,
                                                   const backend::cuda::KnownLink& link);
[[nodiscard]] std::string predict_markdown(const nlohmann::ordered_json& result);

}  // namespace nibble::app

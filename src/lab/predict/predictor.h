#pragma once
// Predicts rows of a benchmark on a card that is not here: the steps of a row, the time of each, and the memory.

#include "app/setup/memory_budget.h"
#include "app/options/options.h"
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

struct PredictedRow {
  PredictShape shape;
  double seconds = 0;
  double limit_seconds = 0;                      // as bench's limit
  std::vector<backend::cuda::NodeTime> nodes{};  // over all steps
  backend::MemoryNeeds needs{};
  MemoryLimit room{};

  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(shape.tokens()) / seconds; }
  [[nodiscard]] double limit_tokens_per_second() const { return static_cast<double>(shape.tokens()) / limit_seconds; }
  [[nodiscard]] double of_limit() const { return limit_seconds / seconds; }
  [[nodiscard]] bool fits() const { return needs.total() <= room.bytes; }
  // The kernel that loses the most time against the card's reads and matrix peak. REQUIRES: a step.
  [[nodiscard]] const backend::cuda::NodeTime& farthest() const;
};

struct Predictor {
  const ModelOptions& options;  // backend cuda; kv, kernels and activations
  const model::ModelConfig& config;
  backend::DenseFormats dense;
  backend::cuda::KnownCard card;
  backend::cuda::KnownLink
      link{};  // between several ranks (options.run.ranks); a row is the first rank's, which has the most work

  // Throws Error(kInvalidRequest) for a shape beyond the model's context, and what make_program() and predict_step()
  // throw.
  [[nodiscard]] PredictedRow row(const PredictShape& shape) const;

 private:
  [[nodiscard]] backend::MemoryNeeds needs(const PredictShape& shape) const;
};

// The output of `nibble predict`: tables, and the assumptions behind them. Pure.

// One choice of weights, and its rows.
struct PredictedTable {
  std::string weights;  // "experts MXFP4, the rest bf16 (exact)"
  int64_t weight_bytes = 0;
  std::vector<PredictedRow> rows;
  nlohmann::ordered_json ranks = {};  // what each holds (rank_memory.h), if there are several
};

struct Prediction {
  std::string model;
  backend::cuda::KnownCard card;
  std::string kernels;              // "sm90, neutral"
  int ranks = 1;                    // cards that share a step
  backend::cuda::KnownLink link{};  // between them
  std::string kv_cache;
  int step_tokens = 0;
  std::vector<PredictedTable> tables;
};

// What the figures rest on, a line each.
[[nodiscard]] std::vector<std::string> assumptions(const Prediction& prediction);
[[nodiscard]] std::string predict_markdown(const Prediction& prediction);
[[nodiscard]] nlohmann::ordered_json predict_json(const Prediction& prediction);

}  // namespace nibble::app

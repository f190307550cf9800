#pragma once
// The output of `nibble predict`: tables, and the assumptions behind them. Pure.

#include "app/predictor.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::app {

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

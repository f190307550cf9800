#pragma once
// A step's arguments on their way to another rank.

#include "backend/args.h"
#include "backend/backend.h"
#include "backend/ranks/frames.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend {

// The body of a kStep frame, without weights and sample rows: a rank has its own, and draws nothing.
[[nodiscard]] std::vector<std::byte> written(const StepArgs& step);

// Throws Error(kCorrupt) for what is no step of the configuration.
struct ReceivedStep {
  ReceivedStep() = default;
  ReceivedStep(BodyReader& in, const BackendConfig& config);

  [[nodiscard]] StepArgs args(const Weights& weights) const;  // as long as this lives

  std::vector<int32_t> ids, positions;
  std::array<std::vector<int32_t>, kLayerKinds> kv_slots, page_ids;
  std::array<int32_t, kLayerKinds> pages_per_row{};
  std::vector<Row> rows;
  std::vector<int32_t> logit_tokens;
  bool sinks = true;
};

}  // namespace nibble::backend

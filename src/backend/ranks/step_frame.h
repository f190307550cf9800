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

// The body of a kRun frame: a step with its draws, whose ids may name tokens that were not read yet.
[[nodiscard]] std::vector<std::byte> written_with_draws(const StepArgs& step);

// Throws Error(kCorrupt) for what is no step of the configuration.
struct ReceivedStep {
  ReceivedStep() = default;
  // unread: how many tokens the last step with draws has drawn, which ids below 0 may name.
  ReceivedStep(BodyReader& in, const BackendConfig& config, int64_t unread = 0);

  [[nodiscard]] StepArgs args(const Weights& weights) const;  // as long as this lives

  std::vector<int32_t> ids, positions;
  std::array<std::vector<int32_t>, kLayerKinds> kv_slots, page_ids;
  std::array<int32_t, kLayerKinds> pages_per_row{};
  std::vector<Row> rows;
  std::vector<int32_t> logit_tokens;
  bool sinks = true;
};

// Throws Error(kCorrupt) for pages that the configuration has not.
void require_pages(const PageCopy& copy, const BackendConfig& config);

// What stands after the step in a kRun frame. Throws likewise.
class ReceivedDraws {
 public:
  ReceivedDraws() = default;
  ReceivedDraws(BodyReader& in, const BackendConfig& config, size_t logit_rows);

  [[nodiscard]] std::vector<SampleRow> rows() const;  // as long as this lives, and is not moved

 private:
  struct Draw {
    SamplingParams params;
    SampleRow row;  // without what is below
    std::vector<int32_t> prompt, output;
    std::vector<uint32_t> mask;
  };
  std::vector<Draw> draws_;
};

// Throws Error(kUnsupported) for a slot of which each rank has a part of its own: nobody brings these together.
void require_alike(Slot slot);

}  // namespace nibble::backend

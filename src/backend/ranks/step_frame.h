#pragma once
// A step's arguments on their way to another rank.

#include "backend/args.h"
#include "backend/backend.h"
#include "backend/ranks/frames.h"
#include "backend/sampling.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend {

// The body of a kStep frame, without weights: a rank has its own. Ids may name tokens that were not read yet.
[[nodiscard]] std::vector<std::byte> written(const StepArgs& step);

// Throws Error(kCorrupt) for what is no step of the configuration.
class ReceivedStep {
 public:
  // unread: how many tokens the last step with draws has drawn, which ids below 0 may name.
  ReceivedStep(BodyReader& in, const BackendConfig& config, int64_t unread = 0);
  ReceivedStep(const ReceivedStep&) = delete;
  ReceivedStep& operator=(const ReceivedStep&) = delete;

  [[nodiscard]] StepArgs args(const Weights& weights) const;  // as long as this lives

 private:
  void read_draws(BodyReader& in, const BackendConfig& config);

  std::vector<int32_t> ids_, positions_;
  std::array<std::vector<int32_t>, kLayerKinds> kv_slots_, page_ids_;
  std::array<int32_t, kLayerKinds> pages_per_row_{};
  std::vector<Row> rows_;
  std::vector<int32_t> logit_tokens_;
  bool sinks_ = true;
  struct Draw {
    SamplingParams params;
    std::vector<int32_t> prompt, output;
    std::vector<uint32_t> mask;
  };
  std::vector<Draw> draws_;
  std::vector<SampleRow> sample_rows_;  // of the draws
};

// Throws Error(kCorrupt) for pages that the configuration has not.
void require_pages(const PageCopy& copy, const BackendConfig& config);

}  // namespace nibble::backend

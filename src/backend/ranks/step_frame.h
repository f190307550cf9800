#pragma once
// A step's arguments on their way to another rank.

#include "backend/args.h"
#include "backend/backend.h"
#include "backend/ranks/frames.h"
#include "backend/sampling.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nibble::backend {

// The body of a kStep frame, without weights: a rank has its own. Ids may name tokens that were not read yet.
[[nodiscard]] std::vector<std::byte> written(const StepArgs& step);

// Throws Error(kCorrupt) for what is no step of the configuration.
class ReceivedStep {
 public:
  // unread: how many tokens the last step with draws has drawn, which ids below 0 may name.
  ReceivedStep(Frame frame, const BackendConfig& config, int64_t unread = 0);
  ReceivedStep(const ReceivedStep&) = delete;
  ReceivedStep& operator=(const ReceivedStep&) = delete;

  [[nodiscard]] StepArgs args(const Weights& weights) const;  // as long as this lives

 private:
  const Frame frame_;  // in which the spans lie
  StepArgs step_;
  std::vector<SamplingParams> params_;  // of its draws
  std::vector<SampleRow> draws_;
};

// Throws Error(kCorrupt) for pages that the configuration has not.
void require_pages(const PageCopy& copy, const BackendConfig& config);

}  // namespace nibble::backend

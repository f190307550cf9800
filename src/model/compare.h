#pragma once
// Runs one step on two backends and finds where they begin to differ, or where one of them errs.

#include "backend/backend.h"
#include "model/gpt_oss.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::model {

// One activation after one stage, on both.
struct StageDifference {
  Stage stage = Stage::kEmbed;
  int layer = -1;
  backend::Slot slot = backend::Slot::kResidual;
  double rms = 0;  // of a's values
  // Largest |a - b|, relative to rms or to |a| where that is more. compare_each(): to the token's own rms instead, and
  // of the first token that is beyond the tolerance.
  double largest = 0;
  int64_t element = 0;  // where that is, row-major
  Shape shape;          // of the slot
  float a = 0, b = 0;   // the values there
  // Experts chosen in another order or set: a near-tie when the router logits of both agree within the tolerance.
  bool near_tie = false;
};

struct Comparison {
  std::vector<StageDifference> stages;  // in order
  std::optional<size_t> first_bad;      // index of the first one beyond the tolerance
};

struct Side {
  backend::Backend& be;
  const GptOss& model;
};

// The slots that a stage has just written, or is the last to write: some backends choose experts while they multiply,
// or rotate q while they make it. A backend does not show what it fused away.
[[nodiscard]] std::span<const backend::Slot> slots_of(Stage stage);

// The step samples nothing. `tolerance` bounds StageDifference::largest.
[[nodiscard]] Comparison compare(const Side& a, const Side& b, const Step& step, double tolerance);

// Each stage of b by itself: before a stage the reference backend takes over what b has left, as far as b shows it, so
// that nothing adds up, and a choice of experts that falls to the other side at a near-tie changes no later stage.
// `tolerance` bounds StageDifference::largest.
[[nodiscard]] Comparison compare_each(const Side& reference, const Side& b, const Step& step,
                                      const std::function<double(Stage, backend::Slot)>& tolerance);

// "sequence 1, position 33": of an element of a slot, row-major.
[[nodiscard]] std::string place_of(const Step& step, backend::Slot slot, const Shape& shape, int64_t element);

}  // namespace nibble::model

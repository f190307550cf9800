#include "model/compare.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace nibble::model {
namespace {

using backend::Slot;

struct Snapshot {
  Stage stage;
  int layer;
  Slot slot;
  backend::SlotData data;
};

std::vector<Snapshot> run(const Side& side, const Step& step) {
  std::vector<Snapshot> snapshots;
  forward(side.be, side.model, step, [&](Stage stage, int layer) {
    for (const Slot slot : slots_of(stage)) snapshots.push_back({stage, layer, slot, side.be.peek(slot)});
  });
  return snapshots;
}

StageDifference difference(const Snapshot& a, const Snapshot& b) {
  check(a.data.shape == b.data.shape, "both backends run the same step");
  StageDifference d{.stage = a.stage, .layer = a.layer, .slot = a.slot, .shape = a.data.shape};
  double squares = 0;
  for (const float v : a.data.values) squares += double{v} * v;
  d.rms = std::sqrt(squares / std::max<double>(1, static_cast<double>(a.data.values.size())));
  double largest = -1;
  for (size_t i = 0; i < a.data.values.size(); ++i) {
    // Rounding to 16 bits is relative to the value if that is large, and to the size of its neighbours if it is a sum.
    const double size = std::max({d.rms, std::abs(double{a.data.values[i]}), 1e-30});
    const double delta = std::abs(double{a.data.values[i]} - b.data.values[i]) / size;
    if (delta > largest || std::isnan(delta)) {
      largest = std::isnan(delta) ? INFINITY : delta;
      d.element = static_cast<int64_t>(i);
      d.a = a.data.values[i];
      d.b = b.data.values[i];
      if (std::isnan(delta)) break;
    }
  }
  d.largest = std::max(largest, 0.0);
  return d;
}

}  // namespace

std::span<const backend::Slot> slots_of(Stage stage) {
  static constexpr Slot kResidual[] = {Slot::kResidual};
  static constexpr Slot kAttnIn[] = {Slot::kResidual, Slot::kNormed, Slot::kQkv};
  static constexpr Slot kAttend[] = {Slot::kQ, Slot::kAttn};
  static constexpr Slot kAttnOut[] = {Slot::kDelta};
  static constexpr Slot kRoute[] = {Slot::kResidual, Slot::kNormed, Slot::kRouterLogits};
  static constexpr Slot kMoe[] = {Slot::kExpertIds, Slot::kExpertWeights, Slot::kExpertHidden, Slot::kDelta};
  static constexpr Slot kLogits[] = {Slot::kLogits};
  static constexpr std::span<const Slot> kOf[backend::kStages] = {kResidual, kAttnIn, kAttend, kAttnOut,
                                                                  kRoute,    kMoe,    kLogits};
  return kOf[static_cast<size_t>(stage)];
}

Comparison compare(const Side& a, const Side& b, const Step& step, double tolerance) {
  const std::vector<Snapshot> on_a = run(a, step), on_b = run(b, step);
  check(on_a.size() == on_b.size(), "both backends run the same stages");
  Comparison result;
  for (size_t i = 0; i < on_a.size(); ++i) {
    if (on_a[i].data.shape.empty() || on_b[i].data.shape.empty()) continue;  // fused away
    StageDifference d = difference(on_a[i], on_b[i]);
    const bool ids = d.slot == Slot::kExpertIds;
    const bool bad = d.largest > (ids ? 0 : tolerance);
    // Where the logits before the ids agree, the choice was a near-tie.
    d.near_tie = ids && bad && result.stages.back().largest <= tolerance;
    if (bad && !result.first_bad) result.first_bad = result.stages.size();
    result.stages.push_back(std::move(d));
  }
  return result;
}

}  // namespace nibble::model

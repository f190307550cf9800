#include "model/compare.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <variant>

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

double rms_of(std::span<const float> values) {
  double squares = 0;
  for (const float v : values)
    if (std::abs(v) < 1e30f) squares += double{v} * v;  // not what stands for experts that a layer lacks
  return std::sqrt(squares / std::max<double>(1, static_cast<double>(values.size())));
}

// `of_token`: an error is held against the token's values instead of all, and the first token beyond this is found.
StageDifference difference(const Snapshot& a, const Snapshot& b, std::optional<double> of_token = {}) {
  check(a.data.shape == b.data.shape, "both backends run the same step");
  StageDifference d{.stage = a.stage, .layer = a.layer, .slot = a.slot, .shape = a.data.shape};
  const std::span<const float> all = a.data.values;
  const size_t width = of_token ? all.size() / static_cast<size_t>(a.data.shape[0]) : all.size();
  d.rms = rms_of(all);
  double largest = -1, rms = d.rms;
  for (size_t i = 0; i < all.size(); ++i) {
    if (of_token && i % width == 0) {
      if (largest > *of_token) break;
      rms = rms_of(all.subspan(i, width));
    }
    // Rounding to 16 bits is relative to the value if that is large, and to the size of its neighbours if it is a sum.
    const double size = std::max({rms, std::abs(double{a.data.values[i]}), 1e-30});
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

// Writes what another backend has left into the slot of the reference.
void take(backend::Backend& reference, Slot slot, const backend::SlotData& data) {
  const backend::SlotRows rows = reference.rows(slot);
  auto from = data.values.begin();
  for (const std::span<double> row : std::get<std::vector<std::span<double>>>(rows))
    for (double& value : row) value = *from++;
}

// What another backend should have chosen by the router logits of the reference: what it has, where that is a near-tie.
backend::SlotData choice(const backend::SlotData& logits, backend::SlotData ids, double tolerance) {
  const auto experts = static_cast<size_t>(logits.shape[1]), topk = static_cast<size_t>(ids.shape[1]);
  std::vector<float> order(experts);
  for (size_t t = 0; t < static_cast<size_t>(ids.shape[0]); ++t) {
    const std::span<const float> own = std::span(logits.values).subspan(t * experts, experts);
    const std::span<float> chosen = std::span(ids.values).subspan(t * topk, topk);
    const auto logit = [&](float id) { return double{own[static_cast<size_t>(id)]}; };
    std::iota(order.begin(), order.end(), 0.0f);
    std::ranges::stable_sort(order, [&](float a, float b) { return logit(a) > logit(b); });
    bool near = std::set<float>(chosen.begin(), chosen.end()).size() == topk;
    for (size_t k = 0; k < topk && near; ++k) {
      const double best = logit(order[k]), size = std::max(rms_of(own), std::abs(best));
      near = chosen[k] >= 0 && chosen[k] < static_cast<float>(experts) &&
             std::abs(logit(chosen[k]) - best) <= 2 * tolerance * size;
    }
    if (!near) std::copy_n(order.begin(), topk, chosen.begin());
  }
  return ids;
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

Comparison compare_each(const Side& reference, const Side& b, const Step& step,
                        const std::function<double(Stage, Slot)>& tolerance) {
  const std::vector<Snapshot> on_b = run(b, step);
  backend::Backend& be = reference.be;
  Comparison result;
  std::optional<backend::SlotData> chosen;
  auto next = on_b.begin();
  forward(be, reference.model, step, [&](Stage stage, int layer) {
    const auto first = next;
    for (; next != on_b.end() && next->stage == stage && next->layer == layer; ++next) {
      if (next->data.shape.empty()) continue;  // fused away
      const bool ids = next->slot == Slot::kExpertIds;
      Snapshot want{stage, layer, next->slot, be.peek(next->slot)};
      if (chosen && ids) want.data = *chosen;
      const double most = ids ? 0 : tolerance(stage, next->slot);
      result.stages.push_back(difference(want, *next, most));
      if (result.stages.back().largest > most && !result.first_bad) result.first_bad = result.stages.size() - 1;
    }
    chosen.reset();
    if (stage == Stage::kRoute && next != on_b.end() && !next->data.shape.empty()) {  // the experts' begin with ids
      chosen = choice(be.peek(Slot::kRouterLogits), next->data, tolerance(stage, Slot::kRouterLogits));
      take(be, Slot::kExpertIds, *chosen);
    }
    for (auto it = first; it != next; ++it)
      if (!it->data.shape.empty()) take(be, it->slot, it->data);
  });
  check(next == on_b.end(), "both backends run the same stages");
  return result;
}

std::string place_of(const Step& step, Slot slot, const Shape& shape, int64_t element) {
  int64_t width = 1;
  for (size_t d = 1; d < shape.size(); ++d) width *= shape[d];
  const int64_t row = element / width;
  const auto token = slot == Slot::kLogits ? step.logit_tokens[static_cast<size_t>(row)] : static_cast<int32_t>(row);
  size_t sequence = 0;
  while (sequence + 1 < step.rows.size() && step.rows[sequence + 1].first_token <= token) ++sequence;
  return fmt::format("sequence {}, position {}", sequence, step.positions[static_cast<size_t>(token)]);
}

}  // namespace nibble::model

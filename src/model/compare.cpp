#include "model/compare.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

// Writes what another backend has left into the slot.
void take(backend::Backend& reference, Slot slot, const backend::SlotData& data) {
  std::visit(
      [&](const auto& rows) {
        auto from = data.values.begin();
        for (const auto& row : rows) {
          std::copy_n(from, row.size(), row.begin());
          from += std::ssize(row);
        }
      },
      reference.rows(slot));
}

// The experts of another backend, held against the router logits of the reference: what it should have chosen, which is
// what it has where its choice is a near-tie's, and the weights of that.
struct Choice {
  backend::SlotData ids, weights;
};
Choice choice(const backend::SlotData& logits, const backend::SlotData& ids, double tolerance) {
  Choice want{ids, ids};
  const auto experts = static_cast<size_t>(logits.shape[1]), topk = static_cast<size_t>(ids.shape[1]);
  for (size_t t = 0; t < static_cast<size_t>(ids.shape[0]); ++t) {
    const std::span<const float> own = std::span(logits.values).subspan(t * experts, experts);
    const std::span<float> chosen = std::span(want.ids.values).subspan(t * topk, topk);
    std::vector<float> order(experts);
    for (size_t e = 0; e < experts; ++e) order[e] = static_cast<float>(e);
    const auto logit = [&](float id) { return own[static_cast<size_t>(id)]; };
    std::ranges::stable_sort(order, [&](float a, float b) { return logit(a) > logit(b); });
    const double rms = rms_of(own);
    bool near = std::set<float>(chosen.begin(), chosen.end()).size() == topk;
    for (size_t k = 0; k < topk && near; ++k) {
      near = chosen[k] >= 0 && chosen[k] < static_cast<float>(experts);
      if (!near) break;
      const double gap = std::abs(double{logit(chosen[k])} - logit(order[k]));
      near = gap <= 2 * tolerance * std::max(rms, std::abs(double{logit(order[k])}));
    }
    if (!near) std::copy_n(order.begin(), topk, chosen.begin());
    const std::span<float> weights = std::span(want.weights.values).subspan(t * topk, topk);
    double sum = 0;
    for (size_t k = 0; k < topk; ++k) sum += std::exp(double{logit(chosen[k])} - logit(chosen[0]));
    for (size_t k = 0; k < topk; ++k)
      weights[k] = static_cast<float>(std::exp(double{logit(chosen[k])} - logit(chosen[0])) / sum);
  }
  return want;
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
  size_t next = 0;
  std::optional<Choice> chosen;
  forward(be, reference.model, step, [&](Stage stage, int layer) {
    for (size_t left = slots_of(stage).size(); left > 0; --left, ++next) {
      const Snapshot& of_b = on_b.at(next);
      check(of_b.stage == stage && of_b.layer == layer, "both backends run the same stages");
      if (of_b.data.shape.empty()) continue;  // fused away
      Snapshot want{stage, layer, of_b.slot, {}};
      if (chosen && (of_b.slot == Slot::kExpertIds || of_b.slot == Slot::kExpertWeights))
        want.data = of_b.slot == Slot::kExpertIds ? chosen->ids : chosen->weights;
      else
        want.data = be.peek(of_b.slot);
      const double most = of_b.slot == Slot::kExpertIds ? 0 : tolerance(stage, of_b.slot);
      StageDifference d = difference(want, of_b, most);
      if (d.largest > most && !result.first_bad) result.first_bad = result.stages.size();
      result.stages.push_back(std::move(d));
    }
    if (stage == Stage::kRoute) {
      const Snapshot& ids = on_b.at(next);  // the stage of the experts begins with them
      chosen.reset();
      if (!ids.data.shape.empty())
        chosen = choice(be.peek(Slot::kRouterLogits), ids.data, tolerance(stage, Slot::kRouterLogits));
    }
    for (size_t i = next - slots_of(stage).size(); i < next; ++i)
      if (!on_b[i].data.shape.empty()) take(be, on_b[i].slot, on_b[i].data);
    if (stage == Stage::kRoute && chosen) {
      take(be, Slot::kExpertIds, chosen->ids);
      take(be, Slot::kExpertWeights, chosen->weights);
    }
  });
  check(next == on_b.size(), "both backends run the same stages");
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

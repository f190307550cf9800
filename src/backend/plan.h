#pragma once
// What will run for a step, before it runs: what `inspect --plan` prints. Pure. On a card the program itself
// (cuda/program); on the CPU a description of it (cpu/plan.h). Not how one kernel cuts its work, as GemmPlan is.

#include "backend/cost.h"
#include "backend/stage.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::backend {

// Of a stage that each layer has: whose layers.
enum class InLayers : uint8_t { kAll, kFirst, kAfterFirst };
[[nodiscard]] constexpr bool is_in(InLayers layers, int layer) {
  return layers == InLayers::kAll || (layers == InLayers::kFirst) == (layer == 0);
}

// A kernel's launches, or one loop over a host's threads.
struct PlannedKernel {
  Stage stage = Stage::kEmbed;
  std::optional<LayerKind> kind{};  // in layers of this kind only; none: in all, or outside the layers
  std::string kernel;               // as the backend's counts and profilers name it
  std::string tile;                 // how the work is cut: "2 rows x 4 tokens per warp, 360 x 2 CTAs"
  int64_t launches = 1;             // in each of these layers
  Cost cost{};                      // its part of what the stage must read and compute at the least, in one layer
  int64_t shared_bytes = 0;         // dynamic shared memory of a block, where a launch plans it
  InLayers layers = InLayers::kAll;
  std::vector<int> only{};  // of these layers; empty: of all of them
};
[[nodiscard]] inline bool runs_in(const PlannedKernel& planned, int layer, LayerKind kind) {
  const std::vector<int>& only = planned.only;
  return (!planned.kind || *planned.kind == kind) && is_in(planned.layers, layer) &&
         (only.empty() || std::find(only.begin(), only.end(), layer) != only.end());
}

[[nodiscard]] constexpr bool outside_layers(Stage stage) { return stage == Stage::kEmbed || stage == Stage::kLogits; }

// In how many layers of a model of these; 1 outside the layers.
[[nodiscard]] inline int64_t layers_of(const PlannedKernel& planned, std::span<const LayerKind> kinds) {
  if (outside_layers(planned.stage)) return 1;
  int64_t layers = 0;
  for (size_t l = 0; l < kinds.size(); ++l) layers += runs_in(planned, static_cast<int>(l), kinds[l]) ? 1 : 0;
  return layers;
}

}  // namespace nibble::backend

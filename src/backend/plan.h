#pragma once
// What will run for a step, before it runs: what `inspect --plan` prints; and how long it ran, by a profile. Pure. On a
// card the program itself (cuda/program); on the CPU a description of it (cpu_plan). Not how one kernel cuts its work,
// as GemmPlan is.

#include "backend/cost.h"
#include "backend/dims.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend {

// In which layers a kernel of a stage that each layer has runs.
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

// A kernel's launches in one stage, over all steps of a profile.
struct KernelTime {
  Stage stage = Stage::kEmbed;  // sampling counts with the logits
  std::string_view kernel;
  int64_t launches = 0;
  double us = 0;      // from start to end, each launch
  double own_us = 0;  // the same without what overlaps the kernels before it: these and the pauses add up
};

// Where a device's time goes, kernel by kernel, as the device itself says.
struct KernelProfile {
  int64_t steps = 0;
  std::vector<KernelTime> kernels;  // by their first launch
  double between_kernels_us = 0;    // nothing ran, within a step
  double between_steps_us = 0;      // nothing ran, from a step's last kernel to the next one's first

  [[nodiscard]] double total_us() const {
    double sum = between_kernels_us + between_steps_us;
    for (const KernelTime& time : kernels) sum += time.own_us;
    return sum;
  }
};

// The profiler of a backend whose work runs on a device. Called between steps only.
class KernelProfiler {
 public:
  KernelProfiler() = default;
  virtual ~KernelProfiler() = default;
  KernelProfiler(const KernelProfiler&) = delete;
  KernelProfiler& operator=(const KernelProfiler&) = delete;

  // Until end(), kernels are timed, which slows steps down; steps kept as graphs are recorded anew. Throws
  // Error(kUnsupported) where nothing can time them.
  virtual void begin() = 0;
  // What ran since begin() does not count. Waits for it.
  virtual void skip() = 0;
  // What ran since begin(), skip() or the last take(). Waits for it. The first kernel after begin() and take() is
  // followed by a pause of some 0.7 ms that no step has otherwise.
  [[nodiscard]] virtual KernelProfile take() = 0;
  virtual void end() = 0;
};

}  // namespace nibble::backend

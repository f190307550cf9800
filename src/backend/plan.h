#pragma once
// What will run for a step, before it runs: for people, and for tests of choices that need no device. Pure.

#include "backend/cost.h"
#include "backend/stage.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble::backend {

// A kernel's launches, or one loop over a host's threads.
struct PlannedStage {
  Stage stage = Stage::kEmbed;
  std::optional<LayerKind> kind{};  // in layers of this kind only; none: in all, or outside the layers
  std::string kernel;               // as the backend's counts and profilers name it
  std::string tile;                 // how the work is cut: "2 rows x 4 tokens per warp, 360 x 2 CTAs"
  int64_t launches = 1;             // in each of these layers
  Cost cost{};                      // its part of what the stage must read and compute at the least, in one layer
  int64_t shared_bytes = 0;         // dynamic shared memory of a block, where a launch plans it
  bool once = false;                // in the first of them only
};

}  // namespace nibble::backend

#pragma once
// How long the program of a step takes on a card, whether or not it is in this machine. Pure.
//
// A launch takes its fixed part (KernelShare::step_us, token_us) and then the bytes or the operations that its plan
// gives it, at what its family reaches of the card: of the reads; of what a multiprocessor takes in per cycle, where
// instructions hold it; of the matrix peak. Matrix products partly wait for what feeds them: the two add up as squares.
// Launches depend on one another, so a step takes their sum. Sums over ranks take what their link takes (card/links.h).

#include "backend/cuda/card/cards.h"
#include "backend/cuda/card/links.h"
#include "backend/cuda/program/kernel_share.h"
#include "backend/cuda/program/program.h"
#include "backend/dims.h"
#include "backend/stage.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {

// What a launch spends most of its time on.
enum class HeldBy : uint8_t { kLaunch, kReads, kInstructions, kMatrix, kLink };
[[nodiscard]] constexpr std::string_view name_of(HeldBy held) {
  constexpr std::string_view kNames[] = {"launches", "reads", "instructions", "matrix units", "link"};
  return kNames[static_cast<size_t>(held)];
}

// A node of the program in all of its layers, or the sampling after it.
struct NodeTime {
  Stage stage = Stage::kEmbed;
  std::string kernel;
  int64_t launches = 0;
  double us = 0;
  double floor_us = 0;  // at all of the card's reads, or of its matrix peak
  HeldBy held = HeldBy::kLaunch;
};

struct StepTime {
  std::vector<NodeTime> nodes;
  double us = 0;  // of all, and between this step and the next
  Cost cost;      // at the least: backend/cost.h
  double floor_us = 0;
};

struct PredictArgs {
  const Program& program;
  const Dims& dims;
  std::span<const LayerKind> layer_kinds;
  const KnownCard& card;
  // Of a rank's program, which has sums over ranks; dims and program are the rank's.
  struct Between {
    int ranks = 1;
    KnownLink link{};
  } between{};
};
// Throws Error(kUnsupported) for a kernel that nobody has measured.
[[nodiscard]] StepTime predict_step(const PredictArgs& args);

}  // namespace nibble::backend::cuda

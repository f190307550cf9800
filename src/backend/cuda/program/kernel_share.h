#pragma once
// What each family of kernels reaches of a card: measured on one card, told in numbers that hold for another. Data, and
// where it is from.

#include "backend/cuda/card/cards.h"

#include <cstdint>
#include <string_view>

namespace nibble::backend::cuda {

// How a kernel's weights come to the warps that multiply them.
enum class Feeding : uint8_t {
  kRing,  // a ring is filled ahead of them: the longer of reading and taking in counts
  kOwn,   // each warp waits for its own: the two add up as squares
};

struct KernelShare {
  std::string_view kernel;  // begins with; the longest of the table that fits counts
  // A launch among dependent ones: until its first byte is there, and from its last one to the next launch. The part
  // that no card's bandwidth shortens.
  double step_us = 0;
  double token_us = 0;     // each of the step's tokens adds to a launch, in every CTA
  double read = 1;         // share of the card's reads while it streams
  double cycle_bytes = 0;  // most that one multiprocessor takes in; 0: reads are slower on every card measured
  Feeding feeding = Feeding::kRing;
  struct {
    MatrixUnit unit = MatrixUnit::kNone;
    double share = 0;  // of the unit's peak
  } matrix{};
  // Read and written per token and value of hidden, where the plan's cost has none; but for a multiprocessor's cycles
  // Node::moved goes first.
  double activation_bytes = 0;
  std::string_view from;  // a file of bench/results, or: assumed, and why
  [[nodiscard]] constexpr bool measured() const { return !from.starts_with("assumed"); }
};

// Throws Error(kUnsupported) for a kernel that the table does not have.
[[nodiscard]] const KernelShare& share_of(std::string_view kernel);

// From a step's last kernel until the next step's first one.
inline constexpr double kBetweenStepsUs =
    8;  // H100, 12 under a profiler that makes it longer: 2026-11-23-h100-120b.json

// What a launch's fixed part takes more where launches of a graph cannot depend on one another by program (before
// sm_90): of an H100's GEMVs 4 us in a graph, 2 to 2.5 with it (2026-11-21).
inline constexpr double kUnchainedUs = 1.75;

}  // namespace nibble::backend::cuda

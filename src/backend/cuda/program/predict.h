#pragma once
// How long the program of a step takes on a card, whether or not it is in this machine. Pure.
//
// A launch takes its fixed part (KernelShare::step_us, token_us) and then the bytes or the operations that its plan
// gives it, at what its family reaches of the card: of the reads; of what a multiprocessor takes in per cycle, where
// instructions hold it; of the matrix peak. Matrix products partly wait for what feeds them: the two add up as squares.
// Launches depend on one another, so a step takes their sum. Sums over ranks take what their link takes (card/cards.h).

#include "backend/cuda/card/cards.h"
#include "backend/cuda/program/program.h"
#include "backend/dims.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {

// How a kernel's weights come to the warps that multiply them.
enum class Feeding : uint8_t {
  kRing,  // a ring is filled ahead of them: the longer of reading and taking in counts
  kOwn,   // each warp waits for its own: the two add up as squares
};

// What a family of kernels reaches of a card: measured on one card, told in numbers that hold for another.
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
  double value_bytes = 0;
  std::string_view from;  // a file of bench/results, or: assumed, and why
  [[nodiscard]] constexpr bool measured() const { return !from.starts_with("assumed"); }
};

// Throws Error(kUnsupported) for a kernel that the table does not have.
[[nodiscard]] const KernelShare& share_of(std::string_view kernel);

// From a step's last kernel until the next step's first one.
// H100, 12 under a profiler that makes it longer: 2026-11-23-h100-120b.json
inline constexpr double kBetweenStepsUs = 8;

// What a launch's fixed part takes more where launches of a graph cannot depend on one another by program (before
// sm_90): of an H100's GEMVs 4 us in a graph, 2 to 2.5 with it (2026-11-21).
inline constexpr double kUnchainedUs = 1.75;

// What a launch spends most of its time on.
enum class HeldBy : uint8_t { kLaunch, kReads, kInstructions, kMatrix, kLink, kHost };
[[nodiscard]] constexpr std::string_view name_of(HeldBy held) {
  constexpr std::string_view kNames[] = {"launches", "reads", "instructions", "matrix units", "link", "the host"};
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
  double us = 0;        // of all, and between this step and the next, but for what runs beside copies from the host
  StageCosts costs{};   // at the least: backend/cost.h
  double floor_us = 0;  // the sum over the stages
};

struct PredictArgs {
  const Program& program;
  const Dims& dims;
  std::span<const LayerKind> layer_kinds;
  const KnownCard& card;
  // What lies between the ranks of a program that has sums over them; dims and program are the rank's.
  struct Between {
    int ranks = 1;
    KnownLink link{};
  } between{};
  // How fast the memory of a host that has experts is read, and copies from there are.
  struct Host {
    double read_bytes_per_s = 0, link_bytes_per_s = 0;
  } host{};
};
// Throws Error(kUnsupported) for a kernel that nobody has measured.
[[nodiscard]] StepTime predict_step(const PredictArgs& args);

}  // namespace nibble::backend::cuda

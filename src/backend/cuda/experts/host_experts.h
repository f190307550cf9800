#pragma once
// Experts that stay with the host, to a stream. Of few tokens the host computes them (backend/host_experts.h): rows and
// routing go into pinned memory, a kernel waits while a thread of the host computes, the delta is copied back. Of many
// tokens the card does, and the weights come to it, a part of a layer's experts at a time. Plain C++.

#include "backend/cuda/launch/launch.h"
#include "backend/dims.h"
#include "backend/weights.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

// Pinned memory of the host, which both sides write.
struct HostExchange {
  int32_t* tokens = nullptr;  // of the step
  float* x = nullptr;         // [tokens, hidden]
  int32_t* ids = nullptr;     // [tokens, topk]
  float* weights = nullptr;   // [tokens, topk]
  float* delta = nullptr;     // [tokens, hidden]; of up to kFewTokens tokens as many zeros behind it
  // The turn that the card waits for, with its layer (HostTurn::word), and the last one that the host has ended.
  uint64_t *asked = nullptr, *answered = nullptr;
  uint64_t* turns = nullptr;  // of the card's memory: how many there were
};

// Writes what the host reads: normed rows as floats, ids and weights.
struct HostRows {
  static constexpr Kernel kName{"any_host_rows"};
  static constexpr std::string_view kTile = "a CTA per token";
  struct Args {
    const float* x = nullptr;  // [tokens, hidden]: normed, or with `inverse` the residual, that is x * inverse * norm
    const F16* rounded = nullptr;    // [tokens, hidden], instead of x
    const float* inverse = nullptr;  // [tokens]
    const Bf16* norm = nullptr;      // [hidden], with inverse
    const int32_t* ids = nullptr;    // [tokens, topk]
    const float* weights = nullptr;  // [tokens, topk]
    HostExchange to;
    int tokens = 0, hidden = 0, topk = 0;  // hidden: a multiple of 4
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const HostRows::Args& args);
inline constexpr int kHostRowsThreads = 256;

// Asks the host for a layer's experts, and waits for its answer: both look at words in pinned memory, so that neither
// is woken by the driver.
struct HostTurn {
  static constexpr Kernel kName{"any_host_turn"};
  static constexpr uint64_t kMostLayers = 4096;
  struct Args {
    HostExchange with;
    int layer = 0;
  };
  static void launch(const Args& args, const Launch& on);
  [[nodiscard]] static constexpr uint64_t word(uint64_t turn, int layer) {
    return turn * kMostLayers + static_cast<uint64_t>(layer);
  }
};

void check_args(const HostTurn::Args& args);

// The turn of a layer's experts behind these rows, and the copy of `values` floats of what they left to the card.
struct HostCall {
  int layer = 0;
  float* delta = nullptr;
  int64_t values = 0;
};
// How a layer's experts are cut into parts that come one after the other. Their number is even: neighbours, also those
// of two layers, have different slots of the two that there are (ExpertSlots).
struct ExpertParts {
  int each = 0, count = 0;
  [[nodiscard]] int first(int part) const { return part * each; }
};
[[nodiscard]] ExpertParts expert_parts(const Dims& dims);
// Bytes of one expert's matrix, packed. REQUIRES is_expert_matrix(role).
[[nodiscard]] int64_t packed_expert_bytes(WeightRole role, const Dims& dims);

// What copies reach of the link's peak: bench/results/2026-12-01-h200-experts-on-the-host.json.
inline constexpr double kExpertCopyShare = 0.85;

// The copy of a part of a layer's experts to its slot.
struct ExpertCopy {
  int layer = 0, part = 0;
};
[[nodiscard]] constexpr Kernel expert_copy_kernel() { return {"copy_experts"}; }

}  // namespace nibble::backend::cuda

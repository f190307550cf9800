#pragma once
// Experts' activations rounded in blocks of 32 (backend/activations.h), where they lie: arguments, what the
// result looks like, launcher.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/activations.h"
#include "base/dtype.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

// In MX blocks: `to` gets the rounded values as f16; from, where given, gets them, too. f16 holds them exactly where
// the largest is below 2^16 and a block's scale not below 2^-15 (mxfp8), 2^-21 (mxfp6) or 2^-23 (mxfp4); smaller ones
// become multiples of 2^-24. kInt8: a block's 64 bytes become 32 int8, their scale in f32, 28 unused. Whatever order a
// row's k have in `to`: a block must be 64 bytes at a multiple of 64, which layout/wgmma_b.h keeps.
struct RoundBlocksArgs {
  Activations form = Activations::kMxfp8;  // one that rounds
  float* from = nullptr;                   // [values], 16-byte aligned; null: they are in `to`, as f16
  F16* to = nullptr;                       // [values], 64-byte aligned
  int64_t values = 0;                      // a multiple of 32
};
inline constexpr int kInt8BlockBytes = 64, kInt8ScaleAt = 32;

[[nodiscard]] constexpr Kernel round_kernel(Activations form) {
  switch (form) {
    case Activations::kInt8: return kernel::kRoundInt8;
    case Activations::kMxfp8: return kernel::kRoundMxfp8;
    case Activations::kMxfp6: return kernel::kRoundMxfp6;
    case Activations::kMxfp4: return kernel::kRoundMxfp4;
    case Activations::kAuto:
    case Activations::kF32:
    case Activations::kBf16: break;
  }
  return {};
}

// Checks the arguments, launches chained (chained_launch.cuh), returns.
void any_round_blocks(const RoundBlocksArgs& args, const Launch& on);

// On the host: the values of blocks that kInt8 made.
[[nodiscard]] std::vector<float> int8_values(std::span<const F16> blocks);

}  // namespace nibble::backend::cuda

#pragma once
// The products that the policies' tests look at (the one list of their instances), and who runs them. Test code.

#include "backend/cuda/arch/sm121/mx_fragments.h"

#include <cstddef>
#include <cstdint>

namespace nibble::backend::cuda {

// Weights on the left (e5m2: e2m1 as layout/e2m1_e5m2.h widens it), activations on the right; bytes of the scales 0
// to 3.
inline constexpr MxProduct kMxProducts[] = {
    {layout::kMxK32, MxFormat::kMxfp8E5m2, MxFormat::kMxfp8E4m3, 0, 0},
    {layout::kMxK32, MxFormat::kMxfp8E5m2, MxFormat::kMxfp8E4m3, 1, 3},
    {layout::kMxK32, MxFormat::kMxfp8E4m3, MxFormat::kMxfp8E4m3, 0, 1},
    {layout::kMxK32, MxFormat::kMxfp4, MxFormat::kMxfp8E4m3, 2, 0},
    {layout::kMxK32, MxFormat::kMxfp4, MxFormat::kMxfp4, 3, 2},
    {layout::kMxK32, MxFormat::kMxfp8E5m2, MxFormat::kMxfp6E2m3, 0, 0},
    {layout::kMxK32, MxFormat::kMxfp8E5m2, MxFormat::kMxfp6E3m2, 1, 1},
    {layout::kMxK32, MxFormat::kMxfp6E2m3, MxFormat::kMxfp6E3m2, 0, 0},
    {layout::kMxK64, MxFormat::kMxfp4, MxFormat::kMxfp4, 0, 2},
    {layout::kMxK64, MxFormat::kMxfp4, MxFormat::kMxfp4, 2, 0},
};
inline constexpr int kMxProductCount = sizeof kMxProducts / sizeof *kMxProducts;
inline constexpr MxFormat kMxPairFormats[] = {MxFormat::kMxfp4, MxFormat::kMxfp8E4m3, MxFormat::kMxfp8E5m2,
                                              MxFormat::kMxfp6E2m3, MxFormat::kMxfp6E3m2};
inline constexpr int kMxPairFormatCount = sizeof kMxPairFormats / sizeof *kMxPairFormats;

// A policy on a card: launches, on device memory.
struct MxProbe {
  // d: 128 per fragments, in and out.
  void (*product)(int product, const MxFragments* fragments, float* d, size_t count) = nullptr;
  // count words of two codes; a multiple of 32.
  void (*pairs)(int format, const float* values, uint32_t* pairs, size_t count) = nullptr;
};
[[nodiscard]] MxProbe emulated_mx_probe();
[[nodiscard]] MxProbe native_mx_probe();  // null where the build has no code for sm_120a or sm_121a

}  // namespace nibble::backend::cuda

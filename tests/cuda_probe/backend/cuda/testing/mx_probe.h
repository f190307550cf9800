#pragma once
// The products that the policies' tests look at (the one list of their instances), and who runs them. Test code.

#include "backend/cuda/layout/mma_fragments.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace nibble::backend::cuda {

// A warp's operands of one block-scaled product, and what it is, exactly: the oracle of the policies (mx_mma.h). Plain
// C++; values come from layout/mma_fragments.h and base/mx.h alone.

// A lane's.
struct MxOperands {
  uint32_t a[4] = {}, b[2] = {}, scale_a = 0, scale_b = 0;
};
struct MxFragments {
  MxOperands lane[layout::kWarpLanes];
};

// Which product: m16n8k32 of two formats, or m16n8k64 (both kMxfp4); the bytes of the registers that hold the scales.
struct MxProduct {
  layout::MxShape shape = layout::kMxK32;
  MxFormat a = MxFormat::kMxfp4, b = MxFormat::kMxfp4;
  int byte_a = 0, byte_b = 0;
};

// The code of an element in a lane's register.
[[nodiscard]] inline uint8_t mx_code(const MxProduct& p, MxFormat format, uint32_t reg, int at) {
  if (p.shape.k == layout::kMxK64.k) return static_cast<uint8_t>(reg >> 4 * at & 15u);
  return layout::code_in(format, static_cast<uint8_t>(reg >> 8 * at));
}
inline void mx_put_code(const MxProduct& p, MxFormat format, uint32_t& reg, const layout::MxPlace& place,
                        uint8_t code) {
  const int bits = p.shape.k == layout::kMxK64.k ? 4 : 8;
  const uint32_t stored = bits == 4 ? code : layout::container_of(format, code), mask = (1u << bits) - 1;
  reg = (reg & ~(mask << bits * place.at)) | stored << bits * place.at;
}

// Element (row, k) of A, (k, col) of B, with its scale; NaN where the element or the scale is.
[[nodiscard]] inline double mx_a_value(const MxProduct& p, const MxFragments& f, int row, int k) {
  const layout::MxPlace at = layout::mx_a_place(p.shape, {row, k});
  const uint32_t scales = f.lane[layout::scale_lane_a(row)].scale_a >> 8 * (p.byte_a + k / kMxBlock);
  return double{mx_decode_element(p.a, mx_code(p, p.a, f.lane[at.lane].a[at.reg], at.at))} *
         E8m0{static_cast<uint8_t>(scales)}.to_float();
}
[[nodiscard]] inline double mx_b_value(const MxProduct& p, const MxFragments& f, int k, int col) {
  const layout::MxPlace at = layout::mx_b_place(p.shape, {col, k});
  const uint32_t scales = f.lane[layout::scale_lane_b(col)].scale_b >> 8 * (p.byte_b + k / kMxBlock);
  return double{mx_decode_element(p.b, mx_code(p, p.b, f.lane[at.lane].b[at.reg], at.at))} *
         E8m0{static_cast<uint8_t>(scales)}.to_float();
}

// Σ_k a b, and Σ_k |a b|, of result i of a lane. Scales reach 2^±127 each: exact in double.
struct MxSum {
  double value = 0, size = 0;
};
[[nodiscard]] inline MxSum mx_sum(const MxProduct& p, const MxFragments& f, int lane, int i) {
  MxSum sum;
  for (int k = 0; k < p.shape.k; ++k) {
    const double ab = mx_a_value(p, f, layout::d_row(lane, i), k) * mx_b_value(p, f, k, layout::d_col(lane, i));
    sum.value += ab;
    sum.size += std::abs(ab);
  }
  return sum;
}

// Weights on the left (e5m2: e2m1 as layout/small_floats.h widens it), activations on the right; bytes of the scales 0
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

#pragma once
// Which element sits where in mma.sync, and which scale in the block-scaled one of SM12x. PTX ISA §9.7.14 (warp-level
// matrix instructions), "Matrix Fragments for mma.m16n8k32" with 8-bit types and "mma.m16n8k64" with .e2m1, and "block
// scaling". Plain C++: packers, kernels and tests ask here. Results of all lie as d_row and d_col say.
//
//   m16n8k32  kind::mxf8f6f4, scale_vec::1X: a register holds 4 elements in containers of a byte
//   m16n8k64  kind::mxf4, scale_vec::2X: a register holds 8 e2m1 codes; k 0..31 and 32..63 have a scale each
//   scale     E8M0 in a byte of a lane's register; which byte is part of the instruction, so one register holds the
//             scales of four steps of k. Only some lanes' registers are read: those of scale_lane_a and scale_lane_b

#include "base/mx.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

// Which element sits where in mma.sync.m16n8k16 with f16 operands and an f32 result.
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". half: 0 = low 16 bits of the register.
inline constexpr int kWarpLanes = 32;

[[nodiscard]] constexpr int a_row(int lane, int reg) { return lane / 4 + 8 * (reg % 2); }
[[nodiscard]] constexpr int a_k(int lane, int reg, int half) { return 2 * (lane % 4) + half + 8 * (reg / 2); }
[[nodiscard]] constexpr int b_k(int lane, int reg, int half) { return 2 * (lane % 4) + half + 8 * reg; }
[[nodiscard]] constexpr int d_row(int lane, int reg) { return lane / 4 + 8 * (reg / 2); }
[[nodiscard]] constexpr int d_col(int lane, int reg) { return 2 * (lane % 4) + reg % 2; }

// K of the instruction, of which `kPerRegister` elements are in a register.
struct MxShape {
  int k, per_register;
};
inline constexpr MxShape kMxK32{32, 4}, kMxK64{64, 8};

// Row (of A) or column (of B), and k.
struct MxElement {
  int line, k;
  friend constexpr bool operator==(const MxElement&, const MxElement&) = default;
};
struct MxPlace {
  int lane, reg, at;  // at: byte of the register, or nibble
  friend constexpr bool operator==(const MxPlace&, const MxPlace&) = default;
};

[[nodiscard]] constexpr MxElement mx_a_element(const MxShape& s, const MxPlace& p) {
  return {p.lane / 4 + 8 * (p.reg % 2), s.per_register * (p.lane % 4) + p.at + s.k / 2 * (p.reg / 2)};
}
[[nodiscard]] constexpr MxPlace mx_a_place(const MxShape& s, const MxElement& e) {
  return {e.line % 8 * 4 + e.k % (s.k / 2) / s.per_register, e.line / 8 + 2 * (e.k / (s.k / 2)), e.k % s.per_register};
}
[[nodiscard]] constexpr MxElement mx_b_element(const MxShape& s, const MxPlace& p) {
  return {p.lane / 4, s.per_register * (p.lane % 4) + p.at + s.k / 2 * p.reg};
}
[[nodiscard]] constexpr MxPlace mx_b_place(const MxShape& s, const MxElement& e) {
  return {e.line * 4 + e.k % (s.k / 2) / s.per_register, e.k / (s.k / 2), e.k % s.per_register};
}

// With thread-id 0 in the instruction: the lane whose register has the scale of A's row, of B's column.
[[nodiscard]] constexpr int scale_lane_a(int row) { return row % 8 * 4 + row / 8; }
[[nodiscard]] constexpr int scale_lane_b(int col) { return col * 4; }

// Where an element's code lies in its container of m16n8k32: e2m1 in bits 5..2, the others from bit 0 on.
[[nodiscard]] constexpr int container_shift(MxFormat format) { return format == MxFormat::kMxfp4 ? 2 : 0; }
[[nodiscard]] constexpr uint8_t container_of(MxFormat format, uint8_t code) {
  return static_cast<uint8_t>(code << container_shift(format));
}
[[nodiscard]] constexpr uint8_t code_in(MxFormat format, uint8_t container) {
  return static_cast<uint8_t>(container >> container_shift(format) & ((1 << mx_element_bits(format)) - 1));
}

}  // namespace nibble::backend::cuda::layout

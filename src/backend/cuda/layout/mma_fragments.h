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

namespace proof {
// Every element of `lines` x k once, and the way back.
template <class Element, class Place>
constexpr bool mx_bijective(const MxShape& s, int lines, int registers, Element element_of, Place place_of) {
  bool seen[16][64] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int reg = 0; reg < registers; ++reg)
      for (int at = 0; at < s.per_register; ++at) {
        const MxElement e = element_of(s, MxPlace{lane, reg, at});
        if (e.line < 0 || e.line >= lines || e.k < 0 || e.k >= s.k || seen[e.line][e.k]) return false;
        if (!(place_of(s, e) == MxPlace{lane, reg, at})) return false;
        seen[e.line][e.k] = true;
      }
  return kWarpLanes * registers * s.per_register == lines * s.k;
}
static_assert(mx_bijective(kMxK32, 16, 4, mx_a_element, mx_a_place));
static_assert(mx_bijective(kMxK32, 8, 2, mx_b_element, mx_b_place));
static_assert(mx_bijective(kMxK64, 16, 4, mx_a_element, mx_a_place));
static_assert(mx_bijective(kMxK64, 8, 2, mx_b_element, mx_b_place));

constexpr bool results_bijective() {
  bool seen[16][8] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int reg = 0; reg < 4; ++reg) {
      bool& place = seen[d_row(lane, reg)][d_col(lane, reg)];
      if (place) return false;
      place = true;
    }
  return true;
}
constexpr bool scale_lanes_differ() {
  uint32_t a = 0, b = 0;
  for (int row = 0; row < 16; ++row) a |= 1u << scale_lane_a(row);
  for (int col = 0; col < 8; ++col) b |= 1u << scale_lane_b(col);
  return a == 0x33333333u && b == 0x11111111u;  // lanes 0 and 1 of each quad; lane 0
}
static_assert(results_bijective() && scale_lanes_differ());

constexpr bool codes_fit_containers(MxFormat format) {
  for (int code = 0; code < 1 << mx_element_bits(format); ++code)
    if (code_in(format, container_of(format, static_cast<uint8_t>(code))) != code) return false;
  return true;
}
static_assert(codes_fit_containers(MxFormat::kMxfp4) && codes_fit_containers(MxFormat::kMxfp8E4m3) &&
              codes_fit_containers(MxFormat::kMxfp6E2m3) && codes_fit_containers(MxFormat::kMxfp6E3m2));
}  // namespace proof

}  // namespace nibble::backend::cuda::layout

#pragma once
// The words of e2m1_f16.h as bytes of e5m2: a register of the block-scaled mma.sync.m16n8k32 for each of a lane's two
// rows. The upper byte of an f16 number *is* an e5m2 number, so a code in bits 7 and 3..1 of a byte is its value times
// 2^-14, subnormal included, and the packed scales, 14 too large, already undo that (mx_a_m16k32.h). As e2m1 in its own
// container each register would take four operations more. From there two steps' bytes become the eight codes of a
// register of m16n8k64. Plain C++: device and tests run the same statements.

#include "backend/cuda/layout/e2m1_f16.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

// Registers of the lane's row and of the row 8 below; byte i is k mx_byte_k(i) of the word's four.
struct E5m2Registers {
  uint32_t row[2];
};

[[nodiscard]] constexpr E5m2Registers e5m2_of_e2m1x8(uint32_t w) {
  constexpr uint32_t kUpper = kE2m1Mask, kLower = kE2m1Mask >> 8;  // halves' upper bytes, and moved down
  return {{(w >> 2 & kLower) | ((w ^ w >> 3) & kUpper), (w << 1 & kLower) | ((w ^ w << 2) & kUpper)}};
}

// Of a row's registers of step 0 and step 1 of a block: their codes in the low and the high half of each byte.
[[nodiscard]] constexpr uint32_t nibbles_of(uint32_t step0, uint32_t step1) {
  return (step0 >> 1 & 0x07070707u) | (step0 >> 4 & 0x08080808u) | (step1 << 3 & 0x70707070u) | (step1 & 0x80808080u);
}

namespace proof {
constexpr bool nibbles_are_codes() {
  for (uint32_t low = 0; low < 16; ++low)
    for (uint32_t high = 0; high < 16; ++high)
      for (int byte = 0; byte < 4; ++byte) {
        const uint32_t wide = half_of_code(low) >> 8 << 8 * byte, other = half_of_code(high) >> 8 << 8 * byte;
        if (nibbles_of(wide, other) != (low | high << 4) << 8 * byte) return false;
      }
  return true;
}
constexpr bool registers_are_the_pairs() {
  for (uint32_t n = 0; n < 4096; ++n) {
    const uint32_t w = n < 32 ? 1u << n : n * 2654435761u;
    const E2m1Pairs pairs = widen_e2m1x8(w);
    const E5m2Registers registers = e5m2_of_e2m1x8(w);
    for (int row = 0; row < 2; ++row)
      if (registers.row[row] != (pairs.pair[row] >> 8 | pairs.pair[2 + row])) return false;
  }
  return true;
}
constexpr bool codes_are_e5m2() {
  for (uint32_t code = 0; code < 16; ++code) {
    const E5m2 wide{static_cast<uint8_t>(half_of_code(code) >> 8)};
    const float value = E2m1{static_cast<uint8_t>(code)}.to_float();
    if (wide.to_float() != value * 0x1p-14f) return false;
  }
  return true;
}
static_assert(kE2m1AsF16Log2 == -14 && registers_are_the_pairs() && codes_are_e5m2() && nibbles_are_codes());
}  // namespace proof

}  // namespace nibble::backend::cuda::layout

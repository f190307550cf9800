#pragma once
// Small floats as larger ones by moving bits. Plain C++: packer, device and tests run the same statements.

#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

// Eight e2m1 codes in one word, such that eight integer operations give four registers of f16 pairs.
// An e2m1 code s.ee.m in bits 15 and 11..9 of a half *is* that f16 number times 2^-14, subnormal included, so widening
// is moving bits: register i = (w<<a ^ w<<b) & 0x8e008e00. No four shifts of the mask {15,11,10,9} tile a word, hence
// the xors: four shifts and four LOP3, the map from word to registers invertible over GF(2) (found by search).
inline constexpr int kWordCodes = 8;
inline constexpr int kE2m1AsF16Log2 = -14;  // f16 value = e2m1 value * 2^-14
inline constexpr uint32_t kE2m1Mask = 0x8e008e00u;

// Codes 2i (low half) and 2i+1 of the word, as f16 times 2^-14.
struct E2m1Pairs {
  uint32_t pair[4];
};

[[nodiscard]] constexpr E2m1Pairs widen_e2m1x8(uint32_t w) {
  return {{(w << 6) & kE2m1Mask, (w << 9) & kE2m1Mask, (w ^ (w >> 3)) & kE2m1Mask, (w ^ (w << 2)) & kE2m1Mask}};
}

// The inverse: the one word that widens to these registers. REQUIRES no bits outside kE2m1Mask.
// Each line solves for the bits in its mask from bits already known.
[[nodiscard]] constexpr uint32_t word_of_pairs(const E2m1Pairs& p) {
  uint32_t w = (p.pair[0] >> 6) | (p.pair[1] >> 9);
  w |= (p.pair[2] ^ (w >> 3)) & 0x80008000u;
  w |= ((p.pair[3] ^ w) >> 2) & 0x20002000u;
  w |= (p.pair[2] ^ (w >> 3)) & 0x04000400u;
  w |= ((p.pair[3] ^ w) >> 2) & 0x01000100u;
  w |= (p.pair[3] ^ (w << 2)) & 0x08000800u;
  w |= ((p.pair[2] ^ w) << 3) & 0x50005000u;
  w |= ((p.pair[3] ^ w) >> 2) & 0x00800080u;
  return w;
}

// The f16 bits of one code (times 2^-14), and back.
[[nodiscard]] constexpr uint32_t half_of_code(uint32_t code) { return (code & 8u) << 12 | (code & 7u) << 9; }
[[nodiscard]] constexpr uint32_t code_of_half(uint32_t half) { return (half >> 12 & 8u) | (half >> 9 & 7u); }

// The words of widen_e2m1x8 as bytes of e5m2: a register of the block-scaled mma.sync.m16n8k32 for each of a lane's two
// rows. The upper byte of an f16 number *is* an e5m2 number, so a code in bits 7 and 3..1 of a byte is its value times
// 2^-14, subnormal included, and the packed scales, 14 too large, already undo that (mx_a_m16k32.h). As e2m1 in its own
// container each register would take four operations more. From there two steps' bytes become the eight codes of a
// register of m16n8k64.

// Registers of the lane's row and of the row 8 below; byte i is k mx_byte_k(i) of the word's four.
struct E5m2Registers {
  uint32_t row[2];
};

[[nodiscard]] constexpr E5m2Registers e5m2_of_e2m1x8(uint32_t w) {
  constexpr uint32_t kUpper = kE2m1Mask, kLower = kE2m1Mask >> 8;  // halves' upper bytes, and moved down
  return {{(w >> 2 & kLower) | ((w ^ w >> 3) & kUpper), (w << 1 & kLower) | ((w ^ w << 2) & kUpper)}};
}

// Codes of a row's registers of step 0 and step 1 of a block, in the low and the high half of each byte.
[[nodiscard]] constexpr uint32_t nibbles_of(uint32_t step0, uint32_t step1) {
  return (step0 >> 1 & 0x07070707u) | (step0 >> 4 & 0x08080808u) | (step1 << 3 & 0x70707070u) | (step1 & 0x80808080u);
}

// Two e4m3 codes as f16, for cards without an instruction for it: a code's seven bits below the sign, shifted left by
// seven, *are* that f16 number times 2^-8, subnormal included.
inline constexpr uint32_t kE4m3Unscale = 0x5c005c00u;  // 2^8, twice

// The pair of codes in the low 16 bits times 2^-8, a NaN as 1.875.
[[nodiscard]] constexpr uint32_t small_f16_of_e4m3(uint32_t two) {
  const uint32_t high = (two & 0xffu) << 8 | (two & 0xff00u) << 16;  // a code in each half's upper byte
  return (high & 0x80008000u) | (high & 0x7f007f00u) >> 1;
}
// The bits that make NaN of the halves where small_f16_of_e4m3 met one; 0 elsewhere.
[[nodiscard]] constexpr uint32_t nan_bits(uint32_t small) {
  const uint32_t top = ((small & 0x7fff7fffu) + 0x00800080u) & 0x40004000u;
  return top | (top - (top >> 14));
}

}  // namespace nibble::backend::cuda::layout

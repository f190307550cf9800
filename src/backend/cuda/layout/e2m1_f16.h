#pragma once
// Eight e2m1 codes in one word, such that eight integer operations give four registers of f16 pairs.
// An e2m1 code s.ee.m in bits 15 and 11..9 of a half *is* that f16 number times 2^-14, subnormal included, so widening
// is moving bits: register i = (w<<a ^ w<<b) & 0x8e008e00. No four shifts of the mask {15,11,10,9} tile a word, hence
// the xors: four shifts and four LOP3, the map from word to registers invertible over GF(2) (found by search).
// Plain C++: packer, device and tests run the same statements.

#include <cstdint>

namespace nibble::backend::cuda::layout {

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

// Codes as signed bytes of twice their value, four consecutive k of a row to a word: what dp4a multiplies.
// widen_e2m1x8 (e2m1_f16.h) makes a code the f16 number v * 2^-14. Times 2^15 plus 1536 it is 1536 + 2 v, whose
// mantissa counts in ones: its low byte is 2 v in two's complement.
inline constexpr uint32_t kInt8FromE2m1Factor = 0x78007800u;  // 2^15, twice
inline constexpr uint32_t kInt8FromE2m1Add = 0x66006600u;     // 1536, twice
// A weight is its byte times scale_of (mx_a_m16k32.h) times this: half of it, and 2^-14 that the scale holds too much.
inline constexpr float kE2m1FromInt8 = 0x1p-15f;

}  // namespace nibble::backend::cuda::layout

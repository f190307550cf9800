#pragma once
// The short copy of a matrix that a screen multiplies (sampling/screen.h): codes of 7 bits as the A operand of
// mma.sync.m16n8k32 of bytes. Plain C++: the maker, the kernel and the tests ask here.
//
//   copy  = groups of 32 rows, contiguous; a group is a part per pair of 32-blocks (64 columns), 16 rows by 16 rows
//   part  = 14 words a lane, 7 for each 16 rows, two words of all lanes after each other: 7 * 256 bytes
//   words = the eight A registers of two mma, four codes each, in seven words: word j < 7 is register j, and its bytes'
//           top bits are bit j of register 7's codes
//   k       lane t of a quad has k = 8t .. 8t + 7 of a block, as in packed.h: the order of a product does not matter

#include "backend/cuda/layout/mma_fragments.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

inline constexpr int kScreenRows = 32;     // of a group
inline constexpr int kScreenColumns = 64;  // of a part
inline constexpr int kScreenTiles = kScreenRows / 16;
inline constexpr int kScreenRegisters = 8, kScreenWords = 7;  // of a lane, for 16 rows of a part
inline constexpr int kScreenPartBytes = kScreenTiles * kScreenWords * 4 * kWarpLanes;
inline constexpr int kScreenMost = 63, kScreenZero = 64;  // codes are kScreenZero + (-kScreenMost .. kScreenMost)

[[nodiscard]] constexpr bool screens(int64_t rows, int64_t cols) {
  return rows > 0 && cols > 0 && rows % kScreenRows == 0 && cols % kScreenColumns == 0;
}
[[nodiscard]] constexpr int64_t screen_bytes(int64_t rows, int64_t cols) {
  return rows / kScreenRows * (cols / kScreenColumns) * kScreenPartBytes;
}
// Where a lane's words i and i + 1 of the 14 of a part begin. i is even.
[[nodiscard]] constexpr int screen_word_offset(int i, int lane) { return (i / 2 * kWarpLanes + lane) * 8; }

// The code in byte `byte` of a lane's register: its row of the 16, and its column of the 64.
struct ScreenElement {
  int row = 0, k = 0;
};
[[nodiscard]] constexpr ScreenElement screen_element(int lane, int reg, int byte) {
  return {a_row(lane, reg), reg / 4 * 32 + 8 * (lane % 4) + reg % 4 / 2 * 4 + byte};
}
// Where the activation of a column of the 64 goes: lane t of a quad, its B register of four, its byte.
struct ScreenPlace {
  int t = 0, reg = 0, byte = 0;
};
[[nodiscard]] constexpr ScreenPlace screen_place(int k) { return {k % 32 / 8, k / 32 * 2 + k % 8 / 4, k % 4}; }

// Eight registers of codes in seven words, and back.
constexpr void shorten(const uint32_t (&registers)[kScreenRegisters], uint32_t (&words)[kScreenWords]) {
  for (int j = 0; j < kScreenWords; ++j)
    words[j] = registers[j] | (registers[kScreenWords] >> j & 0x01010101u) << kScreenWords;
}
constexpr void lengthen(const uint32_t (&words)[kScreenWords], uint32_t (&registers)[kScreenRegisters]) {
  registers[kScreenWords] = 0;
  for (int j = 0; j < kScreenWords; ++j) {
    registers[j] = words[j] & 0x7f7f7f7fu;
    registers[kScreenWords] |= words[j] >> (kScreenWords - j) & 0x01010101u << j;
  }
}

}  // namespace nibble::backend::cuda::layout

#pragma once
// wgmma_b.h for operands of a byte: e4m3 codes of activations, a row of 64 k in 64 bytes, 64-byte swizzle. The rows of
// a tile are a stage again, and of a matrix panels.
//
//   stage  = rows of 8 tokens form atoms of 512 bytes; in an atom the 16-byte chunks of row r are exchanged: chunk c
//            lies at c ^ (r / 2 % 4)
//   k      : a word of the packed weights holds k 8t + 4 step … + 3 for lane t and both of its rows, which are one A
//            register each of wgmma.m64nNk32: byte_slot_of_k
//   row    = one scale for all of its k, a power of two (quantise/round_rows.h)

#include "backend/cuda/layout/mx_m16n8k32.h"
#include "backend/cuda/layout/wgmma_b.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

inline constexpr int kByteRowBytes = kPanelK, kByteAtomBytes = kAtomRows * kByteRowBytes;

// Where element k of a block of 32 is stored.
[[nodiscard]] constexpr int byte_slot_of_k(int k) { return 16 * (k / 4 % 2) + 4 * (k / 8) + k % 4; }

// Byte offset in a stage whose base is a multiple of 512.
[[nodiscard]] constexpr uint32_t swizzled_byte_chunk(int token, int chunk) {
  return static_cast<uint32_t>(token * kByteRowBytes + (chunk ^ (token / 2 % 4)) * 16);
}
// The same exchange as the hardware does it, on addresses.
[[nodiscard]] constexpr uint32_t swizzle64(uint32_t address) { return address ^ (address >> 7 & 3u) << 4; }

// Byte offset of (row, k) in a matrix of `rows` rows.
[[nodiscard]] constexpr int64_t place_in_byte_panels(int64_t rows, int64_t row, int64_t k) {
  const auto own = static_cast<int>(k % kPanelK);
  const int slot = own / kBlockK * kBlockK + byte_slot_of_k(own % kBlockK);
  return k / kPanelK * rows * kByteRowBytes + row / kAtomRows * kByteAtomBytes +
         swizzled_byte_chunk(static_cast<int>(row % kAtomRows), slot / 16) + slot % 16;
}

// As matrix_descriptor: of the block of 32 k, which is a step of the instruction.
[[nodiscard]] constexpr uint64_t byte_matrix_descriptor(uint32_t stage, int block) {
  constexpr uint32_t kSwizzle64 = 2u << 30, kStride = kByteAtomBytes / 16;  // the upper half
  constexpr uint32_t kLeading = 1u << 16;                                   // not used when swizzled
  return uint64_t{kSwizzle64 | kStride} << 32 | ((stage >> 4) + static_cast<uint32_t>(block * 2) + kLeading);
}

namespace proof {
// Byte i of register 2 step + half is k_of's element i % 2 of the word's pair half + 2 (i / 2).
constexpr bool byte_slots_are_what_the_wgmma_sees() {
  for (int t = 0; t < 4; ++t)
    for (int step = 0; step < 2; ++step)
      for (int i = 0; i < 4; ++i) {
        const MxElement slot = mx_a_element(kMxK32, {t, 2 * step, i});
        if (byte_slot_of_k(k_of(t, step, i / 2, i % 2)) != slot.k) return false;
      }
  return true;
}
constexpr bool byte_chunks_are_swizzled_addresses() {
  for (int token = 0; token < 256; ++token)
    for (int chunk = 0; chunk < 4; ++chunk)
      if (swizzled_byte_chunk(token, chunk) != swizzle64(static_cast<uint32_t>(token * kByteRowBytes + chunk * 16)))
        return false;
  return true;
}
constexpr bool byte_panels_bijective() {
  bool seen[16 * 2 * kPanelK] = {};
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 2 * kPanelK; ++k) {
      bool& place = seen[place_in_byte_panels(16, row, k)];
      if (place) return false;
      place = true;
    }
  return true;
}
static_assert(byte_slots_are_what_the_wgmma_sees() && byte_chunks_are_swizzled_addresses() && byte_panels_bijective());
}  // namespace proof

}  // namespace nibble::backend::cuda::layout

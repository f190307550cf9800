#pragma once
// The B operand of wgmma (N tokens x K, K-major, 128-byte swizzle) and the order of k that the packed weights ask of
// it. PTX ISA §9.7.15.5 (asynchronous warpgroup-level matrix shared memory layout), §9.7.15.5.1.2.2 (matrix
// descriptor).
//
//   stage  = tokens rows of 64 k (128 bytes), rows of 8 tokens forming atoms of 1024 bytes; in an atom the 16-byte
//            chunks of row r are exchanged: chunk c lies at c ^ (r % 8)
//   k      : the packed weights deal k to lanes as mx_a_m16k32.h k_of says. mma.sync reads B in that order; wgmma takes
//   B
//            in the order of its slots, so activations are stored with each block of 32 k permuted: slot_of_k.
//   matrix = panels of 64 k, one after the other, each the atoms of all rows (a multiple of 8): rows from a multiple of
//            8 on are, in a panel, one contiguous copy into a stage: place_in_panels.

#include "backend/cuda/layout/mma_fragments.h"
#include "backend/cuda/layout/mx_a_m16k32.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

inline constexpr int kAtomRows = 8;
inline constexpr int kAtomRowBytes = 128;
inline constexpr int kAtomBytes = kAtomRows * kAtomRowBytes;

// Where element k of a block of 32 is stored. Pairs (k even, k + 1) stay neighbours.
[[nodiscard]] constexpr int slot_of_k(int k) {
  const int t = k / 8, step = k / 4 % 2, reg_pair = k / 2 % 2;
  return 16 * step + 8 * reg_pair + 2 * t + k % 2;
}

// Byte offset in a stage whose base is a multiple of 1024.
[[nodiscard]] constexpr uint32_t swizzled_chunk(int token, int chunk) {
  return static_cast<uint32_t>(token * kAtomRowBytes + (chunk ^ (token % kAtomRows)) * 16);
}
// The exchange as the hardware does it, on addresses.
[[nodiscard]] constexpr uint32_t swizzle128(uint32_t address) { return address ^ (address >> 7 & 7u) << 4; }

inline constexpr int kPanelK = kAtomRowBytes / 2;
// Element offset of (row, k) in a matrix of `rows` rows.
[[nodiscard]] constexpr int64_t place_in_panels(int64_t rows, int64_t row, int64_t k) {
  const auto own = static_cast<int>(k % kPanelK);
  const int slot = own / kBlockK * kBlockK + slot_of_k(own % kBlockK);
  return k / kPanelK * rows * kPanelK + row / kAtomRows * (kAtomBytes / 2) +
         swizzled_chunk(static_cast<int>(row % kAtomRows), slot / 8) / 2 + slot % 8;
}

// Descriptor of the K slice of 16 that starts `step` slices after the stage's base. REQUIRES a stage below 2^18, as
// shared addresses are: then what is constant adds up to one addition.
[[nodiscard]] constexpr uint64_t matrix_descriptor(uint32_t stage, int step) {
  constexpr uint32_t kSwizzle128 = 1u << 30, kStride = kAtomBytes / 16;  // the upper half
  constexpr uint32_t kLeading = 1u << 16;                                // not used when swizzled
  return uint64_t{kSwizzle128 | kStride} << 32 | ((stage >> 4) + static_cast<uint32_t>(step * 2) + kLeading);
}

// The B operand of bytes: e4m3 codes of activations, a row of 64 k in 64 bytes, 64-byte swizzle. The rows of
// a tile are a stage again, and of a matrix panels.
//
//   stage  = rows of 8 tokens form atoms of 512 bytes; in an atom the 16-byte chunks of row r are exchanged: chunk c
//            lies at c ^ (r / 2 % 4)
//   k      : a word of the packed weights holds k 8t + 4 step … + 3 for lane t and both of its rows, which are one A
//            register each of wgmma.m64nNk32: byte_slot_of_k
//   row    = one scale for all of its k, a power of two (quantise/round_blocks.h)
inline constexpr int kByteRowBytes = kPanelK, kByteAtomBytes = kAtomRows * kByteRowBytes;

// Where element k of a block of 32 is stored.
[[nodiscard]] constexpr int byte_slot_of_k(int k) { return 16 * (k / 4 % 2) + 4 * (k / 8) + k % 4; }

// Byte offset in a stage whose base is a multiple of 512.
[[nodiscard]] constexpr uint32_t swizzled_byte_chunk(int token, int chunk) {
  return static_cast<uint32_t>(token * kByteRowBytes + (chunk ^ (token / 2 % 4)) * 16);
}
// The exchange as the hardware does it, on addresses.
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

}  // namespace nibble::backend::cuda::layout

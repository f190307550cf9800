#pragma once
// Activations in MX blocks as the B operand of the block-scaled mma.sync, against weights in layout/packed.h: rows that
// stand alone, each with its scales. Who makes them stores so; the kernels of arch/sm121 copy them as they lie.
//
//   row    = codes; then the E8M0 scale of each block of 32 k; then nothing, up to a multiple of 16
//   k      : the packed weights deal k 8t..8t+7 of a block to lane t (mx_a_m16k32.h), in two steps of four. The
//            weights' words widen to bytes of k 0, 2, 1, 3 of a step (small_floats.h), so this is B's order, too
//   codes of a byte (MXFP8, MXFP6; m16n8k32): per 64 k (a pair of blocks) 64 bytes, 16 for each lane t of a quad:
//            registers 0 and 1 of the first block, then of the second; register s has step s
//   codes of four bits (MXFP4; m16n8k64): per 64 k 32 bytes, 8 for each lane: register 0 has the first block, register
//            1 the second; byte i has its k of step 0 in the low half and that of step 1 in the high one

#include "backend/cuda/layout/mma_fragments.h"
#include "backend/cuda/layout/packed.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

inline constexpr int kBlockPairK = 2 * kBlockK;  // k of a pair of blocks

// k of byte i of a register, from the first of its four; and the way back, which is the same.
[[nodiscard]] constexpr int mx_byte_k(int i) { return i % 2 * 2 + i / 2; }

// Bits of a code in a row.
[[nodiscard]] constexpr int mx_code_bits(MxFormat format) { return format == MxFormat::kMxfp4 ? 4 : 8; }
// Bytes of `k` codes, which are whole pairs of blocks.
[[nodiscard]] constexpr int mx_code_bytes(MxFormat format, int k) { return k * mx_code_bits(format) / 8; }
// Bytes of a lane's codes of a pair of blocks.
[[nodiscard]] constexpr int mx_lane_bytes(MxFormat format) { return 2 * mx_code_bits(format); }
[[nodiscard]] constexpr int mx_scale_bytes(int cols) { return (cols / kBlockK + 15) / 16 * 16; }
// REQUIRES cols in pairs of blocks.
[[nodiscard]] constexpr int mx_row_bytes(MxFormat format, int cols) {
  return mx_code_bytes(format, cols) + mx_scale_bytes(cols);
}
// The byte with k's code, and the code's lowest bit in it.
[[nodiscard]] constexpr int mx_code_offset(MxFormat format, int k) {
  const int in_block = k % kBlockK, block = k % kBlockPairK / kBlockK, step = in_block % 8 / 4;
  const int lane = k / kBlockPairK * mx_code_bytes(format, kBlockPairK) + in_block / 8 * mx_lane_bytes(format);
  const int in_lane = mx_code_bits(format) == 4 ? 4 * block : 8 * block + 4 * step;
  return lane + in_lane + mx_byte_k(k % 4);
}
[[nodiscard]] constexpr int mx_code_shift(MxFormat format, int k) {
  return mx_code_bits(format) == 4 ? k % 8 / 4 * 4 : 0;
}
[[nodiscard]] constexpr int mx_scale_offset(MxFormat format, int cols, int block) {
  return mx_code_bytes(format, cols) + block;
}

// The element of a pair of blocks that byte i of A's register `reg` holds, as the kernels widen weights.
[[nodiscard]] constexpr BlockPairElement mx_block_pair_element(int lane, int block, int reg, int i) {
  return block_pair_element(lane, 2 * block + reg / 2, reg % 2 + 2 * (i % 2), i / 2);
}

// Which bytes of a step's two words of MXFP8 weights (packed.h: a pair of k of each register of m16n8k16) make the
// register of the lane's row, or of the row 8 below: a selector of ptx::permute_bytes.
[[nodiscard]] constexpr uint32_t mx_word_bytes(int below) {
  uint32_t selector = 0;
  for (int i = 0; i < 4; ++i) selector |= static_cast<uint32_t>(2 * below + 4 * (i % 2) + i / 2) << 4 * i;
  return selector;
}

}  // namespace nibble::backend::cuda::layout

#pragma once
// MXFP8 activations as the B operand of the block-scaled mma.sync.m16n8k32, against weights in layout/packed.h: rows
// that stand alone, each with its scales. Who makes them stores so; the kernels of arch/sm121 copy them as they lie.
//
//   row    = codes, a byte each; then the E8M0 scale of each block of 32 k; then nothing, up to a multiple of 16
//   codes  = per 64 k (a pair of blocks) 64 bytes, 16 for each lane t of a quad: registers 0 and 1 of the first block,
//            then of the second. A column's lanes load 16 bytes each, 8 lanes 128 bytes in a row
//   k      : the packed weights deal k 8t..8t+7 of a block to lane t (mx_a_m16k32.h). Step s of it (4 k) is byte for
//            byte register s of B and registers 2 s and 2 s + 1 of A; the weights' words widen to bytes of k 0, 2, 1, 3
//            (e2m1_e5m2.h), so these are B's, too

#include "backend/cuda/layout/mx_m16n8k32.h"
#include "backend/cuda/layout/packed.h"

#include <cstdint>

namespace nibble::backend::cuda::layout {

inline constexpr int kMxPairK = 2 * kBlockK;  // k of a pair of blocks, and bytes of its codes
inline constexpr int kMxLaneBytes = 16;

// k of byte i of a register, from the first of its four; and the way back, which is the same.
[[nodiscard]] constexpr int mx_byte_k(int i) { return i % 2 * 2 + i / 2; }

[[nodiscard]] constexpr int mx_scale_bytes(int cols) { return (cols / kBlockK + 15) / 16 * 16; }
// REQUIRES cols in pairs of blocks.
[[nodiscard]] constexpr int mx_row_bytes(int cols) { return cols + mx_scale_bytes(cols); }
[[nodiscard]] constexpr int mx_code_offset(int k) {
  const int in_block = k % kBlockK;
  return k / kMxPairK * kMxPairK + in_block / 8 * kMxLaneBytes + k % kMxPairK / kBlockK * 8 + in_block % 8 / 4 * 4 +
         mx_byte_k(k % 4);
}
[[nodiscard]] constexpr int mx_scale_offset(int cols, int block) { return cols + block; }

// The element of a pair of blocks that byte i of A's register `reg` holds, as the kernels widen weights.
[[nodiscard]] constexpr PairElement mx_pair_element(int lane, int block, int reg, int i) {
  return pair_element(lane, 2 * block + reg / 2, reg % 2 + 2 * (i % 2), i / 2);
}

namespace proof {
constexpr bool codes_of_a_row_bijective() {
  bool seen[2 * kMxPairK] = {};
  for (int k = 0; k < 2 * kMxPairK; ++k) {
    const int at = mx_code_offset(k);
    if (at < 0 || at >= 2 * kMxPairK || seen[at]) return false;
    seen[at] = true;
  }
  return true;
}
// Wherever the instruction multiplies a byte of A with one of B, both are of one k; and A's row is the row.
constexpr bool operands_meet() {
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int block = 0; block < 2; ++block)
      for (int reg = 0; reg < 4; ++reg)
        for (int i = 0; i < 4; ++i) {
          const PairElement own = mx_pair_element(lane, block, reg, i);
          const MxElement slot = mx_a_element(kMxK32, {lane, reg, i});
          const MxPlace b = mx_b_place(kMxK32, {0, slot.k});
          const int at = b.lane % 4 * kMxLaneBytes + 8 * block + 4 * b.reg + b.at;
          if (own.row != slot.line || own.k / kBlockK != block || mx_code_offset(own.k) != at) return false;
        }
  return true;
}
static_assert(codes_of_a_row_bijective() && operands_meet());
static_assert(mx_row_bytes(2880) == 2976 && mx_row_bytes(4096) == 4224);
}  // namespace proof

}  // namespace nibble::backend::cuda::layout

#pragma once
// Host twin of ptx/wgmma_f8.cuh: exact sums rounded once, where the instruction keeps fewer bits.

#include "backend/cuda/layout/mx_m16n8k32.h"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda::ptx {

// B[k, n]: rows of 64 bytes.
inline double emulated_byte_b(uint64_t descriptor, int k, int n) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 2 || (descriptor >> 49 & 7) != 0) return std::nan("");  // only 64-byte swizzle is emulated
  const uint32_t address =
      start + static_cast<uint32_t>(n / 8) * stride + static_cast<uint32_t>(n % 8) * 64 + static_cast<uint32_t>(k);
  return double{E4m3{smem[address ^ ((address >> 7) & 3u) << 4]}.to_float()};  // bits 4, 5 ^= bits 7, 8
}

template <int kColTiles>
void wgmma_m64k32(float (&d)[kColTiles][4], const uint32_t (&a)[4], uint64_t b) {
  const emulation::WarpOperands& all = emulation::exchange({.a = {a[0], a[1], a[2], a[3]}});
  const int lane = emulation::lane_idx();
  double rows[2][32];
  for (int quad = 0; quad < 4; ++quad)
    for (int reg = 0; reg < 4; ++reg)
      for (int i = 0; i < 4; ++i) {
        const int from = lane / 4 * 4 + quad;
        const layout::MxElement e = layout::mx_a_element(layout::kMxK32, {from, reg, i});
        rows[e.line / 8][e.k] = double{E5m2{static_cast<uint8_t>(all.lane[from].a[reg] >> (8 * i))}.to_float()};
      }
  for (int j = 0; j < kColTiles; ++j)
    for (int i = 0; i < 4; ++i) {
      double sum = d[j][i];
      for (int k = 0; k < 32; ++k)
        sum += rows[layout::d_row(lane, i) / 8][k] * emulated_byte_b(b, k, 8 * j + layout::d_col(lane, i));
      d[j][i] = static_cast<float>(sum);
    }
}

}  // namespace nibble::backend::cuda::ptx

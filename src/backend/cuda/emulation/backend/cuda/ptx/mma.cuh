#pragma once
// Host twin of ptx/mma.cuh: exact products and sums in double, rounded once.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/layout/mma_m16n8k16.h"

namespace nibble::backend::cuda::ptx {

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::Operands own{.a = {a[0], a[1], a[2], a[3]}, .b = {b0, b1}};
  const emulation::WarpOperands& all = emulation::exchange(own);
  const auto half = [](uint32_t reg, int i) { return double{F16{static_cast<uint16_t>(reg >> (16 * i))}.to_float()}; };
  double wide_a[16][16], wide_b[16][8];
  for (int lane = 0; lane < emulation::kLanes; ++lane)
    for (int i = 0; i < 2; ++i) {
      for (int reg = 0; reg < 4; ++reg)
        wide_a[layout::a_row(lane, reg)][layout::a_k(lane, reg, i)] = half(all.lane[lane].a[reg], i);
      for (int reg = 0; reg < 2; ++reg)
        wide_b[layout::b_k(lane, reg, i)][layout::b_col(lane)] = half(all.lane[lane].b[reg], i);
    }
  const int lane = emulation::lane_idx();
  for (int i = 0; i < 4; ++i) {
    double sum = d[i];
    for (int k = 0; k < 16; ++k) sum += wide_a[layout::d_row(lane, i)][k] * wide_b[k][layout::d_col(lane, i)];
    d[i] = static_cast<float>(sum);
  }
}

}  // namespace nibble::backend::cuda::ptx

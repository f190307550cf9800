#pragma once
// Host twin of ptx/mma.cuh: exact products and sums in double, rounded once.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/layout/mma_fragments.h"

namespace nibble::backend::cuda::ptx {

template <class Value>
void emulated_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::Operands own{.a = {a[0], a[1], a[2], a[3]}, .b = {b0, b1}};
  const emulation::WarpOperands& all = emulation::exchange(own);
  const auto half = [](uint32_t reg, int i) {
    return double{Value{static_cast<uint16_t>(reg >> (16 * i))}.to_float()};
  };
  const int lane = emulation::lane_idx();
  double wide_a[2][16], wide_b[2][16];  // the rows and columns of this lane's results
  for (int quad = 0; quad < 4; ++quad) {
    const int row_lane = lane / 4 * 4 + quad;
    for (int i = 0; i < 2; ++i) {
      for (int reg = 0; reg < 4; ++reg)
        wide_a[layout::a_row(row_lane, reg) / 8][layout::a_k(row_lane, reg, i)] = half(all.lane[row_lane].a[reg], i);
      for (int col = 0; col < 2; ++col) {
        const int col_lane = layout::d_col(lane, col) * 4 + quad;
        for (int reg = 0; reg < 2; ++reg)
          wide_b[col][layout::b_k(col_lane, reg, i)] = half(all.lane[col_lane].b[reg], i);
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    double sum = d[i];
    for (int k = 0; k < 16; ++k) sum += wide_a[layout::d_row(lane, i) / 8][k] * wide_b[i % 2][k];
    d[i] = static_cast<float>(sum);
  }
}

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma<F16>(d, a, b0, b1);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma<Bf16>(d, a, b0, b1);
}
// Elements of bytes, as `value` reads a place of a lane's registers; sums as `Sum`.
template <class Sum, class D, class ReadA, class ReadB>
void emulated_mma_bytes(D (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, ReadA of_a, ReadB of_b) {
  using layout::kMxK32;
  const emulation::WarpOperands& all = emulation::exchange({.a = {a[0], a[1], a[2], a[3]}, .b = {b0, b1}});
  const auto byte = [](const uint32_t* regs, const layout::MxPlace& place) {
    return static_cast<uint8_t>(regs[place.reg] >> 8 * place.at);
  };
  const int lane = emulation::lane_idx();
  for (int i = 0; i < 4; ++i) {
    Sum sum = d[i];
    for (int k = 0; k < kMxK32.k; ++k) {
      const layout::MxPlace at_a = layout::mx_a_place(kMxK32, {layout::d_row(lane, i), k});
      const layout::MxPlace at_b = layout::mx_b_place(kMxK32, {layout::d_col(lane, i), k});
      sum += of_a(byte(all.lane[at_a.lane].a, at_a)) * of_b(byte(all.lane[at_b.lane].b, at_b));
    }
    d[i] = static_cast<D>(sum);
  }
}
inline void mma_m16n8k32_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto value = [](uint8_t byte) { return double{E4m3{byte}.to_float()}; };
  emulated_mma_bytes<double>(d, a, b0, b1, value, value);
}
inline void mma_m16n8k32_u8s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma_bytes<int>(
      d, a, b0, b1, [](uint8_t byte) { return int{byte}; },
      [](uint8_t byte) { return int{static_cast<int8_t>(byte)}; });
}

}  // namespace nibble::backend::cuda::ptx

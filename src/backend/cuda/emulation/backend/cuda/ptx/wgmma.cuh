#pragma once
// Host twin of ptx/wgmma.cuh: the descriptor read bit by bit as the PTX ISA defines it, exact sums rounded once. The
// products are taken at once: what is missing in fences and waits, a GPU must show.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/layout/mma_m16n8k16.h"

#include <cstring>
#include <type_traits>

namespace nibble::backend::cuda::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kNewest>
void wgmma_wait() {}
inline void fence_async_proxy() {}

// B[k, n] of a K-major operand: rows of `bytes` (by the swizzle mode) in atoms of eight, atoms a stride apart.
template <class Value = Bf16>
double emulated_b(uint64_t descriptor, int k, int n) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) return std::nan("");  // only 128-byte swizzle is emulated
  const uint32_t address =
      start + static_cast<uint32_t>(n / 8) * stride + static_cast<uint32_t>(n % 8) * 128 + static_cast<uint32_t>(k) * 2;
  const uint32_t swizzled = address ^ ((address >> 7) & 7u) << 4;  // bits 4..6 ^= bits 7..9
  uint16_t bits;
  std::memcpy(&bits, smem + swizzled, 2);
  return double{Value{bits}.to_float()};
}

template <class Value = Bf16, int kColTiles, class Operand>
void emulated_wgmma(float (&d)[kColTiles][4], const uint32_t (&a)[4], const Operand& operand) {
  const emulation::WarpOperands& all = emulation::exchange({.a = {a[0], a[1], a[2], a[3]}});
  const int lane = emulation::lane_idx();
  double rows[2][16];
  for (int quad = 0; quad < 4; ++quad)
    for (int reg = 0; reg < 4; ++reg)
      for (int i = 0; i < 2; ++i) {
        const int from = lane / 4 * 4 + quad;
        rows[layout::a_row(from, reg) / 8][layout::a_k(from, reg, i)] =
            double{Value{static_cast<uint16_t>(all.lane[from].a[reg] >> (16 * i))}.to_float()};
      }
  for (int j = 0; j < kColTiles; ++j)
    for (int i = 0; i < 4; ++i) {
      double sum = d[j][i];
      for (int k = 0; k < 16; ++k)
        sum += rows[layout::d_row(lane, i) / 8][k] * operand(k, 8 * j + layout::d_col(lane, i));
      d[j][i] = static_cast<float>(sum);
    }
}

enum class WgmmaType : uint8_t { kBf16, kF16 };
template <WgmmaType kType = WgmmaType::kBf16, int kColTiles>
void wgmma_m64k16(float (&d)[kColTiles][4], const uint32_t (&a)[4], uint64_t b) {
  using Value = std::conditional_t<kType == WgmmaType::kF16, F16, Bf16>;
  emulated_wgmma<Value>(d, a, [&](int k, int n) { return emulated_b<Value>(b, k, n); });
}
// A by descriptor, too: the warp's 16 rows of 64.
template <int kColTiles>
void wgmma_m64k16(float (&d)[kColTiles][4], uint64_t a, uint64_t b) {
  const int lane = emulation::lane_idx(), warp = static_cast<int>(threadIdx.x) / 32 % 4;
  uint32_t own[4];
  for (int reg = 0; reg < 4; ++reg) {
    const auto bits = [&](int i) {
      const double value = emulated_b(a, layout::a_k(lane, reg, i), 16 * warp + layout::a_row(lane, reg));
      return uint32_t{Bf16::from_float(static_cast<float>(value)).bits};
    };
    own[reg] = bits(0) | bits(1) << 16;
  }
  wgmma_m64k16(d, own, b);
}
inline void wgmma_m64k16_first(float (&d)[8][4], uint64_t a, uint64_t b) {
  for (auto& tile : d)
    for (float& x : tile) x = 0;
  wgmma_m64k16(d, a, b);
}
inline void wgmma_m64k16_rows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  emulated_wgmma(d, a, [&](int k, int n) { return emulated_b(b, n, k); });
}

inline uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t pair, int i) { return F16{static_cast<uint16_t>(pair >> (16 * i))}.to_float(); };
  const auto product = [&](int i) { return F16::from_float(half(a, i) * half(b, i)).bits; };
  return product(0) | uint32_t{product(1)} << 16;
}
inline uint32_t low_halves(uint32_t pair) { return (pair & 0xffffu) * 0x00010001u; }
inline uint32_t high_halves(uint32_t pair) { return (pair >> 16) * 0x00010001u; }
inline uint32_t max_u16x2(uint32_t a, uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}

}  // namespace nibble::backend::cuda::ptx

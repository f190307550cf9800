#pragma once
// Host twin of ptx/wgmma.cuh: the descriptor read bit by bit as the PTX ISA defines it, exact sums rounded once (of
// FP8, too, where the instruction keeps fewer bits). The
// products are taken at once: what is missing in fences and waits, a GPU must show.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/layout/mma_fragments.h"

#include <cstring>
#include <type_traits>

namespace nibble::backend::cuda::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kNewest>
void wgmma_wait() {}
inline void fence_async_proxy() {}

// B[k, n] of a K-major operand: rows of `kRowBytes` (by the swizzle mode) in atoms of eight, atoms a stride apart.
template <class Value>
double emulated_b(uint64_t descriptor, int k, int n) {
  constexpr uint32_t kBytes = sizeof(Value::bits), kRowBytes = 64 * kBytes;  // 128-byte or 64-byte swizzle
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 128 / kRowBytes || (descriptor >> 49 & 7) != 0) return std::nan("");  // not emulated
  const uint32_t address = start + static_cast<uint32_t>(n / 8) * stride + static_cast<uint32_t>(n % 8) * kRowBytes +
                           static_cast<uint32_t>(k) * kBytes;
  const uint32_t swizzled = address ^ ((address >> 7) & (kRowBytes / 16 - 1)) << 4;  // bits 4, 5 (, 6) ^= 7, 8 (, 9)
  Value value;
  std::memcpy(&value.bits, smem + swizzled, kBytes);
  return double{value.to_float()};
}

// A's values, where a lane has them in its registers.
template <class Value>
struct EmulatedA {
  static constexpr int kK = 16, kInRegister = 2;
  static layout::MxElement element(int lane, int reg, int i) {
    return {layout::a_row(lane, reg), layout::a_k(lane, reg, i)};
  }
};
template <>
struct EmulatedA<E5m2> {
  static constexpr int kK = 32, kInRegister = 4;
  static layout::MxElement element(int lane, int reg, int i) {
    return layout::mx_a_element(layout::kMxK32, {lane, reg, i});
  }
};

template <class Value, int kColTiles, class Operand>
void emulated_wgmma(float (&d)[kColTiles][4], const uint32_t (&a)[4], const Operand& operand) {
  using A = EmulatedA<Value>;
  using Bits = decltype(Value::bits);
  const emulation::WarpOperands& all = emulation::exchange({.a = {a[0], a[1], a[2], a[3]}});
  const int lane = emulation::lane_idx();
  double rows[2][A::kK];
  for (int quad = 0; quad < 4; ++quad)
    for (int reg = 0; reg < 4; ++reg)
      for (int i = 0; i < A::kInRegister; ++i) {
        const int from = lane / 4 * 4 + quad;
        const layout::MxElement e = A::element(from, reg, i);
        rows[e.line / 8][e.k] =
            double{Value{static_cast<Bits>(all.lane[from].a[reg] >> (32 / A::kInRegister * i))}.to_float()};
      }
  for (int j = 0; j < kColTiles; ++j)
    for (int i = 0; i < 4; ++i) {
      double sum = d[j][i];
      for (int k = 0; k < A::kK; ++k)
        sum += rows[layout::d_row(lane, i) / 8][k] * operand(k, 8 * j + layout::d_col(lane, i));
      d[j][i] = static_cast<float>(sum);
    }
}

enum class WgmmaType : uint8_t { kBf16, kF16, kF8 };
template <WgmmaType kType = WgmmaType::kBf16, int kColTiles>
void wgmma(float (&d)[kColTiles][4], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (kType == WgmmaType::kF8) {
    emulated_wgmma<E5m2>(d, a, [&](int k, int n) { return emulated_b<E4m3>(b, k, n); });
  } else {
    using Value = std::conditional_t<kType == WgmmaType::kF16, F16, Bf16>;
    emulated_wgmma<Value>(d, a, [&](int k, int n) { return emulated_b<Value>(b, k, n); });
  }
}
// A by descriptor, too: the warp's 16 rows of 64.
template <int kColTiles>
void wgmma(float (&d)[kColTiles][4], uint64_t a, uint64_t b) {
  const int lane = emulation::lane_idx(), warp = static_cast<int>(threadIdx.x) / 32 % 4;
  uint32_t own[4];
  for (int reg = 0; reg < 4; ++reg) {
    const auto bits = [&](int i) {
      const double value = emulated_b<Bf16>(a, layout::a_k(lane, reg, i), 16 * warp + layout::a_row(lane, reg));
      return uint32_t{Bf16::from_float(static_cast<float>(value)).bits};
    };
    own[reg] = bits(0) | bits(1) << 16;
  }
  wgmma(d, own, b);
}
inline void wgmma_first(float (&d)[8][4], uint64_t a, uint64_t b) {
  for (auto& tile : d)
    for (float& x : tile) x = 0;
  wgmma(d, a, b);
}
inline void wgmma_rows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  emulated_wgmma<Bf16>(d, a, [&](int k, int n) { return emulated_b<Bf16>(b, n, k); });
}

inline uint32_t low_halves(uint32_t pair) { return (pair & 0xffffu) * 0x00010001u; }
inline uint32_t high_halves(uint32_t pair) { return (pair >> 16) * 0x00010001u; }
inline uint32_t max_u16x2(uint32_t a, uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}

}  // namespace nibble::backend::cuda::ptx

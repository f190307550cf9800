#pragma once
// EmulatedMx (mx_mma.h): operands widen to f16, which holds every element of every format, and go through two
// m16n8k16; the two scales multiply the sum. Nothing moves between lanes but the scales: a product does not care for
// the order of k, so the eight k that a lane owns in k32 take the eight that it owns in two k16, for A and B alike.
// rounding: the sum of a block of 32 in f32, then once for the scales, then d's

#include "backend/cuda/arch/sm121/mx_mma.h"
#include "backend/cuda/layout/mma_fragments.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/mma.cuh"

namespace nibble::backend::cuda {

struct EmulatedMx {
  template <MxFormat kA, MxFormat kB, int kByteA, int kByteB>
  static __device__ __forceinline__ void mma_k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 uint32_t scale_a, uint32_t scale_b) {
    add_block<kA, kB>(d, a, b, Scales(scale_a >> 8 * kByteA & 0xffu, scale_b >> 8 * kByteB & 0xffu));
  }
  template <int kByteA, int kByteB>
  static __device__ __forceinline__ void mma_k64(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 uint32_t scale_a, uint32_t scale_b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Codes 0, 2, 4, 6 of a register make one container register, codes 1, 3, 5, 7 the other.
      const uint32_t first = a[2 * half], second = a[2 * half + 1];
      const uint32_t wide_a[4] = {even(first), even(second), odd(first), odd(second)};
      const uint32_t wide_b[2] = {even(b[half]), odd(b[half])};
      add_block<MxFormat::kMxfp4, MxFormat::kMxfp4>(
          d, wide_a, wide_b, Scales(scale_a >> 8 * (kByteA + half) & 0xffu, scale_b >> 8 * (kByteB + half) & 0xffu));
    }
  }
  template <MxFormat kFormat>
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    const uint32_t first = mx_encode_element(kFormat, low), second = mx_encode_element(kFormat, high);
    return first | second << (kFormat == MxFormat::kMxfp4 ? 4 : 8);
  }

 private:
  // Scales of the lane's results: rows lane / 4 and 8 below, columns 2 (lane % 4) and the next.
  struct Scales {
    uint32_t row[2], col[2];
    __device__ __forceinline__ Scales(uint32_t own_a, uint32_t own_b) {
      const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        row[i] = __shfl_sync(0xffffffffu, own_a, layout::scale_lane_a(layout::d_row(lane, 2 * i)));
        col[i] = __shfl_sync(0xffffffffu, own_b, layout::scale_lane_b(layout::d_col(lane, i)));
      }
    }
  };
  static __device__ __forceinline__ uint32_t even(uint32_t codes) { return (codes & 0x0f0f0f0fu) << 2; }
  static __device__ __forceinline__ uint32_t odd(uint32_t codes) { return codes >> 2 & 0x3c3c3c3cu; }

  // Two containers, those of bytes 2 kPair and the next, as f16; times 2^wide_log2 of their format.
  template <MxFormat kFormat, int kPair>
  static __device__ __forceinline__ uint32_t widen(uint32_t containers) {
    // Byte by byte into the upper halves: 0, b, 0, b'.
    const uint32_t bytes = ptx::permute_bytes(containers, kPair == 0 ? 0x1404u : 0x3424u);
    if constexpr (kFormat == MxFormat::kMxfp8E4m3) return ptx::f16_of_e4m3(containers >> 16 * kPair & 0xffffu);
    if constexpr (kFormat == MxFormat::kMxfp8E5m2) return bytes;  // f16 cut short
    // Sign, exponent and mantissa under those of f16: the value times 2^wide_log2.
    if constexpr (kFormat == MxFormat::kMxfp4) return (bytes << 2 & 0x80008000u) | (bytes >> 1 & 0x0e000e00u);
    if constexpr (kFormat == MxFormat::kMxfp6E2m3) return (bytes << 2 & 0x80008000u) | (bytes >> 1 & 0x0f800f80u);
    return (bytes << 2 & 0x80008000u) | (bytes & 0x1f001f00u);
  }
  [[nodiscard]] static constexpr int wide_log2(MxFormat format) {
    switch (format) {
      case MxFormat::kMxfp8E4m3:
      case MxFormat::kMxfp8E5m2: return 0;
      case MxFormat::kMxfp6E3m2: return -12;
      case MxFormat::kMxfp4:
      case MxFormat::kMxfp6E2m3: return -14;
    }
    return 0;
  }

  template <MxFormat kA, MxFormat kB>
  static __device__ __forceinline__ void add_block(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                   const Scales& scales) {
    float p[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t first = a[2 * half], second = a[2 * half + 1];
      const uint32_t wide[4] = {widen<kA, 0>(first), widen<kA, 0>(second), widen<kA, 1>(first), widen<kA, 1>(second)};
      ptx::mma_m16n8k16(p, wide, widen<kB, 0>(b[half]), widen<kB, 1>(b[half]));
    }
    constexpr float kBack = std::bit_cast<float>(static_cast<uint32_t>(127 - wide_log2(kA) - wide_log2(kB)) << 23);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += mx_scaled(p[i] * kBack, scales.row[i / 2], scales.col[i % 2]);
  }
};
static_assert(MxMma<EmulatedMx>);

}  // namespace nibble::backend::cuda

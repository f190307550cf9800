#pragma once
// What the kernels of this folder multiply with: a policy, so that only the instruction differs between a GB10, a card
// without it, and the host.
//
//   NativeMx    native_mx.cuh    the block-scaled mma.sync; only in files that are built for sm_120a or sm_121a
//   EmulatedMx  testing/emulated_mx.cuh  mma.sync of f16: sm_80 on. Runs these kernels in tests, for their sums, not
//   for speed ScalarMx    emulation/scalar_mx.h  32 lanes' registers on the host, by the maps of layout/mma_fragments.h
//
// mma_k32: d += 2^(scale_a - 127) 2^(scale_b - 127) a·b of a warp's m16n8k32; the scales are bytes kByteA, kByteB of
// the registers. mma_k64: the same of e2m1 codes, a scale for each half of k. pair: two codes, to nearest
// (base/dtype.h). A scale of 255, or a NaN, makes the results NaN that it meets.

#include "base/mx.h"

#include <concepts>
#include <cstdint>

namespace nibble::backend::cuda {

template <class Mma>
concept MxMma = requires(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scale) {
  Mma::template mma_k32<MxFormat::kMxfp8E5m2, MxFormat::kMxfp8E4m3, 0, 0>(d, a, b, scale, scale);
  Mma::template mma_k64<0, 0>(d, a, b, scale, scale);
  { Mma::template pair<MxFormat::kMxfp8E4m3>(d[0], d[1]) } -> std::same_as<uint32_t>;
};

// p * 2^(a - 127) * 2^(b - 127), rounded once: neither of the two products leaves the range of f32 before the result
// does, and the first is exact where the result is not 0.
[[nodiscard]] constexpr float mx_scaled(float p, uint32_t a, uint32_t b) {
  if (a == E8m0::kNan || b == E8m0::kNan) return E8m0{E8m0::kNan}.to_float();
  const int sum = static_cast<int>(a + b), half = sum / 2;  // of 254 more than the power of two
  return p * E8m0{static_cast<uint8_t>(half)}.to_float() * E8m0{static_cast<uint8_t>(sum - half)}.to_float();
}

// What any_attend_prefill_fp8 multiplies with on GB10 and its like: the block-scaled mma.sync, of scales 1. There it is
// as fast as any of FP8; the plain one is half as fast on some, with f32 sums.
template <MxMma Mma>
struct ScaledFp8 {
  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    constexpr uint32_t kOne = 127;  // E8M0
    Mma::template mma_k32<MxFormat::kMxfp8E4m3, MxFormat::kMxfp8E4m3, 0, 0>(d, a, b, kOne, kOne);
  }
};

}  // namespace nibble::backend::cuda

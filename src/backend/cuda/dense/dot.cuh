#pragma once
// Rows of weights times rows of activations, by one warp: the inner loop of every matrix of the plain kernels.

#include "backend/cuda/launch/warp.cuh"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kDotStep = 8;  // columns that one lane takes at a time: 16 bytes of bf16, 4 of MXFP4

struct Bf16Rows {
  static constexpr bool kScaled = false;
  const Bf16* values;  // [rows, cols], rows 16 B aligned
  int cols;

  __device__ void load(int64_t row, int k, float (&w)[kDotStep]) const {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(values + row * cols + k));
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // two bf16 in a word, the first in its low half
      w[2 * i] = __uint_as_float(words[i] << 16);
      w[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  __device__ float scale(int64_t /*row*/, int /*k*/) const { return 1; }
};

struct Mxfp4Rows {
  static constexpr bool kScaled = true;
  const uint8_t* codes;   // [rows, cols / 2]: base/mx.h, element 2j in byte j's low nibble
  const uint8_t* scales;  // [rows, cols / 32]
  int cols;

  // The elements without their block's scale. An E2M1 code's exponent and mantissa, put at a float's, are the value
  // times 2^-126, code 1 (0.5) as a subnormal.
  __device__ void load(int64_t row, int k, float (&w)[kDotStep]) const {
    const uint32_t word = __ldg(reinterpret_cast<const unsigned int*>(codes + (row * cols + k) / 2));
#pragma unroll
    for (int i = 0; i < kDotStep; ++i) {
      const uint32_t code = word >> (4 * i);
      w[i] = __uint_as_float(((code & 8u) << 28) | ((code & 7u) << 22)) * 0x1p126f;
    }
  }
  __device__ float scale(int64_t row, int k) const { return E8m0{__ldg(scales + (row * cols + k) / 32)}.to_float(); }
};

// sums[r][t] = row rows[r] of w · x[t][0, w.cols), on every lane. A sum's order depends on cols alone, so it is the
// same for every kRows and kTokens. REQUIRES cols a multiple of kDotStep (32 for MXFP4), x[t] 16 B aligned.
template <int kRows, int kTokens, class Rows>
__device__ inline void dot_rows(const Rows& w, const int64_t (&rows)[kRows], const float* const (&x)[kTokens],
                                float (&sums)[kRows][kTokens]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[r][t] = 0;
  }
  constexpr int kUnroll = kRows * kTokens <= 2 ? 4 : kRows * kTokens <= 8 ? 2 : 1;
#pragma unroll kUnroll
  for (int k = threadIdx.x % kWarpLanes * kDotStep; k < w.cols; k += kWarpLanes * kDotStep) {
    float weight[kRows][kDotStep], scale[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      w.load(rows[r], k, weight[r]);
      scale[r] = w.scale(rows[r], k);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float4 low = *reinterpret_cast<const float4*>(x[t] + k);
      const float4 high = *reinterpret_cast<const float4*>(x[t] + k + 4);
      const float v[kDotStep] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float part = Rows::kScaled ? 0 : sums[r][t];
#pragma unroll
        for (int i = 0; i < kDotStep; ++i) part = fmaf(weight[r][i], v[i], part);
        sums[r][t] = Rows::kScaled ? fmaf(part, scale[r], sums[r][t]) : part;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[r][t] = warp_sum(sums[r][t]);
  }
}

}  // namespace nibble::backend::cuda

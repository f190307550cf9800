#pragma once
// The CPU backend's inner loops, compiled for every instruction set of Highway and chosen at run time by one mechanism.

#include "base/dtype.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace nibble::backend::cpu {

inline constexpr int kDotTokens = 4;

// out[n] = in[n]
void decode_bf16(const Bf16* in, int64_t n, float* out);
// One row of n = 32 * blocks values: 16 bytes of codes and one E8M0 scale per block (base/mx.h, kMxfp4).
void decode_mxfp4(const uint8_t* codes, const uint8_t* scales, int64_t n, float* out);
// out[i] = w · x[i] for i < count <= kDotTokens. The sum's order depends on n and the instruction set only, so a
// token's result does not depend on its neighbours.
void dot(const float* w, const std::array<const float*, kDotTokens>& x, int count, int64_t n, float* out);
// y[n] += a * x[n]
void axpy(float a, const float* x, int64_t n, float* y);

// The instruction set in use, Highway's name: "AVX3", "AVX2", "SSE4", "NEON", …
[[nodiscard]] std::string_view simd_target();

}  // namespace nibble::backend::cpu

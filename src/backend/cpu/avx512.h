#pragma once
// What the files of AVX-512 intrinsics share. Their code runs only where with_avx512() has seen the instructions.

#include "backend/cpu/ahead.h"
#include "backend/cpu/kernels.h"
#include "base/dtype.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#define NIBBLE_AVX512_TARGET \
  "avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vnni"

namespace nibble::backend::cpu {

inline constexpr auto kE8m0Values = [] {
  std::array<float, 256> values{};
  for (int i = 0; i < 256; ++i) values[static_cast<size_t>(i)] = E8m0{static_cast<uint8_t>(i)}.to_float();
  return values;
}();

[[nodiscard]] const Int8Kernels& avx512_int8_kernels();

}  // namespace nibble::backend::cpu

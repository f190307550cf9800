#pragma once
// What the files of AVX-512 intrinsics share. Their code runs only where with_avx512() has seen the instructions.

#include "backend/cpu/ahead.h"
#include "backend/cpu/avx2.h"
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

[[nodiscard]] const Int8Kernels& avx512_int8_kernels();

}  // namespace nibble::backend::cpu

#pragma once
// What the files of AVX2's and AVX-512's intrinsics share.

#include "backend/cpu/kernels.h"
#include "base/mx.h"

#include <algorithm>
#include <array>
#include <cstdint>

// Their code runs only where the CPU has these: with_avx2_floats(), with_avx2() and with_avx512() look.
#define NIBBLE_AVX2_TARGET "avx,avx2,fma,f16c"
#define NIBBLE_AVX512_TARGET \
  "avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vnni"

namespace nibble::backend::cpu {

[[nodiscard]] const Int8Kernels& avx512_int8_kernels();

void screen_avx2(const ScreenArgs& args);
void screen_avx512(const ScreenArgs& args);
inline constexpr int kScreenAhead = 4096;  // bytes that are fetched ahead of a screen's products
// Four digits, as a float for the broadcast that a load does.
[[nodiscard]] inline float screen_four(const int8_t* x) {
  using Anywhere [[gnu::aligned(1), gnu::may_alias]] = float;
  return *reinterpret_cast<const Anywhere*>(x);
}

inline constexpr auto kE8m0Values = [] {
  std::array<float, 256> values{};
  for (int i = 0; i < 256; ++i) values[static_cast<size_t>(i)] = E8m0{static_cast<uint8_t>(i)}.to_float();
  return values;
}();

// A row of weights, in blocks of kMxBlock columns whatever its format.
struct RowBytes {
  const uint8_t *values, *scales;  // scales: null unless has_scale_array
};
template <WeightFormat kFormat>
inline constexpr int kBlockBytes = static_cast<int>(row_bytes(kFormat, kMxBlock));

// Where the rows of w from `first` on begin, one per lane; the last is repeated, and not stored.
template <size_t kLanes>
struct RowsOfLanes {
  using Pointers = std::array<const uint8_t*, kLanes>;
  RowsOfLanes(const WeightRows& w, int first) {
    for (size_t r = 0; r < kLanes; ++r) {
      const int row = std::min(first + static_cast<int>(r), w.rows - 1);
      values[r] = w.values_of(row);
      scales[r] = has_scale_array(w.format) ? w.scales_of(row) : nullptr;
    }
  }
  Pointers values, scales;
};

}  // namespace nibble::backend::cpu

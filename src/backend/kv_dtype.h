#pragma once
// What keys and values are in the cache of the CPU, and the one statement of what that makes of them, for the oracle
// and tests, too.

#include "base/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace nibble::backend {

enum class KvDtype : uint8_t {
  kBf16,
  kF32,
  kE4m3,  // no scale, as in the cache of CUDA; what is past 448 becomes 448; lossy
  kInt8,  // of a head of a token: round(x / scale) to nearest, scale = max|x| / 127 in bf16; lossy
};
inline constexpr int kKvDtypes = 4;
[[nodiscard]] constexpr std::string_view name_of(KvDtype dtype) {
  constexpr std::string_view kNames[] = {"bf16", "f32", "e4m3", "int8"};
  return kNames[static_cast<size_t>(dtype)];
}

// NaN where a value is not finite, and then so is what it scales; 0 where all are next to nothing.
[[nodiscard]] inline Bf16 int8_scale(std::span<const float> head) {
  float most = 0;
  for (const float x : head)
    most = std::isfinite(x) ? std::max(most, std::abs(x)) : std::numeric_limits<float>::quiet_NaN();
  return Bf16::from_float(most < 0x1p-100f ? 0.0f : most / 127.0f);
}
// At most 127, although the scale is rounded: 127 / (1 - 2^-9) is below 127.5.
[[nodiscard]] inline int8_t int8_code(float x, Bf16 scale) {
  const float by = scale.to_float();
  return by > 0 ? static_cast<int8_t>(std::nearbyint(x / by)) : int8_t{0};
}

// A head of a token, in place.
inline void round_kv(KvDtype dtype, std::span<float> head) {
  const Bf16 scale = int8_scale(head);
  for (float& x : head) {
    switch (dtype) {
      case KvDtype::kBf16: x = Bf16::from_float(x).to_float(); break;
      case KvDtype::kF32: break;
      case KvDtype::kE4m3: x = E4m3::from_float(x).to_float(); break;
      case KvDtype::kInt8: x = static_cast<float>(int8_code(x, scale)) * scale.to_float(); break;
    }
  }
}

}  // namespace nibble::backend

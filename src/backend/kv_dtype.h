#pragma once
// What keys and values are in the cache, and what attention multiplies: the one statement of what that makes of them,
// for backends, the oracle and tests. Device code includes this, and its compiler does not take base/error.h.

#include "backend/backend_kind.h"
#include "base/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
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

// All that there is to say of a type but how it is rounded. A new one is a name above, a line below and a case of
// round_kv, which is all of it that the reference needs. A backend that is not in its `on` refuses it by name; one that
// is has a struct for it, KvCodec of cpu/kv_cache.h, PageRow of cuda/attention/page_rows.cuh (all places that
// name types: cuda/attention/README.md). The flag's words, the memory budget, tests over all types and `nibble verify`
// follow from the line.
struct KvType {
  KvDtype dtype;
  std::string_view name;
  std::string_view word;  // --kv-cache-dtype
  int value_bits;
  int scale_bytes;  // of a block
  int block;        // values of a row that share a scale; 0: all of it
  bool lossy;       // beside bf16
  BackendSet on;    // who has kernels for it
};
inline constexpr KvType kKvTypes[] = {
    {KvDtype::kBf16, "bf16", "bf16", 16, 0, 1, false, kEveryBackend},
    {KvDtype::kF32, "f32", "f32", 32, 0, 1, false, kEveryBackend},
    {KvDtype::kE4m3, "e4m3", "fp8", 8, 0, 1, true, kEveryBackend},
    {KvDtype::kInt8, "int8", "int8", 8, 2, 0, true, {BackendKind::kCpu, BackendKind::kReference}}};
inline constexpr size_t kKvDtypes = std::size(kKvTypes);
static_assert([] {
  for (size_t i = 0; i < kKvDtypes; ++i)
    if (static_cast<size_t>(kKvTypes[i].dtype) != i) return false;
  return true;
}());
[[nodiscard]] constexpr const KvType& type_of(KvDtype dtype) { return kKvTypes[static_cast<size_t>(dtype)]; }
[[nodiscard]] constexpr std::string_view name_of(KvDtype dtype) { return type_of(dtype).name; }
// Throws Error(kUnsupported), naming both, where the backend has no kernels for it.
void require_taken(const KvType& type, BackendKind backend);

// A row is a head of a token: `values` of the type. Throws Error(kUnsupported) where these are not whole blocks of it.
[[noreturn]] void refuse_row(const KvType& type, int64_t values);
[[nodiscard]] constexpr int64_t code_bytes(const KvType& type, int64_t values) {
  const bool fits = values > 0 && values <= std::numeric_limits<int64_t>::max() / 64;
  if (!fits || (type.block > 0 && values % type.block != 0) || values * type.value_bits % 8 != 0)
    refuse_row(type, values);
  return values * type.value_bits / 8;
}
[[nodiscard]] constexpr int64_t scale_bytes(const KvType& type, int64_t values) {
  return type.scale_bytes * (type.block > 0 ? values / type.block : 1);
}
[[nodiscard]] constexpr int64_t row_bytes(const KvType& type, int64_t values) {
  return code_bytes(type, values) + scale_bytes(type, values);
}
// Whether a value can be stored without a look at its neighbours.
[[nodiscard]] constexpr bool stands_alone(const KvType& type) {
  return type.scale_bytes == 0 && type.value_bits % 8 == 0;
}

// NaN where a value is not finite, and then so is what it scales; 0 where all are below 2^-100.
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
  switch (dtype) {
    case KvDtype::kF32: return;
    case KvDtype::kBf16:
      for (float& x : head) x = Bf16::from_float(x).to_float();
      return;
    case KvDtype::kE4m3:
      for (float& x : head) x = E4m3::from_float(x).to_float();
      return;
    case KvDtype::kInt8: {
      const Bf16 scale = int8_scale(head);
      for (float& x : head) x = static_cast<float>(int8_code(x, scale)) * scale.to_float();
      return;
    }
  }
}

// Attention that multiplies in FP8: what queries and the weights of values become. Queries are rounded to E4M3 as they
// are, saturated at 448, as keys and values are in such a cache: a scale would move their range and not their
// precision. A weight is 2^(s - base) of a score s in log2; it is rounded to E4M3, and divided by the sum of the
// rounded ones and the sink's, which is not rounded.

// The largest weight is up to 2^8, so that what lies 2^-14 below it keeps E4M3's precision and 2^-17 is not yet 0.
inline constexpr int kWeightBits = 8;

// The base of scores in log2 whose largest is `top`. Whole: but for what lies 2^-14 below the largest, a weight is
// rounded to the same digits above whichever base.
template <class Float>
[[nodiscard]] Float weight_base(Float top) {
  return std::ceil(top) - kWeightBits;
}
[[nodiscard]] inline float round_weight(float weight) { return E4m3::from_float(weight).to_float(); }

// A head of a token, in place.
inline void round_query(std::span<float> head) { round_kv(KvDtype::kE4m3, head); }

}  // namespace nibble::backend

#pragma once
// Attention that multiplies in FP8: what queries and the weights of values become. The one statement of it, for
// backends, oracles and tests. Queries are rounded to E4M3 as they are, saturated at 448, as keys and values are in
// such a cache (kv_dtype.h): a scale would move their range and not their precision. A weight is 2^(s - base) of a
// score s in log2; it is rounded to E4M3, and divided by the sum of the rounded ones and the sink's, which is not
// rounded.

#include "backend/kv_dtype.h"
#include "base/dtype.h"

#include <cmath>
#include <span>

namespace nibble::backend {

// The largest weight is up to 2^8, so that what lies 2^-14 below it keeps E4M3's precision and 2^-17 is not yet 0.
inline constexpr int kWeightBits = 8;

// Of scores in log2 whose largest is `top`. Whole: but for what lies 2^-14 below the largest, a weight is rounded to
// the same digits above whichever base.
template <class Float>
[[nodiscard]] Float weight_base(Float top) {
  return std::ceil(top) - kWeightBits;
}
[[nodiscard]] inline float round_weight(float weight) { return E4m3::from_float(weight).to_float(); }

// A head of a token, in place.
inline void round_query(std::span<float> head) { round_kv(KvDtype::kE4m3, head); }

}  // namespace nibble::backend

#pragma once
// Attention that multiplies in FP8: what queries and the weights of values become. The one statement of it, for
// backends, oracles and tests. Queries are rounded to E4M3 as they are, saturated at 448, as keys and values are in such
// a cache (kv_dtype.h): no scale, for it would move their range and not their precision. A weight is 2^(s - base) for a
// score s in log2; it is rounded to E4M3, and divided by the sum of the rounded ones and the sink's.

#include "base/dtype.h"

#include <cmath>

namespace nibble::backend {

// The largest weight is up to 2^8, so that what lies 2^-14 below it keeps E4M3's precision and 2^-18 is not yet 0.
inline constexpr int kWeightBits = 8;

// Of scores in log2 whose largest is `top`. Whole, so that a weight has the same digits above whichever base.
[[nodiscard]] inline float weight_base(float top) { return std::ceil(top) - kWeightBits; }

}  // namespace nibble::backend

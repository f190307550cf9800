#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble::model {

RopeTable make_rope_table(const RopeConfig& rope, int head_dim) {
  const int half = head_dim / 2;
  // The dimension whose wave turns `rotations` times within the original context.
  const auto dim_of = [&](double rotations) {
    return half * std::log(static_cast<double>(rope.original_context) / (rotations * 2 * std::numbers::pi)) /
           std::log(rope.theta);
  };
  double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;  // as transformers: no division by zero
  RopeTable table;
  table.concentration = static_cast<float>(rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1.0 : 1.0);
  for (int i = 0; i < half; ++i) {
    const auto freq =
        static_cast<float>(std::pow(rope.theta, static_cast<float>(2 * i) / static_cast<float>(head_dim)));
    const float extrapolated = 1.0f / freq;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * freq);
    const auto ramp = static_cast<float>((i - low) / (high - low));
    const float share = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    table.inv_freq.push_back(interpolated * (1.0f - share) + extrapolated * share);
  }
  return table;
}

}  // namespace nibble::model

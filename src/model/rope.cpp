#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble::model {

RopeTable plain_rope(double theta, int64_t head_dim) {
  RopeTable table;
  for (int64_t i = 0; i < head_dim; i += 2)
    table.inv_freq.push_back(
        static_cast<float>(1.0 / std::pow(theta, static_cast<double>(i) / static_cast<double>(head_dim))));
  return table;
}

RopeTable llama3_rope(const Llama3Rope& rope, int64_t head_dim) {
  RopeTable table = plain_rope(rope.theta, head_dim);
  for (float& freq : table.inv_freq) {
    const double rotations = static_cast<double>(rope.original_context) * freq / (2 * std::numbers::pi);
    const double keep =
        std::clamp((rotations - rope.low_rotations) / (rope.high_rotations - rope.low_rotations), 0.0, 1.0);
    freq = static_cast<float>(freq * keep + freq / rope.factor * (1 - keep));
  }
  return table;
}

RopeTable yarn_rope(const RopeConfig& rope, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  // The dimension whose wave has `rotations` rotations within the original context.
  const auto dim_of = [&](double rotations) {
    return static_cast<double>(half) *
           std::log(static_cast<double>(rope.original_context) / (rotations * 2 * std::numbers::pi)) /
           std::log(rope.theta);
  };
  double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim) - 1.0);
  if (low == high) high += 0.001;  // as transformers: no division by zero
  RopeTable table;
  table.concentration = static_cast<float>(rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1.0 : 1.0);
  for (int64_t i = 0; i < half; ++i) {
    const auto freq =
        static_cast<float>(std::pow(rope.theta, static_cast<float>(2 * i) / static_cast<float>(head_dim)));
    const float extrapolated = 1.0f / freq;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * freq);
    const auto ramp = static_cast<float>((static_cast<double>(i) - low) / (high - low));
    const float share = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    table.inv_freq.push_back(interpolated * (1.0f - share) + extrapolated * share);
  }
  return table;
}

}  // namespace nibble::model

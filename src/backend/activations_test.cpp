#include "backend/activations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace nibble::backend {
namespace {

std::vector<float> block(float step) {
  std::vector<float> values;
  for (int i = 0; i < kMxBlock; ++i) values.push_back(step * static_cast<float>(i - 10));
  return values;
}

TEST(activations, int8_are_multiples_of_the_largest_over_127) {
  std::vector<float> values = block(0.37f);
  const float most = 0.37f * 21;
  round_activations(Activations::kInt8, values);
  for (int i = 0; i < kMxBlock; ++i) {
    const float x = 0.37f * static_cast<float>(i - 10), q = values[static_cast<size_t>(i)] * 127 / most;
    EXPECT_NEAR(q, std::nearbyint(q), 1e-4) << i;
    EXPECT_NEAR(values[static_cast<size_t>(i)], x, most / 254 * 1.0001f) << i;
  }
}

TEST(activations, mxfp8_keep_four_bits_of_each_value) {
  std::vector<float> values = block(1);
  round_activations(Activations::kMxfp8, values);
  const std::vector<float> exact = block(1);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(values[i], std::abs(exact[i]) > 16 ? 2 * std::nearbyint(exact[i] / 2) : exact[i]);
}

TEST(activations, exact_are_left_alone_and_what_is_not_finite_spoils_its_block_only) {
  for (const auto how : {Activations::kMxfp8, Activations::kInt8}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(2 * kMxBlock, 1);
      values[3] = bad;
      values[4] = 0.1f;
      std::vector<float> same = values;
      round_activations(Activations::kBf16, same);
      EXPECT_EQ(same[4], 0.1f);
      round_activations(how, values);
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(std::isnan(values[i]), i < kMxBlock) << name_of(how) << " " << i;
    }
    std::vector<float> zeros(kMxBlock, 0);
    round_activations(how, zeros);
    EXPECT_EQ(zeros, std::vector<float>(kMxBlock, 0));
  }
}

}  // namespace
}  // namespace nibble::backend

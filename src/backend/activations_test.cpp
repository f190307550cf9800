#include "backend/activations.h"

#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
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

constexpr Activations kInBlocks[] = {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4};

// The elements' values, from their bits alone: sign, exponent, mantissa.
std::vector<double> elements(Activations format) {
  struct Bits {
    int exponent, mantissa;
  };
  const Bits bits = format == Activations::kMxfp8   ? Bits{4, 3}
                    : format == Activations::kMxfp6 ? Bits{2, 3}
                                                    : Bits{2, 1};
  const int bias = (1 << (bits.exponent - 1)) - 1;
  std::vector<double> values;
  for (int e = 0; e < 1 << bits.exponent; ++e)
    for (int m = 0; m < 1 << bits.mantissa; ++m) {
      if (format == Activations::kMxfp8 && e == 15 && m == 7) continue;  // NaN
      const double fraction = static_cast<double>(m) / (1 << bits.mantissa) + (e > 0 ? 1 : 0);
      for (const double sign : {1.0, -1.0}) values.push_back(sign * std::ldexp(fraction, std::max(e, 1) - bias));
    }
  return values;
}

// The scale's exponent: of OCP MX v1.0 §6.3, and of mxfp4 the least that clips nothing.
int scale_exponent(Activations format, double largest, double largest_element) {
  if (format == Activations::kMxfp4) return static_cast<int>(std::ceil(std::log2(largest / largest_element)));
  return static_cast<int>(std::floor(std::log2(largest)) - std::floor(std::log2(largest_element)));
}

TEST(activations, mx_blocks_hold_the_nearest_element_times_the_scale) {
  for (const Activations format : kInBlocks) {
    const std::vector<double> all = elements(format);
    const double most = *std::max_element(all.begin(), all.end());
    std::vector<float> values;
    for (size_t i = 0; i < 1000 * kMxBlock; ++i) {
      const auto random = philox(11, i);
      const int size = static_cast<int>(random[1] % 12) - static_cast<int>(i / kMxBlock % 40);
      values.push_back(std::ldexp(static_cast<float>(static_cast<int32_t>(random[0])) * 0x1p-31f, size));
    }
    std::vector<float> rounded = values;
    round_activations(format, rounded);
    for (size_t b = 0; b < values.size(); b += kMxBlock) {
      double largest = 0;
      for (size_t i = b; i < b + kMxBlock; ++i) largest = std::max(largest, std::abs(double{values[i]}));
      const double scale = std::ldexp(1.0, scale_exponent(format, largest, most));
      for (size_t i = b; i < b + kMxBlock; ++i) {
        double nearest = most;
        for (const double element : all) nearest = std::min(nearest, std::abs(values[i] - element * scale) / scale);
        // As near as any, and an element.
        ASSERT_EQ(std::abs(values[i] - double{rounded[i]}) / scale, nearest) << name_of(format) << " " << values[i];
        ASSERT_NE(std::find(all.begin(), all.end(), rounded[i] / scale), all.end()) << name_of(format);
      }
    }
  }
}

TEST(activations, every_code_of_an_mx_block_is_itself_under_every_scale_and_a_tie_goes_to_the_even_code) {
  for (const Activations format : kInBlocks) {
    const std::vector<double> all = elements(format);
    const double most = *std::max_element(all.begin(), all.end());
    for (int exponent = -110; exponent <= 110; exponent += exponent == -110 || exponent == 100 ? 10 : 3) {
      std::vector<float> block(kMxBlock, 0), want;
      for (size_t i = 0; i < all.size(); i += kMxBlock - 1) {
        block[0] = static_cast<float>(std::ldexp(most, exponent));  // which fixes the scale
        for (size_t j = 1; j < kMxBlock; ++j)
          block[j] = static_cast<float>(std::ldexp(all[(i + j - 1) % all.size()], exponent));
        want = block;
        round_activations(format, block);
        ASSERT_EQ(block, want) << name_of(format) << " 2^" << exponent;
      }
    }
    std::vector<double> above;
    for (const double value : all)
      if (value >= 0 && !std::signbit(value)) above.push_back(value);
    std::sort(above.begin(), above.end());
    for (size_t code = 0; code + 1 < above.size(); ++code) {
      std::vector<float> block(kMxBlock, static_cast<float>(most));
      block[7] = static_cast<float>((above[code] + above[code + 1]) / 2);
      round_activations(format, block);
      EXPECT_EQ(block[7], static_cast<float>(above[code + code % 2])) << name_of(format) << " " << code;
    }
  }
}

TEST(activations, exact_are_left_alone_and_what_is_not_finite_spoils_its_block_only) {
  for (const auto how : {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4, Activations::kInt8}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(2 * kMxBlock, 1);
      values[3] = bad;
      values[4] = 0.1f;
      std::vector<float> same = values;
      round_activations(Activations::kBf16, same);
      round_activations(Activations::kF32, same);
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

#include "base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace nibble {
namespace {

// An independent statement of a format: the value of a code in double, from the definition.
struct Definition {
  int exponent_bits, mantissa_bits;
  bool has_inf, has_nan;
  double max;
};

template <class T>
constexpr Definition kDefinition{};
template <>
constexpr Definition kDefinition<F16>{5, 10, true, true, 65504};
template <>
constexpr Definition kDefinition<E4m3>{4, 3, false, true, 448};
template <>
constexpr Definition kDefinition<E5m2>{5, 2, true, true, 57344};
template <>
constexpr Definition kDefinition<E2m3>{2, 3, false, false, 7.5};
template <>
constexpr Definition kDefinition<E3m2>{3, 2, false, false, 28};
template <>
constexpr Definition kDefinition<E2m1>{2, 1, false, false, 6};

template <class T>
double value_of(uint32_t code) {
  const Definition d = kDefinition<T>;
  const int bits = d.exponent_bits + d.mantissa_bits, top = (1 << d.exponent_bits) - 1;
  const int mantissas = 1 << d.mantissa_bits, bias = (1 << (d.exponent_bits - 1)) - 1;
  const int mantissa = static_cast<int>(code) % mantissas, exponent = static_cast<int>(code) / mantissas % (top + 1);
  double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - d.mantissa_bits)
                               : std::ldexp(mantissas + mantissa, exponent - bias - d.mantissa_bits);
  if (d.has_inf && exponent == top) value = mantissa == 0 ? HUGE_VAL : NAN;
  if (!d.has_inf && d.has_nan && exponent == top && mantissa == mantissas - 1) value = NAN;
  return (code >> bits) % 2 == 0 ? value : -value;
}

template <class T>
class MinifloatTest : public testing::Test {};
using Minifloats = testing::Types<F16, E4m3, E5m2, E2m3, E3m2, E2m1>;

struct TypeNames {
  template <class T>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest's spelling
    return "e" + std::to_string(kDefinition<T>.exponent_bits) + "m" + std::to_string(kDefinition<T>.mantissa_bits);
  }
};
TYPED_TEST_SUITE(MinifloatTest, Minifloats, TypeNames);

TYPED_TEST(MinifloatTest, every_code_decodes_to_its_definition) {
  for (uint32_t code = 0; code < 1u << TypeParam::kBits; ++code) {
    const TypeParam x{static_cast<typename TypeParam::Bits>(code)};
    const double want = value_of<TypeParam>(code);
    EXPECT_EQ(x.is_nan(), std::isnan(want)) << code;
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(x.to_float())) << code;
    else
      EXPECT_EQ(x.to_float(), want) << code;
    EXPECT_EQ(std::signbit(x.to_float()), std::signbit(want)) << code;
  }
  EXPECT_EQ(TypeParam::max(), kDefinition<TypeParam>.max);
}

TYPED_TEST(MinifloatTest, every_number_survives_a_round_trip) {
  for (uint32_t code = 0; code < 1u << TypeParam::kBits; ++code) {
    const TypeParam x{static_cast<typename TypeParam::Bits>(code)};
    if (x.is_nan() || (std::isinf(x.to_float()) && TypeParam::max() < 65504)) continue;
    EXPECT_EQ(TypeParam::from_float(x.to_float()), x) << code;
  }
}

// Nearest code by search: the two neighbours of |x| among all finite values, ties to the even code. F16 may also round
// to infinity, whose place on the line is 2^16.
template <class T>
class NearestSearch {
 public:
  NearestSearch() {
    for (uint32_t code = 0; code < 1u << (T::kBits - 1); ++code) {
      const double v = value_of<T>(code);
      if (std::isfinite(v)) values_.push_back(v);
    }
    if (std::is_same_v<T, F16>) values_.push_back(65536);
  }
  [[nodiscard]] const std::vector<double>& values() const { return values_; }
  [[nodiscard]] uint32_t code_of(float x) const {
    const double magnitude = std::abs(double{x});
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    auto code = static_cast<uint32_t>(above - values_.begin());
    if (code == values_.size()) {
      --code;
    } else if (code > 0) {
      const double down = magnitude - values_[code - 1], up = values_[code] - magnitude;
      if (down < up || (down == up && code % 2 == 1)) --code;
    }
    return code | (std::signbit(x) ? 1u << (T::kBits - 1) : 0u);
  }

 private:
  std::vector<double> values_;  // by code
};

template <class T>
void expect_nearest(const NearestSearch<T>& search, float x) {
  for (const float v : {x, -x}) EXPECT_EQ(T::from_float(v).bits, search.code_of(v)) << v;
}

TYPED_TEST(MinifloatTest, rounds_to_the_nearest_code_around_every_code_and_midpoint) {
  const NearestSearch<TypeParam> search;
  const auto& values = search.values();
  for (size_t i = 0; i < values.size(); ++i) {
    const double next = i + 1 < values.size() ? values[i + 1] : values[i] * 1.25;
    for (const double at : {values[i], (values[i] + next) / 2}) {
      const auto x = static_cast<float>(at);
      ASSERT_EQ(x, at);
      expect_nearest(search, x);
      expect_nearest(search, std::nextafter(x, 0.0f));
      expect_nearest(search, std::nextafter(x, INFINITY));
    }
  }
}

TYPED_TEST(MinifloatTest, rounds_random_floats_of_every_magnitude_to_the_nearest_code) {
  const NearestSearch<TypeParam> search;
  std::mt19937 random(7);
  for (int i = 0; i < 100000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(x)) expect_nearest(search, x);
    const auto near = std::bit_cast<float>((static_cast<uint32_t>(random()) >> 4) | 0x38000000u);  // 2^-15 … 2^17
    if (std::isfinite(near)) expect_nearest(search, near);
  }
}

TYPED_TEST(MinifloatTest, nan_becomes_nan_or_the_positive_maximum) {
  for (const float nan : {NAN, -NAN, std::numeric_limits<float>::signaling_NaN()}) {
    const TypeParam x = TypeParam::from_float(nan);
    EXPECT_EQ(x.bits, TypeParam::kSignBit - 1);
    EXPECT_EQ(x.is_nan(), kDefinition<TypeParam>.has_nan);
  }
}

TEST(minifloat, infinity_saturates_except_in_f16) {
  EXPECT_EQ(F16::from_float(-INFINITY).bits, 0xfc00);
  EXPECT_EQ(F16::from_float(65520).bits, 0x7c00);
  EXPECT_EQ(E5m2::from_float(INFINITY).to_float(), 57344.0f);
  EXPECT_EQ(E5m2::from_float(3e38f).to_float(), 57344.0f);
  EXPECT_EQ(E4m3::from_float(-INFINITY).to_float(), -448.0f);
  EXPECT_EQ(E2m1::from_float(INFINITY).to_float(), 6.0f);
}

TEST(minifloat, conversions_are_constant_expressions) {
  static_assert(E2m1::from_float(2.5f).bits == 4);  // tie between 2 (even) and 3
  static_assert(E4m3::from_float(449.0f).bits == 0x7e);
  static_assert(F16{0x0001}.to_float() == 0x1p-24f);
  static_assert(E8m0::from_float(6.0f).to_float() == 8.0f);
}

TEST(e8m0, every_code_is_its_power_of_two) {
  for (uint32_t code = 0; code < 255; ++code) {
    const E8m0 x{static_cast<uint8_t>(code)};
    EXPECT_EQ(x.to_float(), std::ldexp(1.0, static_cast<int>(code) - 127));
    EXPECT_EQ(E8m0::from_float(x.to_float()), x);
    EXPECT_EQ(E8m0::from_log2(static_cast<int>(code) - 127), x);
  }
  EXPECT_TRUE(std::isnan(E8m0{255}.to_float()));
  EXPECT_EQ(E8m0::from_log2(-1000).bits, 0);
  EXPECT_EQ(E8m0::from_log2(1000).bits, 254);
}

TEST(e8m0, rounds_to_the_nearest_power_with_ties_to_even) {
  for (uint32_t code = 0; code < 254; ++code) {
    const auto tie = static_cast<float>(std::ldexp(1.5, static_cast<int>(code) - 127));
    EXPECT_EQ(E8m0::from_float(tie).bits, code + code % 2) << code;
    EXPECT_EQ(E8m0::from_float(std::nextafter(tie, 0.0f)).bits, code) << code;
    EXPECT_EQ(E8m0::from_float(std::nextafter(tie, INFINITY)).bits, code + 1) << code;
  }
  EXPECT_EQ(E8m0::from_float(std::numeric_limits<float>::max()).bits, 254);
  for (const float small : {0.0f, -0.0f, 0x1p-149f, 0x1p-128f}) EXPECT_EQ(E8m0::from_float(small).bits, 0);
  for (const float bad : {-1.0f, -0x1p-149f, INFINITY, -INFINITY, NAN}) EXPECT_TRUE(E8m0::from_float(bad).is_nan());
}

}  // namespace
}  // namespace nibble

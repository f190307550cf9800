// Products of rounded activations, in each form that testing/int8.h knows.
#include "backend/cpu/testing/int8.h"

#include "backend/cpu/testing/kernels.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace nibble::backend::cpu {
namespace {

// What tiles multiply: activations rounded with ties to even, weights with ties away from zero.
std::vector<double> rounded_to_bf16(const std::vector<float>& x) {
  std::vector<double> out;
  for (const float value : x) out.push_back(Bf16::from_float(value).to_float());
  return out;
}
float weight_in_bf16(float value) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x8000) & 0xffff0000);
}

constexpr std::array kInt8Formats = {WeightFormat::kMxfp4, WeightFormat::kGgmlMxfp4, WeightFormat::kGgmlQ8};

// Each product within what float sums lose, and nothing written past the rows.
void expect_product(const Int8Kernels& kernels, const Sample& w, const std::vector<std::vector<float>>& x,
                    const TokenTiles* tiles) {
  const auto out = multiply_int8(kernels, w, x, tiles);
  const bool bf16 = tiles != nullptr && tiles->name == "amx bf16";
  for (size_t t = 0; t < x.size(); ++t) {
    const std::vector<double> q = (bf16 ? rounded_to_bf16 : rounded)(x[t]);
    for (int r = 0; r < kTileRows; ++r) {
      const float got = out[t * kTileRows + static_cast<size_t>(r)];
      if (r >= w.rows) {
        ASSERT_EQ(got, -777.0f) << "wrote past the rows";
        continue;
      }
      double want = 0, bound = 0;
      for (int64_t c = 0; c < w.cols; ++c) {
        const float weight = w.plain[static_cast<size_t>(r * w.cols + c)];
        const double p = double{bf16 ? weight_in_bf16(weight) : weight} * q[static_cast<size_t>(c)];
        want += p;
        bound += std::abs(p);
      }
      ASSERT_NEAR(got, want, 1e-6 * bound + 1e-30)
          << backend::name_of(w.format) << " " << w.cols << " columns, " << (tiles == nullptr ? "rows" : tiles->name)
          << ", row " << r << "/" << w.rows << ", token " << t << "/" << x.size();
    }
  }
}

TEST_P(Int8Products, are_those_of_the_rounded_activations) {
  for (const WeightFormat format : kInt8Formats) {
    for (const int64_t cols : {32, 64, 96, 128, 160, 512, 2880, 4096}) {
      const int rows = cols == 2880 ? 31 : cols == 96 ? 20 : 6;
      const Sample w(format, cols, rows, 9);
      for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 33, 64})
        for (const TokenTiles* tiles : forms(format, tokens))
          ASSERT_NO_FATAL_FAILURE(expect_product(*kernels_, w, inputs(cols, tokens), tiles));
    }
  }
}

TEST_P(Int8Products, of_every_count_of_rows_and_of_the_most_tokens) {
  for (const WeightFormat format : kInt8Formats) {
    for (const int rows : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 25, 32}) {
      for (const int tokens : {1, 4, 65, kTileTokens})
        for (const TokenTiles* tiles : forms(format, tokens))
          ASSERT_NO_FATAL_FAILURE(expect_product(*kernels_, Sample(format, 96, rows, 3), inputs(96, tokens), tiles));
    }
  }
}

// Where sums in too few bits would saturate or wrap around.
TEST_P(Int8Products, of_the_largest_weights_and_activations) {
  constexpr int64_t kCols = 160;
  for (const WeightFormat format : kInt8Formats) {
    const bool q8 = format == WeightFormat::kGgmlQ8;
    for (const uint8_t code :
         q8 ? std::array<uint8_t, 3>{0x7f, 0x80, 0x81} : std::array<uint8_t, 3>{0x77, 0xff, 0x7f}) {
      Sample w(format, kCols, 5, 1);
      const int64_t block = row_bytes(format, kMxBlock), first = format == WeightFormat::kMxfp4 ? 0 : q8 ? 2 : 1;
      for (int64_t i = 0; i < static_cast<int64_t>(w.values.size()); ++i)
        if (i % block >= first) w.values[static_cast<size_t>(i)] = code;
      for (size_t i = 0; i < w.plain.size(); ++i) w.set(i);
      for (const int tokens : {1, 3, 9, 16}) {
        auto x = inputs(kCols, tokens);
        for (size_t t = 0; t < x.size(); ++t) {  // of one sign, and of signs in halves, pairs and turns
          for (size_t c = 0; c < x[t].size(); ++c) x[t][c] = t == 0 || ((c >> (t % 6)) & 1) == t / 6 % 2 ? 1.0f : -1.0f;
          if (t == 2) std::fill(x[t].begin(), x[t].end(), -1.0f);
        }
        for (const TokenTiles* tiles : forms(format, tokens))
          ASSERT_NO_FATAL_FAILURE(expect_product(*kernels_, w, x, tiles)) << int{code};
      }
    }
  }
}

TEST_P(Int8Products, show_activations_that_are_not_finite) {
  for (const WeightFormat format : kInt8Formats) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const int tokens : {3, 8, 16}) {
        for (const TokenTiles* tiles : forms(format, tokens)) {
          auto x = inputs(96, tokens);
          x[1][70] = bad;
          const auto out = multiply_int8(*kernels_, Sample(format, 96, 2, 1), x, tiles);
          EXPECT_TRUE(std::isfinite(out[0])) << backend::name_of(format);
          EXPECT_FALSE(std::isfinite(out[kTileRows])) << backend::name_of(format) << " " << bad << " " << tokens;
        }
      }
    }
    Sample nan_scale(format, 96, 1, 1);
    if (format == WeightFormat::kMxfp4) nan_scale.scales[1] = 255;
    if (format == WeightFormat::kGgmlMxfp4) nan_scale.values[17] = 255;
    if (format == WeightFormat::kGgmlQ8) nan_scale.values[34] = nan_scale.values[35] = 0x7f;
    for (const int tokens : {1, 3, 8, 16})
      for (const TokenTiles* tiles : forms(format, tokens))
        EXPECT_TRUE(std::isnan(multiply_int8(*kernels_, nan_scale, inputs(96, tokens), tiles)[0]));
  }
}

// Where the sum of two exponents is none.
TEST_P(Int8Products, survive_scales_far_from_one_and_zeros) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kGgmlMxfp4}) {
    for (const uint8_t exponent : {1, 20, 126, 128, 230}) {
      Sample w(format, 32, 1, 1);
      (format == WeightFormat::kMxfp4 ? w.scales : w.values)[0] = exponent;
      for (const float unit : {0.0f, 0x1p-80f, 0x1p-55f, 1.0f, 0x1p55f, 0x1p80f}) {
        for (const int tokens : {2, 16}) {
          auto x = inputs(32, tokens);
          for (float& value : x[1]) value *= unit;
          const float got = multiply_int8(*kernels_, w, x, kernels_->tiles_for(format, tokens))[kTileRows];
          const double factor = std::ldexp(double{unit}, exponent - 127);
          if (factor < 0x1p-100)
            EXPECT_NEAR(got, 0.0, 0x1p-80) << int{exponent} << " " << unit << " " << tokens;
          else if (factor > 0x1p110)
            EXPECT_FALSE(std::abs(got) <= 0x1p80) << int{exponent} << " " << unit << " " << tokens;
          else
            EXPECT_LT(std::abs(got), 0x1p10 * factor) << int{exponent} << " " << unit << " " << tokens;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cpu

// The forms of products of rounded activations: AVX-512's, AMX's, and AMX's kernel over tiles that do what Intel's
// manual says.
#include "backend/cpu/amx_bf16.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_testing.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace nibble::backend::cpu {
namespace {

// Intel SDM, TILELOADD, TILESTORED and TDPBF16PS, of the shapes that the kernel configures.
class EmulatedTiles {
 public:
  EmulatedTiles() { EXPECT_EQ(kShapes.palette, 1); }

  template <int kTile>
  void load(const void* from, int64_t stride) {
    tiles_[kTile] = {};
    for (int64_t r = 0; r < kShapes.rows[kTile]; ++r) {
      std::memcpy(tiles_[kTile][static_cast<size_t>(r)].data(), static_cast<const std::byte*>(from) + r * stride,
                  kShapes.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    for (int64_t r = 0; r < kShapes.rows[kTile]; ++r) {
      std::memcpy(static_cast<std::byte*>(to) + r * stride, tiles_[kTile][static_cast<size_t>(r)].data(),
                  kShapes.row_bytes[kTile]);
    }
  }
  template <int kSums, int kX, int kW>
  void multiply_bf16() {
    // What the manual raises #UD for.
    static_assert(kSums != kX && kSums != kW && kX != kW);
    static_assert(kShapes.rows[kSums] == kShapes.rows[kX] && kShapes.row_bytes[kSums] == kShapes.row_bytes[kW] &&
                  kShapes.row_bytes[kX] == 4 * kShapes.rows[kW]);
    static_assert(kShapes.rows[kSums] <= 16 && kShapes.rows[kW] <= 16 && kShapes.row_bytes[kSums] <= 64);
    for (size_t m = 0; m < kShapes.rows[kSums]; ++m) {
      for (size_t n = 0; n < kShapes.row_bytes[kSums] / 4u; ++n) {
        std::array<float, 2> sums{};  // of even and odd values
        for (size_t k = 0; k < kShapes.rows[kW]; ++k) {
          for (size_t i = 0; i < 2; ++i) {
            sums[i] += bf16(tiles_[kX][m].data() + 4 * k + 2 * i) * bf16(tiles_[kW][k].data() + 4 * n + 2 * i);
          }
        }
        float sum = 0;
        std::memcpy(&sum, tiles_[kSums][m].data() + 4 * n, 4);
        sum += sums[0] + sums[1];
        std::memcpy(tiles_[kSums][m].data() + 4 * n, &sum, 4);
      }
    }
  }

 private:
  // Subnormals count as zero.
  static float bf16(const int8_t* bytes) {
    Bf16 code;
    std::memcpy(&code.bits, bytes, sizeof code.bits);
    const float value = code.to_float();
    return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
  }

  static constexpr const TileConfig& kShapes = kTileShapes;
  std::array<std::array<std::array<int8_t, 64>, 16>, 8> tiles_{};
};

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

enum class Form { kAvx512, kEmulatedAmx, kAmx };

class Int8Products : public testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    for (const IsaKernels& each : kernels_here()) {
      if (each.isa == CpuIsa::kAvx512 && each.kernels.int8 != nullptr) avx512_ = each.kernels.int8;
      if (each.isa == CpuIsa::kAmx) amx_ = each.kernels.int8;
    }
    if (avx512_ == nullptr) GTEST_SKIP() << "this CPU has no AVX-512 with VBMI and VNNI";
    if (GetParam() == Form::kAmx && amx_ == nullptr) GTEST_SKIP() << "this CPU, or its Linux, offers no AMX for bf16";
    kernels_ = GetParam() == Form::kAvx512 ? avx512_ : GetParam() == Form::kAmx ? amx_ : &amx_kernels<EmulatedTiles>();
  }

  // Rows, and the tiles that serve.
  [[nodiscard]] std::vector<const TokenTiles*> forms(WeightFormat format, int tokens) const {
    std::vector<const TokenTiles*> forms{nullptr};
    for (const TokenTiles* each : kernels_->tiles)
      if (each != nullptr && each->serves(format, tokens)) forms.push_back(each);
    return forms;
  }

  const Int8Kernels *kernels_ = nullptr, *avx512_ = nullptr, *amx_ = nullptr;
};

std::string name_of(const testing::TestParamInfo<Form>& tested) {
  switch (tested.param) {
    case Form::kAvx512: return "avx512";
    case Form::kEmulatedAmx: return "emulated_amx";
    case Form::kAmx: return "amx";
  }
  return "";
}
INSTANTIATE_TEST_SUITE_P(Each, Int8Products, testing::Values(Form::kAvx512, Form::kEmulatedAmx, Form::kAmx), name_of);

TEST_P(Int8Products, are_those_of_the_rounded_activations) {
  for (const WeightFormat format : kInt8Formats) {
    for (const int64_t cols : {32, 64, 96, 160, 2880, 4096}) {
      const int rows = cols == 2880 ? 31 : cols == 96 ? 20 : 6;
      const Sample w(format, cols, rows, 9);
      for (const int tokens : {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33, 64}) {
        const auto x = inputs(cols, tokens);
        for (const TokenTiles* tiles : forms(format, tokens)) {
          const auto out = multiply_int8(*kernels_, w, x, tiles);
          const bool bf16 = tiles != nullptr && tiles->name == "amx bf16";
          for (int t = 0; t < tokens; ++t) {
            const std::vector<double> q = (bf16 ? rounded_to_bf16 : rounded)(x[static_cast<size_t>(t)]);
            for (int r = 0; r < kTileRows; ++r) {
              const float got = out[static_cast<size_t>(t * kTileRows + r)];
              if (r >= rows) {
                ASSERT_EQ(got, -777.0f) << "wrote past the rows";
                continue;
              }
              double want = 0, bound = 0;
              for (int64_t c = 0; c < cols; ++c) {
                const float weight = w.plain[static_cast<size_t>(r * cols + c)];
                const double p = double{bf16 ? weight_in_bf16(weight) : weight} * q[static_cast<size_t>(c)];
                want += p;
                bound += std::abs(p);
              }
              ASSERT_NEAR(got, want, 1e-6 * bound + 1e-30)
                  << backend::name_of(format) << " " << cols << " " << (tiles == nullptr ? "rows" : tiles->name)
                  << " token " << t << "/" << tokens;
            }
          }
        }
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
    for (const int tokens : {1, 3, 8, 16}) {
      for (const TokenTiles* tiles : forms(format, tokens)) {
        EXPECT_TRUE(std::isnan(multiply_int8(*kernels_, nan_scale, inputs(96, tokens), tiles)[0]));
      }
    }
  }
}

// Where the sum of two exponents is none.
TEST_P(Int8Products, survive_scales_far_from_one_and_zeros) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kGgmlMxfp4}) {
    for (const uint8_t exponent : {1, 20, 126, 128, 230}) {
      Sample w(format, 32, 1, 1);
      (format == WeightFormat::kMxfp4 ? w.scales : w.values)[0] = exponent;
      for (const float unit : {0.0f, 0x1p-80f, 0x1p-55f, 1.0f, 0x1p55f, 0x1p80f}) {
        auto x = inputs(32, 16);
        for (float& value : x[1]) value *= unit;
        const float got = multiply_int8(*kernels_, w, x, kernels_->tiles_for(format, 16))[kTileRows];
        const double factor = std::ldexp(double{unit}, exponent - 127);
        if (factor < 0x1p-100)
          EXPECT_NEAR(got, 0.0, 0x1p-80) << int{exponent} << " " << unit;
        else if (factor > 0x1p110)
          EXPECT_FALSE(std::abs(got) <= 0x1p80) << int{exponent} << " " << unit;
        else
          EXPECT_LT(std::abs(got), 0x1p10 * factor) << int{exponent} << " " << unit;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cpu

#include "backend/cpu/kernels.h"

#include "backend/cpu/testing/kernels.h"
#include "base/error.h"
#include "base/mx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace nibble::backend::cpu {
namespace {

constexpr std::array kFormats = {WeightFormat::kBf16,  WeightFormat::kF16,   WeightFormat::kF32,
                                 WeightFormat::kMxfp4, WeightFormat::kMxfp8, WeightFormat::kGgmlMxfp4,
                                 WeightFormat::kGgmlQ8};

// Every table of this build that runs on this CPU.
std::vector<Kernels> tables() {
  std::vector<Kernels> all;
  for (const IsaKernels& each : kernels_here()) all.push_back(each.kernels);
  for (const auto& [isa, kernels] : portable_kernels()) {
    const auto same = [&](const Kernels& other) { return other.name == kernels.name; };
    if (std::ranges::none_of(all, same)) all.push_back(isa == CpuIsa::kBaseline ? kernels : with_avx2_floats(kernels));
  }
  return all;
}

// What is missing is skipped by name.
class CpuKernels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const Kernels& each : tables())
      if (each.name == GetParam()) kernels = each;
    if (kernels.name.empty()) GTEST_SKIP() << "not on this CPU: " << GetParam();
  }
  Kernels kernels;
};

std::string test_name(const testing::TestParamInfo<const char*>& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}
#if defined(__x86_64__)
INSTANTIATE_TEST_SUITE_P(, CpuKernels, testing::Values("baseline", "avx2", "avx vnni", "avx512", "avx512 vnni"),
                         test_name);
#elif defined(__aarch64__)
INSTANTIATE_TEST_SUITE_P(, CpuKernels, testing::Values("baseline", "neon", "neon dotprod", "neon i8mm"), test_name);
#else
INSTANTIATE_TEST_SUITE_P(, CpuKernels, testing::Values("baseline"), test_name);
#endif

std::vector<int64_t> columns(WeightFormat format) {
  if (in_blocks(format)) return {32, 64, 96, 160, 2880, 4096};
  return {1, 7, 16, 31, 33, 48, 95, 2880};
}

std::vector<float> multiply(const Kernels& kernels, const Sample& w, const std::vector<std::vector<float>>& x) {
  std::vector<std::vector<float>> arranged = x;
  std::vector<const float*> rows;
  for (size_t t = 0; t < x.size(); ++t) {
    if (kernels.arranges(w.format)) kernels.arrange(w.format, x[t], arranged[t].data());
    rows.push_back(arranged[t].data());
  }
  Scratch scratch(w.cols);
  std::vector<float> out(x.size() * kTileRows, -777.0f);
  kernels.multiply({.w = w.view(), .x = rows, .out = out.data(), .scratch = scratch.aligned()});
  return out;
}

TEST_P(CpuKernels, decode_gives_every_formats_values) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t cols : columns(format)) {
      const Sample w(format, cols, 1, 5);
      std::vector<float> out(static_cast<size_t>(cols));
      kernels.decode(w.view(), out.data());
      EXPECT_EQ(out, w.plain) << kernels.name << " " << name_of(format) << " " << cols;
    }
  }
}

TEST_P(CpuKernels, products_match_double_and_ignore_their_neighbours) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t cols : columns(format)) {
      const int rows = cols == 2880 ? 15 : 6;
      const Sample w(format, cols, rows, 9);
      const auto x = inputs(cols, 20);
      std::vector<std::vector<float>> alone;
      for (const auto& each : x) alone.push_back(multiply(kernels, w, {each}));
      for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 17, 20}) {
        const auto out = multiply(kernels, w, {x.begin(), x.begin() + tokens});
        for (int t = 0; t < tokens; ++t) {
          for (int r = 0; r < kTileRows; ++r) {
            const float got = out[static_cast<size_t>(t * kTileRows + r)];
            if (r >= rows) {
              ASSERT_EQ(got, -777.0f) << "wrote past the rows";
              continue;
            }
            double want = 0, bound = 0;
            for (int64_t c = 0; c < cols; ++c) {
              const double p = double{w.plain[static_cast<size_t>(r * cols + c)]} *
                               x[static_cast<size_t>(t)][static_cast<size_t>(c)];
              want += p;
              bound += std::abs(p);
            }
            ASSERT_NEAR(got, want, 1e-6 * bound) << kernels.name << " " << name_of(format) << " " << cols << " t" << t;
            ASSERT_EQ(got, alone[static_cast<size_t>(t)][static_cast<size_t>(r)])
                << kernels.name << " " << name_of(format) << " " << cols << ": " << tokens << " tokens, token " << t;
          }
        }
      }
    }
  }
}

TEST_P(CpuKernels, extreme_scales_and_codes_that_are_nan_keep_their_values) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kMxfp8, WeightFormat::kGgmlMxfp4}) {
    for (const int scale : {0, 1, 126, 127, 240, 255}) {
      Sample w(format, 32, 1, 3);
      std::fill(w.scales.begin(), w.scales.end(), static_cast<uint8_t>(scale));
      if (format == WeightFormat::kGgmlMxfp4) w.values[0] = static_cast<uint8_t>(scale);
      for (size_t i = 0; i < 32; ++i) w.set(i);
      std::vector<float> x(32, 0.0f);
      x[3] = 0.5f;
      const float want = w.plain[3] * 0.5f, got = multiply(kernels, w, {x})[0];
      if (scale == 255)
        EXPECT_TRUE(std::isnan(got)) << kernels.name << " " << name_of(format);
      else
        EXPECT_EQ(got, want) << kernels.name << " " << name_of(format) << " " << scale;
    }
  }
  Sample w(WeightFormat::kMxfp8, 32, 1, 3);
  w.values[30] = 0xff;
  EXPECT_TRUE(std::isnan(multiply(kernels, w, inputs(32, 1))[0])) << kernels.name;
  EXPECT_TRUE(std::isnan(multiply(kernels, w, inputs(32, 9))[8 * kTileRows])) << kernels.name;
}

TEST_P(CpuKernels, accumulate_adds_every_product_once_whatever_lies_beside) {
  for (const int64_t width : {1, 8, 16, 24, 32, 64, 80}) {
    for (const int rows : {1, 3, 4, 7, 8, 13}) {
      const int depth = 71, from = 2, to = 67;
      auto a = random_floats(static_cast<size_t>(rows * depth), 1);
      for (int r = 0; r < rows; ++r) std::fill_n(a.begin() + r * depth + to, depth - to, 0.0f);
      const int64_t stride = width + rows % 2 * 5;
      auto b = random_floats(static_cast<size_t>(stride * depth), 2);
      for (size_t i = 0; i < b.size(); ++i)
        if (static_cast<int64_t>(i) % stride >= width) b[i] = std::numeric_limits<float>::quiet_NaN();
      const auto start = random_floats(static_cast<size_t>(rows * width), 3);
      std::vector<Bf16> half;
      for (const float v : b) half.push_back(Bf16::from_float(v));
      for (const bool bf16 : {false, true}) {
        std::vector<float> c = start;
        kernels.accumulate({.a = a.data(),
                            .a_stride = depth,
                            .rows = rows,
                            .from = from,
                            .to = to,
                            .b = bf16 ? static_cast<const void*>(half.data()) : b.data(),
                            .b_stride = stride,
                            .cols = width,
                            .b_is_bf16 = bf16,
                            .c = c.data(),
                            .c_stride = width,
                            .from_zero = rows % 3 == 0,
                            .next = rows % 2 == 0 ? b.data() : nullptr});
        for (int r = 0; r < rows; ++r) {
          for (int64_t n = 0; n < width; ++n) {
            double want = rows % 3 == 0 ? 0.0f : start[static_cast<size_t>(r * width + n)];
            for (int k = from; k < to; ++k) {
              const auto at = static_cast<size_t>(k * stride + n);
              want += double{a[static_cast<size_t>(r * depth + k)]} * (bf16 ? half[at].to_float() : b[at]);
            }
            ASSERT_NEAR(c[static_cast<size_t>(r * width + n)], want, 1e-4)
                << kernels.name << " " << width << " " << rows;
          }
          std::vector<float> alone(start.begin() + r * width, start.begin() + (r + 1) * width);
          kernels.accumulate({.a = a.data() + r * depth,
                              .a_stride = depth,
                              .rows = 1,
                              .from = from,
                              .to = depth,
                              .b = bf16 ? static_cast<const void*>(half.data()) : b.data(),
                              .b_stride = stride,
                              .cols = width,
                              .b_is_bf16 = bf16,
                              .c = alone.data(),
                              .c_stride = width,
                              .from_zero = rows % 3 == 0});
          ASSERT_TRUE(std::equal(alone.begin(), alone.end(), c.begin() + r * width))  // zeros add no rounding
              << kernels.name << " " << width << " " << rows;
        }
      }
    }
  }
}

// Every code of a page, NaN included, and nothing beyond the rows that are asked for.
TEST_P(CpuKernels, widened_pages_are_the_codes_values) {
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  for (const int64_t cols : {1, 8, 24, 64, 80}) {
    const int rows = 60, from = 2, to = 59;
    std::vector<uint16_t> codes(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i * 40503);
    const auto* bytes = reinterpret_cast<const uint8_t*>(codes.data());
    std::array<Bf16, kPageTokens> scales;
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = Bf16::from_float(static_cast<float>(i) - 7.3f);
    scales[5] = Bf16::from_float(std::numeric_limits<float>::quiet_NaN());
    for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kE4m3, KvDtype::kInt8}) {
      for (const bool per_row : {false, true}) {
        if (dtype == KvDtype::kInt8 && !per_row && cols > kPageTokens) continue;
        std::vector<float> out(codes.size(), -1.0f);
        kernels.widen[static_cast<size_t>(dtype)]({.page = {codes.data(), scales.data()},
                                                   .cols = cols,
                                                   .from = from,
                                                   .to = to,
                                                   .scale_per_row = per_row,
                                                   .out = out.data()});
        for (size_t i = 0; i < out.size(); ++i) {
          const size_t r = i / static_cast<size_t>(cols), c = i % static_cast<size_t>(cols);
          float want = -1.0f;
          if (r >= from && r < to) {
            want = dtype == KvDtype::kBf16   ? Bf16{codes[i]}.to_float()
                   : dtype == KvDtype::kE4m3 ? E4m3{bytes[i]}.to_float() / KvCodec<KvDtype::kE4m3>::kUnit
                                             : static_cast<int8_t>(bytes[i]) * scales[per_row ? r : c].to_float();
          }
          ASSERT_TRUE(same(out[i], want)) << kernels.name << " " << name_of(dtype) << " [" << r << ", " << c << "] of "
                                          << cols << ": " << out[i] << ", want " << want;
        }
        if (!per_row && cols != kPageTokens) continue;  // the plain loop takes whole pages only
        std::vector<float> plain(codes.size(), -1.0f);
        format_of(dtype).widen({.page = {codes.data(), scales.data()},
                                .cols = cols,
                                .from = from,
                                .to = to,
                                .scale_per_row = per_row,
                                .out = plain.data()});
        for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(same(plain[i], out[i])) << "the plain loop at " << i;
      }
    }
  }
}

TEST_P(CpuKernels, exponentials_and_swiglu_match_double) {
  for (const size_t n : {1, 5, 16, 33, 64, 500}) {
    std::vector<float> x = random_floats(n, 4), y = x;
    x[0] = -200.0f;
    y[0] = -100.0f;
    const float top = kernels.scale_max(0.5f, y);
    EXPECT_EQ(top, *std::max_element(y.begin(), y.end()));
    const std::vector<float> scaled = y;
    double want = 0;
    const float sum = kernels.exp_sum(top, y);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(y[i], std::exp(double{scaled[i]} - top), 1e-6);
      want += std::exp(double{scaled[i]} - top);
    }
    EXPECT_NEAR(sum, want, 1e-6 * std::max(10.0, want));
    std::vector<float> gate = random_floats(n, 5), up = random_floats(n, 6), u(n);
    gate[n / 2] = 100.0f;
    up[n / 3] = -50.0f;
    gate[n - 1] = -300.0f;
    kernels.swiglu(
        {.gate = gate.data(), .up = up.data(), .limit = 7.0f, .n = static_cast<int64_t>(n), .out = u.data()});
    for (size_t i = 0; i < n; ++i) {
      const double glu = std::min(double{gate[i]}, 7.0), line = std::clamp(double{up[i]}, -7.0, 7.0);
      const double expected = glu / (1 + std::exp(-1.702 * glu)) * (line + 1);
      EXPECT_NEAR(u[i], expected, 1e-5 * std::max(1.0, std::abs(expected))) << kernels.name << " " << i;
    }
    gate[0] = std::numeric_limits<float>::quiet_NaN();
    kernels.swiglu(
        {.gate = gate.data(), .up = up.data(), .limit = 7.0f, .n = static_cast<int64_t>(n), .out = u.data()});
    EXPECT_TRUE(std::isnan(u[0])) << kernels.name;
  }
}

TEST(cpu_kernels, only_int8_activations_want_kernels_of_their_own) {
  for (const ActivationType& format : kActivationTypes) {
    for (const IsaKernels& each : kernels_here()) {
      if (format.activations != Activations::kInt8 || each.kernels.int8 != nullptr) {
        EXPECT_EQ(kernels_for(each.isa, format.activations).name, each.kernels.name) << format.word;
        continue;
      }
      try {
        (void)kernels_for(each.isa, format.activations);
        FAIL() << each.kernels.name << " has no int8 products";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kUnsupported);
        EXPECT_EQ(std::string(error.what()).find("--moe-activation int8: want AVX2"), 0u) << error.what();
      }
    }
  }
}

TEST(cpu_kernels, a_mask_leaves_what_its_own_architecture_has_below_it) {
  const CpuIsa before = isa_mask();
  const auto left = [](CpuIsa most) {
    mask_isa(most);
    std::vector<CpuIsa> all;
    std::copy_if(kCpuIsas.begin(), kCpuIsas.end(), std::back_inserter(all), unmasked);
    return all;
  };
  using enum CpuIsa;
  EXPECT_EQ(left(kAuto), std::vector(kCpuIsas.begin(), kCpuIsas.end()));
  EXPECT_EQ(left(kBaseline), (std::vector{kAuto, kBaseline}));
  EXPECT_EQ(left(kAvxVnni), (std::vector{kAuto, kBaseline, kAvx2, kAvxVnni}));
  EXPECT_EQ(left(kDotProd), (std::vector{kAuto, kBaseline, kDotProd}));
  EXPECT_EQ(left(kI8mm), (std::vector{kAuto, kBaseline, kDotProd, kI8mm}));
  mask_isa(before);
}

TEST(cpu_kernels, an_instruction_set_that_is_missing_is_refused_by_name) {
  const std::vector<IsaKernels> here = kernels_here();
  for (const CpuIsa isa : kCpuIsas) {
    if (isa == CpuIsa::kAuto) continue;
    const auto found = std::find_if(here.begin(), here.end(), [&](const IsaKernels& each) { return each.isa == isa; });
    if (found == here.end())
      EXPECT_THROW((void)kernels_for(isa), Error);
    else
      EXPECT_EQ(kernels_for(isa).name, found->kernels.name);
  }
  EXPECT_EQ(kernels_for(CpuIsa::kAuto).name, here.front().kernels.name);
  EXPECT_EQ(here.back().isa, CpuIsa::kBaseline);
}

}  // namespace
}  // namespace nibble::backend::cpu

#include "backend/cpu/simd.h"

#include "base/mx.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace nibble::backend::cpu {
namespace {

std::vector<float> random_floats(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    const Philox4 r = philox(seed, i);
    values[i] = normal_float(r[0], r[1]);
  }
  return values;
}

TEST(cpu_simd, decodes_every_mxfp4_code_under_every_scale) {
  for (int scale = 0; scale < 255; ++scale) {
    std::vector<uint8_t> codes(16);
    for (int j = 0; j < 16; ++j) codes[static_cast<size_t>(j)] = static_cast<uint8_t>(j | ((15 - j) << 4));
    const auto scale_byte = static_cast<uint8_t>(scale);
    std::vector<float> out(kMxBlock);
    decode_mxfp4(codes.data(), &scale_byte, kMxBlock, out.data());
    for (int i = 0; i < kMxBlock; ++i) {
      const uint8_t code = mx_element_code(MxFormat::kMxfp4, codes.data(), i);
      EXPECT_EQ(out[static_cast<size_t>(i)], mx_decode(MxFormat::kMxfp4, code, E8m0{scale_byte})) << i << " " << scale;
    }
  }
}

TEST(cpu_simd, decodes_bf16_at_every_length) {
  for (int64_t n = 0; n < 40; ++n) {
    std::vector<Bf16> in;
    for (const float v : random_floats(static_cast<size_t>(n), 3)) in.push_back(Bf16::from_float(v));
    std::vector<float> out(static_cast<size_t>(n) + 1, 7.0f);
    decode_bf16(in.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], in[static_cast<size_t>(i)].to_float());
    EXPECT_EQ(out.back(), 7.0f);
  }
}

TEST(cpu_simd, dot_matches_double_and_ignores_its_neighbours) {
  for (const int64_t n : {1, 7, 31, 32, 33, 64, 95, 96, 2880}) {
    const std::vector<float> w = random_floats(static_cast<size_t>(n), 1);
    std::vector<std::vector<float>> x;
    std::array<const float*, kDotTokens> rows{};
    for (int t = 0; t < kDotTokens; ++t)
      x.push_back(random_floats(static_cast<size_t>(n), 10 + static_cast<uint64_t>(t)));
    for (size_t t = 0; t < x.size(); ++t) rows[t] = x[t].data();
    std::array<float, kDotTokens> all{};
    dot(w.data(), rows, kDotTokens, n, all.data());
    for (size_t t = 0; t < x.size(); ++t) {
      double want = 0, bound = 0;
      for (size_t i = 0; i < w.size(); ++i) {
        want += double{w[i]} * x[t][i];
        bound += std::abs(double{w[i]} * x[t][i]);
      }
      EXPECT_NEAR(all[t], want, 1e-6 * bound) << n;
      float alone = 0;
      dot(w.data(), {x[t].data()}, 1, n, &alone);
      EXPECT_EQ(alone, all[t]) << n;
    }
  }
}

TEST(cpu_simd, axpy_adds_every_element_once) {
  for (int64_t n = 0; n < 40; ++n) {
    const std::vector<float> x = random_floats(static_cast<size_t>(n), 5);
    std::vector<float> y(static_cast<size_t>(n) + 1, 2.0f);
    axpy(0.5f, x.data(), n, y.data());
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(y[static_cast<size_t>(i)], 2.0f + 0.5f * x[static_cast<size_t>(i)], 1e-6);
    EXPECT_EQ(y.back(), 2.0f);
  }
}

}  // namespace
}  // namespace nibble::backend::cpu

// ScalarMx and EmulatedMx, run on the host, against exact products and the codes of base/dtype.h.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/arch/sm121/emulated_mx.cuh"
#include "backend/cuda/arch/sm121/mx_probe.cuh"
#include "backend/cuda/arch/sm121/mx_testing.h"
#include "backend/cuda/emulation/scalar_mx.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

template <class Mma, int kProduct = 0>
void run_product(int product, const MxFragments* fragments, float* d, int count) {
  if constexpr (kProduct < kMxProductCount) {
    if (product != kProduct) return run_product<Mma, kProduct + 1>(product, fragments, d, count);
    ASSERT_EQ(emulation::run({.grid = count}, [&] { mx_probe_product<Mma, kProduct>(fragments, d); }), "");
  }
}
template <class Mma, int kFormat = 0>
void run_pairs(int format, const float* values, uint32_t* pairs, int count) {
  if constexpr (kFormat < kMxPairFormatCount) {
    if (format != kFormat) return run_pairs<Mma, kFormat + 1>(format, values, pairs, count);
    ASSERT_EQ(emulation::run({.grid = count / layout::kWarpLanes},
                             [&] { mx_probe_pairs<Mma, kMxPairFormats[kFormat]>(values, pairs); }),
              "");
  }
}

template <class Mma>
void check_products() {
  for (int product = 0; product < kMxProductCount; ++product)
    check_mx_product(product, [](int which, const std::vector<MxFragments>& fragments, const std::vector<float>& d) {
      std::vector<float> sums = d;
      run_product<Mma>(which, fragments.data(), sums.data(), static_cast<int>(fragments.size()));
      return sums;
    });
}

TEST(mx_emulated, scalar_products_are_the_exact_ones) { check_products<ScalarMx>(); }
TEST(mx_emulated, products_through_f16_are_the_exact_ones) { check_products<EmulatedMx>(); }

TEST(mx_emulated, pairs_of_codes_are_those_of_the_formats) {
  for (int format = 0; format < kMxPairFormatCount; ++format)
    check_mx_pairs(format, [](int which, const std::vector<float>& values) {
      std::vector<uint32_t> pairs(values.size() / 2);
      run_pairs<EmulatedMx>(which, values.data(), pairs.data(), static_cast<int>(pairs.size()));
      return pairs;
    });
}

TEST(mx_emulated, scaling_rounds_once) {
  for (const float p : {1.0f, 448.0f * 448.0f * 32.0f, 0x1p-25f, 3.0f * 0x1p-24f, -1.75f})
    for (uint32_t a = 0; a < 255; ++a)
      for (uint32_t b = 0; b < 255; ++b) {
        const auto want = static_cast<float>(std::ldexp(double{p}, static_cast<int>(a + b) - 254));
        ASSERT_EQ(mx_scaled(p, a, b), want) << p << ", scales " << a << ", " << b;
      }
  EXPECT_TRUE(std::isnan(mx_scaled(1, 255, 0)) && std::isnan(mx_scaled(1, 0, 255)));
}

}  // namespace
}  // namespace nibble::backend::cuda

// Arm's forms of int8 products: by SDOT, and by SMMLA for some tokens.
#include "backend/cpu/testing/int8.h"
#include "backend/cpu/testing/kernels.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::backend::cpu {
namespace {

INSTANTIATE_TEST_SUITE_P(Each, Int8Products,
                         testing::Values(Int8Form{"dotprod", "FEAT_DotProd", [] { return int8_of(CpuIsa::kDotProd); }},
                                         Int8Form{"i8mm", "FEAT_I8MM", [] { return int8_of(CpuIsa::kI8mm); }}),
                         form_name);

// Both add up a block's products as integers, and blocks in their order.
TEST(arm_int8, sdot_and_smmla_give_the_same_bits) {
  const Int8Kernels *const dot = int8_of(CpuIsa::kDotProd), *const matrix = int8_of(CpuIsa::kI8mm);
  if (matrix == nullptr) GTEST_SKIP() << "this CPU has no FEAT_I8MM";
  ASSERT_NE(dot, nullptr);
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kGgmlMxfp4, WeightFormat::kGgmlQ8}) {
    for (const int64_t cols : {32, 576, 608, 2880}) {
      const Sample w(format, cols, 27, 11);
      for (const int tokens : {1, 3, 4, 5, 7, 8, 9, 13}) {
        const auto x = inputs(cols, tokens);
        EXPECT_EQ(multiply_int8(*dot, w, x, nullptr), multiply_int8(*matrix, w, x, nullptr))
            << backend::name_of(format) << " " << cols << " columns, " << tokens << " tokens";
      }
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cpu

#include "backend/cuda/layout/small_floats.h"

#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble::backend::cuda::layout {
namespace {

TEST(e4m3_f16, every_pair_of_codes_widens_exactly) {
  for (uint32_t two = 0; two < 0x10000; ++two) {
    const uint32_t small = small_f16_of_e4m3(two), nan = nan_bits(small);
    for (int i = 0; i < 2; ++i) {
      const float want = E4m3{static_cast<uint8_t>(two >> (8 * i))}.to_float();
      const auto half = static_cast<uint16_t>(small >> (16 * i)), mark = static_cast<uint16_t>(nan >> (16 * i));
      const float got = F16{half}.to_float() * 256.0f;  // what mul.f16x2 by kE4m3Unscale gives, exact
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(F16{static_cast<uint16_t>(half | mark)}.to_float())) << two;
      } else {
        ASSERT_EQ(got, want) << two;
        ASSERT_EQ(std::signbit(got), std::signbit(want)) << two;
        ASSERT_EQ(mark, 0) << two;
      }
    }
  }
  EXPECT_EQ(F16{static_cast<uint16_t>(kE4m3Unscale)}.to_float(), 256.0f);
}

}  // namespace
}  // namespace nibble::backend::cuda::layout

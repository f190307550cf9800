#include "backend/cuda/card/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace nibble::backend {
namespace {

using Clocks = std::vector<ClockReading>;
using testing::HasSubstr;

TEST(slow_clock, a_gb10_that_stays_slow_without_a_limit_is_told_of) {
  const std::string warning = slow_clock_warning(
      "NVIDIA GB10", Clocks{{.mhz = 208, .celsius = 41, .watts = 5}, {.mhz = 611, .celsius = 44, .watts = 13.6}});
  EXPECT_THAT(warning, HasSubstr("NVIDIA GB10 ran at 611 MHz at most (14 W), under load"));
  EXPECT_THAT(warning, HasSubstr("want 1500 and more"));
  EXPECT_THAT(slow_clock_warning("NVIDIA GB10", Clocks{{.mhz = 850}}), HasSubstr("850 MHz at most, under load"));
  EXPECT_THAT(slow_clock_warning("NVIDIA GB10 as sm_80", Clocks{{.mhz = 1499}}), HasSubstr("1499 MHz"));
}

TEST(slow_clock, a_gb10_at_its_clock_is_fine_whatever_it_idles_at) {
  EXPECT_EQ(slow_clock_warning("NVIDIA GB10", Clocks{{.mhz = 208}, {.mhz = 2405}, {.mhz = 2411}}), "");
  EXPECT_EQ(slow_clock_warning("NVIDIA GB10", Clocks{{.mhz = 1500}}), "");
}

TEST(slow_clock, a_limit_that_the_driver_names_other_cards_and_no_readings_are_not_this_fault) {
  EXPECT_EQ(slow_clock_warning("NVIDIA GB10", Clocks{{.mhz = 900, .thermal = true}}), "");
  EXPECT_EQ(slow_clock_warning("NVIDIA GB10", Clocks{{.mhz = 900, .power = true}}), "");
  EXPECT_EQ(slow_clock_warning("NVIDIA H100 80GB HBM3", Clocks{{.mhz = 900}}), "");
  EXPECT_EQ(slow_clock_warning("NVIDIA GB10", Clocks{}), "");
}

}  // namespace
}  // namespace nibble::backend

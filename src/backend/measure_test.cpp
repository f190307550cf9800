#include "backend/measure.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::backend {
namespace {

TEST(DevicePeaks, of_devices_together_are_their_sums_and_a_share_is_one_s) {
  const DevicePeaks one{
      .device = "a card", .read_bytes_per_s = 3e12, .matrix = {{.type = "bf16", .exact16 = true, .flops_per_s = 7e14}}};
  const DevicePeaks two = together(std::vector{one, one});
  EXPECT_EQ(two.device, "2 x a card");
  EXPECT_EQ(two.read_bytes_per_s, 6e12);
  EXPECT_EQ(two.exact_peak()->flops_per_s, 14e14);
  EXPECT_EQ(together(std::vector{one}).device, "a card");
  const DevicePeaks share = share_of(two, 2);
  EXPECT_EQ(share.read_bytes_per_s, one.read_bytes_per_s);
  EXPECT_EQ(share.exact_peak()->flops_per_s, one.exact_peak()->flops_per_s);
}

}  // namespace
}  // namespace nibble::backend

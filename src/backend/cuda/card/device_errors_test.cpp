#include "backend/cuda/card/device_facts.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

constexpr std::string_view kSays = "cudaErrorSystemNotReady: system not yet initialized";

TEST(device_errors, no_driver_says_which_to_install) {
  EXPECT_EQ(why_no_device(kCudaInsufficientDriver, {.driver = 0, .runtime = 13000}, kSays),
            "want an NVIDIA driver for CUDA 13.0, version 580 or newer, found none: install it, or use --backend cpu");
}

TEST(device_errors, an_old_driver_is_told_beside_what_the_build_wants) {
  EXPECT_EQ(why_no_device(kCudaInsufficientDriver, {.driver = 12040, .runtime = 13000}, kSays),
            "want an NVIDIA driver for CUDA 13.0, version 580 or newer, found one for CUDA 12.4: update the driver");
  EXPECT_EQ(why_no_device(kCudaInsufficientDriver, {.driver = 13010, .runtime = 14020}, kSays),
            "want an NVIDIA driver for CUDA 14.2, found one for CUDA 13.1: update the driver");
}

TEST(device_errors, a_driver_without_a_card_says_where_it_may_hide) {
  for (const int status : {0, kCudaNoDevice}) {
    EXPECT_EQ(why_no_device(status, {.driver = 13000, .runtime = 13000}, kSays),
              "want a GPU, found none, but a driver for CUDA 13.0: is one built in, is it hidden by "
              "CUDA_VISIBLE_DEVICES or from this container?");
  }
}

TEST(device_errors, what_else_cuda_says_is_told_in_its_words) {
  EXPECT_EQ(why_no_device(802, {.driver = 13000, .runtime = 13000}, kSays),
            "want a GPU and its driver, found cudaErrorSystemNotReady: system not yet initialized");
}

TEST(device_errors, a_card_without_kernels_is_told_beside_those_that_have_them) {
  const DeviceFacts a100 = {.name = "NVIDIA A100-SXM4-80GB", .major = 8};
  EXPECT_EQ(why_no_kernels(a100, "90a-real 121a-real"),
            "want a card of compute capability 9.0 or 12.1, for which this build has kernels, found NVIDIA "
            "A100-SXM4-80GB of 8.0");
  EXPECT_EQ(why_no_kernels({.name = "GB10", .major = 12, .minor = 1}, "90a-real"),
            "want a card of compute capability 9.0, for which this build has kernels, found GB10 of 12.1");
  EXPECT_EQ(why_no_kernels({.name = "GTX 1080", .major = 6, .minor = 1}, "80-real 86-real 121a-real 90-virtual"),
            "want a card of compute capability 8.0, 8.6, 12.1 or 9.0 or newer, for which this build has kernels, found "
            "GTX 1080 of 6.1");
  EXPECT_EQ(why_no_kernels(a100, "native  100f"),
            "want a card of compute capability native or 10.0, for which this build has kernels, found NVIDIA "
            "A100-SXM4-80GB of 8.0");
}

}  // namespace
}  // namespace nibble::backend::cuda

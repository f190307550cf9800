// The main of tests that need a GPU: NIBBLE_CUDA_ARCH=sm_80 runs them as if the card were an sm_80.

#include "backend/cuda/card/device_facts.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    const char* const arch = std::getenv("NIBBLE_CUDA_ARCH");
    if (arch != nullptr && *arch != 0) nibble::backend::cuda::mask_card(nibble::backend::cuda::card_arch(arch));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "NIBBLE_CUDA_ARCH: %s\n", e.what());
    return 2;
  }
  return RUN_ALL_TESTS();
}

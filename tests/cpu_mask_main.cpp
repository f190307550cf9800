// The main of tests whose results depend on the instruction set: NIBBLE_CPU_MASK=avx2 runs them as if this CPU had
// nothing beyond.

#include "backend/cpu/isa.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    const char* const most = std::getenv("NIBBLE_CPU_MASK");
    nibble::backend::mask_isa(nibble::backend::isa_named(most == nullptr || *most == 0 ? "auto" : most));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "NIBBLE_CPU_MASK: %s\n", e.what());
    return 2;
  }
  return RUN_ALL_TESTS();
}

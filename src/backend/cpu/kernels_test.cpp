#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

TEST(cpu_kernels, auto_names_something) { EXPECT_FALSE(nibble::backend::cpu::kernels_for({}).name.empty()); }

#include "backend/cpu/kernels.h"
#include "backend/cpu/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace nibble::backend {
namespace {

TEST(peak_loops, reading_reads_every_word_once) {
  std::vector<uint64_t> words(512 + 256);  // and what is prefetched after the end
  std::iota(words.begin(), words.end(), uint64_t{1});
  for (const cpu::IsaKernels& each : cpu::kernels_here()) {
    EXPECT_EQ(each.kernels.read_all(words.data(), 512), uint64_t{512} * 513 / 2) << each.kernels.name;
    EXPECT_EQ(each.kernels.read_all(words.data() + 1, 256), uint64_t{257} * 258 / 2 - 1) << each.kernels.name;
  }
}

TEST(peak_loops, loops_run_on_the_instructions_found) {
  std::vector<cpu::PeakLoop> loops = cpu::matrix_loops();
  for (const cpu::IsaKernels& each : cpu::kernels_here())
    loops.push_back(
        {std::string(each.kernels.peak.set), true, each.kernels.peak.flops_per_round, each.kernels.peak.run});
  for (const cpu::PeakLoop& loop : loops) {
    EXPECT_TRUE(std::isfinite(loop.run(10))) << loop.type;
    EXPECT_GT(loop.flops_per_round, 0) << loop.type;
  }
}

}  // namespace
}  // namespace nibble::backend

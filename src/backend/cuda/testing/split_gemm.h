#pragma once
// What the tests of gemm_plan.h share, on a device and emulated; Memory and run: around_gemm.h here.

#include "backend/cuda/testing/gemm.h"
#include "backend/cuda/dense/gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace nibble::backend::cuda {

struct SplitCase {
  int rows = 5120, cols = 2880, tokens = 16, sms = 132;
};

// Every token against some rows: the first and last, and a few that move with the token; the splits added.
template <template <class> class Memory, class Run>
void check_split(const SplitCase& c, const Run& run) {
  const SplitGemmPlan plan = plan_split_gemm({c.rows, c.cols, c.tokens}, c.sms);
  SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols << ", " << c.tokens << " tokens: " << plan.tile);
  const GemmMatrix w(layout::Packing::kBf16, c.rows, c.cols, layout::RowOrder::kPlain, 5);
  const std::vector<uint16_t> x = random_16(true, int64_t{c.tokens} * c.cols, 6);
  const Memory<uint8_t> weights(w.packed);
  const Memory<uint16_t> on_x(in_panels(x, c.cols, c.tokens));
  const size_t out = static_cast<size_t>(split_pitch(c.tokens, c.rows)), tail = 64;
  const Memory<uint16_t> sums(static_cast<size_t>(plan.cut.splits) * out + tail);
  const SplitGemmArgs args{.weights = weights.get(),
                           .x = on_x.get(),
                           .sums = sums.get(),
                           .rows = c.rows,
                           .cols = c.cols,
                           .tokens = c.tokens,
                           .x_rows = static_cast<int>(panel_rows(c.tokens))};
  check_args(args);
  run(args, plan);
  const std::vector<uint16_t> got = sums.host();
  run(args, plan);
  ASSERT_EQ(got, sums.host()) << "not repeatable";
  ASSERT_TRUE(std::all_of(got.end() - tail, got.end(), [](uint16_t v) { return v == 0xffff; }));
  for (int t = 0; t < c.tokens; ++t)
    for (const int r : {0, c.rows - 1, t * 7 % c.rows, t * 131 % c.rows, (t + 15) % c.rows}) {
      const GemmSum want = w.dot(r, x.data() + int64_t{t} * c.cols, true);
      double all = 0, rounding = 0;
      for (int s = 0; s < plan.cut.splits; ++s) {
        const size_t place = static_cast<size_t>(s) * out + static_cast<size_t>(place_in_sums(c.tokens, t, r));
        const double sum = Bf16{got[place]}.to_float();
        all += sum;
        rounding += std::abs(sum) * 0x1.02p-8;
      }
      ASSERT_LE(std::abs(all - want.value), kGemmError * (want.size + 1) + rounding) << "token " << t << ", row " << r;
    }
}

}  // namespace nibble::backend::cuda

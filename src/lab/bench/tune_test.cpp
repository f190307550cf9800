#include "lab/bench/bench.h"

#include <gtest/gtest.h>

namespace nibble::app {
namespace {

const TuneRow kRows[] = {{16, 100, 150, 120}, {64, 200, 200, 190}, {512, 400, 500, 410}, {1024, 900, 700, 800}};

TEST(bench_tune, the_crossover_loses_least_whatever_one_noisy_row_says) {
  EXPECT_EQ(crossover(kRows, &TuneRow::experts_gemm_us, 8), 512);
  EXPECT_EQ(crossover(kRows, &TuneRow::router_mma_us, 8), 16);  // whatever happens to be slower later
  EXPECT_EQ(crossover({kRows + 3, 1}, &TuneRow::experts_gemm_us, 8), 8);
  const TuneRow noisy[] = {{16, 100, 110, 100}, {64, 206, 200, 200}, {512, 400, 500, 410}};
  EXPECT_EQ(crossover(noisy, &TuneRow::experts_gemm_us, 8), 512);
}

TEST(bench_tune, a_range_begins_and_ends_where_the_others_lose_less) {
  const TuneRow rows[] = {{16, 110, 100, 0}, {64, 200, 210, 0}, {512, 400, 500, 0}, {1024, 900, 700, 0}};
  EXPECT_EQ(best_range(rows, &TuneRow::experts_gemm_us, 8), (TuneRange{16, 512}));
  EXPECT_EQ(best_range({rows + 1, 2}, &TuneRow::experts_gemm_us, 8), (TuneRange{8, 512}));
  const TuneRange none = best_range({rows + 3, 1}, &TuneRow::experts_gemm_us, 8);
  EXPECT_EQ(none.above, none.upto);
}

TEST(bench_tune, prints_the_line_that_the_table_of_cards_holds) {
  const std::string text = tune_text(kRows, {"a card", "a model", "0.1 (abc)", 12, 1, 4, 128});
  EXPECT_NE(text.find("| 64 | 200 | 200 | 190 |"), std::string::npos) << text;
  EXPECT_NE(text.find("// a card (sm_121), a model, nibble 0.1 (abc): for its architecture's Arch::tuned\n"
                      "Tuned{.gemm_at_once_pairs = 32, .grouped_pairs = 16, .route_tokens = 16}"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace nibble::app

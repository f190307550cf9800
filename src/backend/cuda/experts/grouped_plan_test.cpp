#include "backend/cuda/experts/experts.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::backend::cuda {
namespace {

// What row tile `at` costs, of expert tiles that lie widest first.
int cost_of(const int32_t* tile_counts, int row_tiles, int at) {
  int i = kTileCounts - 1;
  while (i > 0 && at >= tile_counts[i] * row_tiles) --i;
  return grouped_cost(i);
}

TEST(grouped_plan, ranges_hold_every_row_tile_once_and_cost_the_same) {
  const std::vector<std::vector<int32_t>> counts = {{1, 0, 0},     {1, 1, 1}, {128, 52, 9},
                                                    {150, 150, 0}, {3, 2, 1}, {9000, 8000, 6999}};
  for (const auto& tile_counts : counts)
    for (const int row_tiles : {12, 180, 360})
      for (const int ctas : {1, 48, 132}) {
        const GroupedRanges ranges(tile_counts.data(), row_tiles);
        int total = 0;
        for (int at = 0; at < tile_counts[0] * row_tiles; ++at) total += cost_of(tile_counts.data(), row_tiles, at);
        ASSERT_EQ(ranges.cost, total);
        ASSERT_EQ(ranges.first(0, ctas), 0);
        ASSERT_EQ(ranges.first(ctas, ctas), tile_counts[0] * row_tiles);
        for (int c = 0; c < ctas; ++c) {
          const int first = ranges.first(c, ctas), end = ranges.first(c + 1, ctas);
          ASSERT_LE(first, end);
          int cost = 0;
          for (int at = first; at < end; ++at) cost += cost_of(tile_counts.data(), row_tiles, at);
          ASSERT_NEAR(cost, static_cast<double>(total) / ctas, grouped_cost(kTileCounts - 1) + 1);
        }
      }
}

// Warps keep weights under way; columns only save reading some of them again from L2.
TEST(grouped_plan, columns_give_way_to_8_warps) {
  const auto plan = [](int64_t bytes) { return plan_row_warps(2880, kGrouped, {108, bytes, 0}); };
  const auto is = [](const RowWarpsPlan& own, int rows, int warps) {
    return own.rows == rows && own.threads == warps * layout::kWarpLanes;
  };
  EXPECT_TRUE(is(plan(227 * 1024), 24, 16));
  EXPECT_TRUE(is(plan(163 * 1024), 16, 8));  // an A100
  EXPECT_TRUE(is(plan(99 * 1024), 8, 8));
  EXPECT_TRUE(is(plan(80 * 1024), 8, 4));
}

TEST(grouped_plan, as_many_columns_as_fit_a_cards_shared_memory) {
  const auto rows = [](int64_t bytes) { return grouped_tokens(2880, 192, {48, bytes, 0}); };
  EXPECT_EQ(rows(232448), 24);
  EXPECT_EQ(rows(150000), 16);
  EXPECT_EQ(rows(101376), 8);
  EXPECT_THROW(static_cast<void>(rows(40000)), Error);
}

}  // namespace
}  // namespace nibble::backend::cuda

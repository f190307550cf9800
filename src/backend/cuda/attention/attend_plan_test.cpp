#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/attention/attend_plan.h"

#include "backend/cuda/testing/costs.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr PlanDevice kHopperSizes{.sms = 132, .sm_smem_bytes = 233472}, kSparkSizes{.sms = 48, .sm_smem_bytes = 102400};

TEST(attend_plan, short_rows_decode_and_long_rows_make_tiles_by_rising_position) {
  const std::vector<Row> rows = {{0, 1, 900}, {1, 33, 133}, {34, 8, 8}, {42, 9, 9}};
  AttendShares shares;
  share_tokens(rows, shares);
  EXPECT_EQ(shares.decode, (std::vector<int32_t>{0, 34, 35, 36, 37, 38, 39, 40, 41}));
  EXPECT_EQ(shares.prefill,
            (std::vector<AttendTile>{{42, 9, 3, 0}, {1, 16, 1, 100}, {17, 16, 1, 116}, {33, 1, 1, 132}}));
  share_tokens({}, shares);
  EXPECT_TRUE(shares.decode.empty() && shares.prefill.empty());
}

TEST(attend_plan, tiles_never_exceed_their_bound) {
  for (int tokens = 1; tokens <= 300; ++tokens) {
    for (const int each : {9, 16, 17, 33}) {
      std::vector<Row> rows;
      for (int first = 0; first < tokens; first += each) rows.push_back({first, std::min(each, tokens - first), 400});
      for (const int tile_tokens : {kPrefillTokens, kSm90PrefillTokens}) {
        AttendShares shares;
        share_tokens(rows, shares, tile_tokens);
        ASSERT_LE(static_cast<int64_t>(shares.prefill.size()), max_attend_tiles(tokens)) << tokens << ' ' << each;
      }
    }
  }
}

TEST(attend_plan, one_long_sequence_fills_the_device_and_units_fit_the_grid) {
  const DecodePlan one = plan_decode({1, 8, 128}, kHopperSizes);
  EXPECT_EQ(one.tile, "1 tokens, keys in at most 33 chunks, grid 8 x 34, 8 warps, 100352 B shared");
  EXPECT_EQ(one.ring, kDecodeRing);
  EXPECT_EQ(one.target, 33);
  EXPECT_EQ(plan_decode({1, 8, 128}, kSparkSizes).target, 6);
  EXPECT_LE(one.smem_bytes, 99 * 1024);
  EXPECT_EQ(plan_decode({33, 8, 128}, kHopperSizes).ring, kDecodeRing);  // all of them at once
  EXPECT_EQ(plan_decode({34, 8, 128}, kHopperSizes).tile,
            "34 tokens, keys in at most 33 chunks, grid 8 x 67, 4 warps, 34816 B shared");
  EXPECT_EQ(plan_decode({66, 8, 128}, kHopperSizes).ring, kSmallDecodeRing);
  EXPECT_EQ(plan_decode({67, 8, 128}, kHopperSizes).tile,
            "67 tokens, keys in at most 66 chunks, grid 8 x 133, 1 warps, 12288 B shared");
  EXPECT_EQ(plan_decode({67, 8, 128}, kHopperSizes).ring, kLoneDecodeRing);
  EXPECT_EQ(chunks_of(512, chunk_blocks(512, one.target)), 32);  // 32768 keys: 32 * 8 CTAs for 132 SMs with two each
  for (int tokens = 1; tokens <= 300; ++tokens) {
    const DecodePlan plan = plan_decode({tokens, 8, 128}, kHopperSizes);
    ASSERT_LE(plan.target, most_target(8, 128, kHopperSizes));
    int pages = 0, units = 0, split = 0;
    const auto pages_of = [](int t) { return 1 + t * 37 % 300 + (t == 3 ? 2000 : 0); };
    for (int t = 0; t < tokens; ++t) pages += pages_of(t);
    for (int t = 0; t < tokens; ++t) {
      const int chunks = chunks_of(pages_of(t), chunk_blocks(pages, plan.target));
      units += chunks;
      split += chunks > 1 ? chunks : 0;
    }
    ASSERT_LE(units, plan.grid_y) << tokens;
    ASSERT_LE(split, max_split_units(plan.target)) << tokens;
  }
}

TEST(attend_plan, chunks_cover_all_pages_once_and_differ_by_one_at_most) {
  for (int pages = 1; pages <= 70; ++pages) {
    for (int chunks = 1; chunks <= pages; ++chunks) {
      int next = 0;
      for (int i = 0; i < chunks; ++i) {
        const BlockSpan span = chunk_span(pages, chunks, i);
        ASSERT_EQ(span.first, next);
        ASSERT_GE(span.count, pages / chunks);
        ASSERT_LE(span.count, pages / chunks + 1);
        next += span.count;
      }
      ASSERT_EQ(next, pages);
    }
  }
}

TEST(attend_plan, a_window_is_never_split_and_needs_a_cta_per_token) {
  EXPECT_TRUE(never_split(128) && never_split(1));
  EXPECT_FALSE(never_split(0) || never_split(129));
  EXPECT_EQ(plan_decode({.tokens = 5, .kv_heads = 8, .row_bytes = 128, .window = 128}, kHopperSizes).grid_y, 5);
  EXPECT_EQ(plan_decode({.tokens = 5, .kv_heads = 8, .row_bytes = 128, .window = 4096}, kHopperSizes).grid_y, 33 + 5);
  EXPECT_EQ(visible_keys(127, 128).first, 0);
  EXPECT_EQ(visible_keys(128, 128).first, 1);
  for (int position = 0; position < 400; ++position)
    ASSERT_LE(visible_keys(position, 128).blocks(), kMinChunkBlocks) << position;
}

TEST(attend_plan, cost_counts_visible_keys) {
  AttendShares shares;
  share_tokens(std::vector<Row>{{0, 1, 32768}}, shares);
  const std::vector<int32_t> position = {32767};
  const KernelCost full = cost(shares, position, 0, {64, 8, 128});
  EXPECT_EQ(full.bytes, int64_t{32768} * 8 * 64 * 2 * 2 + 2 * 64 * 64 * 4);
  EXPECT_EQ(full.flops, int64_t{4} * 64 * 64 * 32768);
  EXPECT_EQ(cost(shares, position, 128, {64, 8, 64}).bytes, 128 * 8 * 64 * 2 + 2 * 64 * 64 * 4);
}

}  // namespace
}  // namespace nibble::backend::cuda

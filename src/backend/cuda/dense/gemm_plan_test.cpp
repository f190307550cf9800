#include "backend/cuda/dense/gemm_plan.h"

#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/arch/sm90/grouped_walk.h"
#include "backend/cuda/arch/sm90/mxfp4_waves.h"
#include "backend/cuda/testing/costs.h"
#include "base/error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kSms = 132;
constexpr PlanDevice kCard{.sms = kSms, .sm_smem_bytes = 100 * 1024};

TEST(gemm_plan, experts_take_tiles_of_96_tokens_and_dense_layers_what_finishes_first) {
  const GemmPlan large = plan_gemm({5760, 2880, 4 * 8192, 128}, kCard);
  EXPECT_EQ(large.tile, "128 rows x 96 tokens, grid 45 x 469, 49920 B shared");
  EXPECT_EQ(plan_gemm({5760, 2880, 64, 128}, kCard).tokens, 96);
  const auto dense = [](int64_t rows, int64_t cols, int64_t tokens) {
    const GemmPlan plan = plan_gemm({rows, cols, tokens, 1, layout::Packing::kBf16}, kCard);
    return *std::ranges::find_if(
        kGemmTiles, [&](GemmTileSize tile) { return tile.rows == plan.rows && tile.tokens == plan.tokens; });
  };
  EXPECT_EQ(dense(5120, 2880, 9), kGemmFew);
  EXPECT_EQ(dense(2880, 4096, 64), kGemmFew);
  EXPECT_EQ(dense(5120, 2880, 2048), kGemmWideTall);
  EXPECT_EQ(dense(2880, 4096, 2048), kGemmWide);  // two waves of either
  EXPECT_EQ(dense(2880, 4096, 8192), kGemmWideTall);
}

// Two CTAs on an SM of 100 KB, of which each takes 1 KB itself; a wide one alone.
TEST(gemm_plan, every_tile_fits_every_card_from_sm_80_on) {
  for (const auto packing : {layout::Packing::kBf16, layout::Packing::kMxfp8, layout::Packing::kMxfp4})
    for (const GemmTileSize tile : kGemmTiles) {
      if (!gemm_has_tile(packing, layout::RowOrder::kPlain, tile)) continue;
      EXPECT_LE(plan_gemm_tile({5120, 2880, 9, 1, packing}, tile).smem_bytes, 99 * 1024);
    }
  EXPECT_LE(2 * (plan_gemm_tile({5760, 2880, 64, 128}, kGemmExperts).smem_bytes + 1024), 100 * 1024);
}

TEST(gemm_plan, experts_take_tall_tiles_where_two_fit_an_sm) {
  const GemmShape shape{5760, 2880, 4 * 2048, 128};
  const GemmPlan tall = plan_gemm(shape, {.sms = kSms, .sm_smem_bytes = 164 * 1024});
  EXPECT_EQ(tall.tile, "192 rows x 96 tokens, grid 30 x 213, 75264 B shared");
  EXPECT_EQ(plan_gemm(shape, {.sms = kSms, .sm_smem_bytes = 2 * (75264 + 1024)}).rows, 192);
  EXPECT_EQ(plan_gemm(shape, {.sms = kSms, .sm_smem_bytes = 2 * (75264 + 1024) - 1}).rows, 128);
  const GemmShape dense{5760, 2880, 8192};
  EXPECT_EQ(plan_gemm(dense, {.sms = kSms, .sm_smem_bytes = 164 * 1024}).rows, 192);
  EXPECT_EQ(plan_gemm(dense, kCard).rows, 128);
}

TEST(gemm_plan, an_experts_launch_begins_large_and_small_tiles_in_turn_and_ends_with_the_shortest) {
  for (int count = 1; count < 40; ++count) {
    std::vector<int> begun(static_cast<size_t>(count));
    for (int y = 0; y < count; ++y) ++begun.at(static_cast<size_t>(tile_in_turn(y, count)));
    for (const int times : begun) ASSERT_EQ(times, 1) << "of " << count;
    for (int y = std::max(count - kShortestTiles, 0); y < count; ++y) ASSERT_EQ(tile_in_turn(y, count), y);
  }
  EXPECT_EQ(tile_in_turn(0, 108), 0);
  EXPECT_EQ(tile_in_turn(1, 108), 99);
  EXPECT_EQ(tile_in_turn(2, 108), 1);
  EXPECT_EQ(tile_in_turn(3, 108), 98);
}

TEST(gemm_plan, experts_on_wgmma_share_a_tile_chosen_by_their_mean) {
  for (const auto& [tokens, tile] :
       {std::pair{64, kMxfp4Narrow}, {768, kMxfp4Narrow}, {769, kMxfp4Tokens}, {8192, kMxfp4Tokens}}) {
    const GemmPlan up = plan_sm90_gemm({5760, 2880, 4 * tokens, 128}, kSms);
    EXPECT_EQ(up.tokens, tile);
    EXPECT_EQ(up.smem_bytes, mxfp4_shared_bytes(3, Mxfp4Input::kF16));
    EXPECT_EQ(plan_sm90_gemm({256, 4096, 4 * tokens, 128}, kSms).smem_bytes, mxfp4_shared_bytes(4, Mxfp4Input::kF16));
  }
  for (const int pairs : {3, 4}) EXPECT_LE(mxfp4_shared_bytes(pairs, Mxfp4Input::kF16), 227 * 1024);
  EXPECT_EQ(plan_sm90_gemm({128, 384, 9}, kSms).grid, 4);  // a warpgroup each, of two parts of K
}

TEST(gemm_plan, waves_take_every_row_of_every_tile_once) {
  for (const Mxfp4Matrices matrices : {Mxfp4Matrices{1}, {4}, {9}, {12}, {180}, {360}, {12, 24}, {15, 30}, {180, 360}})
    for (const int tiles : {1, 2, 5, 7, 32})
      for (const int ctas : {1, 2, 3, 132}) {
        const auto& [behind, before] = matrices;
        SCOPED_TRACE(testing::Message() << before << " and " << behind << " row tiles, " << tiles << " tiles, " << ctas
                                        << " CTAs");
        Mxfp4Waves waves(matrices, tiles, ctas);
        if (tiles == 7) waves.weigh(1000, 1);
        std::vector<int> taken(static_cast<size_t>((before + behind) * tiles)), work_tiles(static_cast<size_t>(tiles));
        for (int cta = 0; cta < ctas; ++cta)
          for (int wave = 0, last = 0; waves.of(cta, wave).row_tiles > 0; ++wave) {
            const RowWork work = waves.of(cta, wave);
            const bool first = before > 0 && !work.second;
            const int rows = first ? before : behind, from = work.second ? before * tiles : 0;
            ASSERT_LT(work.tile, tiles);
            ASSERT_LT(work.first_row_tile, rows);
            ASSERT_LE(last, work.second ? 1 : 0);  // what others wait for comes first
            last = work.second ? 1 : 0;
            work_tiles[static_cast<size_t>(work.tile)] += first ? 1 : 0;
            for (int row = work.first_row_tile; row < std::min(work.first_row_tile + work.row_tiles, rows); ++row)
              ++taken[static_cast<size_t>(from + work.tile * rows + row)];
          }
        for (const int times : taken) ASSERT_EQ(times, 1);
        for (const int count : work_tiles) ASSERT_EQ(count, waves.before_blocks);
      }
}

TEST(gemm_plan, warpgroups_of_sm90_grouped_take_every_group_once_and_in_turn) {
  for (const auto& [up, down] : {std::pair{1, 1}, {12, 6}, {90, 45}})
    for (const int tiles : {0, 1, 2, 7, 128})
      for (const int ctas : {1, 3, 132}) {
        SCOPED_TRACE(testing::Message() << up << " and " << down << " groups, " << tiles << " tiles, " << ctas);
        std::vector<int> taken(static_cast<size_t>((up + down) * tiles));
        for (int cta = 0; cta < ctas; ++cta) {
          const Sm90Parts parts{{up, tiles, cta, ctas}, {down, tiles, cta, ctas}};
          std::array<int, kSm90GroupedWarpgroups> counts = {};
          for (int warpgroup = 0; warpgroup < kSm90GroupedWarpgroups; ++warpgroup) {
            bool behind = false;
            for (Sm90Groups own(parts, warpgroup); own.valid(); own.advance()) {
              ASSERT_LT(own.part.tile, tiles);
              ASSERT_TRUE(own.group >= own.part.first && own.group < own.part.end);
              ASSERT_LE(behind, own.part.down);  // what others wait for comes first
              behind = own.part.down;
              const int at = own.part.tile * (behind ? down : up) + own.group;
              ++taken[static_cast<size_t>((behind ? up * tiles : 0) + at)];
              ++counts[static_cast<size_t>(warpgroup)];
            }
          }
          EXPECT_LE(counts.front() - counts.back(), 1);
        }
        for (const int times : taken) ASSERT_EQ(times, 1);
      }
}

TEST(gemm_plan, x_of_a_part_lies_beside_the_one_before_where_there_is_room) {
  const auto lies = [](std::initializer_list<int> counts) {
    Sm90Places places;
    std::vector<std::pair<int, bool>> all;  // first row; whether the part before has to end
    for (const int count : counts) {
      const bool in_turn = places.take(count);
      EXPECT_LE(places.first + places.rows, kSm90GroupedTokens);
      all.emplace_back(places.first, in_turn);
    }
    return all;
  };
  using All = std::vector<std::pair<int, bool>>;
  EXPECT_EQ(lies({1, 8, 3, 5}), (All{{0, false}, {8, false}, {0, false}, {8, false}}));
  EXPECT_EQ(lies({16, 8, 9, 24}), (All{{0, false}, {16, false}, {0, false}, {0, true}}));
  EXPECT_EQ(lies({16, 16, 24, 1}), (All{{0, false}, {0, true}, {0, true}, {0, true}}));
}

TEST(gemm_plan, sm90_grouped_takes_few_pairs_of_an_expert_whose_x_fits) {
  const auto plan = [](int64_t cols, int64_t pairs, int64_t experts, int64_t rows = 0) {
    return plan_sm90_grouped({rows > 0 ? rows : 2 * cols, cols, pairs, experts}, kSms);
  };
  EXPECT_EQ(plan(2880, 1024, 128)->tile, "64 rows x 24 tokens, grid 132 x 1, 218112 B shared");
  EXPECT_EQ(plan(2880, 512, 32)->tokens, 24);
  EXPECT_FALSE(plan(2880, 513, 32).has_value());
  EXPECT_FALSE(plan(2880, 64, 32, 2880).has_value());  // down of other widths
  EXPECT_FALSE(plan(4096, 64, 32).has_value());        // x of 24 tokens leaves no room for rings
  EXPECT_FALSE(plan(192, 64, 32).has_value());         // a single slice
}

TEST(gemm_plan, the_last_wave_is_cut_into_what_the_ctas_can_take) {
  const Mxfp4Waves gate_up({360}, 32, 132), down({180}, 32, 132), even({132 * 12}, 4, 132);  // 20b, 256 tokens
  const Mxfp4Waves both({180, 360}, 32, 132);
  EXPECT_EQ(gate_up.whole, 7);
  EXPECT_EQ(gate_up.last_row_tiles, 4);
  EXPECT_EQ(down.whole, 3);
  EXPECT_EQ(down.last_row_tiles, 8);
  EXPECT_EQ(both.whole, 10);
  EXPECT_EQ(both.last_row_tiles, 12);  // 120 of 132 CTAs
  EXPECT_EQ(even.of(0, 4).row_tiles, 0);
  EXPECT_EQ(Mxfp4Waves({360}, 4, 121).last_row_tiles, 12);  // 120 work tiles
  Mxfp4Waves weighed = down;
  weighed.weigh(64, 1);
  EXPECT_EQ(weighed.last_row_tiles, 8);
  weighed.weigh(133, 6);
  EXPECT_EQ(weighed.last_row_tiles, 12);
}

TEST(gemm_plan, dense_bf16_takes_the_rows_that_read_l2_least_and_fill_the_last_wave) {
  const auto planned = [](int64_t rows, int64_t cols, int64_t tokens) {
    return plan_sm90_gemm({rows, cols, tokens, 1, layout::Packing::kBf16}, kSms);
  };
  const GemmPlan o = planned(2880, 4096, 2048);
  EXPECT_EQ(o.tile,
            fmt::format("256 rows x 192 tokens, grid 132 x 1, {} B shared", dense_shared_bytes(192)));  // a wave
  for (const auto& [rows, cols, tokens, tile] : {std::array{5120, 2880, 2048, 160},
                                                 {5120, 2880, 4096, 160},
                                                 {5120, 2880, 8192, 192},
                                                 {2880, 4096, 8192, 192},
                                                 {5120, 2880, 512, 96},
                                                 {2880, 4096, 512, 64}}) {
    EXPECT_EQ(planned(rows, cols, tokens).tokens, tile) << rows << ", " << tokens;
  }
  for (const auto& [tokens, tile] :
       {std::array{128, 128}, {129, 160}, {192, 192}, {193, kDenseWide}, {256, kDenseWide}, {257, 160}})
    EXPECT_EQ(planned(201088, 2880, tokens).tokens, tile) << "logits of " << tokens;
  for (const int tokens : {64, 96, 128, 160, 176, 192, kDenseWide}) {
    EXPECT_LE(dense_shared_bytes(tokens), 227 * 1024);
    EXPECT_GE(dense_stages(tokens), 4);
  }
  EXPECT_EQ(plan_sm90_gemm({5120, 2880, 8192}, kSms).rows, 192);  // MXFP4
}

TEST(gemm_plan, an_experts_tiles_are_even) {
  EXPECT_EQ(even_tile(256, 256), 256);
  EXPECT_EQ(even_tile(257, 256), 136);
  EXPECT_EQ(even_tile(1, 64), 8);
  for (int count = 1; count < 600; ++count) {
    const int tile = even_tile(count, 160);
    ASSERT_LE(tile, 160);
    ASSERT_EQ((count + tile - 1) / tile, (count + 159) / 160);
  }
  EXPECT_EQ(max_places(1, 128), 8);
  EXPECT_EQ(max_places(16, 2), 32);
}

TEST(gemm_plan, refuses_shapes_without_tiles_or_slices) {
  EXPECT_THROW(static_cast<void>(plan_gemm({2881, 2880, 9}, kCard)), Error);
  EXPECT_THROW(static_cast<void>(plan_gemm({2880, 100, 9}, kCard)), Error);
  EXPECT_THROW(static_cast<void>(plan_gemm({2880, 2880, 0}, kCard)), Error);
  EXPECT_THROW(static_cast<void>(plan_sm90_gemm({2880, 2880, 300}, kSms, 256)), Error);
}

TEST(gemm_plan, arguments_that_contradict_each_other_are_refused) {
  alignas(16) uint8_t bytes[16] = {};
  float y = 0;
  GemmArgs good{.weights = bytes, .x = reinterpret_cast<const uint16_t*>(bytes), .rows = 128, .cols = 384, .tokens = 9};
  good.parts[0] = {&y, 0, 128};
  EXPECT_NO_THROW(check_args(good));
  const auto refused = [&](auto change) {
    GemmArgs bad = good;
    change(bad);
    EXPECT_THROW(check_args(bad), Error);
  };
  refused([](GemmArgs& a) { a.tokens = 0; });
  refused([](GemmArgs& a) { a.x = nullptr; });
  refused([](GemmArgs& a) { a.weights += 4; });
  refused([](GemmArgs& a) { a.parts[0].rows = 64; });
  refused([](GemmArgs& a) { a.parts[1] = a.parts[0]; });
  refused([](GemmArgs& a) { a.order = layout::RowOrder::kGateUp; });
  refused([](GemmArgs& a) { a.experts = 4; });
  refused([](GemmArgs& a) { a.pairs = reinterpret_cast<const int32_t*>(&a); });
  refused([](GemmArgs& a) { a.x_rows = 8; });
  refused([](GemmArgs& a) { a.x_rows = 20; });
  refused([](GemmArgs& a) { a.x_scales = &a.parts[0].to[0]; });  // of experts alone
  GemmArgs codes = good;                                         // an expert's down
  ExpertTile tile{};
  const int32_t count = 1, pairs[16] = {};
  alignas(16) const float scales[16] = {};
  codes.packing = layout::Packing::kMxfp4;
  codes.tiles = &tile, codes.tile_count = &count, codes.pairs = pairs;
  codes.x_rows = 16;
  codes.y16 = reinterpret_cast<uint16_t*>(bytes);
  codes.scale_top = layout::kMaxNarrowScaleCode + 1;  // any_gemm's and f16's do not mind
  EXPECT_NO_THROW(check_args(codes));
  codes.x_scales = scales;
  EXPECT_THROW(check_args(codes), Error);
  codes.scale_top = layout::kMaxNarrowScaleCode;
  EXPECT_NO_THROW(check_args(codes));
  EXPECT_THROW(check_args(GroupTiles::Args{.tokens = 1, .topk = 4, .experts = 1025, .tile_tokens = 32}), Error);
  EXPECT_THROW(check_args(GroupTiles::Args{.tokens = 1, .topk = 4, .experts = 8, .tile_tokens = 33}), Error);
}

TEST(gemm_plan, cost_counts_weights_once_per_expert) {
  const GemmArgs up{.packing = layout::Packing::kMxfp4,
                    .rows = 5760,
                    .cols = 2880,
                    .tokens = 32,
                    .x_share = 4,
                    .u = reinterpret_cast<uint16_t*>(16)};
  EXPECT_EQ(cost(up, 7).bytes, 7 * int64_t{5760} * 2880 * 17 / 32 + 8 * 2880 * 2 + 32 * 5760);
  EXPECT_EQ(cost(up, 7).flops, int64_t{2} * 32 * 5760 * 2880);
}

}  // namespace
}  // namespace nibble::backend::cuda

#include "backend/cuda/dense/gemm_plan.h"

#include "backend/cuda/experts/route.h"
#include "backend/cuda/testing/costs.h"
#include "base/error.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

constexpr int kHopperSms = 132;

TEST(split_gemm_plan, gives_each_sm_a_cta_at_the_model_s_widths) {
  const SplitGemmPlan qkv = plan_split_gemm({5120, 2880, 64}, kHopperSms),
                      o = plan_split_gemm({2880, 4096, 16}, kHopperSms);
  EXPECT_EQ(o.tile, "128 rows x 32 tokens, K in 5, grid 1 x 23 x 5, 206080 B shared");
  EXPECT_EQ(qkv.tile, "128 rows x 64 tokens, K in 3, grid 1 x 40 x 3, 197888 B shared");
  EXPECT_EQ(qkv.grid, 120);
}

TEST(split_gemm_plan, splits_do_not_depend_on_tokens_and_rings_fit) {
  for (int tokens = 1; tokens <= kSplitMaxTokens; ++tokens) {
    const SplitGemmPlan plan = plan_split_gemm({5120, 2880, tokens}, kHopperSms);
    EXPECT_EQ(plan.cut.splits, 3);
    EXPECT_GE(plan.cut.tokens * plan.cut.token_tiles, tokens);
    EXPECT_LT(plan.cut.tokens * (plan.cut.token_tiles - 1), tokens);
    EXPECT_LE(plan.smem_bytes, 227 * 1024);
  }
}

TEST(split_gemm_plan, parts_of_k_are_never_empty) {
  EXPECT_EQ(split_count(16, 192, kHopperSms), 3);
  EXPECT_EQ(split_count(16, 4096, kHopperSms), kMaxSplits);
  EXPECT_EQ(split_count(201088, 2880, kHopperSms), 1);
}

TEST(split_gemm_plan, what_has_no_tiles_or_many_tokens_is_refused) {
  EXPECT_THROW(static_cast<void>(plan_split_gemm({5120, 2880, kSplitMaxTokens + 1}, kHopperSms)), Error);
  EXPECT_THROW(static_cast<void>(plan_split_gemm({5121, 2880, 8}, kHopperSms)), Error);
  EXPECT_THROW(static_cast<void>(plan_split_gemm({5120, 2881, 8}, kHopperSms)), Error);
}

TEST(split_gemm_plan, costs_are_weights_once_and_every_split_s_sums) {
  const SplitGemmArgs args{.rows = 5120, .cols = 2880, .tokens = 64};
  const KernelCost c = cost(args, plan_split_gemm({5120, 2880, 64}, kHopperSms));
  EXPECT_EQ(c.bytes, int64_t{5120} * 2880 * 2 + int64_t{64} * 2880 * 2 + int64_t{3} * 64 * 5120 * 2);
  EXPECT_EQ(c.flops, int64_t{2} * 64 * 5120 * 2880);
}

TEST(route_plan, takes_tiles_of_16_tokens_where_there_are_too_many_of_8) {
  const RoutePlan few = plan_route({128, 2880, 128}, kHopperSms), many = plan_route({512, 2880, 128}, kHopperSms);
  EXPECT_EQ(few.tile, "128 experts x 8 tokens, K in 8 parts, grid 8 x 1 x 16, 512 threads, 21520 B shared");
  EXPECT_EQ(many.cut.tokens, 16);
  EXPECT_EQ(many.cut.tiles, 32);
  EXPECT_EQ(plan_route({256, 2880, 32}, kHopperSms).tile,
            "32 experts x 8 tokens, K in 4 parts, grid 4 x 1 x 32, 256 threads, 29712 B shared");
  EXPECT_EQ(plan_route({9, 192, 200}, kHopperSms).grid, 2 * 2);
  EXPECT_EQ(plan_route({9, 576, 128}, 3).cut.tokens, 16);  // two parts
}

TEST(route_plan, tokens_do_not_change_the_parts) {
  for (const int64_t hidden : {192, 576, 1280, 2880, 4096})
    for (const int64_t experts : {4, 32, 60, 128, 200}) {
      const int parts = plan_route({1, hidden, experts}, kHopperSms).cut.parts;
      EXPECT_LE(parts, kRouteParts);
      EXPECT_EQ(route_parts_floats({512, hidden, experts}), 512 * parts * experts);
      for (const int64_t tokens : {9, 256, 512}) EXPECT_EQ(plan_route({tokens, hidden, experts}, 48).cut.parts, parts);
    }
}

TEST(around_gemm, arguments_out_of_range_are_refused) {
  alignas(16) static float floats[16] = {};
  NormSums::Args norm{.x = floats, .sums = {}, .tokens = 1, .hidden = 192};
  EXPECT_NO_THROW(check_args(norm));
  norm.hidden = 4100;
  EXPECT_THROW(check_args(norm), Error);
  norm.hidden = 190;
  EXPECT_THROW(check_args(norm), Error);
  RouteTokens::Args route{.x = floats, .tokens = 1, .hidden = 200, .experts = 4, .topk = 2};
  EXPECT_THROW(check_args(route), Error);
  EXPECT_THROW(check_args(RopeSums::Args{.sums = {}, .kv = {}, .tokens = 1, .heads = 1, .kv_heads = 1}), Error);
}

}  // namespace
}  // namespace nibble::backend::cuda

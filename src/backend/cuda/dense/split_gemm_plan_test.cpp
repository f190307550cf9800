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

TEST(route_plan, clusters_of_many_tokens_have_more_of_them) {
  EXPECT_EQ(plan_norm_route({64, 2880, 128}).tile,
            "8 tokens x all experts, K in 8 CTAs of a cluster, 8 clusters, 120016 B shared");
  EXPECT_EQ(plan_norm_route({65, 2880, 128}).grid, 5 * 8);
  EXPECT_EQ(plan_norm_route({129, 2880, 128}).grid, 5 * 8);
  for (const int64_t tokens : {64, 128, 512})  // the widest that it serves
    EXPECT_LE(plan_norm_route({tokens, kNormHidden, kNormRouteExperts}).smem_bytes, 227 * 1024);
  EXPECT_FALSE(norm_route_serves({kNormRouteMaxTokens + 1, 2880, 128}));
}

TEST(around_gemm, arguments_out_of_range_are_refused) {
  alignas(16) static float floats[16] = {};
  NormSums::Args norm{.x = floats, .sums = {}, .tokens = 1, .hidden = 192};
  EXPECT_NO_THROW(check_args(norm));
  norm.hidden = 4100;
  EXPECT_THROW(check_args(norm), Error);
  norm.hidden = 190;
  EXPECT_THROW(check_args(norm), Error);
  norm = {.x = floats, .sums = {}, .tokens = 1, .hidden = 192};
  EXPECT_THROW(check_args(NormRouteArgs{.norm = norm, .experts = 4, .topk = 2}), Error);
  EXPECT_THROW(check_args(RopeSums::Args{.sums = {}, .kv = {}, .tokens = 1, .heads = 1, .kv_heads = 1}), Error);
}

}  // namespace
}  // namespace nibble::backend::cuda

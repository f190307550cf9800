#include "backend/cuda/dense/gemv_plan.h"

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/testing/costs.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

constexpr PlanDevice kH200{.sms = 132, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472};
constexpr PlanDevice kGb10{.sms = 48, .cta_smem_bytes = 101376, .sm_smem_bytes = 102400};

using layout::Packing;

TEST(gemv_plan, real_shapes_on_both_cards) {
  struct Want {
    GemvShape shape;
    PlanDevice device;
    int grid, threads, stages, under_way, chunks;
    int64_t chunk_bytes, smem_bytes;
  };
  for (const Want& want : {Want{{5120, 2880}, kH200, 132, 576, 2, 2, 1, 24480, 116736},
                           Want{{201088, 2880}, kH200, 132, 576, 3, 3, 1, 24480, 116736},
                           Want{{2880, 4096}, kH200, 132, 608, 2, 2, 1, 34816, 116736},
                           Want{{5120, 2880}, kGb10, 48, 576, 2, 2, 1, 24480, 80704},
                           Want{{2880, 4096}, kGb10, 48, 576, 2, 2, 1, 34816, 87040},
                           Want{{201088, 2880, 1, Packing::kBf16}, kH200, 132, 576, 3, 3, 3, 30720, 123904},
                           Want{{5120, 2880, 1, Packing::kBf16}, kH200, 132, 576, 6, 2, 3, 30720, 216064},
                           Want{{2880, 4096, 1, Packing::kBf16}, kGb10, 48, 608, 2, 2, 4, 32768, 99328},
                           Want{{5120, 2880, 1, Packing::kMxfp8}, kH200, 132, 576, 6, 4, 3, 15840, 126784},
                           Want{{2880, 4096, 1, Packing::kMxfp8}, kGb10, 48, 608, 4, 3, 4, 16896, 101376},
                           Want{{5120, 2880, 1, Packing::kQ8}, kH200, 132, 576, 6, 4, 3, 16384, 130048},
                           Want{{201088, 2880, 1, Packing::kQ8}, kGb10, 48, 576, 3, 3, 3, 16384, 80896},
                           Want{{2880, 4096, 1, Packing::kQ8}, kGb10, 48, 608, 3, 3, 4, 17408, 86016}}) {
    const GemvPlan plan = plan_gemv(want.shape, want.device);
    SCOPED_TRACE(plan.tile);
    EXPECT_EQ(plan.grid, want.grid);
    EXPECT_EQ(plan.threads, want.threads);
    EXPECT_EQ(plan.stages, want.stages);
    EXPECT_EQ(plan.under_way, want.under_way);
    EXPECT_EQ(plan.geometry.chunks, want.chunks);
    EXPECT_EQ(plan.geometry.chunk_bytes, want.chunk_bytes);
    EXPECT_EQ(plan.smem_bytes, want.smem_bytes);
  }
  EXPECT_EQ(plan_gemv({16, 2880, 4}, kH200).grid, 4);
}

TEST(gemv_plan, asks_for_the_whole_ring_where_nobody_else_runs) {
  PlanDevice alone = kH200;
  alone.chained = false;
  const GemvPlan plan = plan_gemv({5120, 2880, 1, Packing::kBf16}, alone);
  EXPECT_EQ(plan.stages, 6);
  EXPECT_EQ(plan.under_way, 6);
}

TEST(gemv_plan, never_more_than_the_card_has_and_never_two_ctas_on_one_sm) {
  for (const PlanDevice& device : {kH200, kGb10})
    for (const GemvShape& shape : {GemvShape{5760, 2880, 4}, GemvShape{2880, 4096}, GemvShape{384, 256, 8},
                                   GemvShape{2880, 4096, 1, Packing::kBf16}, GemvShape{64, 192, 1, Packing::kMxfp8}})
      for (int stages = 0; stages <= 8; ++stages) {
        const GemvPlan plan = plan_gemv(shape, device, stages);
        EXPECT_LE(plan.smem_bytes, device.cta_smem_bytes) << plan.tile;
        EXPECT_GT(2 * (plan.smem_bytes + 1024), device.sm_smem_bytes) << plan.tile;
        EXPECT_GE(plan.stages, 2);
        EXPECT_GE(plan.under_way, 2);
        EXPECT_LE(plan.under_way, plan.stages);
        EXPECT_EQ(plan.smem_bytes % 16, 0);
      }
}

TEST(gemv_plan, refuses_what_it_cannot_serve) {
  EXPECT_THROW((void)plan_gemv({5120, 2912}, kH200), Error);
  EXPECT_THROW((void)plan_gemv({5121, 2880}, kH200), Error);
  EXPECT_THROW((void)plan_gemv({5120, 2880}, {.sms = 48, .cta_smem_bytes = 49152, .sm_smem_bytes = 65536}), Error);
}

TEST(gemv_plan, equal_runs_have_a_part_for_each_warp) {
  const int64_t warp = kRunStages * layout::slice_bytes(6) + kRowPartBytes, rows = 8 * row_pitch(2880);
  for (const auto& [device, warps] : {std::pair{kH200, 16}, {kGb10, 8}}) {
    const RowWarpsPlan plan = plan_row_warps(2880, MoeUp::kWish, device);
    EXPECT_EQ(plan.threads, warps * layout::kWarpLanes);
    EXPECT_EQ(plan.smem_bytes, rows + kRowExtraBytes + warps * warp);
    EXPECT_LE(plan.smem_bytes, device.cta_smem_bytes);
    EXPECT_THAT(plan.tile, testing::HasSubstr("equal runs"));
  }
}

TEST(gemv_plan, prints_itself) {
  EXPECT_EQ(plan_gemv({5120, 2880}, kGb10).tile,
            "grid 48 x 576 threads, 15 slices, 2 epilogues, ring of 2 chunks of 24480 B, 2 under way, 80704 B shared");
}

alignas(16) constexpr uint8_t kBytes[16] = {};
alignas(16) F16 activations[8];
alignas(16) float test_sums[4];
constexpr Bf16 kBias[1] = {};

GemvDense::Args dense() {
  return {.weights = kBytes,
          .bias = kBias,
          .in = {.x = test_sums},
          .y = test_sums,
          .rows = 5120,
          .cols = 2880,
          .tokens = 8};
}

GemvMoeDown::Args down() {
  return {.weights = kBytes,
          .bias = kBias,
          .u = activations,
          .choice = {.logits = test_sums, .experts = 128, .topk = 4},
          .y = {test_sums, test_sums},
          .hidden = 2880,
          .inter = 2880,
          .tokens = 2,
          .parts = 2};
}

template <class Args>
std::string refusal(const Args& args) {
  try {
    check_args(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(gemv_plan, arguments_are_checked_and_printed) {
  EXPECT_EQ(refusal(dense()), "accepted");
  GemvDense::Args args = dense();
  args.tokens = 9;
  EXPECT_THAT(refusal(args), testing::HasSubstr("cuda: gemv<dense, mxfp4>: want 1 to 8 tokens, found 9"));
  args = dense();
  args.tokens = 0;
  EXPECT_THAT(refusal(args), testing::HasSubstr("want 1 to 8 tokens, found 0"));
  args = dense();
  args.weights += 1;
  EXPECT_THAT(refusal(args), testing::HasSubstr("16-byte aligned"));
  args = dense();
  args.cols = 2880 + 32;
  EXPECT_THAT(refusal(args), testing::HasSubstr("slices of 6 or 8 blocks of 32, found 2912"));

  EXPECT_EQ(refusal(down()), "accepted");
  GemvMoeDown::Args moe = down();
  moe.tokens = 8, moe.choice.topk = 5;
  EXPECT_THAT(refusal(moe), testing::HasSubstr("tokens * topk in 1 to 32"));
  moe = down();
  moe.tokens = 3;
  EXPECT_THAT(refusal(moe), testing::HasSubstr("tokens * topk in 1 to 8"));
  moe = down();
  moe.choice.topk = 1;  // one distinct expert cannot be dealt to two parts
  EXPECT_THAT(refusal(moe), testing::HasSubstr("at most topk"));
  moe = down();
  moe.choice.logits = nullptr;
  EXPECT_THAT(refusal(moe), testing::HasSubstr("router logits"));
  moe = down();
  moe.choice.experts = 132;
  EXPECT_THAT(refusal(moe), testing::HasSubstr("topk to 128 experts"));

  int finished[1] = {};
  MoeDown::Args rows{.weights = kBytes,
                     .bias = kBias,
                     .u = activations,
                     .choice = {.logits = test_sums, .experts = 128, .topk = 4},
                     .y = test_sums,
                     .sums = test_sums,
                     .finished = finished,
                     .hidden = 2880,
                     .inter = 2880,
                     .tokens = 8};
  EXPECT_EQ(refusal(rows), "accepted");
  rows.finished = nullptr;
  EXPECT_THAT(refusal(rows), testing::HasSubstr("sums and finished"));
}

TEST(gemv_plan, o_is_read_in_halves_where_that_balances_the_sms) {
  const GemvShape o{2880, 4096, 1, layout::Packing::kBf16};
  EXPECT_TRUE(balances_in_halves(o, {.sms = 132}));   // 3 halves instead of 4
  EXPECT_FALSE(balances_in_halves(o, {.sms = 180}));  // a tile each
  EXPECT_FALSE(balances_in_halves({2880, 4096}, {.sms = 132}));
  EXPECT_TRUE(balances_in_halves({2880, 4096, 1, layout::Packing::kQ8}, {.sms = 132}));
  EXPECT_FALSE(balances_in_halves({2880, 2880, 1, layout::Packing::kBf16}, {.sms = 132}));  // three chunks
}

TEST(gemv_plan, cost_counts_each_expert_once) {
  const MoeUp::Args up{.choice = {.topk = 4}, .hidden = 2880, .inter = 2880, .tokens = 1};
  EXPECT_EQ(cost(up, 4).bytes - cost(up, 3).bytes, 5760 * 90 * 17 + 2 * 5760);
  EXPECT_EQ(cost(up, 4).flops, int64_t{2} * 4 * 5760 * 2880);
  EXPECT_EQ(cost(down(), 4).flops, int64_t{2} * 8 * 2880 * 2880);
  EXPECT_EQ(cost(dense()).flops, int64_t{2} * 8 * 5120 * 2880);
}

}  // namespace
}  // namespace nibble::backend::cuda

#include "backend/cuda/kernels/any/mxfp4_plan.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

constexpr GemvDevice kH200{.sms = 132, .cta_smem_bytes = 232448, .sm_smem_bytes = 233472};
constexpr GemvDevice kGb10{.sms = 48, .cta_smem_bytes = 101376, .sm_smem_bytes = 102400};

TEST(mxfp4_plan, real_shapes_on_both_cards) {
  EXPECT_EQ(
      plan_gemv({5120, 2880}, kH200),
      (GemvPlan{.grid = 132, .threads = 544, .stages = 4, .slices = 15, .tile_bytes = 24480, .smem_bytes = 116736}));
  EXPECT_EQ(
      plan_gemv({2880, 4096}, kH200),
      (GemvPlan{.grid = 132, .threads = 576, .stages = 3, .slices = 16, .tile_bytes = 34816, .smem_bytes = 121088}));
  EXPECT_EQ(
      plan_gemv({5120, 2880}, kGb10),
      (GemvPlan{.grid = 48, .threads = 544, .stages = 3, .slices = 15, .tile_bytes = 24480, .smem_bytes = 89056}));
  EXPECT_EQ(
      plan_gemv({2880, 4096}, kGb10),
      (GemvPlan{.grid = 48, .threads = 576, .stages = 2, .slices = 16, .tile_bytes = 34816, .smem_bytes = 86272}));
  EXPECT_EQ(plan_gemv({16, 2880, 4}, kH200).grid, 4);
}

TEST(mxfp4_plan, never_more_than_the_card_has_and_never_two_ctas_on_one_sm) {
  for (const GemvDevice& device : {kH200, kGb10})
    for (const GemvShape& shape : {GemvShape{5760, 2880, 4}, GemvShape{2880, 4096}, GemvShape{384, 256, 8}})
      for (int stages = 0; stages <= 8; ++stages) {
        const GemvPlan plan = plan_gemv(shape, device, stages);
        EXPECT_LE(plan.smem_bytes, device.cta_smem_bytes) << plan.to_string();
        EXPECT_GT(2 * (plan.smem_bytes + 1024), device.sm_smem_bytes) << plan.to_string();
        EXPECT_GE(plan.stages, 2);
        EXPECT_EQ(plan.smem_bytes % 16, 0);
      }
}

TEST(mxfp4_plan, refuses_what_it_cannot_serve) {
  EXPECT_THROW((void)plan_gemv({5120, 2912}, kH200), Error);
  EXPECT_THROW((void)plan_gemv({5121, 2880}, kH200), Error);
  EXPECT_THROW((void)plan_gemv({5120, 2880}, {.sms = 48, .cta_smem_bytes = 49152, .sm_smem_bytes = 65536}), Error);
}

TEST(mxfp4_plan, prints_itself) {
  EXPECT_EQ(plan_gemv({5120, 2880}, kGb10).to_string(),
            "grid 48 x 544 threads, 15 slices, ring of 3 tiles of 24480 B, 89056 B shared");
}

alignas(16) constexpr uint8_t kBytes[16] = {};
alignas(16) F16 activations[8];
alignas(16) float sums[4];
constexpr Bf16 kBias[1] = {};
constexpr int32_t kIds[1] = {};

DenseArgs dense() {
  return {.weights = kBytes, .bias = kBias, .x = activations, .y = sums, .rows = 5120, .cols = 2880, .tokens = 8};
}

MoeDownArgs down() {
  return {.weights = kBytes,
          .bias = kBias,
          .u = activations,
          .expert_ids = kIds,
          .expert_weights = sums,
          .y = sums,
          .hidden = 2880,
          .inter = 2880,
          .topk = 4,
          .tokens = 8,
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

TEST(mxfp4_plan, arguments_are_checked_and_printed) {
  EXPECT_EQ(refusal(dense()), "accepted");
  DenseArgs args = dense();
  args.tokens = 9;
  EXPECT_THAT(refusal(args), testing::HasSubstr("want 1 to 8 tokens: dense [5120, 2880], 9 tokens"));
  args = dense();
  args.tokens = 0;
  EXPECT_THAT(refusal(args), testing::HasSubstr("0 tokens"));
  args = dense();
  args.weights += 1;
  EXPECT_THAT(refusal(args), testing::HasSubstr("16-byte aligned"));
  args = dense();
  args.cols = 2880 + 32;
  EXPECT_THAT(refusal(args), testing::HasSubstr("[5120, 2912]"));

  EXPECT_EQ(refusal(down()), "accepted");
  MoeDownArgs moe = down();
  moe.topk = 5;
  EXPECT_THAT(refusal(moe), testing::HasSubstr("tokens * topk in 1 to 32"));
  moe = down();
  moe.topk = 1;  // one distinct expert cannot be dealt to two parts
  EXPECT_THAT(refusal(moe), testing::HasSubstr("at most topk"));
  moe = down();
  moe.expert_weights = nullptr;
  EXPECT_THAT(refusal(moe), testing::HasSubstr("expert weights"));
}

TEST(mxfp4_plan, cost_counts_each_expert_once) {
  const MoeUpArgs up{.hidden = 2880, .inter = 2880, .topk = 4, .tokens = 1};
  EXPECT_EQ(cost(up, 4).bytes - cost(up, 3).bytes, 5760 * 90 * 17 + 2 * 5760);
  EXPECT_EQ(cost(up, 4).flops, int64_t{2} * 4 * 5760 * 2880);
  EXPECT_EQ(cost(down(), 4).flops, int64_t{2} * 32 * 2880 * 2880);
  EXPECT_EQ(cost(dense()).flops, int64_t{2} * 8 * 5120 * 2880);
}

}  // namespace
}  // namespace nibble::backend::cuda

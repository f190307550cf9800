#include "backend/cuda/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace nibble::backend {
namespace {

using testing::HasSubstr;

// gpt-oss-120b's, and an H100's (cudaDeviceProp).
constexpr Dims kDims = {.layers = 36,
                        .hidden = 2880,
                        .heads = 64,
                        .kv_heads = 8,
                        .head_dim = 64,
                        .inter = 2880,
                        .experts = 128,
                        .topk = 4,
                        .vocab = 201088,
                        .sliding_window = 128,
                        .max_context = 131072};
constexpr cuda::AttendDevice kHopper = {.sms = 132, .sm_smem_bytes = 233472};

std::vector<PlannedStage> plan(const std::vector<Row>& rows, int64_t kv_value_bytes = 2, bool flash = true) {
  return cuda_plan({.dims = kDims,
                    .step = {.rows = rows, .logit_rows = static_cast<int64_t>(rows.size())},
                    .device = kHopper,
                    .kv_value_bytes = kv_value_bytes,
                    .flash = flash});
}

int64_t count(const std::vector<PlannedStage>& stages, std::string_view kernel) {
  return std::count_if(stages.begin(), stages.end(), [&](const PlannedStage& s) { return s.kernel == kernel; });
}

TEST(cuda_plan, every_stage_has_a_kernel) {
  const std::vector<PlannedStage> stages = plan({{0, 1, 100}});
  for (int s = 0; s < kStages; ++s) {
    EXPECT_TRUE(std::any_of(stages.begin(), stages.end(), [&](const PlannedStage& p) {
      return p.stage == static_cast<Stage>(s);
    })) << name_of(static_cast<Stage>(s));
  }
}

TEST(cuda_plan, one_token_takes_a_row_per_warp_and_many_take_tiles) {
  EXPECT_THAT(plan({{0, 1, 100}})[2].tile, HasSubstr("q: 1 rows x 1 tokens per warp, 1024 x 1 CTAs"));
  EXPECT_THAT(plan({{0, 512, 512}})[2].tile, HasSubstr("q: 4 rows x 8 tokens per warp, 256 x 64 CTAs"));
}

TEST(cuda_plan, new_tokens_decide_between_decode_and_prefill_attention) {
  EXPECT_EQ(count(plan({{0, 1, 5000}}), "any_attend_decode_bf16_d64_g8"), 2);  // both kinds of layers
  EXPECT_EQ(count(plan({{0, 512, 512}}), "any_attend_prefill_bf16_d64_g8"), 2);
  const std::vector<PlannedStage> mixed = plan({{0, 1, 5000}, {1, 512, 512}});
  EXPECT_EQ(count(mixed, "any_attend_decode_bf16_d64_g8"), 2);
  EXPECT_EQ(count(mixed, "any_attend_prefill_bf16_d64_g8"), 2);
}

TEST(cuda_plan, wgmma_takes_the_prefill_of_bf16_pages) {
  const std::vector<Row> rows = {{0, 512, 512}};
  CudaPlanArgs args{.dims = kDims, .step = {.rows = rows}, .device = kHopper};
  args.device.wgmma = true;
  EXPECT_EQ(count(cuda_plan(args), "sm90_attend_prefill_bf16_d64_g8"), 2);
  args.kv_value_bytes = 1;
  EXPECT_EQ(count(cuda_plan(args), "any_attend_prefill_e4m3_d64_g8"), 2);
}

TEST(cuda_plan, what_the_flash_kernels_do_not_take_goes_to_the_plain_one) {
  EXPECT_EQ(count(plan({{0, 1, 10}}, 4), "any_attend_f32_f32"), 2);
  EXPECT_EQ(count(plan({{0, 1, 10}}, 2, false), "any_attend_f32_bf16"), 2);
  EXPECT_EQ(count(plan({{0, 1, 10}}, 1), "any_attend_decode_e4m3_d64_g8"), 2);
}

TEST(cuda_plan, a_step_without_logits_plans_none) {
  const std::vector<Row> rows = {{0, 16, 16}};
  const auto stages = cuda_plan({.dims = kDims, .step = {.rows = rows}, .device = kHopper});
  for (const PlannedStage& s : stages) EXPECT_NE(s.stage, Stage::kLogits);
}

}  // namespace
}  // namespace nibble::backend

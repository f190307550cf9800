#include "backend/cuda/launch/launch.h"

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"

#include "base/error.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

// Two steps of a layer: the third launch begins before the second ends, the fourth lies within it.
const std::vector<LaunchRecord> kLaunches = {
    {Stage::kEmbed, Embed::kName},          {Stage::kAttnOut, GemvDense::kNames[0]}, {Stage::kMoe, MoeUp::kName},
    {Stage::kMoe, MoeDown::kName},          {Stage::kLogits, GemvDense::kNames[0]},  {Stage::kEmbed, Embed::kName},
    {Stage::kAttnOut, GemvDense::kNames[0]}};
const std::vector<KernelSpan> kSpans = {{1000, 2000},  {2500, 6000},   {5000, 9000},  {8000, 8500},
                                        {9000, 10000}, {20000, 21000}, {21000, 24000}};

TEST(kernel_account, adds_up_to_the_time_from_the_first_start_to_the_last_end) {
  const KernelProfile profile = account(kLaunches, kSpans);
  EXPECT_EQ(profile.steps, 2);
  EXPECT_DOUBLE_EQ(profile.total_us(), 23);
  EXPECT_DOUBLE_EQ(profile.between_kernels_us, 0.5);
  EXPECT_DOUBLE_EQ(profile.between_steps_us, 10);
}

TEST(kernel_account, tells_the_stages_of_a_kernel_apart_and_counts_overlap_once) {
  const KernelProfile profile = account(kLaunches, kSpans);
  ASSERT_EQ(profile.kernels.size(), 5u);
  const KernelTime& out = profile.kernels[1];
  EXPECT_EQ(out.stage, Stage::kAttnOut);
  EXPECT_EQ(out.kernel, GemvDense::kNames[0].name);
  EXPECT_EQ(out.launches, 2);
  EXPECT_DOUBLE_EQ(out.us, 6.5);
  EXPECT_DOUBLE_EQ(out.own_us, 6.5);
  EXPECT_DOUBLE_EQ(profile.kernels[2].us, 4);
  EXPECT_DOUBLE_EQ(profile.kernels[2].own_us, 3);
  EXPECT_DOUBLE_EQ(profile.kernels[3].us, 0.5);
  EXPECT_DOUBLE_EQ(profile.kernels[3].own_us, 0);
  EXPECT_EQ(profile.kernels[4].stage, Stage::kLogits);
}

TEST(kernel_account, leaves_out_what_is_skipped) {
  const KernelProfile profile = account(kLaunches, kSpans, 5);
  EXPECT_EQ(profile.steps, 1);
  EXPECT_DOUBLE_EQ(profile.total_us(), 4);
  EXPECT_EQ(account(kLaunches, kSpans, kLaunches.size()).total_us(), 0);
}

TEST(kernel_account, takes_spans_in_any_order_and_refuses_too_few) {
  std::vector<KernelSpan> turned(kSpans.rbegin(), kSpans.rend());
  EXPECT_DOUBLE_EQ(account(kLaunches, turned).kernels[2].us, 4);
  turned.pop_back();
  EXPECT_THROW(static_cast<void>(account(kLaunches, turned)), Error);
  EXPECT_EQ(account({}, {}).total_us(), 0);
}

}  // namespace
}  // namespace nibble::backend::cuda

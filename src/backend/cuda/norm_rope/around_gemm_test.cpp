// The kernels around GEMMs and the split GEMM on the device, against double results: edges of tokens, real widths.

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/testing/around_gemm.h"
#include "backend/cuda/testing/attend.h"
#include "backend/cuda/testing/route.h"
#include "backend/cuda/testing/split_gemm.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

class AroundGemm : public CudaTest {
 protected:
  [[nodiscard]] static int attribute(cudaDeviceAttr which) {
    int value = 0;
    cuda_check(cudaDeviceGetAttribute(&value, which, 0));
    return value;
  }
  void norm_route(const NormCase& c, const RouteCase& to) {
    check_norm_route<DeviceArray>(
        c, to, [&](const NormRouteArgs& args, const Plan& plan) { Sm90NormRoute::launch(args, plan, on_); });
  }
  void norm_route_of_short_rows(int tokens) {
    norm_route({.tokens = tokens, .hidden = 576, .splits = 5}, {.experts = 32, .topk = 4});
    norm_route(
        {.tokens = tokens, .hidden = 512, .splits = 1, .order = SplitSums::Order::kRows, .type = InputType::kBf16},
        {.experts = 20, .topk = 2});
  }
  void split(const SplitCase& c) {
    check_split<DeviceArray>(
        c, [&](const SplitGemmArgs& args, const SplitGemmPlan& plan) { Sm90SplitGemm::launch(args, plan, on_); });
  }
  const int sms_ = cuda_available().yes ? attribute(cudaDevAttrMultiProcessorCount) : 0;
  const bool hopper_ = cuda_available().yes && attribute(cudaDevAttrComputeCapabilityMajor) == 9 && sm90_is_built();
};

TEST_F(AroundGemm, norm_adds_the_delta_and_rounds_for_every_reader) {
  const auto run = [&](const NormSums::Args& args) { NormSums::launch(args, on_); };
  for (const int tokens : kEdgeTokens)
    for (const InputType type : {InputType::kF16, InputType::kBf16})
      for (const bool panels : {false, true}) {
        check_norm<DeviceArray>({.tokens = tokens, .hidden = 2880, .splits = 5, .type = type, .panels = panels}, run);
        check_norm<DeviceArray>({.tokens = tokens, .hidden = 192, .splits = 0, .type = type, .panels = panels}, run);
      }
  check_norm<DeviceArray>({.tokens = 600,
                           .hidden = 4096,
                           .splits = 1,
                           .order = SplitSums::Order::kRows,
                           .type = InputType::kBf16,
                           .panels = true},
                          run);
  for (const int tokens : {1, 9, 300}) {
    check_norm<DeviceArray>(
        {.tokens = tokens, .splits = 1, .order = SplitSums::Order::kRows, .type = InputType::kMxfp8}, run);
    check_norm<DeviceArray>({.tokens = tokens, .splits = 5, .type = InputType::kMxfp8, .normed = false}, run);
    check_norm<DeviceArray>({.tokens = tokens, .topk = 4, .type = InputType::kMxfp8}, run);
    for (const InputType codes : {InputType::kMxfp6, InputType::kMxfp4}) {
      check_norm<DeviceArray>({.tokens = tokens, .splits = 1, .order = SplitSums::Order::kRows, .type = codes}, run);
      check_norm<DeviceArray>({.tokens = tokens, .topk = 4, .type = codes}, run);
    }
  }
  check_norm<DeviceArray>({.tokens = 17, .hidden = 2880, .splits = 8, .rounded = false}, run);
  check_norm<DeviceArray>({.tokens = 17, .hidden = 2880, .splits = 3, .normed = false, .rounded = false}, run);
  for (const int tokens : {1, 9, 300})
    for (const int topk : {1, 4, 6})
      for (const auto experts : {SplitSums::Order::kExpertsF32, SplitSums::Order::kExpertsBf16}) {
        check_norm<DeviceArray>({.tokens = tokens, .topk = topk, .experts = experts, .panels = true, .normed = false},
                                run);
        check_norm<DeviceArray>({.tokens = tokens, .topk = topk, .experts = experts, .normed = false, .rounded = false},
                                run);
      }
  for (const int topk : {1, 4, 6}) {
    check_norm<DeviceArray>({.tokens = 1500, .topk = topk, .panels = true, .normed = false}, run);
    check_norm<DeviceArray>({.tokens = 1500, .topk = topk, .normed = false, .rounded = false}, run);
  }
}

TEST_F(AroundGemm, rope_rotates_the_sums_and_fills_the_slots_of_every_cache) {
  const auto run = [&](const RopeSums::Args& args) { RopeSums::launch(args, on_); };
  for (const TestPages* pages : kCardPages)
    for (const int tokens : kEdgeTokens) {
      for (const int splits : {1, 3})
        check_rope<DeviceArray>(
            {.tokens = tokens, .heads = 64, .kv_heads = 8, .splits = splits, .type = pages->type.dtype}, run);
      check_rope<DeviceArray>({.tokens = tokens,
                               .heads = 3,
                               .kv_heads = 1,
                               .splits = 1,
                               .order = SplitSums::Order::kRows,
                               .type = pages->type.dtype},
                              run);
    }
  for (const int heads : {3, 32}) check_rope<DeviceArray>({.tokens = 700, .heads = heads, .kv_heads = 2}, run);
}

TEST_F(AroundGemm, route_of_many_tokens_keeps_what_16_bits_of_x_would_lose) {
  const auto run = [&](const RouteSums::Args& args) { RouteSums::launch(args, on_); };
  for (const RouteSumsCase of : {RouteSumsCase{},
                                 {.experts = 32},
                                 {.hidden = 192, .experts = 20, .topk = 2},
                                 {.hidden = 256, .experts = 100},
                                 {.order = SplitSums::Order::kTiles},
                                 {.splits = 2, .order = SplitSums::Order::kTiles}}) {
    std::vector<float> fewer;  // tokens: the same bits, whichever instance serves a step
    for (const int tokens : {1, 15, 33, 600, 2049, 8200}) {
      RouteSumsCase c = of;
      c.tokens = tokens;
      const std::vector<float> got = check_route_sums<DeviceArray>(c, run);
      ASSERT_TRUE(std::equal(fewer.begin(), fewer.end(), got.begin()));
      fewer = got;
    }
  }
  check_route_sums<DeviceArray>({.tokens = 50, .splits = 0}, run);
  check_route_sums<DeviceArray>({.tokens = 50, .equals = true, .nan_token = 3, .nan_expert = 11}, run);
}

TEST_F(AroundGemm, norm_route_norms_and_chooses_in_a_cluster) {
  if (!hopper_) GTEST_SKIP() << "no Hopper here";
  for (const int tokens : {1, 7, 8, 17, 32, 64, 65, 128, 129, 250, kNormRouteMaxTokens})
    norm_route_of_short_rows(tokens);
  for (const int tokens : {16, 50, 100, 256}) {
    norm_route({.tokens = tokens, .splits = 5}, {.experts = 128, .topk = 4});
    norm_route({.tokens = tokens, .hidden = 4096, .splits = 8, .rounded = false}, {.experts = 36, .topk = 32});
  }
}

// Small, for racecheck: a cluster with all its tokens, and one with a single token, of each instance.
TEST_F(AroundGemm, short_rows_are_normed_and_routed_in_clusters) {
  if (!hopper_) GTEST_SKIP() << "no Hopper here";
  for (const int tokens : {9, 65, 129}) norm_route_of_short_rows(tokens);
}

// Small, for racecheck: every instance, rings that go round.
TEST_F(AroundGemm, short_rows_of_many_tokens_are_routed) {
  const auto run = [&](const RouteSums::Args& args) { RouteSums::launch(args, on_); };
  for (const auto order : {SplitSums::Order::kRows, SplitSums::Order::kTiles})
    for (const int experts : {20, 128}) {
      check_route_sums<DeviceArray>({.tokens = 33, .hidden = 480, .experts = experts, .order = order}, run);
      check_route_sums<DeviceArray>({.tokens = 33 * sms_, .hidden = 320, .experts = experts, .order = order}, run);
    }
}

TEST_F(AroundGemm, split_gemm_is_the_plain_product_at_edges_of_tokens) {
  if (!hopper_) GTEST_SKIP() << "no Hopper here";
  for (const int tokens : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 256})
    split({.rows = 144, .cols = 384, .tokens = tokens, .sms = 6});
}

TEST_F(AroundGemm, split_gemm_is_the_plain_product_at_the_model_s_widths) {
  if (!hopper_) GTEST_SKIP() << "no Hopper here";
  for (const int tokens : {17, 64, 129}) {
    split({.rows = 5120, .cols = 2880, .tokens = tokens, .sms = sms_});
    split({.rows = 2880, .cols = 4096, .tokens = tokens, .sms = sms_});
  }
}

}  // namespace
}  // namespace nibble::backend::cuda

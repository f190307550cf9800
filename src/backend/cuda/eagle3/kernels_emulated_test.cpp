// Kernels of an EAGLE-3 head, run lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/testing/eagle3.h"
#include "backend/cuda/eagle3/kernels.cuh"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

void run_linear(const Eagle3Linear::Args& args, const Eagle3LinearPlan& plan) {
  const emulation::Launch launch{
      .grid = static_cast<int>(plan.grid), .threads = plan.threads, .predecessor = {}, .after_cta = {}};
  const auto run = [&] {
    switch (plan.token_tiles) {
      case 1: return any_eagle3_linear_bf16<1>(args, plan.parts);
      case 2: return any_eagle3_linear_bf16<2>(args, plan.parts);
      case 4: return any_eagle3_linear_bf16<4>(args, plan.parts);
      default: return any_eagle3_linear_bf16<8>(args, plan.parts);
    }
  };
  check_args(args);
  ASSERT_EQ(emulation::run(launch, run), "");
}

TEST(eagle3_emulated, products_of_every_kind_and_number_of_tokens) {
  for (const Eagle3LinearCase& c : kEagle3LinearCases) check_eagle3_linear<HostArray>(c, run_linear);
}

TEST(eagle3_emulated, norms_of_segments_go_where_they_are_told) {
  for (const Eagle3NormCase& c : kEagle3NormCases) {
    check_eagle3_norm<HostArray>(c, [](const Eagle3Norm::Args& args) {
      check_args(args);
      const emulation::Launch launch{
          .grid = args.rows, .threads = kEagle3RowThreads, .grid_y = args.segments, .predecessor = {}, .after_cta = {}};
      ASSERT_EQ(emulation::run(launch, [&] { any_eagle3_norm_f32(args); }), "");
    });
  }
}

TEST(eagle3_emulated, enter_takes_the_token_and_norms_both_halves) {
  for (const Eagle3EnterCase& c : kEagle3EnterCases) {
    check_eagle3_enter<HostArray>(c, [](const Eagle3Enter::Args& args) {
      check_args(args);
      const emulation::Launch launch{
          .grid = args.tokens, .threads = kEagle3RowThreads, .predecessor = {}, .after_cta = {}};
      ASSERT_EQ(emulation::run(launch, [&] { any_eagle3_enter_bf16(args); }), "");
    });
  }
}

}  // namespace
}  // namespace nibble::backend::cuda

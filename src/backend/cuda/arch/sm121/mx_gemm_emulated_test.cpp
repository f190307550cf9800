// sm121_mx_gemm run lane by lane on the host: with exact products, and with those through f16.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/arch/sm121/emulated_mx.cuh"
#include "backend/cuda/arch/sm121/mx_gemm.cuh"
#include "backend/cuda/arch/sm121/mx_gemm_testing.h"
#include "backend/cuda/emulation/scalar_mx.h"
#include "backend/cuda/norm_rope/around_gemm_testing.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

template <class Mma, int kTokens>
void run_tile(const GemmArgs& args, const GemmPlan& plan) {
  using Tile = MxTile<kTokens>;
  const emulation::Launch launch{.grid = plan.grid_x, .threads = kMxThreads, .predecessor = {}};
  const std::string error = emulation::run(launch, [&] {
    if (args.order == layout::RowOrder::kGateUp) return sm121_mx_gemm<Mma, Tile, layout::RowOrder::kGateUp>(args);
    sm121_mx_gemm<Mma, Tile, layout::RowOrder::kPlain>(args);
  });
  ASSERT_EQ(error, "");
}

template <class Mma>
void check(const MxExpertsCase& c) {
  check_mx_experts<HostArray>(c, [](const GemmArgs& args, const GemmPlan& plan) {
    if (plan.tokens == 64) return run_tile<Mma, 64>(args, plan);
    run_tile<Mma, 128>(args, plan);
  });
}

TEST(mx_gemm_emulated, experts_are_the_plain_products_for_few_and_many_tokens) {
  using enum GemmRouting;
  check<ScalarMx>({.tokens = 1, .experts = 4});
  check<ScalarMx>({.tokens = 12, .experts = 6});
  check<ScalarMx>({.routing = kSameForAll, .tokens = 33, .experts = 5, .topk = 2});  // some experts have none
  check<ScalarMx>({.routing = kSameForAll, .tokens = 65, .experts = 3, .inter = 192, .topk = 1});  // two tiles of 40
  check<ScalarMx>({.routing = kSameForAll, .tokens = 100, .experts = 3, .tile = 128, .inter = 192, .topk = 1});
}

TEST(mx_gemm_emulated, rows_beyond_the_last_block_are_left_out) {
  check<ScalarMx>({.tokens = 9, .experts = 4, .hidden = 576, .inter = 192, .topk = 2, .sms = 1});  // 36 row tiles
  check<ScalarMx>({.tokens = 3, .experts = 4, .hidden = 512, .inter = 384, .topk = 1, .sms = 40});
}

TEST(mx_gemm_emulated, what_is_no_number_spoils_its_own_token_alone) {
  check<ScalarMx>({.tokens = 9, .experts = 4, .inter = 192, .topk = 2, .nan_token = 4});
}

TEST(mx_gemm_emulated, products_through_f16_are_the_plain_ones) {
  check<EmulatedMx>({.tokens = 12, .experts = 6});
  check<EmulatedMx>(
      {.routing = GemmRouting::kSameForAll, .tokens = 70, .experts = 3, .tile = 128, .inter = 192, .topk = 1});
}

}  // namespace
}  // namespace nibble::backend::cuda

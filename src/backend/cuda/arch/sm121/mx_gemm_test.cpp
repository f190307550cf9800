// sm121_mx_gemm on a card, against double products: with EmulatedMx on any, with the instruction where card and build
// have it. Both are launched from the one list of mx_gemm_launch.cuh.

#include "backend/cuda/arch/sm121/mx_gemm.h"
#include "backend/cuda/arch/sm121/mx_gemm_emulated.h"
#include "backend/cuda/arch/sm121/mx_gemm_testing.h"
#include "backend/cuda/testing.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

using enum GemmRouting;

class MxGemm : public CudaTest {
 protected:
  void check(const MxExpertsCase& c) {
    check_mx_experts<DeviceArray>(c, [&](const GemmArgs& args, const GemmPlan& plan) {
      (native() ? sm121_mx_gemm : emulated_mx_gemm)(args, plan, on_);
    });
  }
  [[nodiscard]] static bool native() {
    static const bool is = open_device(0).major == 12 && cuda_available().yes;
    return is;
  }
};

TEST_F(MxGemm, experts_are_the_plain_products_at_edges_of_tokens) {
  for (const int tile : kMxGemmTokens)
    for (const int tokens : {1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129})
      for (const GemmRouting routing : {kRandom, kSameForAll})  // some experts have none; one has all
        check({.routing = routing, .tokens = tokens, .experts = 7, .tile = tile, .sms = 40});
}

TEST_F(MxGemm, what_is_no_number_spoils_its_own_token_alone) {
  for (const int tile : kMxGemmTokens) check({.tokens = 70, .experts = 4, .tile = tile, .nan_token = 41});
}

TEST_F(MxGemm, experts_are_the_plain_products_whatever_the_grid) {
  for (const int tile : kMxGemmTokens)
    for (const int sms : {1, 2, 5, 132})
      check({.tokens = 50, .experts = 12, .tile = tile, .hidden = 576, .inter = 384, .sms = sms});
}

TEST_F(MxGemm, experts_are_the_plain_products_at_the_model_s_widths) {
  for (const int tile : kMxGemmTokens) {
    for (const int tokens : {1, 9, 65, 129})
      check({.tokens = tokens, .experts = 32, .tile = tile, .hidden = 2880, .inter = 2880, .sms = 48, .blocks = 1});
    check({.tokens = 130, .experts = 128, .tile = tile, .hidden = 2880, .inter = 2880, .sms = 132, .blocks = 1});
    check({.routing = kSameForAll,
           .tokens = 128,
           .experts = 32,
           .tile = tile,
           .hidden = 2880,
           .inter = 2880,
           .sms = 48,
           .blocks = 1});
    check({.tokens = 65, .experts = 1, .tile = tile, .hidden = 2880, .inter = 2880, .topk = 1, .sms = 48, .blocks = 1});
  }
}

}  // namespace
}  // namespace nibble::backend::cuda

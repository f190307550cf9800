// Kernels of an EAGLE-3 head on the device.

#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/testing/eagle3.h"
#include "backend/cuda/testing/card.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

using Then = Eagle3Linear::Args::Then;

class Eagle3Kernels : public CudaTest {
 protected:
  void check(const Eagle3LinearCase& c) {
    check_eagle3_linear<DeviceArray>(c, [&](const Eagle3Linear::Args& args, const Eagle3LinearPlan& plan) {
      Eagle3Linear::launch(args, plan, on_);
    });
  }
};

TEST_F(Eagle3Kernels, products_of_every_kind_and_number_of_tokens) {
  for (const Eagle3LinearCase& c : kEagle3LinearCases) check(c);
  for (const int tokens : {1, 2, 8, 9, 16, 31, 64}) {
    check({.tokens = tokens, .rows = 288, .cols = 17280});
    check({.then = Then::kGate, .tokens = tokens, .rows = 4096, .cols = 2880, .bias = false});
    check({.then = Then::kRope, .tokens = tokens, .cols = 5760, .heads = 16, .kv_heads = 2, .head_dim = 64});
    check({.tokens = tokens, .rows = 3000, .cols = 2880, .bias = false, .residual = false});
  }
}

TEST_F(Eagle3Kernels, norms_of_segments_go_where_they_are_told) {
  for (const Eagle3NormCase& c : kEagle3NormCases)
    check_eagle3_norm<DeviceArray>(c, [&](const Eagle3Norm::Args& args) { Eagle3Norm::launch(args, on_); });
}

TEST_F(Eagle3Kernels, enter_takes_the_token_and_norms_both_halves) {
  for (const Eagle3EnterCase& c : kEagle3EnterCases)
    check_eagle3_enter<DeviceArray>(c, [&](const Eagle3Enter::Args& args) { Eagle3Enter::launch(args, on_); });
}

}  // namespace
}  // namespace nibble::backend::cuda

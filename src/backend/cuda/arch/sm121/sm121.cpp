// What GB10 (DGX Spark) and other cards of compute capability 12 have of their own: block-scaled products.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm121/plans.h"

namespace nibble::backend::cuda {
namespace {

std::optional<ExpertsPlan> serve_sm121_experts(const ExpertsShape& s, const DeviceFacts& card) {
  if (s.activations != Activations::kMxfp8 || s.inter % layout::kMxPairK != 0 || s.hidden % layout::kMxPairK != 0)
    return std::nullopt;
  const GemmPlan first = plan_mx_gemm({2 * s.inter, s.hidden, s.pairs, s.experts}, card, s.tile_tokens);
  const GemmPlan second = plan_mx_gemm({s.hidden, s.inter, s.pairs, s.experts}, card, first.tokens);
  return ExpertsPlan{
      .gate_up = kernel::kSm121GateUpGemm, .down = kernel::kSm121DownGemm, .first = first, .second = second};
}

}  // namespace

Arch sm121() {
  constexpr int kMajor = 12, kCode = 120;
  return {
      .name = "sm121",
      .runs_on = [](const DeviceFacts& card) { return card.major == kMajor && (card.code == 0 || card.code >= kCode); },
      .experts = {.serve = serve_sm121_experts, .input = InputType::kMxfp8},
      .peak = {.of = "mxfp8 x mxfp4 (block-scaled mma.sync)", .exact16 = false},
  };  // not tuned: nobody has measured
}

}  // namespace nibble::backend::cuda

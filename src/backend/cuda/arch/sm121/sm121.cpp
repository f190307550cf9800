// What GB10 (DGX Spark) and other cards of compute capability 12 have of their own: block-scaled products.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm121/plans.h"
#include "backend/cuda/attention/attend_plan.h"

namespace nibble::backend::cuda {
namespace {

std::optional<ExpertsPlan> serve_sm121_experts(const ExpertsShape& s, const DeviceFacts& card) {
  if (!in_mx_blocks(s.activations) || s.inter % layout::kBlockK != 0 || s.hidden % layout::kBlockPairK != 0)
    return std::nullopt;
  const InputType codes = codes_of(s.activations);
  GemmShape gate_up{.rows = 2 * s.inter, .cols = s.hidden, .tokens = s.pairs, .experts = s.experts};
  gate_up.activations = s.activations;
  GemmShape down = gate_up;
  down.rows = s.hidden;
  down.cols = layout::block_pair_width(s.inter);
  const GemmPlan first = plan_mx_gemm(gate_up, card, s.tile_tokens);
  return ExpertsPlan{.gate_up = kernel::by_codes(kernel::kSm121GateUpGemm, codes),
                     .down = kernel::by_codes(kernel::kSm121DownGemm, codes),
                     .first = first,
                     .second = plan_mx_gemm(down, card, first.tokens),
                     .input = codes};
}

std::optional<Served<GemmPlan>> serve_sm121_dense(const GemmShape& s, const DeviceFacts& card) {
  if (s.activations != Activations::kMxfp8 || s.packing == layout::Packing::kBf16 || s.experts > 1 ||
      s.cols % layout::kBlockPairK != 0)
    return std::nullopt;
  const bool mxfp8 = s.packing == layout::Packing::kMxfp8;
  return Served<GemmPlan>{mxfp8 ? kernel::kSm121DenseMxfp8Gemm : kernel::kSm121DenseMxfp4Gemm, plan_mx_gemm(s, card)};
}

std::optional<Kernel> serve_sm121_prefill(const PrefillShape& s) {
  if (s.fp8) return kernel::kSm121AttendPrefill;
  return std::nullopt;
}

PrefillPlan plan_sm121_prefill(int64_t tiles, int64_t kv_heads, const DeviceFacts& /*card*/) {
  return {.tile = prefill_tile(tiles, kv_heads)};
}

}  // namespace

Arch sm121() {
  constexpr int kMajor = 12, kCode = 120;
  return {
      .name = "sm121",
      .runs_on = [](const DeviceFacts& card) { return card.major == kMajor && (card.code == 0 || card.code >= kCode); },
      .gemm = {.serve = serve_sm121_dense, .codes = true, .sums = true},
      .experts_gemm = {.serve = serve_sm121_experts},
      .prefill = {.serve = serve_sm121_prefill,
                  .plan = plan_sm121_prefill,
                  .tile_tokens = kPrefillTokens,
                  .codes = true},
      .peak = {.of = "mxfp8 x mxfp4 (block-scaled mma.sync)", .exact16 = false},
  };  // not tuned: nobody has measured
}

}  // namespace nibble::backend::cuda

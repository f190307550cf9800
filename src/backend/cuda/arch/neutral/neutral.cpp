// What every card from sm_80 on runs: mma.sync.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/attention/attend_plan.h"

#include <fmt/format.h>

namespace nibble::backend::cuda {
namespace {

GemmDevice gemm_device(const DeviceFacts& card) {
  return {.sms = card.multiprocessors, .sm_smem_bytes = card.sm_smem_bytes};
}

std::optional<KernelPlan<GemmPlan>> serve_gemm(const GemmShape& shape, const DeviceFacts& card) {
  return KernelPlan<GemmPlan>{by_packing(kernel::kGemm, shape.packing), plan_gemm(shape, gemm_device(card))};
}

std::optional<ExpertsPlan> serve_experts(const ExpertsShape& s, const DeviceFacts& card) {
  const GemmPlan first = plan_gemm({2 * s.inter, s.hidden, s.pairs, s.experts}, gemm_device(card));
  return ExpertsPlan{.gate_up = kernel::kGemmGateUp,
                     .down = by_packing(kernel::kGemm, layout::Packing::kMxfp4),
                     .first = first,
                     .second = plan_gemm_tile({s.hidden, layout::block_pair_width(s.inter), s.pairs, s.experts},
                                              {first.rows, first.tokens})};
}

std::optional<Kernel> serve_prefill(const PrefillShape& s) {
  if (s.fp8) return kernel::kAttendPrefillFp8;
  if (s.pages.prefill) return kernel::kAttendPrefill.of(s.pages.dtype);
  return std::nullopt;
}

PrefillPlan plan_prefill(int64_t tiles, int64_t kv_heads, const DeviceFacts& /*card*/) {
  return {.tile = prefill_tile(tiles, kv_heads)};
}

}  // namespace

Arch neutral() {
  return {.name = "neutral",
          .runs_on = [](const DeviceFacts&) { return true; },
          .gemm = {.serve = serve_gemm},
          .experts_gemm = {.serve = serve_experts},
          .prefill = {.serve = serve_prefill, .plan = plan_prefill, .tile_tokens = kPrefillTokens, .codes = true},
          .peak = {.of = "f16 (mma.sync)"},
          // On an H100 as sm_80, 120b: with 16 pairs an expert the GEMMs take 677 us and `grouped` 957, with 8
          // `grouped` 646; o in halves takes 2.9 % off a step of one token, and nothing off one of sm_90's own.
          .tuned =
              [](const DeviceFacts&) {
                return Tuned{.gemm_at_once_pairs = 0, .grouped_pairs = 8, .route_tokens = 512, .o_in_halves = true};
              }};
}

}  // namespace nibble::backend::cuda

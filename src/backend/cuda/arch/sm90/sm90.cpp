// What Hopper has of its own: wgmma.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm90/plans.h"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/dense/split_gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;

std::optional<Served<GemmPlan>> serve_sm90_gemm(const GemmShape& s, const DeviceFacts& card) {
  if (s.packing == Packing::kMxfp8 || (s.packing == Packing::kMxfp4 && s.wide_scales)) return std::nullopt;
  return Served<GemmPlan>{s.packing == Packing::kBf16 ? kernel::kSm90DenseGemm : kernel::kSm90Mxfp4Gemm,
                          plan_sm90_gemm(s, card.multiprocessors)};
}

std::optional<Served<SplitGemmPlan>> serve_sm90_split_gemm(const GemmShape& s, const DeviceFacts& card) {
  if (s.packing != Packing::kBf16 || s.tokens > kSplitMaxTokens) return std::nullopt;
  return Served<SplitGemmPlan>{kernel::kSm90SplitGemm, plan_split_gemm(s, card.multiprocessors)};
}

std::optional<Served<NormRoutePlan>> serve_sm90_norm_route(const RouteShape& s, const DeviceFacts& /*card*/) {
  if (!norm_route_serves(s)) return std::nullopt;
  return Served<NormRoutePlan>{kernel::kSm90NormRoute, plan_norm_route(s)};
}

int64_t most_split_values(int64_t rows, int64_t cols, int64_t tokens, const DeviceFacts& card) {
  return split_count(rows, cols, card.multiprocessors) * split_pitch(std::min<int64_t>(tokens, kSplitMaxTokens), rows);
}

bool fast_memory(const DeviceFacts& card) {
  constexpr double kFast = 28e9;  // bytes a second and multiprocessor, of memory_bytes_per_s
  return card.memory_bytes_per_s > kFast * card.multiprocessors;
}

std::optional<ExpertsPlan> serve_sm90_experts(const ExpertsShape& s, const DeviceFacts& card) {
  if (s.wide_scales) return std::nullopt;
  const bool codes = s.activations == Activations::kMxfp8 && s.byte_scales;
  GemmShape gate_up{2 * s.inter, s.hidden, s.pairs, s.experts},
      down{s.hidden, layout::block_pair_width(s.inter), s.pairs, s.experts};
  gate_up.row_codes = down.row_codes = codes;
  const bool at_once = !rounds(s.activations) && !s.shares_card && sm90_experts_at_once(s.hidden, s.inter);
  if (at_once && fast_memory(card))
    if (const std::optional<GemmPlan> plan = plan_sm90_grouped(gate_up, card.multiprocessors))
      return ExpertsPlan{.gate_up = kernel::kSm90Grouped, .down = {}, .first = *plan, .second = {}, .at_once = true};
  const GemmPlan first = plan_sm90_gemm(gate_up, card.multiprocessors);
  return ExpertsPlan{.gate_up = at_once ? kernel::kSm90ExpertsGemm
                                : codes ? kernel::kSm90GateUpCodesGemm
                                        : kernel::kSm90GateUpGemm,
                     .down = codes ? kernel::kSm90Mxfp4CodesGemm : kernel::kSm90Mxfp4Gemm,
                     .first = first,
                     .second = plan_sm90_gemm(down, card.multiprocessors, first.tokens),
                     .at_once = at_once,
                     .row_codes = codes};
}

std::optional<Kernel> serve_sm90_prefill(const PrefillShape& s) {
  if (s.pages.dtype == kSm90PrefillPages) return kernel::kSm90AttendPrefill;
  return std::nullopt;
}

PrefillPlan plan_sm90_prefill(int64_t tiles, int64_t kv_heads, const DeviceFacts& card) {
  const auto ctas = static_cast<int>(std::min<int64_t>(tiles * kv_heads, card.multiprocessors));
  return {.ctas = ctas,
          .tile = fmt::format("{} x {} tiles of {} tokens, {} CTAs", tiles, kv_heads, kSm90PrefillTokens, ctas)};
}

// Measured with 120b and 20b. An SM of an H100 reads 24 GB/s, of an H200 35 GB/s: there the card is at its power limit
// (docs/decisions/0047). `grouped` takes what an H100's sm90_mxfp4_gemm takes, up to where sm90_grouped is as fast: it
// is slower by 2.7 % of a step of 4 pairs and faster by 1.3 % of 8. A rank with some columns of every expert has no
// sm90_grouped: two H200 were measured with `grouped` up to 8 pairs.
Tuned tuned_sm90(const DeviceFacts& card) {
  if (!fast_memory(card)) return {.gemm_at_once_pairs = 64, .grouped_pairs = 3, .route_tokens = 512};
  return {.gemm_at_once_pairs = 64, .grouped_pairs = 6, .grouped_pairs_apart = 8, .route_tokens = 512};
}

}  // namespace

Arch sm90() {
  constexpr int kMajor = 9, kCode = 90;  // code for older cards comes without wgmma
  return {
      .name = "sm90",
      .runs_on = [](const DeviceFacts& card) { return card.major == kMajor && (card.code == 0 || card.code >= kCode); },
      .gemm = {.serve = serve_sm90_gemm, .panels = true, .sums = true},
      .split_gemm = {.serve = serve_sm90_split_gemm, .most_values = most_split_values},
      .norm_route = {.serve = serve_sm90_norm_route},
      .experts_gemm = {.serve = serve_sm90_experts, .by_place = true},
      .prefill = {.serve = serve_sm90_prefill, .plan = plan_sm90_prefill, .tile_tokens = kSm90PrefillTokens},
      .peak = {.of = "bf16 (wgmma)"},
      .tuned = tuned_sm90};
}

}  // namespace nibble::backend::cuda

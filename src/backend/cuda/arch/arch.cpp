#include "backend/cuda/arch/arch.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {
namespace {

std::optional<ExpertsPlan> serve_experts(const ExpertsShape& s, const DeviceFacts& card) {
  GemmPlan first = plan_gemm({2 * s.inter, s.hidden, s.pairs, s.experts}, plan_device(card));
  first.kernel = AnyGemm::kGateUp;
  return ExpertsPlan{.first = first,
                     .second = plan_gemm_tile({s.hidden, layout::block_pair_width(s.inter), s.pairs, s.experts},
                                              {first.rows, first.tokens})};
}

}  // namespace

Arch neutral() {
  return {.name = "neutral",
          .runs_on = [](const DeviceFacts&) { return true; },
          .gemm = {.serve = [](const GemmShape& shape, const DeviceFacts& card) -> std::optional<GemmPlan> {
                     return plan_gemm(shape, plan_device(card));
                   },
                   .launch = AnyGemm::launch},
          .experts_gemm = {.serve = serve_experts, .launch = AnyGemm::launch},
          .prefill = {.serve = [](const PrefillShape& s) -> std::optional<Kernel> {
                        if (on_tensor_cores(s.pages)) return AttendPrefill::name(s.pages, s.fp8);
                        return std::nullopt;
                      },
                      .plan = plan_prefill,
                      .launch = AttendPrefill::launch,
                      .tile_tokens = kPrefillTokens},
          .peak = {.of = "f16 (mma.sync)", .launch = any_peak_mma},
          // On an H100 as sm_80, 120b: with 16 pairs an expert the GEMMs take 677 us and `grouped` 957, with 8
          // `grouped` 646; o in halves takes 2.9 % off a step of one token, and nothing off one of sm_90's own.
          .tuned =
              [](const DeviceFacts&) {
                return Tuned{.gemm_at_once_pairs = 0, .grouped_pairs = 8, .route_tokens = 512, .o_in_halves = true};
              }};
}

std::vector<Arch> architectures() { return {sm121(), sm90(), neutral()}; }

Card::Card(DeviceFacts its_facts, const std::vector<Arch>& all) : facts(std::move(its_facts)) {
  for (const Arch& arch : all)
    if (arch.runs_on(facts)) arches.push_back(arch);
  check(!arches.empty(), "some architecture runs on every card");
}

Tuned Card::tuned() const {
  const auto measured = std::ranges::find_if(arches, [](const Arch& arch) { return arch.tuned != nullptr; });
  check(measured != arches.end(), "the last architecture is measured, or guessed for");
  return measured->tuned(facts);
}

}  // namespace nibble::backend::cuda

#pragma once
// What a RunConfig becomes for a model; and which kernels a step of so many tokens gets: the fused decode kernels,
// `grouped` or GEMMs. Pure: make_program asks here what the backend asks.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/layout/packed.h"

#include <cstdint>
#include <optional>
#include <string>

namespace nibble::backend::cuda {

// What run.moe becomes; kAuto: packed matrices, each step on the kernels that are faster for its tokens. Throws
// Error(kUnsupported) for what the model's shapes or this build rule out.
[[nodiscard]] MoeKernel choose_moe(const BackendConfig& config, const RunConfig& run);
// What the experts of a resolved kernel multiply. Throws Error(kUnsupported) where it cannot round so.
[[nodiscard]] Activations choose_activations(MoeKernel kernel, const RunConfig& run);
// Throws Error(kUnsupported) where run asks for a tile that none of the card's kernels has for the model's experts.
void require_moe_tile(const BackendConfig& config, const RunConfig& run, const Card& card);
// Whether the tensor-core kernels serve attention; false: the plain one. Throws Error(kUnsupported) when it
// asks for kernels that do not take the model's shapes or its page type.
[[nodiscard]] bool choose_flash(const BackendConfig& config, const RunConfig& run);
// Whether the card's first kernel for attention over prompts that takes pages of bf16 takes these, too, or an earlier
// one.
[[nodiscard]] bool prefill_takes(const Card& card, KvDtype type);
// Whether prompts' dense layers and experts multiply activations in codes of MX blocks, where those are asked for.
[[nodiscard]] bool multiplies_codes(MoeKernel kernel, const Dims& dims, const Card& card);
// Whether the decode kernels take a step of `tokens` in their fused form.
[[nodiscard]] bool fused_step(const Dims& dims, int64_t tokens);
// Of a resolved kernel: whether the backend has GEMMs at all, and whether they take a step's dense layers, its experts,
// its logits.
[[nodiscard]] bool has_gemms(MoeKernel kernel);
[[nodiscard]] bool dense_by_gemm(MoeKernel kernel, const Dims& dims, int64_t tokens);
// at_once: both products would be one launch (ExpertsPlan).
[[nodiscard]] bool experts_by_gemm(MoeKernel kernel, bool at_once, const Dims& dims, const Tuned& tuned,
                                   int64_t tokens);
[[nodiscard]] bool logits_by_gemm(MoeKernel kernel, int64_t rows);
// Of a fused step: whether o is read in two halves of K, whose sums the router adds.
[[nodiscard]] bool o_in_halves(const Tuned& tuned, const GemvShape& o, const GemvDevice& device);
// Whether any_route_tokens takes its router.
[[nodiscard]] bool router_by_tiles(const Tuned& tuned, int64_t tokens);
// Of any_route_sums: whether the experts' input is made of the residual where it is rounded.
[[nodiscard]] constexpr bool norm_while_rounding(Activations activations, bool experts_on_gemms, bool row_codes) {
  return experts_on_gemms && (row_codes || !rounds(activations));
}

// In which packing a role is held.
[[nodiscard]] layout::Packing packing_of(WeightRole role, const DenseFormats& dense);
// Where the packed matrices' kernels can serve the model's shapes: none; else the first reason why not.
[[nodiscard]] std::optional<std::string> why_not_packed(const BackendConfig& config);

}  // namespace nibble::backend::cuda

#pragma once
// What a RunConfig becomes for a model, and which kernels a step gets by its number of tokens: the fused decode
// kernels, `grouped` or GEMMs. Pure, so that make_program and the backend get the same answers.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/layout/packed.h"

#include <cstdint>
#include <optional>
#include <string>

namespace nibble::backend::cuda {

// What run.family becomes; kAuto: packed matrices, each step on the kernels that are faster for its tokens. Throws
// Error(kUnsupported) for what the model's shapes or this build rule out.
[[nodiscard]] KernelFamily choose_family(const BackendConfig& config, const RunConfig& run);
// What the experts of a resolved family multiply. Throws Error(kUnsupported) where the family cannot round that way.
[[nodiscard]] Activations choose_activations(KernelFamily kernel, const RunConfig& run);
// Throws Error(kUnsupported) where run asks for a tile that none of the card's kernels has for the model's experts.
void require_moe_tile(const BackendConfig& config, const RunConfig& run, const Card& card);
// Whether the tensor-core kernels serve attention; false: the plain one. Throws Error(kUnsupported) when it
// asks for kernels that do not take the model's shapes or its page type.
[[nodiscard]] bool choose_flash(const BackendConfig& config, const RunConfig& run);
// Whether pages of this type are served by the kernel that takes prompts with bf16 pages on this card, or by a more
// particular one.
[[nodiscard]] bool prefill_takes(const Card& card, KvDtype type);
// Whether the dense layers and experts of prompts can multiply activations as codes of MX blocks on this card.
[[nodiscard]] bool multiplies_codes(KernelFamily kernel, const Dims& dims, const Card& card);
// Whether the experts' GEMM of many tokens multiplies rows of FP8 with `--moe-activation mxfp8`, and few stay exact.
[[nodiscard]] bool multiplies_rows(KernelFamily kernel, const Dims& dims, const Card& card);
// Whether the decode kernels take a step of `tokens` in their fused form.
[[nodiscard]] bool fused_step(const Dims& dims, int64_t tokens);
// Whether a resolved family has GEMMs at all, and whether they take the dense layers of a step, its experts, its
// logits.
[[nodiscard]] bool has_gemms(KernelFamily kernel);
[[nodiscard]] bool dense_by_gemm(KernelFamily kernel, const Dims& dims, int64_t tokens);
// gemms: the plan that the card's GEMMs have for the step's experts.
[[nodiscard]] bool experts_by_gemm(KernelFamily kernel, const ExpertsPlan& gemms, const Dims& dims, const Tuned& tuned,
                                   int64_t tokens);
[[nodiscard]] bool logits_by_gemm(KernelFamily kernel, int64_t rows);
// Whether a fused step reads o in two halves of K, whose sums the router adds.
[[nodiscard]] bool o_in_halves(const Tuned& tuned, const GemvShape& o, const PlanDevice& device);
// Whether logits that only a draw by temperature reads are screened, where a step has few of them: of one card, in
// bf16, where the copy is a small part of the memory (sampling/screen.h).
[[nodiscard]] bool screens_logits(const BackendConfig& config, const RunConfig& run, const DeviceFacts& card);
// config.dense with what stays in Q8_0 of a file's layers that are in it, if it may: where steps of few tokens have
// kernels for them, and others GEMMs; the unembedding where it is not screened, or memory is fast.
[[nodiscard]] DenseFormats with_q8(const BackendConfig& config, const RunConfig& run, const DeviceFacts& card,
                                   const DenseFormats& file);
// Whether the GEMM of bf16 weights on this card also takes Q8_0, which then needs no copy.
[[nodiscard]] bool widens_q8(const Card& card);
// Whether steps of many tokens may have the host's experts copied to the card, and whether one of so many tokens does.
[[nodiscard]] bool may_copy_experts(const BackendConfig& config, const RunConfig& run);
[[nodiscard]] bool copies_experts(const BackendConfig& config, const RunConfig& run, int64_t tokens);
// The packing in which the matrix of a role is kept.
[[nodiscard]] layout::Packing packing_of(WeightRole role, const DenseFormats& dense);
// The first reason why the kernels of packed matrices cannot serve the model's shapes. Empty where they can.
[[nodiscard]] std::optional<std::string> why_not_packed(const BackendConfig& config);

}  // namespace nibble::backend::cuda

#include "backend/cuda/program/predict.h"

#include "base/error.h"

namespace nibble::backend::cuda {
namespace {

using enum Feeding;
using enum MatrixUnit;

constexpr std::string_view kH100Profile = "2026-11-22-h100-profile.json", kH100Steps = "2026-11-23-h100-120b.json",
                           kH100Chains = "2026-11-22-h100-rounded-experts.json",
                           kH100Prompts = "2026-11-22-h100-prompts.json",
                           kH100Dense = "2026-11-22-h100-dense-decode.json",
                           kH100Small = "2026-11-22-h100-small-kernels.json",
                           kH100Sums = "2026-11-22-h100-attend-sums.json",
                           kH100Waves = "2026-11-22-h100-experts-waves.json",
                           kH100Stores = "2026-11-22-h100-dense-stores.json",
                           kH100Router = "2026-11-22-h100-prefill-dense.json",
                           kH100Grouped = "2026-11-22-h100-grouped.json",
                           kH100MoeDown = "2026-11-25-h100-moe-down.json",
                           kH100NormRoute = "2026-11-26-h100-norm-route.json",
                           kH100Between = "2026-11-26-h100-between-gemms.json";
constexpr std::string_view kH100AsSm80 = "2026-11-25-h100-as-sm80.json",
                           kH100AsSm80Gemms = "2026-11-25-h100-as-sm80-gemms.json";
constexpr std::string_view kH200FewPairs = "assumed: what one H200 reached (2026-11-26-h200-few-pairs.json)";
constexpr std::string_view kH200Fp8 = "assumed: what one H200 reached (2026-11-26-h200-merged.json)";
constexpr std::string_view kH200Fp8Pages = "assumed: what one H200 reached (2026-11-26-h200-fp8-attention.json)";
constexpr std::string_view kH200Screen = "assumed: what one H200 reached (2026-11-30-h200-screened-head.json)";
constexpr std::string_view kH200Q8 = "assumed: what one H200 reached (2026-11-30-h200-q8-layers.json)";
constexpr std::string_view kAssumedMma = "assumed: as bf16's", kAssumedNorm = "assumed: as any_norm_sums",
                           kAssumedBetween = "assumed: between bf16's and MXFP4's",
                           kAssumedFp8 = "assumed: as any_attend_prefill of its own peak",
                           kAssumedMx = "assumed: 65 % of the peak, what CUTLASS reaches of MXFP8 x MXFP4 on a GB10",
                           kAssumedMxf4 = "assumed: 50 % of the peak: weights widen for half as many products";

constexpr KernelShare prompt_attention(std::string_view kernel, MatrixUnit unit, double of_peak,
                                       std::string_view from) {
  return {.kernel = kernel, .step_us = 3, .token_us = 0.02, .matrix = {unit, of_peak}, .from = from};
}

struct Moves {
  double step_us, read, value_bytes;
};
constexpr KernelShare between_products(std::string_view kernel, const Moves& moves, std::string_view from) {
  return {.kernel = kernel,
          .step_us = moves.step_us,
          .read = moves.read,
          .cycle_bytes = 14,
          .value_bytes = moves.value_bytes,
          .from = from};
}

constexpr KernelShare widened_wgmma(std::string_view kernel, double step_us, double of_peak, std::string_view from) {
  return {.kernel = kernel, .step_us = step_us, .cycle_bytes = 10.3, .matrix = {kWgmma, of_peak}, .from = from};
}

// A kernel of experts on the block-scaled units.
constexpr KernelShare mx_experts(std::string_view kernel, MatrixUnit unit, double value_bytes) {
  const bool nibbles = unit == kMxf4;
  return {.kernel = kernel,
          .step_us = 4,
          .matrix = {unit, nibbles ? 0.5 : 0.65},
          .value_bytes = value_bytes,
          .from = nibbles ? kAssumedMxf4 : kAssumedMx};
}

// Fitted to an H100 and rounded: to its profiles, kernel by kernel; token_us of the decode kernels to what its steps of
// 8 sequences take beyond their bytes, which tells the sum and not how it divides among the three. No figure of another
// card is in it but those of FP8 and of sm90_grouped, an H200's; which families feed themselves, and that the others do
// not, was decided with an H200's in view. predictor_test.cpp holds both cards to it.
constexpr KernelShare kShares[] = {
    // Decode kernels of up to 8 tokens. Their fixed part is what a dependency costs; in bf16 the ring is filled before
    // the kernel ahead has ended, which hides most of it.
    {.kernel = "any_embed", .step_us = 2.5, .value_bytes = 4, .from = kH100Profile},
    {.kernel = "any_rope_table", .step_us = 1.3, .from = kH100Profile},
    {.kernel = "gemv<qkv, bf16>", .step_us = 0.3, .token_us = 0.3, .from = kH100Profile},
    {.kernel = "gemv<qkv, mxfp4>", .step_us = 1.6, .token_us = 0.3, .from = kH100Profile},
    {.kernel = "gemv<qkv, mxfp8>", .step_us = 1.0, .token_us = 0.3, .from = kAssumedBetween},
    {.kernel = "gemv<qkv, q8_0>", .step_us = 1.9, .token_us = 0.3, .from = kH200Q8},
    {.kernel = "gemv<dense, bf16>", .step_us = 0.9, .token_us = 0.4, .from = kH100Profile},
    {.kernel = "gemv<dense, mxfp4>", .step_us = 1.0, .token_us = 0.4, .from = kH100Profile},
    {.kernel = "gemv<dense, mxfp8>", .step_us = 1.0, .token_us = 0.4, .from = kAssumedBetween},
    {.kernel = "gemv<dense, q8_0>", .step_us = 1.9, .token_us = 0.4, .from = kH200Q8},
    // The screen of the logits. Its fixed part is the rounding of the activations, which memory waits for.
    {.kernel = "any_screen", .step_us = 15, .token_us = 2.5, .from = kH200Screen},
    {.kernel = "any_screen_pick", .step_us = 8, .token_us = 1.5, .from = kH200Screen},
    {.kernel = "gemv<listed, bf16>", .step_us = 3.5, .token_us = 0.7, .from = kH200Screen},
    {.kernel = "any_router", .step_us = 1.5, .token_us = 0.48, .from = kH100Profile},
    {.kernel = "moe_up", .step_us = 3.2, .cycle_bytes = 24, .feeding = kOwn, .from = kH100Chains},
    {.kernel = "gemv<moe_down>", .step_us = 2.0, .cycle_bytes = 9.2, .from = kH100Chains},
    {.kernel = "moe_down", .step_us = 6.0, .token_us = 0.35, .cycle_bytes = 24, .feeding = kOwn, .from = kH100MoeDown},
    {.kernel = "any_host_rows", .step_us = 3, .value_bytes = 6, .from = "assumed: as a norm, and a line over the bus"},
    {.kernel = "any_top_experts", .step_us = 2, .token_us = 0.003, .from = kH100Chains},
    // The row tile of a warp, as in moe_up, for more tokens: 256 and 512 of them tell what its products cost.
    {.kernel = "grouped<",
     .step_us = 3.2,
     .cycle_bytes = 24,
     .feeding = kOwn,
     .matrix = {kMma, 0.44},
     .from = kH100Grouped},

    // Attention of decode reads keys and values at 88 % at a depth of 32768.
    {.kernel = "any_attend_decode", .step_us = 3.5, .token_us = 0.003, .read = 0.88, .from = kH100Sums},
    prompt_attention("any_attend_prefill", kMma, 0.40, kH100AsSm80),
    prompt_attention("any_attend_prefill<e4m3>", kMma, 0.32, kH200Fp8Pages),  // conversions hold it
    prompt_attention("any_attend_prefill_fp8<mma>", kFp8, 0.40, kAssumedFp8),
    prompt_attention("any_attend_prefill_fp8<mx>", kMxf8f6f4, 0.40, kAssumedFp8),
    prompt_attention("sm90_attend_prefill", kWgmma, 0.467, kH100Prompts),

    // Between products: they move activations alone, which a small step holds in L2.
    between_products("any_norm_sums", {.step_us = 1.7, .read = 0.83, .value_bytes = 18}, kH100Small),
    between_products("any_combine", {.step_us = 1.7, .read = 0.83, .value_bytes = 18}, kAssumedNorm),
    between_products("any_tap", {.step_us = 1.7, .read = 0.83, .value_bytes = 8}, kAssumedNorm),
    between_products("any_rope_sums", {.step_us = 1.5, .read = 0.9, .value_bytes = 12}, kH100Between),
    between_products("any_rmsnorm", {.step_us = 2, .read = 0.8, .value_bytes = 8}, kH100Profile),
    // The router of steps that no fused one takes.
    {.kernel = "any_linear", .step_us = 5, .matrix = {kMma, 0.15}, .from = kH100Router},
    {.kernel = "sm90_norm_route", .step_us = 4.5, .token_us = 0.045, .from = kH100NormRoute},
    // What comes after the last product is its fixed part.
    between_products("any_route_sums", {.step_us = 14, .read = 0.81, .value_bytes = 12}, kH100Between),
    {.kernel = "any_moe_group_tiles", .step_us = 2, .token_us = 0.003, .from = kH100Prompts},
    between_products("any_group_round", {.step_us = 3, .read = 0.86, .value_bytes = 12}, kH100Between),
    between_products("any_round", {.step_us = 1.9, .read = 0.79, .value_bytes = 12}, kH100Prompts),
    between_products("any_round_rows", {.step_us = 1.9, .read = 0.57, .value_bytes = 12}, kH200Fp8),
    between_products("any_round_blocks", {.step_us = 1.9, .read = 0.79, .value_bytes = 6}, kH100Chains),

    // GEMMs.
    {.kernel = "sm90_split_gemm", .step_us = 2.5, .matrix = {kWgmma, 0.75}, .from = kH100Dense},
    {.kernel = "sm90_dense_gemm", .step_us = 3, .matrix = {kWgmma, 0.64}, .from = kH100Stores},
    // With weights in L2, or none loaded, it takes nearly as long: what holds it is widening them.
    widened_wgmma("sm90_mxfp4_gemm<", 4, 0.68, kH100Waves),
    // As it, but x stays in shared memory. What an H200 takes in at its power limit.
    {.kernel = "sm90_grouped", .step_us = 8, .cycle_bytes = 12.5, .matrix = {kWgmma, 0.5}, .from = kH200FewPairs},
    // In FP8, which has twice the peak.
    widened_wgmma("sm90_mxfp4_gemm<gate_up, e4m3>", 4, 0.83, kH200Fp8),
    widened_wgmma("sm90_mxfp4_gemm<e4m3>", 4, 0.83, kH200Fp8),
    // Dense: its few CTAs read all of K each, which takes that long.
    widened_wgmma("sm90_mxfp4_gemm", 16, 0.6, kH100Steps),
    // Its few CTAs read all of K each: that is the fixed part.
    {.kernel = "any_gemm<bf16>", .step_us = 24, .matrix = {kMma, 0.47}, .from = kH100AsSm80},
    {.kernel = "any_gemm<q8_0>", .step_us = 24, .matrix = {kMma, 0.47}, .from = kAssumedMma},
    {.kernel = "any_gemm<mxfp8>", .step_us = 24, .matrix = {kMma, 0.47}, .from = kAssumedMma},
    // The experts': a weight is widened once per 64 tokens, be they as many or not.
    {.kernel = "any_gemm", .step_us = 4, .cycle_bytes = 10, .matrix = {kMma, 0.55}, .from = kH100AsSm80Gemms},
    // A row of codes in, a row of codes or of bf16 out, for each of a token's four experts; dense: bf16 out.
    mx_experts("sm121_mx_gemm<gate_up", kMxf8f6f4, 5),
    mx_experts("sm121_mx_gemm<down", kMxf8f6f4, 12),
    mx_experts("sm121_mx_gemm<gate_up, mxfp4>", kMxf4, 3),
    mx_experts("sm121_mx_gemm<down, mxfp4>", kMxf4, 10),
    {.kernel = "sm121_mx_gemm<mxfp", .step_us = 24, .matrix = {kMxf8f6f4, 0.65}, .value_bytes = 4, .from = kAssumedMx},

    // Reads and writes the logits.
    {.kernel = "any_sample", .step_us = 3.2, .from = kH100Small},
};

}  // namespace

const KernelShare& share_of(std::string_view kernel) {
  const KernelShare* best = nullptr;
  for (const KernelShare& share : kShares)
    if (kernel.starts_with(share.kernel) && (best == nullptr || share.kernel.size() > best->kernel.size()))
      best = &share;
  if (best == nullptr)
    throw Error(Code::kUnsupported, "predict: nobody has measured {}, which this step launches", kernel);
  return *best;
}

}  // namespace nibble::backend::cuda

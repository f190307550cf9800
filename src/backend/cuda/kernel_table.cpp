#include "backend/cuda/kernel_table.h"

#include "base/error.h"

namespace nibble::backend::cuda {

std::string_view name_of(Kernel kernel) {
  constexpr std::array<std::string_view, kKernels> kNames = {"any_embed_f32_bf16",
                                                             "any_rmsnorm_f32_bf16",
                                                             "any_linear_f32_bf16",
                                                             "any_rope_kv_bf16",
                                                             "any_rope_kv_f32",
                                                             "any_rope_kv_e4m3",
                                                             "any_attend_f32_bf16",
                                                             "any_attend_f32_f32",
                                                             "any_attend_decode_bf16_d64_g8",
                                                             "any_attend_decode_e4m3_d64_g8",
                                                             "any_attend_prefill_bf16_d64_g8",
                                                             "any_attend_prefill_e4m3_d64_g8",
                                                             "sm90_attend_prefill_bf16_d64_g8",
                                                             "any_top_experts_f32",
                                                             "any_moe_group",
                                                             "any_moe_gate_up_f32_mxfp4",
                                                             "any_moe_down_f32_mxfp4",
                                                             "any_moe_combine_f32",
                                                             "any_router_f32_bf16",
                                                             "any_rope_table",

                                                             "any_qkv_f32_bf16",
                                                             "any_qkv_f16_mxfp8",
                                                             "any_qkv_f16_mxfp4",
                                                             "any_dense_f32_bf16",
                                                             "any_dense_f16_mxfp8",
                                                             "any_dense_f16_mxfp4",
                                                             "any_moe_up_f16_mxfp4",
                                                             "any_moe_down_f16_mxfp4",
                                                             "any_grouped_up_f16_mxfp4",
                                                             "any_grouped_down_f16_mxfp4",
                                                             "any_gemv_up_int8_mxfp4",
                                                             "any_gemv_down_int8_mxfp4",
                                                             "any_gemm_bf16_bf16",
                                                             "any_gemm_f16_mxfp8",
                                                             "any_gemm_f16_mxfp4",
                                                             "any_gemm_gate_up_f16_mxfp4",
                                                             "sm90_gemm_bf16_bf16",
                                                             "sm90_gemm_qkv_bf16_bf16",
                                                             "sm90_gemm_f16_mxfp4",
                                                             "sm90_gemm_gate_up_f16_mxfp4",
                                                             "sm90_gemm_experts_f16_mxfp4",
                                                             "any_moe_group_tiles",
                                                             "any_round_f32",
                                                             "any_group_round_f32",
                                                             "any_round_mxfp8",
                                                             "any_round_int8",
                                                             "sm90_split_gemm_bf16_bf16",
                                                             "any_norm_sums_f32",
                                                             "any_rope_sums_f32",
                                                             "any_route_tokens_f32_bf16",
                                                             "any_route_sums_f32_bf16",
                                                             "any_sample_mask_f32",
                                                             "any_sample_adjust_f32",
                                                             "any_sample_filter_f32",
                                                             "any_sample_draw_f32",
                                                             "any_sample_pick"};
  return kNames[static_cast<size_t>(kernel)];
}

void note_launch(Kernel kernel, const Launch& on) {
  ++(*on.counts)[static_cast<size_t>(kernel)];
  if (on.trace != nullptr) on.trace->push_back({on.stage, kernel});
}

void require_shape(bool holds, Kernel kernel, std::string_view want, int64_t found) {
  if (!holds) [[unlikely]]
    throw Error(Code::kUnsupported, "cuda: {}: want {}, found {}", name_of(kernel), want, found);
}

}  // namespace nibble::backend::cuda

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/experts/grouped_plan.h"
#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm90/kernels.h"

namespace nibble::backend::cuda {
KernelTable all_kernels() {
  return {.embed = any_embed,
          .rmsnorm = any_rmsnorm,
          .linear = any_linear,
          .rope_kv = any_rope_kv,
          .attend = any_attend,
          .top_experts = any_top_experts,
          .rope_table = any_rope_table,
          .plain_group = any_moe_group,
          .plain_gate_up = any_moe_gate_up,
          .plain_down = any_moe_down,
          .plain_combine = any_moe_combine,
          .sample = any_sample,
          .dense = gemv_dense,
          .qkv = gemv_qkv,
          .router = route_logits,
          .moe_up = moe_up_rows,
          .moe_down = moe_down_rows,
          .gemv_moe_down = gemv_moe_down,
          .group_tiles = any_moe_group_tiles,
          .grouped_up = grouped_up,
          .grouped_down = grouped_down,
          .int8_up = any_gemv_int8_up,
          .int8_down = any_gemv_int8_down,
          .round_blocks = any_round_blocks,
          .round_rows = any_round_rows,
          .round = any_round,
          .group_round = any_group_round,
          .norm_sums = any_norm_sums,
          .combine = any_combine,
          .tap = any_tap,
          .rope_sums = any_rope_sums,
          .route_tokens = any_route_tokens,
          .route_sums = any_route_sums,
          .attend_decode = any_attend_decode,
          .head_linear = any_eagle3_linear,
          .head_norm = any_eagle3_norm,
          .head_enter = any_eagle3_enter};
}

std::vector<Arch> built_architectures() {
  constexpr Launchers kLaunchers[] = {
      {.of = "neutral",
       .gemm = any_gemm,
       .experts_gemm = any_gemm,
       .prefill = any_attend_prefill,
       .peak = any_peak_mma},
      {.of = "sm90",
       .gemm = sm90_gemm,
       .split_gemm = sm90_split_gemm,
       .norm_route = sm90_norm_route,
       .experts_gemm = sm90_gemm,
       .prefill = sm90_attend_prefill,
       .peak = sm90_peak_wgmma},
      {.of = "sm121",
       .gemm = sm121_mx_gemm,
       .experts_gemm = sm121_mx_gemm,
       .prefill = sm121_attend_prefill,
       .peak = sm121_peak_mx},
  };
  return with_launchers(architectures(), kLaunchers);
}

}  // namespace nibble::backend::cuda

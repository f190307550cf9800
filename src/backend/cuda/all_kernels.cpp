#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/attend_flash.h"
#include "backend/cuda/kernels/any/gemm.h"
#include "backend/cuda/kernels/any/gemv_int8.h"
#include "backend/cuda/kernels/any/grouped.h"
#include "backend/cuda/kernels/any/launchers.h"
#include "backend/cuda/kernels/any/round_blocks.h"
#include "backend/cuda/kernels/any/rounding.h"
#include "backend/cuda/kernels/sm90/attend.h"
#include "backend/cuda/kernels/sm90/dense_gemm.h"
#include "backend/cuda/kernels/sm90/gemm.h"
#include "backend/cuda/kernels/sm90/split_gemm.h"

namespace nibble::backend::cuda {
namespace {

// Of the decode kernels' launchers one of the table's: chained, and counted.
template <auto kLaunch, class Args>
void decode(Kernel kernel, const Args& args, const GemvDevice& card, const Launch& on) {
  kLaunch(args, {.device = card, .stream = on.stream, .chain = Chain::kChained});
  launched(kernel, on);
}
template <auto kLaunch, Kernel kKernel, class Args>
void decode(const Args& args, const GemvDevice& card, const Launch& on) {
  decode<kLaunch>(kKernel, args, card, on);
}
Kernel of_packing(Kernel bf16, layout::Packing packing) {
  return static_cast<Kernel>(static_cast<int>(bf16) + static_cast<int>(packing));
}

}  // namespace

KernelTable all_kernels() {
  return {.embed = any_embed,
          .rmsnorm = any_rmsnorm,
          .linear = any_linear,
          .rope_kv = any_rope_kv,
          .attend = any_attend,
          .top_experts = any_top_experts,
          .rope_table = any_rope_table,
          .moe = any_moe,
          .sample = any_sample,
          .dense =
              [](const DenseArgs& args, const GemvDevice& card, const Launch& on) {
                decode<gemv_dense>(of_packing(Kernel::kDenseBf16, args.packing), args, card, on);
              },
          .qkv = [](const QkvArgs& args, const GemvDevice& card,
                    const Launch& on) { decode<gemv_qkv>(of_packing(Kernel::kQkvBf16, args.packing), args, card, on); },
          .router = decode<route_logits, Kernel::kRouter>,
          .moe_up = decode<gemv_moe_up, Kernel::kMarlinUp>,
          .moe_down = decode<gemv_moe_down, Kernel::kMarlinDown>,
          .group_tiles = any_moe_group_tiles,
          .grouped_up = decode<grouped_up, Kernel::kMarlinGroupedUp>,
          .grouped_down = decode<grouped_down, Kernel::kMarlinGroupedDown>,
          .int8_up = any_gemv_int8_up,
          .int8_down = any_gemv_int8_down,
          .round_blocks = any_round_blocks,
          .round = any_round,
          .group_round = any_group_round,
          .gemm = any_gemm,
          .norm_sums = any_norm_sums,
          .rope_sums = any_rope_sums,
          .route_tokens = any_route_tokens,
          .route_sums = any_route_sums,
          .sm90_gemm = sm90_gemm,
          .sm90_qkv_gemm = sm90_qkv_gemm,
          .split_gemm = sm90_split_gemm,
          .attend_decode = any_attend_decode,
          .attend_prefill = any_attend_prefill,
          .sm90_attend_prefill = sm90_attend_prefill};
}

}  // namespace nibble::backend::cuda

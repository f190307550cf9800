#include "backend/cuda/emulation/launchers.h"

#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/attend_flash.h"
#include "backend/cuda/kernels/any/gemm.h"
#include "backend/cuda/kernels/any/gemv_int8.h"
#include "backend/cuda/kernels/any/grouped.h"
#include "backend/cuda/kernels/any/launchers.h"
#include "backend/cuda/kernels/any/round_blocks.h"
#include "backend/cuda/kernels/sm90/dense_gemm.h"
#include "backend/cuda/kernels/sm90/gemm.h"
#include "backend/cuda/kernels/sm90/split_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {
namespace {

void note(Kernel kernel, std::string tile) { emulated_tiles()[std::string(name_of(kernel))].insert(std::move(tile)); }

// gemv.cu: the decode path counts these launches itself, after the call.
void cut(Kernel kernel, const GemvShape& shape, const GemvLaunch& launch) {
  note(kernel, plan_gemv(shape, launch.device, launch.stages).to_string());
}
Kernel by_packing(layout::Packing packing, Kernel bf16) {
  return static_cast<Kernel>(static_cast<int>(bf16) + static_cast<int>(packing));
}
void cut(Kernel kernel, const GemmPlan& plan, const Launch& on) {
  note(kernel, plan.to_string());
  launched(kernel, on);
}

}  // namespace

EmulatedCuda& emulated_cuda() {
  static EmulatedCuda cuda;
  return cuda;
}
std::map<std::string, std::set<std::string>, std::less<>>& emulated_tiles() {
  static std::map<std::string, std::set<std::string>, std::less<>> tiles;
  return tiles;
}

void any_embed(const EmbedLaunch&, const Launch& on) { launched(Kernel::kEmbed, on); }
void any_rmsnorm(const RmsnormLaunch&, const Launch& on) { launched(Kernel::kRmsnorm, on); }
void any_linear(const LinearLaunch&, const Launch& on) { launched(Kernel::kLinear, on); }
void any_rope_kv(const RopeKvLaunch& args, const Launch& on) {
  constexpr Kernel kByType[] = {Kernel::kRopeKvBf16, Kernel::kRopeKvF32, Kernel::kRopeKvE4m3};
  launched(kByType[static_cast<size_t>(args.kv.type)], on);
}
void any_attend(const AttendLaunch& args, const Launch& on) {
  launched(args.kv.type == KvPages::Type::kF32 ? Kernel::kAttendF32 : Kernel::kAttendBf16, on);
}
void any_top_experts(const TopExpertsLaunch&, const Launch& on) { launched(Kernel::kTopExperts, on); }
void any_rope_table(const RopeTableLaunch&, const Launch& on) { launched(Kernel::kRopeTable, on); }
void any_moe(const MoeLaunch&, const Launch& on) {
  for (const Kernel kernel : {Kernel::kMoeGroup, Kernel::kMoeGateUp, Kernel::kMoeDown, Kernel::kMoeCombine})
    launched(kernel, on);
}
// Something to draw: no test reads what.
void any_sample(const SampleLaunch& args, const Launch& on) {
  std::fill_n(args.tokens, args.rows, 0);
  launched(Kernel::kSampleDraw, on);
  launched(Kernel::kSamplePick, on);
}
cudaError_t any_kernels_fit_device() { return emulated_cuda().kernels; }

void gemv_dense(const DenseArgs& args, const GemvLaunch& launch) {
  check_args(args);
  cut(by_packing(args.packing, Kernel::kDenseBf16), {args.rows, args.cols, 1, args.packing}, launch);
}
void gemv_qkv(const QkvArgs& args, const GemvLaunch& launch) {
  check_args(args);
  cut(by_packing(args.packing, Kernel::kQkvBf16), {args.rows(), args.cols, 1, args.packing}, launch);
}
void route_logits(const RouterArgs& args, const GemvLaunch& /*launch*/) { check_args(args); }
void gemv_moe_up(const MoeUpArgs& args, const GemvLaunch& launch) {
  check_args(args);
  note(Kernel::kMarlinUp, plan_row_warps(args.hidden, {.rows = kGemvTokens}, launch.device).to_string());
}
void gemv_moe_down(const MoeDownArgs& args, const GemvLaunch& launch) {
  check_args(args);
  cut(Kernel::kMarlinDown, {args.hidden, args.inter, args.parts}, launch);
}
void grouped_up(const GroupedUpArgs& args, const GemvLaunch& launch) {
  check_args(args);
  note(Kernel::kMarlinGroupedUp, plan_row_warps(args.hidden, kGrouped, launch.device).to_string());
}
void grouped_down(const GroupedDownArgs& args, const GemvLaunch& launch) {
  check_args(args);
  note(Kernel::kMarlinGroupedDown, plan_row_warps(args.inter, kGrouped, launch.device).to_string());
}
void any_gemv_int8_up(const GroupedUpArgs& args, const GemvInt8Plan& plan, const Launch& on) {
  check_args(args);
  note(Kernel::kGemvUp, plan.to_string());
  launched(Kernel::kGemvUp, on);
}
void any_gemv_int8_down(const GroupedDownArgs& args, const GemvInt8Plan& plan, const Launch& on) {
  check_args(args);
  note(Kernel::kGemvDown, plan.to_string());
  launched(Kernel::kGemvDown, on);
}
void any_round_blocks(const RoundBlocksArgs& args, const Launch& on) {
  launched(args.form == ExpertActivations::kInt8 ? Kernel::kRoundInt8 : Kernel::kRoundMxfp8, on);
}

void sm90_split_gemm(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  check_args(args);
  note(Kernel::kSm90SplitGemmBf16, plan.to_string());
  launched(Kernel::kSm90SplitGemmBf16, on);
}
void any_norm_sums(const NormSumsArgs& args, const Launch& on) {
  check_args(args);
  launched(Kernel::kNormSums, on);
}
void any_rope_sums(const RopeSumsArgs& args, const Launch& on) {
  check_args(args);
  launched(Kernel::kRopeSums, on);
}
void any_route_tokens(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  check_args(args);
  note(Kernel::kRouteTokens, plan.to_string());
  launched(Kernel::kRouteTokens, on);
}

void any_route_sums(const RouteSumsArgs& args, const Launch& on) {
  check_args(args);
  launched(Kernel::kRouteSums, on);
}

bool sm90_gemm_serves(layout::Packing packing) { return packing != layout::Packing::kMxfp8; }
void sm90_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  cut(args.down.weights != nullptr              ? Kernel::kSm90GemmExperts
      : args.order == layout::RowOrder::kGateUp ? Kernel::kSm90GemmGateUp
      : args.packing == layout::Packing::kBf16  ? Kernel::kSm90GemmBf16
                                                : Kernel::kSm90GemmMxfp4,
      plan, on);
}
void sm90_qkv_gemm(const GemmArgs& args, const RopeSumsArgs& rope, const GemmPlan& plan, const Launch& on) {
  check_args(args, rope);
  cut(Kernel::kSm90GemmQkv, plan, on);
}
void any_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  const bool gate_up = args.order == layout::RowOrder::kGateUp;
  cut(gate_up ? Kernel::kGemmGateUp : by_packing(args.packing, Kernel::kGemmBf16), plan, on);
}
void any_moe_group_tiles(const GroupArgs& args, const Launch& on) {
  check_args(args);
  launched(Kernel::kMoeGroupTiles, on);
}
void any_round(const RoundArgs& /*args*/, const Launch& on) { launched(Kernel::kRound, on); }
void any_group_round(const GroupArgs& group, const RoundArgs& /*args*/, const Launch& on) {
  check_args(group);
  launched(Kernel::kGroupRound, on);
}

void any_attend_decode(const FlashArgs& args, KvPages::Type type, const DecodePlan& plan, const Launch& on) {
  const Kernel kernel = type == KvPages::Type::kBf16 ? Kernel::kAttendDecodeBf16 : Kernel::kAttendDecodeE4m3;
  const bool sums = args.qkv_sums.sums.splits > 0;
  if (sums) check_args(args.qkv_sums);
  note(kernel, decode_tile(plan, args.decode_count, args.kv_heads, sums));
  launched(kernel, on);
}
bool sm90_attend_serves(KvPages::Type type) { return type == KvPages::Type::kBf16; }
void sm90_attend_prefill(const FlashArgs& args, KvPages::Type /*type*/, const Launch& on) {
  note(Kernel::kSm90AttendPrefill, prefill_tile(args.tile_count, args.kv_heads, {.sms = args.ctas, .wgmma = true}));
  launched(Kernel::kSm90AttendPrefill, on);
}
void any_attend_prefill(const FlashArgs& args, KvPages::Type type, const Launch& on) {
  const Kernel kernel = type == KvPages::Type::kBf16 ? Kernel::kAttendPrefillBf16 : Kernel::kAttendPrefillE4m3;
  note(kernel, prefill_tile(args.tile_count, args.kv_heads, {}));
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda

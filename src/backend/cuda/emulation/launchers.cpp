#include "backend/cuda/emulation/launchers.h"

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/comm/push.h"
#include "backend/cuda/comm/share.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/experts/grouped_plan.h"
#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm90/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace nibble::backend::cuda {

void note(Kernel kernel, std::string tile) {
  static std::mutex of_ranks;  // whose threads launch at the same time
  const std::lock_guard lock(of_ranks);
  emulated_tiles()[std::string(kernel.name)].insert(std::move(tile));
}

namespace {

template <class Plan>
void cut(Kernel kernel, const Plan& plan, const Launch& on) {
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

void any_embed(const EmbedLaunch&, const Launch& on) { launched(kernel::kEmbed, on); }
void any_rmsnorm(const RmsnormLaunch&, const Launch& on) { launched(kernel::kRmsnorm, on); }
void any_linear(const LinearLaunch&, const Launch& on) { launched(kernel::kLinear, on); }
void any_rope_kv(const RopeKvLaunch& args, const Launch& on) { launched(kernel::kRopeKv.of(args.kv.type), on); }
void any_top_experts(const TopExpertsLaunch&, const Launch& on) { launched(kernel::kTopExperts, on); }
void any_moe_group(const MoeLaunch&, const Launch& on) { launched(kernel::kPlainGroup, on); }
void any_moe_gate_up(const MoeLaunch&, const Launch& on) { launched(kernel::kPlainGateUp, on); }
void any_moe_down(const MoeLaunch&, const Launch& on) { launched(kernel::kPlainDown, on); }
void any_moe_combine(const MoeLaunch&, const Launch& on) { launched(kernel::kPlainCombine, on); }
KernelCode any_kernels_code() { return {emulated_cuda().kernels, emulated_cuda().code}; }

void gemv_dense(const DenseArgs& args, const GemvPlan& plan, const Launch& on) {
  check_args(args);
  cut(by_packing(kernel::kGemvDense, args.packing), plan, on);
}
void gemv_qkv(const QkvArgs& args, const GemvPlan& plan, const Launch& on) {
  check_args(args);
  cut(by_packing(kernel::kGemvQkv, args.packing), plan, on);
}
void route_logits(const RouterArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kRouter, on);
}
void moe_up_rows(const MoeUpArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  cut(kernel::kMoeUp, plan, on);
}
void gemv_moe_down(const GemvDownArgs& args, const GemvPlan& plan, const Launch& on) {
  check_args(args);
  cut(kernel::kGemvMoeDown, plan, on);
}
void moe_down_rows(const MoeDownArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  cut(kernel::kMoeDown, plan, on);
}
void grouped_up(const GroupedUpArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  cut(kernel::kGroupedUp, plan, on);
}
void grouped_down(const GroupedDownArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  cut(kernel::kGroupedDown, plan, on);
}
void any_gemv_int8_up(const GroupedUpArgs& args, const GemvInt8Plan& plan, const Launch& on) {
  check_args(args);
  note(kernel::kInt8Up, plan.to_string());
  launched(kernel::kInt8Up, on);
}
void any_gemv_int8_down(const GroupedDownArgs& args, const GemvInt8Plan& plan, const Launch& on) {
  check_args(args);
  note(kernel::kInt8Down, plan.to_string());
  launched(kernel::kInt8Down, on);
}
void any_round_blocks(const RoundBlocksArgs& args, const Launch& on) { launched(round_kernel(args.form), on); }
void any_round_rows(const RoundRowsArgs& /*args*/, const Launch& on) { launched(kernel::kRoundRows, on); }

void sm90_split_gemm(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  check_args(args);
  note(kernel::kSm90SplitGemm, plan.to_string());
  launched(kernel::kSm90SplitGemm, on);
}
void sm90_norm_route(const NormRouteArgs& args, const NormRoutePlan& plan, const Launch& on) {
  check_args(args);
  note(kernel::kSm90NormRoute, plan.to_string());
  launched(kernel::kSm90NormRoute, on);
}
void any_norm_sums(const NormSumsArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kNormSums, on);
}
void any_combine(const CombineArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kCombine, on);
}
void any_tap(const TapArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kTap, on);
}
void any_rope_sums(const RopeSumsArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kRopeSums, on);
}
void any_route_tokens(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on) {
  check_args(args);
  note(kernel::kRouteTokens, plan.to_string());
  launched(kernel::kRouteTokens, on);
}

void any_route_sums(const RouteSumsArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kRouteSums, on);
}

bool sm90_gemm_serves(layout::Packing packing) { return packing != layout::Packing::kMxfp8; }
void sm90_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  cut(args.packing == layout::Packing::kBf16 ? kernel::kSm90DenseGemm : kernel::sm90_mxfp4_kernel(args, plan), plan,
      on);
}
void sm121_mx_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_mx_args(args);
  cut(kernel::sm121_mx_kernel(args), plan, on);
}
void any_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  const bool gate_up = args.order == layout::RowOrder::kGateUp;
  cut(gate_up ? kernel::kGemmGateUp : by_packing(kernel::kGemm, args.packing), plan, on);
}
void any_moe_group_tiles(const GroupArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kGroupTiles, on);
}
void any_round(const RoundArgs& /*args*/, const Launch& on) { launched(kernel::kRound, on); }
void any_group_round(const GroupArgs& group, const RoundArgs& /*args*/, const Launch& on) {
  check_args(group);
  launched(kernel::kGroupRound, on);
}

bool sm90_attend_serves(KvDtype type) { return type == kSm90PrefillPages; }
void sm90_attend_prefill(const FlashArgs& /*args*/, KvDtype /*type*/, const Launch& on) {
  launched(kernel::kSm90AttendPrefill, on);
}
void sm121_attend_prefill(const FlashArgs& /*args*/, KvDtype /*type*/, const Launch& on) {
  launched(kernel::kSm121AttendPrefill, on);
}
void any_attend_prefill(const FlashArgs& args, KvDtype type, const Launch& on) {
  launched(args.fp8 ? kernel::kAttendPrefillFp8 : kernel::kAttendPrefill.of(type), on);
}

void reduce_by_push(const PushReduceArgs& args, DeltaValues::Type type, const PushPlan& plan, const Launch& on) {
  check_args(args);
  on_card(on.stream);
  cut(push_reduce_kernel(type), plan, on);
}
void combine_by_push(const PushReduceArgs& args, const OwnParts& parts, const PushPlan& plan, const Launch& on) {
  check_args(args);
  check_parts(parts, args.values, args.words);
  on_card(on.stream);
  cut(push_combine_kernel(norm_delta(parts.of)), plan, on);
}
void gather_by_push(const PushGatherArgs& args, const PushPlan& plan, const Launch& on) {
  check_args(args);
  on_card(on.stream);
  for (int64_t row = 0; row < args.rows; ++row)  // what one rank has; no test reads the others'
    std::copy_n(args.own + row * args.count[args.link.rank], args.count[args.link.rank],
                args.all + row * args.width + args.first[args.link.rank]);
  cut(kernel::kPushGather, plan, on);
}
void pick_by_push(const PushPickArgs& args, const PushPlan& plan, const Launch& on) {
  check_args(args);
  on_card(on.stream);
  std::fill_n(args.tokens, args.rows, 0);
  cut(kernel::kPushPick, plan, on);
}
void meet_by_push(const PushLink& /*link*/, const Launch& on) { launched(kernel::kPushBarrier, on); }
void load_push_kernels() {}
void reduce_by_shares(const ShareReduceArgs& args, DeltaValues::Type type, const PushPlan& plan, const Launch& on) {
  check_args(args);
  on_card(on.stream);
  cut(args.sent ? kernel::kShareSum : share_reduce_kernel(type), plan, on);
}
void load_share_kernels() {}

double any_peak_mma(const PeakLaunch& /*args*/, cudaStream_t /*stream*/) { return 0; }
double sm121_peak_mx(const PeakLaunch& /*args*/, cudaStream_t /*stream*/) { return 0; }
double sm90_peak_wgmma(const PeakLaunch& /*args*/, cudaStream_t /*stream*/) { return 0; }

}  // namespace nibble::backend::cuda

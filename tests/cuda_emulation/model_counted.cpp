// Launchers of what a model's plain and streaming kernels run, that only count, beside launchers.cpp.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/dense/linear.h"
#include "backend/cuda/emulation/launchers.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"

namespace nibble::backend::cuda {

void Embed::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void Rmsnorm::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void Linear::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void RopeKv::launch(const Args& args, const Launch& on) { counted(kNames.of(args.kv.type), args, on); }
void TopExperts::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void PlainGateUp::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void PlainDown::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void PlainCombine::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void HostRows::launch(const Args& args, const Launch& on) {
  *args.to.tokens = args.tokens;
  counted(kName, args, on);
}
void Router::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void GemvDense::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  counted(args.tiles != nullptr ? kListed : by_packing(kNames, args.packing), args, on, plan.tile);
}
void GemvQkv::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  counted(by_packing(kNames, args.packing), args, on, plan.tile);
}
void MoeUp::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  counted(kName, args, on, plan.tile);
}
void GemvMoeDown::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  counted(kName, args, on, plan.tile);
}
void MoeDown::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  counted(kName, args, on, plan.tile);
}
void GroupedUp::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  counted(kName, args, on, plan.tile);
}
void GroupedDown::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  counted(kName, args, on, plan.tile);
}
void NormSums::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void GroupTiles::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void AnyGemm::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  counted(args.order == layout::RowOrder::kGateUp ? kGateUp : by_packing(kNames, args.packing), args, on, plan.tile);
}
void Round::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void RopeSums::launch(const Args& args, const Launch& on) { counted(kName, args, on); }
void RouteSums::launch(const Args& args, const Launch& on) { counted(kName, args, on); }

}  // namespace nibble::backend::cuda

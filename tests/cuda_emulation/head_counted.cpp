// Launchers of what a head runs (and other models, too) that only count, beside launchers.cpp.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/emulation/launchers.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/sampling/sample.h"

#include <algorithm>

namespace nibble::backend::cuda {

void Attend::launch(const AttentionArgs& args, const Launch& on) { launched(kNames.of(args.kv.type), on); }
void RopeTable::launch(const Args& /*args*/, const Launch& on) { launched(kName, on); }
// Something to draw: no test reads what.
void Sample::launch(const Args& args, const Launch& on) {
  launched(kDraw, on);
  if (args.tokens == nullptr) return;
  std::fill_n(args.tokens, args.rows, 0);
  launched(kPick, on);
}
void Eagle3Linear::launch(const Args& args, const Eagle3LinearPlan& /*plan*/, const Launch& on) {
  check_args(args);
  launched(name(args.tokens), on);
}
void Eagle3Norm::launch(const Args& args, const Launch& on) {
  check_args(args);
  launched(kName, on);
}
void Eagle3Enter::launch(const Args& args, const Launch& on) {
  check_args(args);
  launched(kName, on);
}
void AttendDecode::launch(const AttentionArgs& args, const DecodePlan& plan, const Launch& on) {
  note(name(args.kv.type, args.fp8), plan.tile);
  launched(name(args.kv.type, args.fp8), on);
}

}  // namespace nibble::backend::cuda

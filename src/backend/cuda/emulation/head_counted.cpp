// Launchers of what a head runs (and other models, too) that only count, beside launchers.cpp.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/emulation/launchers.h"
#include "backend/cuda/launch/launchers.h"

#include <algorithm>

namespace nibble::backend::cuda {

void any_attend(const AttendLaunch& args, const Launch& on) { launched(kernel::kAttend.of(args.kv.type), on); }
void any_rope_table(const RopeTableLaunch&, const Launch& on) { launched(kernel::kRopeTable, on); }
// Something to draw: no test reads what.
void any_sample(const SampleLaunch& args, const Launch& on) {
  launched(kernel::kSampleDraw, on);
  if (args.tokens == nullptr) return;
  std::fill_n(args.tokens, args.rows, 0);
  launched(kernel::kSamplePick, on);
}
void any_eagle3_linear(const Eagle3LinearArgs& args, const Eagle3LinearPlan& /*plan*/, const Launch& on) {
  check_args(args);
  launched(kernel::kEagle3Linear[0], on);
}
void any_eagle3_norm(const Eagle3NormArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kEagle3Norm, on);
}
void any_eagle3_enter(const Eagle3EnterArgs& args, const Launch& on) {
  check_args(args);
  launched(kernel::kEagle3Enter, on);
}
void any_attend_decode(const FlashArgs& args, KvDtype type, const DecodePlan& plan, const Launch& on) {
  const Kernel kernel = decode_kernel(type, args.fp8);
  note(kernel, decode_tile(plan, args.decode_count, args.kv_heads));
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda

// Launchers of an EAGLE-3 head that run its kernels lane by lane on the host.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/eagle3/attend.cuh"
#include "backend/cuda/eagle3/linear.cuh"
#include "backend/cuda/eagle3/rows.cuh"
#include "backend/cuda/launch/launchers.h"
#include "base/error.h"

#include <cmath>

namespace nibble::backend::cuda {
namespace {

void run_lanes(Kernel name, const emulation::Launch& launch, const std::function<void()>& kernel) {
  const std::string wrong = emulation::run(launch, kernel);
  if (!wrong.empty()) throw Error(Code::kDevice, "{}: {}", name.name, wrong);
}

}  // namespace

EmulatedCuda& emulated_cuda() {
  static EmulatedCuda cuda;
  return cuda;
}
KernelCode any_kernels_code() { return {emulated_cuda().kernels, emulated_cuda().code}; }

void any_rope_table(const RopeTableLaunch& args, const Launch& /*on*/) {
  for (int i = 0; i < args.tokens * args.half; ++i) {
    const float angle = static_cast<float>(args.positions[i / args.half]) * args.inv_freq[i % args.half];
    args.cosine[i] = static_cast<float>(std::cos(double{angle})) * args.concentration;
    args.sine[i] = static_cast<float>(std::sin(double{angle})) * args.concentration;
  }
}

void any_eagle3_linear(const Eagle3LinearArgs& args, const Eagle3LinearPlan& plan, const Launch& /*on*/) {
  check_args(args);
  const emulation::Launch launch{
      .grid = plan.grid, .threads = kEagle3LinearWarps * kWarpLanes, .predecessor = {}, .after_cta = {}};
  run_lanes(kernel::kEagle3Linear[0], launch, [&] {
    switch (plan.token_tiles) {
      case 1: return any_eagle3_linear_bf16<1>(args, plan.parts);
      case 2: return any_eagle3_linear_bf16<2>(args, plan.parts);
      case 4: return any_eagle3_linear_bf16<4>(args, plan.parts);
      default: return any_eagle3_linear_bf16<8>(args, plan.parts);
    }
  });
}

void any_eagle3_norm(const Eagle3NormArgs& args, const Launch& /*on*/) {
  check_args(args);
  run_lanes(
      kernel::kEagle3Norm,
      {.grid = args.rows, .threads = kEagle3RowThreads, .grid_y = args.segments, .predecessor = {}, .after_cta = {}},
      [&] { any_eagle3_norm_f32(args); });
}

void any_eagle3_enter(const Eagle3EnterArgs& args, const Launch& /*on*/) {
  check_args(args);
  run_lanes(kernel::kEagle3Enter,
            {.grid = args.tokens, .threads = kEagle3RowThreads, .predecessor = {}, .after_cta = {}},
            [&] { any_eagle3_enter_bf16(args); });
}

void any_eagle3_attend(const Eagle3AttendArgs& args, const Launch& /*on*/) {
  check_args(args);
  run_lanes(kernel::kEagle3Attend,
            {.grid = args.ctas(),
             .threads = kEagle3AttendWarps * kWarpLanes,
             .grid_y = args.splits,
             .predecessor = {},
             .after_cta = {}},
            [&] { args.head_dim <= 64 ? any_eagle3_attend_bf16<1>(args) : any_eagle3_attend_bf16<2>(args); });
}

}  // namespace nibble::backend::cuda

#include "backend/cuda/eagle3/linear.cuh"
#include "backend/cuda/eagle3/rows.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void any_eagle3_linear(const Eagle3LinearArgs& args, const Eagle3LinearPlan& plan, const Launch& on) {
  check_args(args);
  constexpr int kThreads = kEagle3LinearWarps * kWarpLanes;
  switch (plan.token_tiles) {
    case 1:
      return launch_chained(any_eagle3_linear_bf16<1>,
                            {kernel::kEagle3Linear[0], on, plan.grid, kThreads, plan.smem_bytes}, args, plan.parts);
    case 2:
      return launch_chained(any_eagle3_linear_bf16<2>,
                            {kernel::kEagle3Linear[1], on, plan.grid, kThreads, plan.smem_bytes}, args, plan.parts);
    case 4:
      return launch_chained(any_eagle3_linear_bf16<4>,
                            {kernel::kEagle3Linear[2], on, plan.grid, kThreads, plan.smem_bytes}, args, plan.parts);
    default:
      return launch_chained(any_eagle3_linear_bf16<8>,
                            {kernel::kEagle3Linear[3], on, plan.grid, kThreads, plan.smem_bytes}, args, plan.parts);
  }
}

void any_eagle3_norm(const Eagle3NormArgs& args, const Launch& on) {
  check_args(args);
  launch_chained(any_eagle3_norm_f32,
                 {kernel::kEagle3Norm, on, args.rows, kEagle3RowThreads, kEagle3RowShared, args.segments}, args);
}

void any_eagle3_enter(const Eagle3EnterArgs& args, const Launch& on) {
  check_args(args);
  launch_chained(any_eagle3_enter_bf16, {kernel::kEagle3Enter, on, args.tokens, kEagle3RowThreads, kEagle3RowShared},
                 args);
}

}  // namespace nibble::backend::cuda

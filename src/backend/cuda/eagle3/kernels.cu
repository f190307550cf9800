#include "backend/cuda/eagle3/kernels.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void Eagle3Linear::launch(const Args& args, const Eagle3LinearPlan& plan, const Launch& on) {
  check_args(args);
  const ChainedLaunch launch = planned(name(args.tokens), plan, on);
  switch (plan.token_tiles) {
    case 1: return launch_chained(any_eagle3_linear_bf16<1>, launch, args, plan.parts);
    case 2: return launch_chained(any_eagle3_linear_bf16<2>, launch, args, plan.parts);
    case 4: return launch_chained(any_eagle3_linear_bf16<4>, launch, args, plan.parts);
    default: return launch_chained(any_eagle3_linear_bf16<8>, launch, args, plan.parts);
  }
}

void Eagle3Norm::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_eagle3_norm_f32, {kName, on, args.rows, kEagle3RowThreads, kEagle3RowShared, args.segments}, args);
}

void Eagle3Enter::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_eagle3_enter_bf16, {kName, on, args.tokens, kEagle3RowThreads, kEagle3RowShared}, args);
}

}  // namespace nibble::backend::cuda

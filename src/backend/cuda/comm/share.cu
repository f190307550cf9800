#include "backend/cuda/comm/share.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void reduce_by_shares(const ShareReduceArgs& args, DeltaValues::Type type, const PushPlan& plan, const Launch& on) {
  check_args(args);
  require_shape(!args.sent || type == DeltaValues::Type::kBf16, kernel::kShareSum, "bf16", args.words);
  if (args.sent) return launch_chained(any_share_sum, {kernel::kShareSum, on, plan.ctas, kPushThreads}, args);
  const ChainedLaunch launch{share_reduce_kernel(type), on, plan.ctas, kPushThreads};
  switch (type) {
    case DeltaValues::Type::kF32: return launch_chained(any_share_reduce<DeltaValues::Type::kF32>, launch, args);
    case DeltaValues::Type::kBf16: return launch_chained(any_share_reduce<DeltaValues::Type::kBf16>, launch, args);
  }
}

void load_share_kernels() {
  cudaFuncAttributes code{};
  static_cast<void>(cudaFuncGetAttributes(&code, any_share_sum));
  static_cast<void>(cudaFuncGetAttributes(&code, any_share_reduce<DeltaValues::Type::kF32>));
  static_cast<void>(cudaFuncGetAttributes(&code, any_share_reduce<DeltaValues::Type::kBf16>));
}

}  // namespace nibble::backend::cuda

#include "backend/cuda/comm/share.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void reduce_by_shares(const ShareReduceArgs& args, DeltaValues::Type type, const PushPlan& plan, const Launch& on) {
  check_args(args);
  const ChainedLaunch launch{share_reduce_kernel(type), on, plan.ctas, kPushThreads};
  switch (type) {
    case DeltaValues::Type::kF32: return launch_chained(any_share_reduce<DeltaValues::Type::kF32>, launch, args);
    case DeltaValues::Type::kBf16: return launch_chained(any_share_reduce<DeltaValues::Type::kBf16>, launch, args);
  }
}

void combine_by_shares(const ShareReduceArgs& args, const OwnParts& parts, const PushPlan& plan, const Launch& on) {
  check_args(args);
  check_parts(parts, args.values, args.words);
  require_shape(norm_delta(parts.of) == NormDelta::kSplits && parts.of.sums.splits == 1, kernel::kShareCombine,
                "one split", parts.of.sums.splits);
  launch_chained(any_share_combine, {kernel::kShareCombine, on, plan.ctas, kPushThreads}, args, parts);
}

void load_share_kernels() {
  cudaFuncAttributes code{};
  static_cast<void>(cudaFuncGetAttributes(&code, any_share_combine));
  static_cast<void>(cudaFuncGetAttributes(&code, any_share_reduce<DeltaValues::Type::kF32>));
  static_cast<void>(cudaFuncGetAttributes(&code, any_share_reduce<DeltaValues::Type::kBf16>));
}

}  // namespace nibble::backend::cuda

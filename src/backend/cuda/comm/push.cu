#include "backend/cuda/comm/push.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void reduce_by_push(const PushReduceArgs& args, DeltaValues::Type type, const PushPlan& plan, const Launch& on) {
  check_args(args);
  require_shape(type == DeltaValues::Type::kF32 || (args.rest == nullptr && args.into == nullptr),
                push_reduce_kernel(type), "floats where something is added", args.words);
  const ChainedLaunch launch{push_reduce_kernel(type), on, plan.ctas, kPushThreads};
  switch (type) {
    case DeltaValues::Type::kF32: return launch_chained(any_push_reduce<DeltaValues::Type::kF32>, launch, args);
    case DeltaValues::Type::kBf16: return launch_chained(any_push_reduce<DeltaValues::Type::kBf16>, launch, args);
  }
}

void combine_by_push(const PushReduceArgs& args, const OwnParts& parts, const PushPlan& plan, const Launch& on) {
  check_args(args);
  check_parts(parts, args.values, args.words);
  const NormDelta delta = norm_delta(parts.of);
  const ChainedLaunch launch{push_combine_kernel(delta), on, plan.ctas, kPushThreads};
  switch (delta) {
    case NormDelta::kSplits: return launch_chained(any_push_combine<NormDelta::kSplits>, launch, args, parts);
    case NormDelta::kExpertsF32: return launch_chained(any_push_combine<NormDelta::kExpertsF32>, launch, args, parts);
    case NormDelta::kExpertsBf16: return launch_chained(any_push_combine<NormDelta::kExpertsBf16>, launch, args, parts);
  }
}

void gather_by_push(const PushGatherArgs& args, const PushPlan& plan, const Launch& on) {
  check_args(args);
  launch_chained(any_push_gather, {kernel::kPushGather, on, plan.ctas, kPushThreads}, args);
}

void pick_by_push(const PushPickArgs& args, const PushPlan& plan, const Launch& on) {
  check_args(args);
  launch_chained(any_push_pick, {kernel::kPushPick, on, plan.ctas, kPushThreads}, args);
}

void meet_by_push(const PushLink& link, const Launch& on) {
  launch_chained(any_push_barrier, {kernel::kPushBarrier, on, 1, kPushThreads}, link);
}

void load_push_kernels() {
  cudaFuncAttributes code{};
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_reduce<DeltaValues::Type::kF32>));
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_reduce<DeltaValues::Type::kBf16>));
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_combine<NormDelta::kSplits>));
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_combine<NormDelta::kExpertsF32>));
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_combine<NormDelta::kExpertsBf16>));
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_gather));
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_pick));
  static_cast<void>(cudaFuncGetAttributes(&code, any_push_barrier));
}

}  // namespace nibble::backend::cuda

#include "backend/cuda/comm/push.cuh"
#include "backend/cuda/comm/share.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void PushReduce::launch(const Args& args, DeltaValues::Type type, const Plan& plan, const Launch& on) {
  check_args(args);
  require_shape(type == DeltaValues::Type::kF32 || (args.rest == nullptr && args.into == nullptr), name(type),
                "floats where something is added", args.words);
  const ChainedLaunch launch = planned(name(type), plan, on);
  switch (type) {
    case DeltaValues::Type::kF32: return launch_chained(any_push_reduce<DeltaValues::Type::kF32>, launch, args);
    case DeltaValues::Type::kBf16: return launch_chained(any_push_reduce<DeltaValues::Type::kBf16>, launch, args);
  }
}

void PushCombine::launch(const Args& args, const Plan& plan, const Launch& on) {
  check_args(args);
  const auto& [message, parts] = args;
  using enum SplitSums::Order;
  const SplitSums::Order order = parts.of.sums.order;
  auto* const kernel = order == kExpertsF32    ? any_push_combine<kExpertsF32>
                       : order == kExpertsBf16 ? any_push_combine<kExpertsBf16>
                                               : any_push_combine<kTiles>;
  launch_chained(kernel, planned(name(order), plan, on), message, parts);
}

void PushGather::launch(const Args& args, const Plan& plan, const Launch& on) {
  check_args(args);
  launch_chained(any_push_gather, planned(kName, plan, on), args);
}

void PushPick::launch(const Args& args, const Plan& plan, const Launch& on) {
  check_args(args);
  launch_chained(any_push_pick, planned(kName, plan, on), args);
}

void PushBarrier::launch(const Args& args, const Launch& on) {
  launch_chained(any_push_barrier, {kName, on, 1, kPushThreads}, args);
}

void ShareReduce::launch(const Args& args, DeltaValues::Type type, const Plan& plan, const Launch& on) {
  check_args(args);
  const ChainedLaunch launch = planned(name(type, args.sent), plan, on);
  require_shape(!args.sent || type == DeltaValues::Type::kBf16, launch.name, "bf16", args.words);
  if (args.sent) return launch_chained(any_share_reduce<DeltaValues::Type::kBf16, true>, launch, args);
  switch (type) {
    case DeltaValues::Type::kF32: return launch_chained(any_share_reduce<DeltaValues::Type::kF32>, launch, args);
    case DeltaValues::Type::kBf16: return launch_chained(any_share_reduce<DeltaValues::Type::kBf16>, launch, args);
  }
}

void load_sum_kernels() {
  using enum DeltaValues::Type;
  using enum SplitSums::Order;
  const auto load = [](auto*... kernels) {
    cudaFuncAttributes code{};
    (static_cast<void>(cudaFuncGetAttributes(&code, kernels)), ...);
  };
  load(any_push_reduce<kF32>, any_push_reduce<kBf16>, any_push_combine<kTiles>, any_push_combine<kExpertsF32>,
       any_push_combine<kExpertsBf16>, any_push_gather, any_push_pick, any_push_barrier, any_share_reduce<kF32>,
       any_share_reduce<kBf16>, any_share_reduce<kBf16, true>);
}

}  // namespace nibble::backend::cuda

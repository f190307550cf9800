#include "backend/cuda/quantise/round_blocks.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void any_round_blocks(const RoundBlocksArgs& args, const Launch& on) {
  const Kernel name = round_kernel(args.form);
  require_shape(args.values > 0 && args.values % kMxBlock == 0, name, "whole blocks of 32 values", args.values);
  const int64_t ctas = (args.values / kRoundValues + kRoundThreads - 1) / kRoundThreads;
  switch (args.form) {
    case Activations::kInt8:
      return launch_chained(any_round_blocks_f32<Activations::kInt8>, {name, on, ctas, kRoundThreads}, args);
    case Activations::kMxfp8:
      return launch_chained(any_round_blocks_f32<Activations::kMxfp8>, {name, on, ctas, kRoundThreads}, args);
    case Activations::kMxfp6:
      return launch_chained(any_round_blocks_f32<Activations::kMxfp6>, {name, on, ctas, kRoundThreads}, args);
    case Activations::kMxfp4:
      return launch_chained(any_round_blocks_f32<Activations::kMxfp4>, {name, on, ctas, kRoundThreads}, args);
    case Activations::kAuto:
    case Activations::kF32:
    case Activations::kBf16: require_shape(false, name, "values to round", args.values);
  }
}

}  // namespace nibble::backend::cuda

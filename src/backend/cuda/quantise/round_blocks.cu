#include "backend/cuda/quantise/round_blocks.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void any_round_blocks(const RoundBlocksArgs& args, const Launch& on) {
  const bool int8 = args.form == Activations::kInt8;
  const Kernel name = int8 ? kernel::kRoundInt8 : kernel::kRoundMxfp8;
  require_shape(args.values > 0 && args.values % kMxBlock == 0, name, "whole blocks of 32 values", args.values);
  const int64_t ctas = (args.values / kRoundValues + kRoundThreads - 1) / kRoundThreads;
  launch_chained(int8 ? any_round_blocks_f32<Activations::kInt8> : any_round_blocks_f32<Activations::kMxfp8>,
                 {name, on, ctas, kRoundThreads}, args);
}

}  // namespace nibble::backend::cuda

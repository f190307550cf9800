#include "backend/cuda/norm_rope/around_gemm.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/norm_rope/combine.cuh"
#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/norm_rope/rope_sums.cuh"
#include "backend/cuda/norm_rope/tap.cuh"

#include <algorithm>

namespace nibble::backend::cuda {

void NormSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  using enum SplitSums::Order;
  auto* const kernel = args.sums.order == kExpertsF32    ? any_norm_sums_f32<kExpertsF32>
                       : args.sums.order == kExpertsBf16 ? any_norm_sums_f32<kExpertsBf16>
                                                         : any_norm_sums_f32<kTiles>;
  // Not before qkv's GEMM, whose rings would find no room beside them.
  const bool spreads = args.sums.splits > 0 && !args.sums.of_experts();
  const int smem = std::max(kNormSharedBytes, spreads ? spreading_bytes(args.tokens) : 0);
  launch_chained(kernel, {NormSums::kName, on, args.tokens, norm_threads(args.hidden), smem}, args);
}

void Combine::launch(const Args& args, const Launch& on) {
  check_args(args);
  using enum SplitSums::Order;
  auto* const kernel = args.sums.order == kExpertsF32    ? any_combine_f32<kExpertsF32>
                       : args.sums.order == kExpertsBf16 ? any_combine_f32<kExpertsBf16>
                                                         : any_combine_f32<kTiles>;
  launch_chained(kernel,
                 {.name = Combine::kName,
                  .on = on,
                  .grid = (args.tokens + 7) / 8,
                  .threads = kCombineThreads,
                  .grid_y = combine_parts(args.hidden)},
                 args);
}

void RopeSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_rope_sums_f32, {RopeSums::kName, on, rope_ctas(args), kRopeThreads}, args);
}

void Tap::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_tap_f32, {Tap::kName, on, args.tokens, kTapThreads}, args);
}

}  // namespace nibble::backend::cuda

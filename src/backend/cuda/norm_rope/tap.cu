#include "backend/cuda/norm_rope/tap.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void any_tap(const TapArgs& args, const Launch& on) {
  check_args(args);
  launch_chained(any_tap_f32, {kernel::kTap, on, args.tokens, kTapThreads}, args);
}

}  // namespace nibble::backend::cuda

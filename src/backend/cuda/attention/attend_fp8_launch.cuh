#pragma once
// The launcher of any_attend_prefill_fp8 for a policy: every card has PlainFp8's, GB10 and its like their own.

#include "backend/cuda/attention/attend_fp8.cuh"
#include "backend/cuda/attention/attend_launch.cuh"

namespace nibble::backend::cuda {

template <class Products>
void launch_prefill_fp8(const FlashArgs& args, KvDtype type, Kernel name, const Launch& on) {
  check_heads(args, name);
  require_shape(args.tile_count > 0, name, "at least one tile", args.tile_count);
  require_shape(type == KvDtype::kE4m3, name, "pages of e4m3", static_cast<int64_t>(type));
  using Tile = Fp8Tile<Products>;
  launch_tiles<Tile>(any_attend_prefill_fp8<Tile>, args, name, on);
}

}  // namespace nibble::backend::cuda

#pragma once
// What launchers of attention on tensor cores share.

#include "backend/cuda/attention/attend_fp8.cuh"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/launch/chained_launch.cuh"

#include <cuda_runtime.h>

namespace nibble::backend::cuda {

inline void check_heads(const AttentionArgs& args, Kernel kernel) {
  require_shape(args.kv_heads > 0 && args.heads % args.kv_heads == 0 && args.heads / args.kv_heads <= kGroupHeads,
                kernel, "1 to 8 query heads per kv head", args.heads);
}

// A CTA for each tile and kv head.
template <class Tile, class Body>
void launch_tiles(Body* kernel, const AttentionArgs& args, Kernel name, const Launch& on) {
  allow_shared(kernel, Tile::kSharedBytes, name);
  const dim3 grid(static_cast<unsigned>(args.tile_count), static_cast<unsigned>(args.kv_heads));
  kernel<<<grid, Tile::kThreads, Tile::kSharedBytes, on.stream>>>(args);
  launched(name, on);
}

// The launcher of any_attend_prefill_fp8 for a policy: every card has PlainFp8's, GB10 and its like their own.

template <class Products>
void launch_prefill_fp8(const AttentionArgs& args, Kernel name, const Launch& on) {
  check_heads(args, name);
  require_shape(args.tile_count > 0, name, "at least one tile", args.tile_count);
  require_shape(args.kv.type == KvDtype::kE4m3, name, "pages of e4m3", static_cast<int64_t>(args.kv.type));
  using Tile = Fp8Tile<Products>;
  launch_tiles<Tile>(any_attend_prefill_fp8<Tile>, args, name, on);
}

}  // namespace nibble::backend::cuda

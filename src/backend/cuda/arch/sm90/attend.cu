#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/attend.cuh"

namespace nibble::backend::cuda {

bool sm90_is_built() { return true; }

void Sm90AttendPrefill::launch(const AttentionArgs& args, const Launch& on) {
  using Tile = WgmmaAttend;
  require_shape(args.kv.type == kSm90PrefillPages, kName, "pages of operands of wgmma",
                static_cast<int64_t>(args.kv.type));
  require_shape(args.kv_heads > 0 && args.heads % args.kv_heads == 0 && args.heads / args.kv_heads <= kGroupHeads,
                kName, "1 to 8 query heads per kv head", args.heads);
  require_shape(args.tile_count > 0 && args.ctas > 0, kName, "at least one tile and CTA", args.tile_count);
  auto* const kernel = sm90_attend_prefill<Tile>;
  launch_chained(kernel, {kName, on, args.ctas, Tile::kThreads, Tile::kSharedBytes}, args);
}

}  // namespace nibble::backend::cuda

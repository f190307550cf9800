#pragma once
// Launchers of the attention kernels on tensor cores; arguments and plan: attend_plan.h. They take head_dim 64 and up
// to 8 query heads per kv head; AttendLaunch (kernel_table.h) serves the rest.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/attention/attend_plan.h"

namespace nibble::backend::cuda {

// Whether the kernels take these shapes; the launchers throw Error(kUnsupported) where this is false.
[[nodiscard]] constexpr bool flash_serves(int64_t heads, int64_t kv_heads, int64_t head_dim, KvDtype type) {
  return head_dim == kHeadDim && kv_heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= kGroupHeads &&
         std::ranges::any_of(kPageTypes, [&](const PageType& t) { return t.dtype == type && t.decode; });
}

// Token by token: args.decode_count tokens. REQUIRES args.target and scratch as plan_decode and decode_scratch say.
void any_attend_decode(const FlashArgs& args, KvDtype type, const DecodePlan& plan, const Launch& on);
// args.tile_count tiles.
void any_attend_prefill(const FlashArgs& args, KvDtype type, const Launch& on);

}  // namespace nibble::backend::cuda

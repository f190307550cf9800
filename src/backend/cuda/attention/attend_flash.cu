#include "backend/cuda/attention/attend_plan.h"

#include "backend/cuda/attention/attend_decode.cuh"
#include "backend/cuda/attention/attend_launch.cuh"
#include "backend/cuda/attention/attend_prefill.cuh"
#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {
namespace {

// As a dependent of the kernel before it: it reads what a step leaves as it is before it waits for that one's end.
template <class Tile>
void launch_decode(const FlashArgs& args, const DecodePlan& plan, Kernel name, const Launch& on) {
  require_shape(plan.smem_bytes == Tile::kSharedBytes, name, "the plan's shared memory", plan.smem_bytes);
  auto* const kernel = any_attend_decode<Tile>;
  allow_shared(kernel, Tile::kSharedBytes, name);
  const LaunchShape shape{dim3(static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(plan.grid)), Tile::kThreads,
                          Tile::kSharedBytes, on.stream};
  static_cast<void>(enqueue(kernel, shape, args));  // launched() sees the error
  launched(name, on);
}

template <class Kv>
void launch_ring(const FlashArgs& args, const DecodePlan& plan, Kernel name, const Launch& on) {
  constexpr DecodeRing kLarge = kDecodeRing, kSmall = kSmallDecodeRing, kLone = kLoneDecodeRing;
  if (plan.ring == kLarge) return launch_decode<DecodeTile<Kv, kLarge.warps, kLarge.stages>>(args, plan, name, on);
  if (plan.ring == kSmall) return launch_decode<DecodeTile<Kv, kSmall.warps, kSmall.stages>>(args, plan, name, on);
  launch_decode<DecodeTile<Kv, kLone.warps, kLone.stages>>(args, plan, name, on);
}

template <class Kv>
void launch_prefill(const FlashArgs& args, Kernel name, const Launch& on) {
  using Tile = PrefillTile<Kv>;
  launch_tiles<Tile>(any_attend_prefill<Tile>, args, name, on);
}

}  // namespace

void any_attend_decode(const FlashArgs& args, KvDtype type, const DecodePlan& plan, const Launch& on) {
  const Kernel name = decode_kernel(page_type(type).dtype, args.fp8);
  check_heads(args, name);
  require_shape(args.decode_count > 0 && args.decode_count <= kMaxDecodeCount, name, "1 to 16384 tokens",
                args.decode_count);
  require_shape(args.target == plan.target && plan.target > 0, name, "the plan's target", args.target);
  if (args.fp8) {
    require_shape(type == KvDtype::kE4m3, name, "pages of e4m3", static_cast<int64_t>(type));
    return launch_ring<Fp8Row>(args, plan, name, on);
  }
  const bool taken = with_page_type(
      type, [](const PageType& t) { return t.decode; },
      [&]<KvDtype kType>() { launch_ring<PageRow<kType>>(args, plan, name, on); });
  require_shape(taken, name, "pages that it takes", static_cast<int64_t>(type));
}

void any_attend_prefill(const FlashArgs& args, KvDtype type, const Launch& on) {
  if (args.fp8) return launch_prefill_fp8<PlainFp8>(args, type, kernel::kAttendPrefillFp8, on);
  const Kernel name = kernel::kAttendPrefill.of(page_type(type).dtype);
  check_heads(args, name);
  require_shape(args.tile_count > 0, name, "at least one tile", args.tile_count);
  const bool taken = with_page_type(
      type, [](const PageType& t) { return t.prefill; },
      [&]<KvDtype kType>() { launch_prefill<PageRow<kType>>(args, name, on); });
  require_shape(taken, name, "pages that it takes", static_cast<int64_t>(type));
}

}  // namespace nibble::backend::cuda

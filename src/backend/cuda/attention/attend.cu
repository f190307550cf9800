#include "backend/cuda/attention/attend_plan.h"

#include "backend/cuda/attention/any_attend.cuh"
#include "backend/cuda/attention/attend_decode.cuh"
#include "backend/cuda/attention/attend_launch.cuh"
#include "backend/cuda/attention/attend_prefill.cuh"
#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {
namespace {

// As a dependent of the kernel before it: it reads what a step leaves as it is before it waits for that one's end.
template <class Tile>
void launch_decode(const AttentionArgs& args, const DecodePlan& plan, Kernel name, const Launch& on) {
  require_shape(plan.smem_bytes == Tile::kSharedBytes, name, "the plan's shared memory", plan.smem_bytes);
  launch_chained(any_attend_decode<Tile>, {name, on, args.kv_heads, Tile::kThreads, Tile::kSharedBytes, plan.grid_y},
                 args);
}

template <class Kv>
void launch_ring(const AttentionArgs& args, const DecodePlan& plan, Kernel name, const Launch& on) {
  constexpr DecodeRing kLarge = kDecodeRing, kSmall = kSmallDecodeRing, kLone = kLoneDecodeRing;
  if (plan.ring == kLarge) return launch_decode<DecodeTile<Kv, kLarge.warps, kLarge.stages>>(args, plan, name, on);
  if (plan.ring == kSmall) return launch_decode<DecodeTile<Kv, kSmall.warps, kSmall.stages>>(args, plan, name, on);
  launch_decode<DecodeTile<Kv, kLone.warps, kLone.stages>>(args, plan, name, on);
}

template <class Row, int kDims>
void launch_dims(const AttentionArgs& args, const Launch& on) {
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.decode_count));
  any_attend<Row, kDims><<<grid, kAttendWarps * kWarpLanes, sizeof(AttendShared<kDims>), on.stream>>>(args);
}

template <class Row>
void launch_row(const AttentionArgs& args, const Launch& on) {
  if (args.head_dim <= 32) return launch_dims<Row, 1>(args, on);
  args.head_dim <= 64 ? launch_dims<Row, 2>(args, on) : launch_dims<Row, 4>(args, on);
}

// f.operator()<a type that attention on tensor cores takes>().
template <class F>
void with_tensor_core_pages(KvDtype type, Kernel kernel, const F& f) {
  require_shape(on_tensor_cores(type), kernel, "pages that it takes", static_cast<int64_t>(type));
  if (type == KvDtype::kBf16) return f.template operator()<PageRow<KvDtype::kBf16>>();
  f.template operator()<PageRow<KvDtype::kE4m3>>();
}

}  // namespace

void AttendDecode::launch(const AttentionArgs& args, const DecodePlan& plan, const Launch& on) {
  const KvDtype type = args.kv.type;
  const Kernel kernel = name(type, args.fp8);
  check_heads(args, kernel);
  require_shape(args.decode_count > 0 && args.decode_count <= kMaxDecodeCount, kernel, "1 to 16384 tokens",
                args.decode_count);
  require_shape(args.target == plan.target && plan.target > 0, kernel, "the plan's target", args.target);
  require_shape(!args.fp8 || type == KvDtype::kE4m3, kernel, "pages that it takes", static_cast<int64_t>(type));
  if (args.fp8) return launch_ring<Fp8Row>(args, plan, kernel, on);
  with_tensor_core_pages(type, kernel, [&]<class Kv>() { launch_ring<Kv>(args, plan, kernel, on); });
}

void AttendPrefill::launch(const AttentionArgs& args, const Launch& on) {
  const KvDtype type = args.kv.type;
  const Kernel kernel = name(type, args.fp8);
  if (args.fp8) return launch_prefill_fp8<PlainFp8>(args, kernel, on);
  check_heads(args, kernel);
  require_shape(args.tile_count > 0, kernel, "at least one tile", args.tile_count);
  with_tensor_core_pages(type, kernel, [&]<class Kv>() {
    using Tile = PrefillTile<Kv>;
    launch_tiles<Tile>(any_attend_prefill<Tile>, args, kernel, on);
  });
}

void Attend::launch(const AttentionArgs& args, const Launch& on) {
  require_pages(args.kv.type);
  const Kernel kernel = kNames.of(args.kv.type);
  require_shape(args.decode_count > 0 && args.decode_count <= 65535, kernel, "1 to 65535 tokens", args.decode_count);
  require_shape(args.head_dim > 0 && args.head_dim % 8 == 0 && args.head_dim <= 128, kernel,
                "a head_dim of at most 128, a multiple of 8", args.head_dim);
  require_shape(args.kv_heads > 0 && args.heads % args.kv_heads == 0, kernel, "heads a multiple of kv_heads",
                args.heads);
  with_page_type(args.kv.type, [&]<KvDtype kType>() { launch_row<PageRow<kType>>(args, on); });
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda

#include "backend/cuda/attention/attend_plan.h"

#include "backend/cuda/attention/any_attend.cuh"

namespace nibble::backend::cuda {
namespace {

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

}  // namespace

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

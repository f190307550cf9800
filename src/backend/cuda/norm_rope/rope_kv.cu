#include "backend/cuda/launch/kernel_table.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/norm_rope/any_rope_kv.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {
namespace {

// rope_table: what any_rope_kv works out for itself, for kernels that rotate q and k in their epilogue
// grid one CTA per token     rounding: as any_rope_kv
// chain depends on no kernel of its step, so it waits for the one before only so that the next one does
__global__ void __launch_bounds__(kMaxHalfHead) any_rope_table_f32(const __grid_constant__ RopeTableLaunch args) {
  ptx::grid_dependency_launch();
  const int d = threadIdx.x;
  if (d >= args.half) return ptx::grid_dependency_wait();
  constexpr double kHalfTurnsPerRadian = 0.318309886183790671538;  // 1 / pi
  const float angle = __fmul_rn(static_cast<float>(args.positions[blockIdx.x]), args.inv_freq[d]);
  double s = 0, c = 0;
  sincospi(double{angle} * kHalfTurnsPerRadian, &s, &c);
  args.cosine[blockIdx.x * args.half + d] = static_cast<float>(c) * args.concentration;
  args.sine[blockIdx.x * args.half + d] = static_cast<float>(s) * args.concentration;
  ptx::grid_dependency_wait();
}

}  // namespace

void any_rope_table(const RopeTableLaunch& args, const Launch& on) {
  require_shape(args.tokens > 0, kernel::kRopeTable, "at least one token", args.tokens);
  require_shape(args.half > 0 && args.half <= kMaxHalfHead, kernel::kRopeTable, "a head_dim of at most 256",
                2 * args.half);
  launch_chained(any_rope_table_f32,
                 {.name = kernel::kRopeTable, .on = on, .grid = args.tokens, .threads = kMaxHalfHead}, args);
}

void any_rope_kv(const RopeKvLaunch& args, const Launch& on) {
  const Kernel kernel = kernel::kRopeKv.of(page_type(args.kv.type).dtype);
  require_shape(args.tokens > 0, kernel, "at least one token", args.tokens);
  require_shape(args.head_dim > 0 && args.head_dim % 2 == 0 && args.head_dim <= 2 * kMaxHalfHead, kernel,
                "an even head_dim of at most 256", args.head_dim);
  static_cast<void>(page_row_bytes(args.kv.type, args.head_dim));  // whole blocks
  with_page_type(
      args.kv.type, [](const PageType&) { return true; },
      [&]<KvDtype kType>() {
        any_rope_kv<PageRow<kType>>
            <<<static_cast<unsigned>(args.tokens), kRopeKvThreads, kRopeKvSharedBytes, on.stream>>>(args);
      });
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda

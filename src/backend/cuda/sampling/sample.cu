#include "backend/cuda/sampling/sample.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

void Sample::launch(const Args& args, const Launch& on) {
  require_shape(args.rows > 0 && args.rows <= 65535, kDraw, "1 to 65535 rows", args.rows);
  require_shape(args.vocab > 0 && args.vocab <= 1 << 18, kDraw, "a vocab of at most 2^18", args.vocab);
  require_shape(args.first >= 0 && args.first % 4 == 0, kDraw, "columns from a multiple of 4 on", args.first);
  require_shape(!args.masked || args.mask_vocab >= args.first + args.vocab, kMask, "masks of all tokens",
                args.mask_vocab);
  const auto rows = static_cast<unsigned>(args.rows);
  if (args.masked) {
    any_sample_mask_f32<<<dim3(kSampleParts, rows), kSampleThreads, 0, on.stream>>>(args);
    launched(kMask, on);
  }
  if (args.most_shifts > 0) {
    const dim3 grid(static_cast<unsigned>((args.most_shifts + kSampleThreads - 1) / kSampleThreads), rows);
    any_sample_adjust_f32<<<grid, kSampleThreads, 0, on.stream>>>(args);
    launched(kAdjust, on);
  }
  if (args.filters) {
    any_sample_filter_f32<<<rows, kFilterThreads, sizeof(FilterShared), on.stream>>>(args);
    launched(kFilter, on);
  }
  const int parts = sample_parts(args.rows);
  launch_chained(any_sample_draw_f32,
                 {.name = kDraw,
                  .on = on,
                  .grid = parts,
                  .threads = kSampleThreads,
                  .smem_bytes = kSampleWarps * static_cast<int>(sizeof(RankedValue)),
                  .grid_y = args.rows},
                 args);
  if (args.tokens == nullptr) return;
  launch_chained(any_sample_pick, {.name = kPick, .on = on, .grid = args.rows, .threads = kWarpLanes}, args, parts);
}

}  // namespace nibble::backend::cuda

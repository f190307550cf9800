#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/grouped.cuh"

namespace nibble::backend::cuda {
namespace {

template <int kSliceBlockPairs>
void launch_tile(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  launch_chained(sm90_grouped<kSliceBlockPairs>,
                 {Sm90Grouped::kName, on, plan.grid, Sm90GroupedTile<kSliceBlockPairs>::kThreads, plan.smem_bytes},
                 args);
}

}  // namespace

// The list of instances: slices of three and of four pairs.
void Sm90Grouped::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  const layout::Slices slices = layout::slices_of(args.cols);
  require_shape(args.down.weights != nullptr && args.packing == layout::Packing::kMxfp4 && args.rows == 2 * args.cols,
                kName, "both products of MXFP4 experts, of one width", args.rows);
  require_shape(args.cols % kSm90GroupedRows == 0 && slices.missing == 0 && slices.count >= kSm90GroupedStages - 1,
                kName, "two or more whole slices, and rows in groups of 64", args.cols);
  require_shape(plan.smem_bytes == sm90_grouped_bytes(args.cols), kName, "the plan's shared memory", plan.smem_bytes);
  require_shape(plan.grid <= multiprocessors(), kName, "CTAs that all run at once, since they wait for each other",
                plan.grid);
  if (slices.blocks == 6) return launch_tile<3>(args, plan, on);
  launch_tile<4>(args, plan, on);
}

}  // namespace nibble::backend::cuda

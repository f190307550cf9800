#include "backend/cuda/experts/experts.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/experts/grouped.cuh"
#include "backend/cuda/experts/host_rows.cuh"
#include "backend/cuda/experts/moe_down.cuh"
#include "backend/cuda/experts/moe_up.cuh"

#include <type_traits>

namespace nibble::backend::cuda {
namespace {

// The list of instances: blocks of a slice, operation.
template <class Op>
void launch_grouped(const typename Op::Args& args, int64_t cols, const ChainedLaunch& launch, int rows) {
  check_args(args);
  const layout::Slices slices = layout::slices_of(cols);
  if constexpr (std::is_same_v<Op, GroupedDownOp>)
    if (slices.missing > 0)
      return launch_chained(grouped<RowTile<layout::kShortSliceBlocks, kGrouped.stages, true>, Op>, launch, args, rows);
  if (slices.blocks == 6) return launch_chained(grouped<RowTile<6, kGrouped.stages>, Op>, launch, args, rows);
  launch_chained(grouped<RowTile<8, kGrouped.stages>, Op>, launch, args, rows);
}

}  // namespace

void HostRows::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_host_rows, {kName, on, args.tokens, kHostRowsThreads}, args);
}

void HostTurn::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_host_turn, {kName, on, 1, 1}, args);
}

void MoeUp::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  const ChainedLaunch launch = planned(kName, plan, on);
  if (layout::slice_blocks(args.hidden) == 6) return launch_chained(moe_up<RowTile<6, kRunStages>>, launch, args);
  launch_chained(moe_up<RowTile<8, kRunStages>>, launch, args);
}

void MoeDown::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  const ChainedLaunch launch = planned(kName, plan, on);
  const layout::Slices slices = layout::slices_of(args.inter);
  if (slices.missing > 0)
    return launch_chained(moe_down<RowTile<layout::kShortSliceBlocks, kRowStages, true>>, launch, args, plan.rows);
  if (slices.blocks == 6) return launch_chained(moe_down<RowTile<6>>, launch, args, plan.rows);
  launch_chained(moe_down<RowTile<8>>, launch, args, plan.rows);
}

void GroupedUp::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  launch_grouped<GroupedUpOp>(args, args.hidden, planned(kName, plan, on), plan.rows);
}

void GroupedDown::launch(const Args& args, const RowWarpsPlan& plan, const Launch& on) {
  launch_grouped<GroupedDownOp>(args, args.inter, planned(kName, plan, on), plan.rows);
}

}  // namespace nibble::backend::cuda

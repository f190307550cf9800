#include "backend/cuda/experts/grouped_plan.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/experts/grouped.cuh"
#include "backend/cuda/experts/moe_down.cuh"
#include "backend/cuda/experts/moe_up.cuh"

#include <type_traits>

namespace nibble::backend::cuda {
namespace {

ChainedLaunch planned(Kernel name, const RowWarpsPlan& plan, const Launch& on) {
  return {name, on, plan.grid, plan.warps * layout::kWarpLanes, static_cast<int>(plan.smem_bytes)};
}

// The list of instances: blocks of a slice, operation.
template <class Op>
void launch_grouped(const typename Op::Args& args, int64_t cols, const ChainedLaunch& launch, int rows) {
  check_args(args);
  const layout::Slices slices = layout::slices_of(cols);
  if constexpr (std::is_same_v<Op, GroupedDown>)
    if (slices.missing > 0)
      return launch_chained(grouped<RowTile<layout::kShortSliceBlocks, kGrouped.stages, true>, Op>, launch, args, rows);
  if (slices.blocks == 6) return launch_chained(grouped<RowTile<6, kGrouped.stages>, Op>, launch, args, rows);
  launch_chained(grouped<RowTile<8, kGrouped.stages>, Op>, launch, args, rows);
}

}  // namespace

void moe_up_rows(const MoeUpArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  const ChainedLaunch launch = planned(kernel::kMoeUp, plan, on);
  if (layout::slice_blocks(args.hidden) == 6) return launch_chained(moe_up<RowTile<6, kRunStages>>, launch, args);
  launch_chained(moe_up<RowTile<8, kRunStages>>, launch, args);
}

void moe_down_rows(const MoeDownArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  check_args(args);
  const ChainedLaunch launch = planned(kernel::kMoeDown, plan, on);
  const layout::Slices slices = layout::slices_of(args.inter);
  if (slices.missing > 0)
    return launch_chained(moe_down<RowTile<layout::kShortSliceBlocks, kRowStages, true>>, launch, args, plan.rows);
  if (slices.blocks == 6) return launch_chained(moe_down<RowTile<6>>, launch, args, plan.rows);
  launch_chained(moe_down<RowTile<8>>, launch, args, plan.rows);
}

void grouped_up(const GroupedUpArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  launch_grouped<GroupedUp>(args, args.hidden, planned(kernel::kGroupedUp, plan, on), plan.rows);
}

void grouped_down(const GroupedDownArgs& args, const RowWarpsPlan& plan, const Launch& on) {
  launch_grouped<GroupedDown>(args, args.inter, planned(kernel::kGroupedDown, plan, on), plan.rows);
}

}  // namespace nibble::backend::cuda

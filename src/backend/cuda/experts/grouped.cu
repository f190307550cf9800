#include "backend/cuda/experts/grouped.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/experts/grouped.cuh"
#include "backend/cuda/experts/moe_up.cuh"

namespace nibble::backend::cuda {
namespace {

void require_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw_device_error(what, cudaGetErrorString(status));
}

// kernel(args...), as a dependent of the kernel before it where the launch is chained.
template <class... Params, class... Args>
void launch_planned(void (*kernel)(Params...), const RowWarpsPlan& plan, const GemvLaunch& launch,
                    const Args&... args) {
  const auto smem = static_cast<int>(plan.smem_bytes);
  require_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem), "shared memory");
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), plan.warps * layout::kWarpLanes, smem, launch.stream,
                          launch.chain == Chain::kChained};
  require_cuda(enqueue(kernel, shape, args...), "experts launch");
}

// The list of instances: blocks of a slice, operation.
template <class Op>
void launch_grouped(const typename Op::Args& args, int64_t cols, const GemvLaunch& launch) {
  check_args(args);
  const RowWarpsPlan plan = plan_row_warps(cols, {kGrouped.rows, kGrouped.stages, launch.warps}, launch.device);
  if (layout::slice_blocks(cols) == 6)
    return launch_planned(grouped<RowTile<6, kGrouped.stages>, Op>, plan, launch, args, plan.rows);
  launch_planned(grouped<RowTile<8, kGrouped.stages>, Op>, plan, launch, args, plan.rows);
}

}  // namespace

void gemv_moe_up(const MoeUpArgs& args, const GemvLaunch& launch) {
  check_args(args);
  const RowWarpsPlan plan = plan_row_warps(args.hidden, {.rows = kGemvTokens, .warps = launch.warps}, launch.device);
  if (layout::slice_blocks(args.hidden) == 6) return launch_planned(moe_up<RowTile<6>>, plan, launch, args);
  launch_planned(moe_up<RowTile<8>>, plan, launch, args);
}

void grouped_up(const GroupedUpArgs& args, const GemvLaunch& launch) {
  launch_grouped<GroupedUp>(args, args.hidden, launch);
}

void grouped_down(const GroupedDownArgs& args, const GemvLaunch& launch) {
  launch_grouped<GroupedDown>(args, args.inter, launch);
}

}  // namespace nibble::backend::cuda

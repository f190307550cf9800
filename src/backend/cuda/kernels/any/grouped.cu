#include "backend/cuda/kernels/any/grouped.h"

#include "backend/cuda/kernels/any/grouped.cuh"

namespace nibble::backend::cuda {
namespace {

void require_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw_device_error(what, cudaGetErrorString(status));
}

template <class Tile, class Op>
void launch_instance(const typename Op::Args& args, const GroupedPlan& plan, const GemvLaunch& launch) {
  auto* const kernel = grouped<Tile, Op>;
  const auto smem = static_cast<int>(plan.smem_bytes);
  require_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem), "shared memory");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid));
  config.blockDim = dim3(static_cast<unsigned>(plan.warps * layout::kWarpLanes));
  config.dynamicSmemBytes = static_cast<size_t>(smem);
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = launch.chain == Chain::kChained ? 1 : 0;
  require_cuda(cudaLaunchKernelEx(&config, kernel, args, plan.tokens), "grouped experts launch");
}

// The list of instances: blocks of a slice, operation.
template <class Op>
void launch_op(const typename Op::Args& args, int64_t cols, const GemvLaunch& launch) {
  check_args(args);
  const GroupedPlan plan = plan_grouped(cols, launch.device, launch.stages);
  if (layout::slice_blocks(cols) == 6) return launch_instance<GroupedTile<6>, Op>(args, plan, launch);
  launch_instance<GroupedTile<8>, Op>(args, plan, launch);
}

}  // namespace

void grouped_up(const GroupedUpArgs& args, const GemvLaunch& launch) {
  launch_op<GroupedUp>(args, args.hidden, launch);
}

void grouped_down(const GroupedDownArgs& args, const GemvLaunch& launch) {
  launch_op<GroupedDown>(args, args.inter, launch);
}

}  // namespace nibble::backend::cuda

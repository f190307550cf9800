#include "backend/cuda/kernels/any/mxfp4_gemv.h"

#include "backend/cuda/kernels/any/mxfp4_gemv.cuh"

namespace nibble::backend::cuda {
namespace {

void require_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw_device_error(what, cudaGetErrorString(status));
}

template <class Tile, class Op>
void launch_instance(const typename Op::Args& args, const GemvPlan& plan, const GemvLaunch& launch) {
  auto* const kernel = mxfp4_gemv<Tile, Op>;
  const auto smem = static_cast<int>(plan.smem_bytes);
  require_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem), "shared memory");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem);
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = launch.chain == Chain::kChained ? 1 : 0;
  const GemvKernelArgs<typename Op::Args> kernel_args{args, args.weights, plan.stages, plan.slices,
                                                      static_cast<int>(plan.tile_bytes)};
  require_cuda(cudaLaunchKernelEx(&config, kernel, kernel_args), "MXFP4 launch");
}

// The list of instances: slices of 6 or 8 blocks, columns, operation.
template <Columns kColumns, class Op>
void launch_op(const typename Op::Args& args, const GemvPlan& plan, const GemvLaunch& launch) {
  if (plan.tile_bytes / plan.slices == layout::slice_bytes(6)) {
    launch_instance<GemvTile<6, kColumns>, Op>(args, plan, launch);
  } else {
    launch_instance<GemvTile<8, kColumns>, Op>(args, plan, launch);
  }
}

}  // namespace

void mxfp4_dense(const DenseArgs& args, const GemvLaunch& launch) {
  check_args(args);
  const GemvPlan plan = plan_gemv({args.rows, args.cols}, launch.device, launch.stages);
  if (args.tokens == 1) {
    launch_op<Columns::kBlocks, DenseOp>(args, plan, launch);
  } else {
    launch_op<Columns::kVectors, DenseOp>(args, plan, launch);
  }
}

void mxfp4_moe_up(const MoeUpArgs& args, const GemvLaunch& launch) {
  check_args(args);
  const GemvPlan plan =
      plan_gemv({2 * int64_t{args.inter}, args.hidden, args.tokens * args.topk}, launch.device, launch.stages);
  if (args.tokens == 1) {
    launch_op<Columns::kBlocks, MoeUpOp>(args, plan, launch);
  } else {
    launch_op<Columns::kVectors, MoeUpOp>(args, plan, launch);
  }
}

void mxfp4_moe_down(const MoeDownArgs& args, const GemvLaunch& launch) {
  check_args(args);
  const GemvPlan plan = plan_gemv({args.hidden, args.inter, args.parts}, launch.device, launch.stages);
  if (args.tokens * args.topk <= kGemvTokens) {
    launch_op<Columns::kVectors, MoeDownOp<DownColumns::kPairs>>(args, plan, launch);
  } else {
    launch_op<Columns::kVectors, MoeDownOp<DownColumns::kTokens>>(args, plan, launch);
  }
}

}  // namespace nibble::backend::cuda

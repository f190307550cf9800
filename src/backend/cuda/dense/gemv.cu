#include "backend/cuda/dense/gemv.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/dense/gemv.cuh"

namespace nibble::backend::cuda {
namespace {

void require_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw_device_error(what, cudaGetErrorString(status));
}

template <class Tile, class Op>
void launch_instance(const typename Op::Args& args, const GemvPlan& plan, const GemvLaunch& launch) {
  auto* const kernel = gemv<Tile, Op>;
  const auto smem = static_cast<int>(plan.smem_bytes);
  require_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem), "shared memory");
  const GemvKernelArgs<typename Op::Args> kernel_args{
      args, args.weights, plan.stages, plan.tile.slices, static_cast<int>(plan.tile.chunk_bytes), plan.epilogues};
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.grid)), plan.threads, smem, launch.stream,
                          launch.chain == Chain::kChained};
  require_cuda(enqueue(kernel, shape, kernel_args), "decode kernel launch");
}

// The list of instances: slices of 6 or 8 blocks, packing, columns, operation.
template <layout::Packing kPacking, Columns kColumns, class Op>
void launch_op(const typename Op::Args& args, const GemvPlan& plan, const GemvLaunch& launch) {
  if (plan.tile.blocks == 6) {
    launch_instance<GemvTile<kPacking, 6, kColumns>, Op>(args, plan, launch);
  } else {
    launch_instance<GemvTile<kPacking, 8, kColumns>, Op>(args, plan, launch);
  }
}

template <template <int> class Op>
void launch_rows(const typename Op<1>::Args& args, const GemvPlan& plan, const GemvLaunch& launch) {
  using layout::Packing;
  switch (args.packing) {
    case Packing::kBf16: return launch_op<Packing::kBf16, Columns::kVectors, Op<2>>(args, plan, launch);
    case Packing::kMxfp8: return launch_op<Packing::kMxfp8, Columns::kVectors, Op<2>>(args, plan, launch);
    case Packing::kMxfp4: break;
  }
  if (args.tokens == 1) return launch_op<Packing::kMxfp4, Columns::kBlocks, Op<1>>(args, plan, launch);
  launch_op<Packing::kMxfp4, Columns::kVectors, Op<2>>(args, plan, launch);
}

template <class Op>
void launch_moe(const typename Op::Args& args, const GemvPlan& plan, const GemvLaunch& launch) {
  launch_op<layout::Packing::kMxfp4, Columns::kVectors, Op>(args, plan, launch);
}

}  // namespace

void gemv_dense(const DenseArgs& args, const GemvLaunch& launch) {
  check_args(args);
  launch_rows<DenseOp>(args, plan_gemv({args.rows, args.cols, 1, args.packing}, launch.device, launch.stages), launch);
}

void gemv_qkv(const QkvArgs& args, const GemvLaunch& launch) {
  check_args(args);
  launch_rows<QkvOp>(args, plan_gemv({args.rows(), args.cols, 1, args.packing}, launch.device, launch.stages), launch);
}

void gemv_moe_down(const MoeDownArgs& args, const GemvLaunch& launch) {
  check_args(args);
  const GemvPlan plan = plan_gemv({args.hidden, args.inter, args.parts}, launch.device, launch.stages);
  if (args.tokens * args.choice.topk <= kGemvTokens) {
    launch_moe<MoeDownOp<DownColumns::kPairs>>(args, plan, launch);
  } else {
    launch_moe<MoeDownOp<DownColumns::kTokens>>(args, plan, launch);
  }
}

}  // namespace nibble::backend::cuda

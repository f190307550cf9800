#include "backend/cuda/dense/gemv_plan.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/dense/gemv.cuh"

namespace nibble::backend::cuda {
namespace {

template <class Tile, class Op>
void launch_instance(const typename Op::Args& args, const GemvPlan& plan, Kernel name, const Launch& on) {
  const auto kernel_args = gemv_kernel_args(args, plan);
  launch_chained(gemv<Tile, Op>, planned(name, plan, on), kernel_args);
}

// The list of instances: slices of 6 or 8 blocks, packing, columns, operation.
template <layout::Packing kPacking, Columns kColumns, class Op>
void launch_op(const typename Op::Args& args, const GemvPlan& plan, Kernel name, const Launch& on) {
  if (plan.geometry.blocks == 6)
    launch_instance<GemvTile<kPacking, 6, kColumns>, Op>(args, plan, name, on);
  else
    launch_instance<GemvTile<kPacking, 8, kColumns>, Op>(args, plan, name, on);
}

template <int kTokenColumns>
using AnyDenseOp = DenseOp<kTokenColumns>;

template <template <int> class Op>
void launch_rows(const typename Op<1>::Args& args, const GemvPlan& plan, Kernel name, const Launch& on) {
  using layout::Packing;
  switch (args.packing) {
    case Packing::kBf16: return launch_op<Packing::kBf16, Columns::kVectors, Op<2>>(args, plan, name, on);
    case Packing::kMxfp8: return launch_op<Packing::kMxfp8, Columns::kVectors, Op<2>>(args, plan, name, on);
    case Packing::kQ8: return launch_op<Packing::kQ8, Columns::kVectors, Op<2>>(args, plan, name, on);
    case Packing::kMxfp4: break;
  }
  if (args.tokens == 1) return launch_op<Packing::kMxfp4, Columns::kBlocks, Op<1>>(args, plan, name, on);
  launch_op<Packing::kMxfp4, Columns::kVectors, Op<2>>(args, plan, name, on);
}

}  // namespace

void GemvDense::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  check_args(args);
  if (args.tiles != nullptr)
    return launch_op<layout::Packing::kBf16, Columns::kVectors, DenseOp<2, true>>(args, plan, kListed, on);
  launch_rows<AnyDenseOp>(args, plan, by_packing(kNames, args.packing), on);
}

void GemvQkv::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  check_args(args);
  launch_rows<QkvOp>(args, plan, by_packing(kNames, args.packing), on);
}

void GemvMoeDown::launch(const Args& args, const GemvPlan& plan, const Launch& on) {
  check_args(args);
  if (plan.geometry.missing > 0)
    return launch_instance<GemvTile<layout::Packing::kMxfp4, layout::kShortSliceBlocks, Columns::kVectors, true>,
                           MoeDownOp>(args, plan, kName, on);
  launch_op<layout::Packing::kMxfp4, Columns::kVectors, MoeDownOp>(args, plan, kName, on);
}

}  // namespace nibble::backend::cuda

#include "backend/cuda/experts/gemv_int8.cuh"

#include "backend/cuda/launch/chained_launch.cuh"

#include <type_traits>

namespace nibble::backend::cuda {
namespace {

// The list of instances: blocks of a slice, operation.
template <class Op>
void launch(const typename Op::Args& args, int64_t cols, const GemvInt8Plan& plan, Kernel name, const Launch& on) {
  check_args(args);
  require_shape(plan.row_tiles > 0 && plan.expert_tiles > 0, name, "a plan with row tiles", plan.row_tiles);
  const LaunchShape shape{dim3(static_cast<unsigned>(plan.row_tiles), static_cast<unsigned>(plan.expert_tiles)),
                          kInt8Threads, kInt8SharedBytes, on.stream};
  const layout::Slices slices = layout::slices_of(cols);
  auto* kernel = slices.blocks == 6 ? any_gemv_int8<Int8Tile<6>, Op> : any_gemv_int8<Int8Tile<8>, Op>;
  if constexpr (std::is_same_v<Op, Int8Down>)
    if (slices.missing > 0) kernel = any_gemv_int8<Int8Tile<layout::kShortSliceBlocks, true>, Op>;
  static_cast<void>(enqueue(kernel, shape, args));  // launched() sees the error
  launched(name, on);
}

}  // namespace

void any_gemv_int8_up(const GroupedUpArgs& args, const GemvInt8Plan& plan, const Launch& on) {
  launch<Int8Up>(args, args.hidden, plan, kernel::kInt8Up, on);
}

void any_gemv_int8_down(const GroupedDownArgs& args, const GemvInt8Plan& plan, const Launch& on) {
  launch<Int8Down>(args, args.inter, plan, kernel::kInt8Down, on);
}

}  // namespace nibble::backend::cuda

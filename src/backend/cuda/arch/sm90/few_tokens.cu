// Kernels of few tokens: the split GEMM; norm and router.
#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/arch/sm90/norm_route.cuh"
#include "backend/cuda/arch/sm90/split_gemm.cuh"

namespace nibble::backend::cuda {
namespace {

template <int kTokens>
void launch_tile(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  using Tile = SplitTile<kTokens>;
  constexpr Kernel kName = Sm90SplitGemm::kName;
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  launch_chained(sm90_split_gemm<Tile>, {kName, on, plan.grid, Tile::kThreads, Tile::kSharedBytes}, args, plan.cut);
}

}  // namespace

void Sm90SplitGemm::launch(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  check_args(args);
  switch (plan.cut.tokens) {
    case 32: return launch_tile<32>(args, plan, on);
    case 64: return launch_tile<64>(args, plan, on);
    case 128: return launch_tile<128>(args, plan, on);
    default: return launch_tile<256>(args, plan, on);
  }
}

void Sm90NormRoute::launch(const NormRouteArgs& args, const Plan& plan, const Launch& on) {
  check_args(args);
  const int tokens = norm_route_tokens(args.norm.tokens);
  auto* const kernel = tokens == 8    ? sm90_norm_route<NormRouteTile<8>>
                       : tokens == 16 ? sm90_norm_route<NormRouteTile<16>>
                                      : sm90_norm_route<NormRouteTile<32>>;
  launch_chained(kernel, planned(kName, plan, on), args);
}

}  // namespace nibble::backend::cuda

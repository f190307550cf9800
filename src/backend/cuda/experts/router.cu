// The router of up to 8 tokens, and the choice of experts from logits.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/experts/router.cuh"
#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kWarps = 4;

// top_experts: ids = the topk largest logits, the lower id first on a tie; weights = softmax over them
// source: torch/model.py MLPBlock.forward
// logits f32 [tokens, experts]     ids int32 [tokens, topk]     weights f32 [tokens, topk], all row-major
// grid one warp per token     bytes tokens * (experts * 4 * topk from L1 + topk * 8)
// rounding: f32, sum by falling logit
__global__ void __launch_bounds__(kWarps* kWarpLanes)
    any_top_experts_f32(const __grid_constant__ TopExpertsLaunch args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int token = blockIdx.x * kWarps + threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  if (token < args.tokens) choose_experts(args, token, lane);
}

}  // namespace

void any_top_experts(const TopExpertsLaunch& args, const Launch& on) {
  require_shape(args.tokens > 0, kernel::kTopExperts, "at least one token", args.tokens);
  require_shape(args.topk > 0 && args.topk <= kMaxTopk && args.topk <= args.experts, kernel::kTopExperts,
                "a topk of at most 32 and experts", args.topk);
  launch_chained(any_top_experts_f32,
                 {kernel::kTopExperts, on, (args.tokens + kWarps - 1) / kWarps, kWarps * kWarpLanes}, args);
}

void route_logits(const RouterArgs& args, const Launch& on) {
  check_args(args);
  launch_chained(any_router_f32_bf16, {kernel::kRouter, on, args.experts, kRouterThreads, kRouterSharedBytes}, args);
}

}  // namespace nibble::backend::cuda

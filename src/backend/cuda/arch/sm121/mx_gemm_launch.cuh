#pragma once
// The launcher of sm121_mx_gemm for a policy, and the one list of its instances: a build for GB10 takes NativeMx's, the
// tests EmulatedMx's.

#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/arch/sm121/mx_gemm.cuh"
#include "backend/cuda/launch/chained_launch.cuh"

namespace nibble::backend::cuda {

template <class Mma, class Tile, MxResults kResults>
void launch_mx_tile(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  const Kernel name = Sm121MxGemm::name(args);
  require_shape(plan.smem_bytes == mx_shared_bytes(Tile::kCodes, Tile::kTokens, args.cols), name,
                "the plan's shared memory", plan.smem_bytes);
  require_shape(plan.smem_bytes <= kMxBlockBytes, name, "at most 99 KB of shared memory", plan.smem_bytes);
  auto* const kernel = sm121_mx_gemm<Mma, Tile, kResults>;
  launch_chained(kernel, {name, on, plan.grid, kMxThreads, plan.smem_bytes}, args);
}

template <class Mma, layout::Packing kPacking, InputType kCodes, MxResults kResults>
void launch_mx_tokens(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  if (plan.tokens == 64) return launch_mx_tile<Mma, MxTile<kPacking, kCodes, 64>, kResults>(args, plan, on);
  require_shape(plan.tokens == 128, Sm121MxGemm::name(args), "tiles of 64 or 128 tokens", plan.tokens);
  launch_mx_tile<Mma, MxTile<kPacking, kCodes, 128>, kResults>(args, plan, on);
}

template <class Mma, InputType kCodes>
void launch_mx_experts(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  constexpr layout::Packing kPacking = layout::Packing::kMxfp4;
  if (args.u != nullptr) return launch_mx_tokens<Mma, kPacking, kCodes, MxResults::kGated>(args, plan, on);
  launch_mx_tokens<Mma, kPacking, kCodes, MxResults::kRows16>(args, plan, on);
}

template <class Mma>
void launch_mx_gemm(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  using enum InputType;
  Sm121MxGemm::check(args);
  if (args.tiles == nullptr) {
    if (args.packing == layout::Packing::kMxfp8)
      return launch_mx_tokens<Mma, layout::Packing::kMxfp8, kMxfp8, MxResults::kRows>(args, plan, on);
    return launch_mx_tokens<Mma, layout::Packing::kMxfp4, kMxfp8, MxResults::kRows>(args, plan, on);
  }
  if (args.codes == kMxfp8) return launch_mx_experts<Mma, kMxfp8>(args, plan, on);
  if (args.codes == kMxfp6) return launch_mx_experts<Mma, kMxfp6>(args, plan, on);
  launch_mx_experts<Mma, kMxfp4>(args, plan, on);
}

}  // namespace nibble::backend::cuda

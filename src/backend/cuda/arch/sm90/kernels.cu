// All launchers but those of the GEMMs of many tokens.
#include "backend/cuda/arch/sm90/kernels.h"

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/arch/sm90/attend.cuh"
#include "backend/cuda/arch/sm90/grouped.cuh"
#include "backend/cuda/arch/sm90/norm_route.cuh"
#include "backend/cuda/arch/sm90/split_gemm.cuh"
#include "backend/cuda/attention/attend_launch.cuh"
#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {
namespace {

template <int kTokens>
void launch_split(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  using Tile = SplitTile<kTokens>;
  constexpr Kernel kName = Sm90SplitGemm::kName;
  require_shape(plan.smem_bytes == Tile::kSharedBytes, kName, "the plan's shared memory", plan.smem_bytes);
  launch_chained(sm90_split_gemm<Tile>, {kName, on, plan.grid, Tile::kThreads, Tile::kSharedBytes}, args, plan.cut);
}

template <int kSliceBlockPairs>
void launch_grouped(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  launch_chained(sm90_grouped<kSliceBlockPairs>,
                 {Sm90Grouped::kName, on, plan.grid, Sm90GroupedTile<kSliceBlockPairs>::kThreads, plan.smem_bytes},
                 args);
}

constexpr int kPeakThreads = 256;  // two warpgroups: one issues while the other waits
constexpr int kPeakInGroup = 16;   // instructions between two waits
constexpr int kPeakColumns = 128, kPeakDepth = 16;

__global__ void __launch_bounds__(kPeakThreads) sm90_peak_wgmma_bf16(float* sink, int rounds) {
  __shared__ alignas(128) uint32_t b[kPeakColumns * kPeakDepth / 2];
  // bf16 pairs of small magnitude and both signs: zeros would draw less power than work does.
  for (int i = threadIdx.x; i < kPeakColumns * kPeakDepth / 2; i += kPeakThreads)
    b[i] = 0x3d003c80u ^ (i * 0x00130007u & 0x003f003fu) ^ (i % 3 == 0 ? 0x80000000u : 0x8000u);
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; ++i)
    a[i] = 0x3d003d80u ^ (threadIdx.x * 0x00050003u & 0x003f003fu) ^ (i % 2 == 0 ? 0x8000u : 0u);
  // Tiles of 8 columns x 16 bytes: two in depth beside each other, then the next columns.
  const uint64_t descriptor = ptx::wgmma_descriptor(
      {.address = static_cast<uint32_t>(__cvta_generic_to_shared(b)), .leading_bytes = 128, .stride_bytes = 256});
  float d[kPeakColumns / 8][4] = {};
  for (int r = 0; r < rounds; ++r) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kPeakInGroup; ++i) ptx::wgmma(d, a, descriptor);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
  float sum = 0;
  for (const auto& tile : d)
    for (const float v : tile) sum += v;
  if (sum == 0.12345f) *sink = sum;
}

}  // namespace

bool sm90_is_built() { return true; }

void Sm90AttendPrefill::launch(const AttentionArgs& args, const Launch& on) {
  using Tile = WgmmaAttend;
  require_shape(args.kv.type == kSm90PrefillPages, kName, "pages of operands of wgmma",
                static_cast<int64_t>(args.kv.type));
  check_heads(args, kName);
  require_shape(args.tile_count > 0 && args.ctas > 0, kName, "at least one tile and CTA", args.tile_count);
  auto* const kernel = sm90_attend_prefill<Tile>;
  launch_chained(kernel, {kName, on, args.ctas, Tile::kThreads, Tile::kSharedBytes}, args);
}

void Sm90SplitGemm::launch(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on) {
  check_args(args);
  switch (plan.cut.tokens) {
    case 32: return launch_split<32>(args, plan, on);
    case 64: return launch_split<64>(args, plan, on);
    case 128: return launch_split<128>(args, plan, on);
    default: return launch_split<256>(args, plan, on);
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

// The list of instances: slices of three and of four pairs.
void Sm90Grouped::launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on) {
  check_args(args);
  const layout::Slices slices = layout::slices_of(args.cols);
  require_shape(args.down.weights != nullptr && args.packing == layout::Packing::kMxfp4 && args.rows == 2 * args.cols,
                kName, "both products of MXFP4 experts, of one width", args.rows);
  require_shape(args.cols % kSm90GroupedRows == 0 && slices.missing == 0 && slices.count >= kSm90GroupedStages - 1,
                kName, "two or more whole slices, and rows in groups of 64", args.cols);
  require_shape(plan.smem_bytes == sm90_grouped_bytes(args.cols), kName, "the plan's shared memory", plan.smem_bytes);
  require_shape(plan.grid <= multiprocessors(), kName, "CTAs that all run at once, since they wait for each other",
                plan.grid);
  if (slices.blocks == 6) return launch_grouped<3>(args, plan, on);
  launch_grouped<4>(args, plan, on);
}

double sm90_peak_wgmma(const PeakLaunch& args, cudaStream_t stream) {
  sm90_peak_wgmma_bf16<<<args.blocks, kPeakThreads, 0, stream>>>(args.sink, args.rounds);
  return 2.0 * 64 * kPeakColumns * kPeakDepth * kPeakInGroup * (kPeakThreads / 128.0) * args.rounds * args.blocks;
}

}  // namespace nibble::backend::cuda

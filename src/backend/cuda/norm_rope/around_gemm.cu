#include "backend/cuda/norm_rope/around_gemm.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/norm_rope/combine.cuh"
#include "backend/cuda/norm_rope/norm_experts.cuh"
#include "backend/cuda/norm_rope/norm_sums.cuh"
#include "backend/cuda/norm_rope/rope_sums.cuh"
#include "backend/cuda/norm_rope/tap.cuh"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

// Where experts in bf16 have more tokens than there are CTAs at once, and these have room for their rows.
bool launch_norm_experts(const NormSums::Args& args, const Launch& on) {
  const int topk = args.sums.splits;
  if (args.sums.order != SplitSums::Order::kExpertsBf16 || topk == 0 || topk > kWarpLanes) return false;
  const int64_t smem = NormExpertsShared::bytes(args.hidden, topk);
  if (args.tokens <= multiprocessors() || smem > attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) return false;
  const int threads = norm_threads(args.hidden);
  auto* const kernel =
      threads <= kNormFewThreads ? any_norm_experts_f32<kNormFewThreads> : any_norm_experts_f32<kNormMaxThreads>;
  allow_shared(kernel, smem, NormSums::kName);
  int ctas = 0;
  static_cast<void>(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, threads, static_cast<size_t>(smem)));
  ctas *= multiprocessors();
  if (ctas < 1 || args.tokens <= ctas) return false;
  launch_chained(kernel, {NormSums::kName, on, ctas, threads, static_cast<int>(smem)}, args);
  return true;
}

}  // namespace

void NormSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  if (launch_norm_experts(args, on)) return;
  using enum SplitSums::Order;
  auto* const kernel = args.sums.order == kExpertsF32    ? any_norm_sums_f32<kExpertsF32>
                       : args.sums.order == kExpertsBf16 ? any_norm_sums_f32<kExpertsBf16>
                                                         : any_norm_sums_f32<kTiles>;
  // Not before qkv's GEMM, whose rings would find no room beside them.
  const bool spreads = args.sums.splits > 0 && !args.sums.of_experts();
  const int smem = std::max(kNormSharedBytes, spreads ? spreading_bytes(args.tokens) : 0);
  launch_chained(kernel, {NormSums::kName, on, args.tokens, norm_threads(args.hidden), smem}, args);
}

void Combine::launch(const Args& args, const Launch& on) {
  check_args(args);
  using enum SplitSums::Order;
  auto* const kernel = args.sums.order == kExpertsF32    ? any_combine_f32<kExpertsF32>
                       : args.sums.order == kExpertsBf16 ? any_combine_f32<kExpertsBf16>
                                                         : any_combine_f32<kTiles>;
  if (args.rows != nullptr)
    return launch_chained(kernel, {Combine::kName, on, args.tokens, norm_threads(args.hidden)}, args);
  launch_chained(kernel,
                 {.name = Combine::kName,
                  .on = on,
                  .grid = (args.tokens + 7) / 8,
                  .threads = kCombineThreads,
                  .grid_y = combine_parts(args.hidden)},
                 args);
}

void RopeSums::launch(const Args& args, const Launch& on) {
  check_args(args);
  if (rope_by_heads(args))
    return launch_chained(any_rope_heads_f32,
                          {.name = RopeSums::kName,
                           .on = on,
                           .grid = rope_head_groups(args),
                           .threads = kRopeThreads,
                           .grid_y = rope_token_groups(args)},
                          args);
  launch_chained(any_rope_sums_f32, {RopeSums::kName, on, rope_ctas(args), kRopeThreads}, args);
}

void Tap::launch(const Args& args, const Launch& on) {
  check_args(args);
  launch_chained(any_tap_f32, {Tap::kName, on, args.tokens, kTapThreads}, args);
}

}  // namespace nibble::backend::cuda

#include "backend/cuda/dense/linear.h"

#include "backend/cuda/dense/dot.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kWarps = kLinearWarps;

// linear: out[t,r] = W[r,:] · x[t,:] + b[r]                          source: torch/model.py, every Linear
// W bf16 [rows, cols]     b bf16 [rows] or none     x f32 [tokens, cols]     out f32 [tokens, rows]
// all row-major, 16-byte aligned
// grid one warp per (kRows rows, kTokens tokens)
// bytes rows * cols * 2 per kTokens tokens     flops 2 * tokens * rows * cols
// rounding: f32, order fixed by cols: the same bits whatever the other tokens and the instance
template <int kRows, int kTokens>
__global__ void __launch_bounds__(kWarps* kWarpLanes, kRows* kTokens > 8 ? 3 : 6)
    any_linear_f32_bf16(const __grid_constant__ Linear::Args args) {
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int first_row = (blockIdx.x * kWarps + warp) * kRows, first_token = blockIdx.y * kTokens;
  if (first_row >= args.rows) return;
  int64_t rows[kRows];
  const float* x[kTokens];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = min(first_row + r, args.rows - 1);  // what lies beyond is not stored
#pragma unroll
  for (int t = 0; t < kTokens; ++t) x[t] = args.x + int64_t{min(first_token + t, args.tokens - 1)} * args.cols;
  float sums[kRows][kTokens];
  dot_rows<kRows, kTokens>(Bf16Rows{args.weight, args.cols}, rows, x, sums);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int row = first_row + r, token = first_token + t;
      if (lane != r * kTokens + t || row >= args.rows || token >= args.tokens) continue;
      args.out[int64_t{token} * args.rows + row] =
          args.bias == nullptr ? sums[r][t] : sums[r][t] + args.bias[row].to_float();
    }
  }
}

template <int kRows, int kTokens>
void launch_tile(const Linear::Args& args, const Launch& on) {
  static_assert(kRows * kTokens <= kWarpLanes, "a lane stores one result");
  const dim3 grid((args.rows + kWarps * kRows - 1) / (kWarps * kRows), (args.tokens + kTokens - 1) / kTokens);
  any_linear_f32_bf16<kRows, kTokens><<<grid, kWarps * kWarpLanes, 0, on.stream>>>(args);
  launched(Linear::kName, on);
}

}  // namespace

void Linear::launch(const Args& args, const Launch& on) {
  require_shape(args.tokens > 0 && args.tokens <= 65535 * 8, kName, "1 to 524280 tokens", args.tokens);
  require_shape(args.cols > 0 && args.cols % kDotStep == 0, kName, "cols a multiple of 8", args.cols);
  require_shape(args.rows > 0, kName, "at least one row", args.rows);
  switch (linear_tile(args.tokens).tokens) {
    case 1: return launch_tile<1, 1>(args, on);
    case 2: return launch_tile<1, 2>(args, on);
    case 4: return launch_tile<2, 4>(args, on);
    default: return launch_tile<4, 8>(args, on);
  }
}

}  // namespace nibble::backend::cuda

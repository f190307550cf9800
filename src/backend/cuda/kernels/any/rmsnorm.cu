#include "backend/cuda/kernel_table.h"

#include "backend/cuda/kernels/any/launchers.h"
#include "backend/cuda/kernels/any/warp.cuh"

#include <cuda_fp16.h>

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;

// rmsnorm: out[r,:] = x[i,:] / sqrt(mean(x[i,:]^2) + eps) * scale, i = which[r] or r       source: torch/model.py
// RMSNorm x f32 [*, hidden]     scale bf16 [hidden]     which int32 [rows]     out f32 [rows, hidden], all row-major
// grid one CTA per row     bytes rows * hidden * (4 + 4) + hidden * 2     rounding: f32, order fixed by hidden
__global__ void __launch_bounds__(kThreads) any_rmsnorm_f32_bf16(const __grid_constant__ RmsnormLaunch args) {
  __shared__ float warp_sums[kThreads / kWarpLanes];
  const int64_t from = args.which == nullptr ? blockIdx.x : args.which[blockIdx.x];
  const float* x = args.x + from * args.hidden;
  float* out = args.out + int64_t{blockIdx.x} * args.hidden;
  float squares = 0;
  for (int d = threadIdx.x; d < args.hidden; d += kThreads) squares = fmaf(x[d], x[d], squares);
  const float mean = block_sum<kThreads>(squares, warp_sums) / static_cast<float>(args.hidden);
  const float inverse = 1.0f / sqrtf(mean + args.eps);
  for (int d = threadIdx.x; d < args.hidden; d += kThreads) {
    out[d] = x[d] * inverse * args.scale[d].to_float();
    if (args.rounded != nullptr)
      args.rounded[int64_t{blockIdx.x} * args.hidden + d] = {__half_as_ushort(__float2half_rn(out[d]))};
  }
}

}  // namespace

void any_rmsnorm(const RmsnormLaunch& args, const Launch& on) {
  require_shape(args.rows > 0, Kernel::kRmsnorm, "at least one row", args.rows);
  any_rmsnorm_f32_bf16<<<args.rows, kThreads, 0, on.stream>>>(args);
  launched(Kernel::kRmsnorm, on);
}

}  // namespace nibble::backend::cuda

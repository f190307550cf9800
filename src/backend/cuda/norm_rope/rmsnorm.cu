#include "backend/cuda/launch/kernel_table.h"

#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/launch/warp.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;

// rmsnorm: sum[r,:] = x[i,:] + delta[i,:]; out[r,:] = sum[r,:] / sqrt(mean(sum[r,:]^2) + eps) * scale, i = which[r] or
// r source: torch/model.py RMSNorm     x, delta f32 [*, hidden]     scale bf16 [hidden]     which int32 [rows] sum, out
// f32 [rows, hidden], all row-major     grid one CTA per row bytes rows * hidden * (4 + 4, with a delta 4 + 4 more) +
// hidden * 2     rounding: f32, order fixed by hidden
__global__ void __launch_bounds__(kThreads) any_rmsnorm_f32_bf16(const __grid_constant__ RmsnormLaunch args) {
  __shared__ float warp_sums[kThreads / kWarpLanes];
  const int64_t from = args.which == nullptr ? blockIdx.x : args.which[blockIdx.x], to = blockIdx.x;
  const auto* x = reinterpret_cast<const float4*>(args.x + from * args.hidden);
  auto* const out = reinterpret_cast<float4*>(args.out + to * args.hidden);
  const auto value = [&](int i) {
    float4 v = x[i];
    if (args.delta == nullptr) return v;
    const float4 more = reinterpret_cast<const float4*>(args.delta + from * args.hidden)[i];
    v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
    return v;
  };
  const int groups = args.hidden / 4;
  float squares = 0;
  for (int i = threadIdx.x; i < groups; i += kThreads) {
    const float4 v = value(i);
    squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
  }
  const float mean = block_sum<kThreads>(squares, warp_sums) / static_cast<float>(args.hidden);
  const float inverse = 1.0f / sqrtf(mean + args.eps);
  for (int i = threadIdx.x; i < groups; i += kThreads) {
    const uint2 words = reinterpret_cast<const uint2*>(args.scale)[i];  // two bf16 each, the first in the low half
    float4 v = value(i);
    if (args.sum != nullptr) reinterpret_cast<float4*>(args.sum + to * args.hidden)[i] = v;
    v.x *= inverse * __uint_as_float(words.x << 16);
    v.y *= inverse * __uint_as_float(words.x & 0xffff0000u);
    v.z *= inverse * __uint_as_float(words.y << 16);
    v.w *= inverse * __uint_as_float(words.y & 0xffff0000u);
    out[i] = v;
  }
}

}  // namespace

void any_rmsnorm(const RmsnormLaunch& args, const Launch& on) {
  require_shape(args.rows > 0, kernel::kRmsnorm, "at least one row", args.rows);
  require_shape(args.hidden % 4 == 0, kernel::kRmsnorm, "hidden a multiple of 4", args.hidden);
  any_rmsnorm_f32_bf16<<<args.rows, kThreads, 0, on.stream>>>(args);
  launched(kernel::kRmsnorm, on);
}

}  // namespace nibble::backend::cuda

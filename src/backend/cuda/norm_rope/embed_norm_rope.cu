#include "backend/cuda/norm_rope/embed_norm_rope.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/norm_rope/any_rope_kv.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;

// embed: out[t,:] = table[ids[t],:], or of max(0, sampled[-1 - ids[t]])    source: torch/model.py Transformer.forward
// table bf16 [vocab, hidden]     ids int32 [tokens]     out f32 [tokens, hidden], all row-major
// grid one CTA per token, 8 values per thread     bytes tokens * hidden * (2 + 4)     rounding: none
__global__ void __launch_bounds__(kThreads) any_embed_f32_bf16(const __grid_constant__ Embed::Args args) {
  ptx::grid_dependency_launch();
  const int32_t named = args.ids[blockIdx.x];
  const int32_t id = named >= 0 ? named : max(0, args.sampled[-1 - named]);
  const Bf16* row = args.table + int64_t{id} * args.hidden;
  float* out = args.out + int64_t{blockIdx.x} * args.hidden;
#pragma unroll 2
  for (int d = 8 * static_cast<int>(threadIdx.x); d < args.hidden; d += 8 * kThreads) {
    const uint4 words = *reinterpret_cast<const uint4*>(row + d);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    float v[8];
    for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
    for (int i = 0; i < 8; i += 4) *reinterpret_cast<float4*>(out + d + i) = {v[i], v[i + 1], v[i + 2], v[i + 3]};
  }
}

// rmsnorm: sum[r,:] = x[i,:] + delta[i,:]; out[r,:] = sum[r,:] / sqrt(mean(sum[r,:]^2) + eps) * scale, i = which[r] or
// r     source: torch/model.py RMSNorm
// x, delta f32 [*, hidden]     scale bf16 [hidden]     which int32 [rows]     sum, out f32 [rows, hidden], row-major
// grid one CTA per row
// bytes rows * hidden * (4 + 4, with a delta 4 + 4 more) + hidden * 2     rounding: f32, order fixed by hidden
__global__ void __launch_bounds__(kThreads) any_rmsnorm_f32_bf16(const __grid_constant__ Rmsnorm::Args args) {
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

// rope_table: what any_rope_kv works out for itself, for kernels that rotate q and k in their epilogue
// grid one CTA per token     rounding: as any_rope_kv
// chain depends on no kernel of its step, so it waits for the one before only so that the next one does
__global__ void __launch_bounds__(kMaxHalfHead) any_rope_table_f32(const __grid_constant__ RopeTable::Args args) {
  ptx::grid_dependency_launch();
  const int d = threadIdx.x;
  if (d >= args.half) return ptx::grid_dependency_wait();
  constexpr double kHalfTurnsPerRadian = 0.318309886183790671538;  // 1 / pi
  const float angle = __fmul_rn(static_cast<float>(args.positions[blockIdx.x]), args.inv_freq[d]);
  double s = 0, c = 0;
  sincospi(double{angle} * kHalfTurnsPerRadian, &s, &c);
  args.cosine[blockIdx.x * args.half + d] = static_cast<float>(c) * args.concentration;
  args.sine[blockIdx.x * args.half + d] = static_cast<float>(s) * args.concentration;
  ptx::grid_dependency_wait();
}

}  // namespace

void Embed::launch(const Args& args, const Launch& on) {
  require_shape(args.tokens > 0, kName, "at least one token", args.tokens);
  require_shape(args.hidden % 8 == 0, kName, "a hidden size of a multiple of 8", args.hidden);
  any_embed_f32_bf16<<<args.tokens, kThreads, 0, on.stream>>>(args);
  launched(kName, on);
}

// Every build has code for this one wherever it has any.
KernelCode any_kernels_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_embed_f32_bf16);
  cudaGetLastError();
  return {.status = status, .arch = attributes.ptxVersion};  // that of PTX, or that of which machine code was made
}

void Rmsnorm::launch(const Args& args, const Launch& on) {
  require_shape(args.rows > 0, kName, "at least one row", args.rows);
  require_shape(args.hidden % 4 == 0, kName, "hidden a multiple of 4", args.hidden);
  any_rmsnorm_f32_bf16<<<args.rows, kThreads, 0, on.stream>>>(args);
  launched(kName, on);
}

void RopeTable::launch(const Args& args, const Launch& on) {
  require_shape(args.tokens > 0, kName, "at least one token", args.tokens);
  require_shape(args.half > 0 && args.half <= kMaxHalfHead, kName, "a head_dim of at most 256", 2 * args.half);
  launch_chained(any_rope_table_f32, {.name = kName, .on = on, .grid = args.tokens, .threads = kMaxHalfHead}, args);
}

void RopeKv::launch(const Args& args, const Launch& on) {
  require_pages(args.kv.type);
  const Kernel kernel = kNames.of(args.kv.type);
  require_shape(args.tokens > 0, kernel, "at least one token", args.tokens);
  require_shape(args.head_dim > 0 && args.head_dim % 2 == 0 && args.head_dim <= 2 * kMaxHalfHead, kernel,
                "an even head_dim of at most 256", args.head_dim);
  with_page_type(args.kv.type, [&]<KvDtype kType>() {
    any_rope_kv<PageRow<kType>>
        <<<static_cast<unsigned>(args.tokens), kRopeKvThreads, kRopeKvSharedBytes, on.stream>>>(args);
  });
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda

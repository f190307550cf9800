#include "backend/cuda/launch/kernel_table.h"

#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;

// embed: out[t,:] = table[ids[t],:], or of max(0, sampled[-1 - ids[t]])    source: torch/model.py Transformer.forward
// table bf16 [vocab, hidden]     ids int32 [tokens]     out f32 [tokens, hidden], all row-major
// grid one CTA per token, 8 values per thread     bytes tokens * hidden * (2 + 4)     rounding: none
__global__ void __launch_bounds__(kThreads) any_embed_f32_bf16(const __grid_constant__ EmbedLaunch args) {
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

}  // namespace

void any_embed(const EmbedLaunch& args, const Launch& on) {
  require_shape(args.tokens > 0, kernel::kEmbed, "at least one token", args.tokens);
  require_shape(args.hidden % 8 == 0, kernel::kEmbed, "a hidden size of a multiple of 8", args.hidden);
  any_embed_f32_bf16<<<args.tokens, kThreads, 0, on.stream>>>(args);
  launched(kernel::kEmbed, on);
}

}  // namespace nibble::backend::cuda

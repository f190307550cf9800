#include "backend/cuda/kernel_table.h"

#include "backend/cuda/kernels/any/launchers.h"

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;

// embed: out[t,:] = table[ids[t],:], or of max(0, sampled[-1 - ids[t]])    source: torch/model.py Transformer.forward
// table bf16 [vocab, hidden]     ids int32 [tokens]     out f32 [tokens, hidden], all row-major
// grid one CTA per token     bytes tokens * hidden * (2 + 4)     rounding: none
__global__ void __launch_bounds__(kThreads) any_embed_f32_bf16(const __grid_constant__ EmbedLaunch args) {
  const int32_t named = args.ids[blockIdx.x];
  const int32_t id = named >= 0 ? named : max(0, args.sampled[-1 - named]);
  const Bf16* row = args.table + int64_t{id} * args.hidden;
  float* out = args.out + int64_t{blockIdx.x} * args.hidden;
  for (int d = threadIdx.x; d < args.hidden; d += kThreads) out[d] = row[d].to_float();
}

}  // namespace

void any_embed(const EmbedLaunch& args, const Launch& on) {
  require_shape(args.tokens > 0, Kernel::kEmbed, "at least one token", args.tokens);
  any_embed_f32_bf16<<<args.tokens, kThreads, 0, on.stream>>>(args);
  launched(Kernel::kEmbed, on);
}

}  // namespace nibble::backend::cuda

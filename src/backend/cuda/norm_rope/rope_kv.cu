#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/launch/kernel_table.h"

#include "backend/cuda/launch/chained_launch.cuh"
#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

#include <iterator>
#include <type_traits>

#include <cuda_bf16.h>

namespace nibble::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxHalf = 128;  // of head_dim

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ void store(E4m3* to, float value) { to->bits = ptx::to_e4m3(value); }

// rope_kv: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s), x1 = x[d], x2 = x[d + head_dim/2], for q in place and k into its
// slot;
//          v into its slot                                source: torch/model.py RotaryEmbedding, _apply_rotary_emb
// q f32 [tokens, heads, head_dim]     k, v f32 [tokens, kv_heads, head_dim]     keys, values T [page, kv_heads,
// kPageTokens, head_dim] grid one CTA per token     bytes tokens * head_dim * (8 heads + (8 + 2 sizeof(T)) kv_heads)
// rounding: the angle to f32 first, as the model's authors do; its sine and cosine are those of that f32
template <class T>
__global__ void __launch_bounds__(kThreads) any_rope_kv(const __grid_constant__ RopeKvLaunch args) {
  __shared__ float cosine[kMaxHalf], sine[kMaxHalf];
  const int token = blockIdx.x, half = args.head_dim / 2;
  for (int d = threadIdx.x; d < half; d += kThreads) {
    constexpr double kHalfTurnsPerRadian = 0.318309886183790671538;  // 1 / pi
    const float angle = __fmul_rn(static_cast<float>(args.positions[token]), args.rope_inv_freq[d]);
    double s = 0, c = 0;
    sincospi(double{angle} * kHalfTurnsPerRadian, &s, &c);
    cosine[d] = static_cast<float>(c) * args.rope_concentration;
    sine[d] = static_cast<float>(s) * args.rope_concentration;
  }
  __syncthreads();
  float* q = args.q + int64_t{token} * args.heads * args.head_dim;
  for (int i = threadIdx.x; i < args.heads * half; i += kThreads) {
    const int d = i % half;
    float* x = q + i / half * args.head_dim + d;
    const float x1 = x[0], x2 = x[half];
    x[0] = x1 * cosine[d] - x2 * sine[d];
    x[half] = x2 * cosine[d] + x1 * sine[d];
  }
  const float* k = args.k + int64_t{token} * args.kv_heads * args.head_dim;
  const float* v = args.v + int64_t{token} * args.kv_heads * args.head_dim;
  const int slot = args.kv_slots[token];
  const int64_t page = slot / kPageTokens, offset = slot % kPageTokens;
  for (int i = threadIdx.x; i < args.kv_heads * half; i += kThreads) {
    const int head = i / half, d = i % half, from = head * args.head_dim + d;
    const int64_t to = ((page * args.kv_heads + head) * kPageTokens + offset) * args.head_dim + d;
    const float k1 = k[from], k2 = k[from + half];
    T* keys = static_cast<T*>(args.kv.keys) + to;
    T* values = static_cast<T*>(args.kv.values) + to;
    store(keys, k1 * cosine[d] - k2 * sine[d]);
    store(keys + half, k2 * cosine[d] + k1 * sine[d]);
    store(values, v[from]);
    store(values + half, v[from + half]);
  }
}

// rope_table: what any_rope_kv works out for itself, for kernels that turn q and k in their epilogue
// grid one CTA per token     rounding: as any_rope_kv
// chain depends on no kernel of its step, so it waits for the one before only so that the next one does
__global__ void __launch_bounds__(kMaxHalf) any_rope_table_f32(const __grid_constant__ RopeTableLaunch args) {
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

void any_rope_table(const RopeTableLaunch& args, const Launch& on) {
  require_shape(args.tokens > 0, kernel::kRopeTable, "at least one token", args.tokens);
  require_shape(args.half > 0 && args.half <= kMaxHalf, kernel::kRopeTable, "a head_dim of at most 256", 2 * args.half);
  launch_chained(any_rope_table_f32, {.name = kernel::kRopeTable, .on = on, .grid = args.tokens, .threads = kMaxHalf},
                 args);
}

void any_rope_kv(const RopeKvLaunch& args, const Launch& on) {
  constexpr Kernel kRopeKv[] = {kernel::kRopeKvBf16, kernel::kRopeKvF32, kernel::kRopeKvE4m3};
  const auto type = static_cast<size_t>(args.kv.type);
  const Kernel kernel = kRopeKv[type < std::size(kRopeKv) ? type : 0];
  require_shape(args.tokens > 0, kernel, "at least one token", args.tokens);
  require_shape(args.head_dim > 0 && args.head_dim % 2 == 0 && args.head_dim <= 2 * kMaxHalf, kernel,
                "an even head_dim of at most 256", args.head_dim);
  with_page_type(args.kv.type, kernel, [&](auto value) {
    using T = std::conditional_t<std::is_same_v<decltype(value), Bf16>, __nv_bfloat16, decltype(value)>;
    any_rope_kv<T><<<args.tokens, kThreads, 0, on.stream>>>(args);
  });
  launched(kernel, on);
}

}  // namespace nibble::backend::cuda

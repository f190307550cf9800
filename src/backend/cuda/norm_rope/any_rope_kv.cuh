#pragma once
// Rope, and keys and values into their slots, for any head_dim and any type of pages.

#include "backend/cuda/attention/page_rows.cuh"
#include "backend/cuda/norm_rope/embed_norm_rope.h"

namespace nibble::backend::cuda {

inline constexpr int kRopeKvThreads = 256;
inline constexpr int kMaxHalfHead = 128;  // of head_dim
inline constexpr int kRopeKvSharedBytes = 2 * kMaxHalfHead * int{sizeof(float)};

// rope_kv: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s), x1 = x[d], x2 = x[d + head_dim/2], for q in place and k into its
// slot;
//          v into its slot                                source: torch/model.py RotaryEmbedding, _apply_rotary_emb
// q f32 [tokens, heads, head_dim]     k, v f32 [tokens, kv_heads, head_dim]     keys, values of any type: PageRow
// grid one CTA per token     bytes tokens * (head_dim * (8 heads + 8 kv_heads) + 2 rows)
// rounding: the angle to f32 first, as the model's authors do; its sine and cosine are those of that f32
template <class Row>
__global__ void __launch_bounds__(kRopeKvThreads) any_rope_kv(const __grid_constant__ RopeKv::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  float* const cosine = reinterpret_cast<float*>(smem);
  float* const sine = cosine + kMaxHalfHead;
  const int token = blockIdx.x, half = args.head_dim / 2;
  for (int d = threadIdx.x; d < half; d += kRopeKvThreads) {
    constexpr double kHalfTurnsPerRadian = 0.318309886183790671538;  // 1 / pi
    const float angle = __fmul_rn(static_cast<float>(args.positions[token]), args.rope_inv_freq[d]);
    double s = 0, c = 0;
    sincospi(double{angle} * kHalfTurnsPerRadian, &s, &c);
    cosine[d] = static_cast<float>(c) * args.rope_concentration;
    sine[d] = static_cast<float>(s) * args.rope_concentration;
  }
  __syncthreads();
  float* q = args.q + int64_t{token} * args.heads * args.head_dim;
  for (int i = threadIdx.x; i < args.heads * half; i += kRopeKvThreads) {
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
  for (int i = threadIdx.x; i < args.kv_heads * half; i += kRopeKvThreads) {
    const int head = i / half, d = i % half, from = head * args.head_dim + d;
    const int64_t to = ((page * args.kv_heads + head) * kPageTokens + offset) * args.head_dim + d;
    const float k1 = k[from], k2 = k[from + half];
    uint8_t* keys = static_cast<uint8_t*>(args.kv.keys) + Row::code_bytes(to);
    uint8_t* values = static_cast<uint8_t*>(args.kv.values) + Row::code_bytes(to);
    Row::store(keys, k1 * cosine[d] - k2 * sine[d]);
    Row::store(keys + Row::code_bytes(half), k2 * cosine[d] + k1 * sine[d]);
    Row::store(values, v[from]);
    Row::store(values + Row::code_bytes(half), v[from + half]);
  }
}

}  // namespace nibble::backend::cuda

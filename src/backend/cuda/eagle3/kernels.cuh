#pragma once
// The kernels of kernels.h.

#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/mma.cuh"

namespace nibble::backend::cuda {

// y = W · x of an EAGLE-3 head: W bf16 in row order, read once for up to 64 tokens, whatever its columns.
// mma    m16n8k16 bf16, weights on the m side. Of 32 columns a lane has 8 of a row of each operand, 16 bytes: both
//        operands' k are in that order, so nothing is rearranged
// grid   a CTA per 8 / parts row tiles, 8 warps; a warp has 16 rows and a part of the columns, which meet in shared
//        memory                          bytes 2 * rows * cols, x from L1 and L2
// chain  a warp's first weights are on their way before the kernel before has ended. No more of them: asking L2 for the
//        rest as well made down 41 us instead of 31 (bench/eagle3_bench.cpp on an H200, 2026-11-26)
// rounding: f32 sums, order fixed by cols and parts

inline constexpr int kEagle3Chunk = 32;  // columns

// Rows a and b of the weights, of one lane.
struct Eagle3RowPair {
  int a, b;
  __device__ Eagle3RowPair(int pair, int half) : a(pair / half * 2 * half + pair % half), b(a + half) {}
};

__device__ __forceinline__ float eagle3_silu(float x) { return x / (1.0f + __expf(-x)); }

// A token's results of rows a and b.
__device__ __forceinline__ void eagle3_store(const Eagle3Linear::Args& args, const Eagle3RowPair& rows, int token,
                                             float a, float b) {
  using Then = Eagle3Linear::Args::Then;
  const bool has_a = rows.a < args.rows, has_b = rows.b < args.rows;
  if (token >= args.tokens || !has_a) return;
  if (args.bias != nullptr) {
    a += args.bias[rows.a];
    if (has_b) b += args.bias[rows.b];
  }
  if (args.then == Then::kGate) {
    const uint32_t bits = ptx::pack_bf16(eagle3_silu(a) * b, 0.0f);
    args.gated[int64_t{token} * (args.rows / 2) + rows.a] = {static_cast<uint16_t>(bits)};
    return;
  }
  if (args.then == Then::kRope) {
    const int dim = args.head_dim, head = rows.a / dim, d = rows.a % dim;
    if (head < args.heads + args.kv_heads) {
      const float cosine = args.cosine[int64_t{token} * (dim / 2) + d],
                  sine = args.sine[int64_t{token} * (dim / 2) + d];
      const float turned = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = turned;
    }
    if (head < args.heads) {
      float* const to = args.out + (int64_t{token} * args.heads + head) * dim + d;
      to[0] = a, to[dim / 2] = b;
      return;
    }
    const bool key = head < args.heads + args.kv_heads;
    const int kv_head = head - args.heads - (key ? 0 : args.kv_heads), slot = args.slots[token];
    Bf16* const to =
        (key ? args.keys : args.values) +
        ((int64_t{slot / kPageTokens} * args.kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * dim + d;
    const uint32_t both = ptx::pack_bf16(a, b);
    to[0] = {static_cast<uint16_t>(both)}, to[dim / 2] = {static_cast<uint16_t>(both >> 16)};
    return;
  }
  const int64_t at = int64_t{token} * args.rows;
  const bool adds = args.residual != nullptr;
  args.out[at + rows.a] = adds ? a + args.residual[at + rows.a] : a;
  if (has_b) args.out[at + rows.b] = adds ? b + args.residual[at + rows.b] : b;
}

template <int kTiles>
__global__ void __launch_bounds__(kEagle3LinearWarps* kWarpLanes, kTiles <= 2 ? 2 : 1)
    any_eagle3_linear_bf16(const __grid_constant__ Eagle3Linear::Args args, const int parts) {
  extern __shared__ __align__(128) uint8_t smem[];
  constexpr int kDepth = kTiles <= 2 ? 4 : 2;  // chunks that are fetched at once
  constexpr int kValues = kTiles * 4;          // of a lane
  ptx::grid_dependency_launch();
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes, warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int part = warp % parts, tile = static_cast<int>(blockIdx.x) * (kEagle3LinearWarps / parts) + warp / parts;
  const int g = lane / 4, k_of_lane = lane % 4 * 8;
  const Eagle3RowPair rows(tile * 8 + g, args.half());
  const Bf16* const a = args.weight + int64_t{min(rows.a, args.rows - 1)} * args.cols;
  const Bf16* const b = args.weight + int64_t{min(rows.b, args.rows - 1)} * args.cols;
  const int chunks = (args.cols + kEagle3Chunk - 1) / kEagle3Chunk;
  const int end = chunks * (part + 1) / parts;
  uint4 next[kDepth][2];
  const auto fetch = [&](int chunk) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int k = (chunk + i) * kEagle3Chunk + k_of_lane;
      const bool inside = chunk + i < end && k < args.cols;
      next[i][0] = inside ? __ldcg(reinterpret_cast<const uint4*>(a + k)) : uint4{0, 0, 0, 0};
      next[i][1] = inside ? __ldcg(reinterpret_cast<const uint4*>(b + k)) : uint4{0, 0, 0, 0};
    }
  };
  int chunk = chunks * part / parts;
  fetch(chunk);
  ptx::grid_dependency_wait();
  float sums[kTiles][4] = {};
#pragma unroll 1
  for (; chunk < end; chunk += kDepth) {
    uint4 now[kDepth][2], x[kDepth][kTiles];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      now[i][0] = next[i][0], now[i][1] = next[i][1];
      const int k = (chunk + i) * kEagle3Chunk + k_of_lane;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int token = n * 8 + g;
        const bool inside = token < args.tokens && chunk + i < end && k < args.cols;
        x[i][n] = inside ? *reinterpret_cast<const uint4*>(args.x + int64_t{token} * args.cols + k) : uint4{0, 0, 0, 0};
      }
    }
    fetch(chunk + kDepth);
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const uint32_t low[4] = {now[i][0].x, now[i][1].x, now[i][0].y, now[i][1].y};
      const uint32_t high[4] = {now[i][0].z, now[i][1].z, now[i][0].w, now[i][1].w};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        ptx::mma_m16n8k16_bf16(sums[n], low, x[i][n].x, x[i][n].y);
        ptx::mma_m16n8k16_bf16(sums[n], high, x[i][n].z, x[i][n].w);
      }
    }
  }
  if (parts > 1) {
    auto* const shared = reinterpret_cast<float*>(smem);  // [warps][values][lanes]
#pragma unroll
    for (int i = 0; i < kValues; ++i) shared[(warp * kValues + i) * kWarpLanes + lane] = sums[i / 4][i % 4];
    __syncthreads();
    if (part != 0) return;
    for (int p = 1; p < parts; ++p) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) sums[i / 4][i % 4] += shared[((warp + p) * kValues + i) * kWarpLanes + lane];
    }
  }
  if (tile >= eagle3_row_tiles(args.rows)) return;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // of sums: rows a of two tokens, then rows b
      const int token = n * 8 + lane % 4 * 2 + j;
      eagle3_store(args, rows, token, sums[n][j], sums[n][2 + j]);
    }
  }
}

// Rows of activations: norms of parts of them, and what layer 0 reads.
// rounding: f32, order fixed by the width

inline constexpr int kEagle3RowThreads = 512;
// A float per warp for each of two sums.
inline constexpr int kEagle3RowShared = kEagle3RowThreads / kWarpLanes * (4 + 4);

// A thread's floats of a row, four at a time, all of them asked for at once.
template <int kFours>
struct Eagle3Row {
  static constexpr int kWidth = 4 * kFours * kEagle3RowThreads;  // the widest row
  float4 four[kFours];

  template <class At>
  __device__ void load(int width, const At& at) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kEagle3RowThreads;
      four[j] = i < width / 4 ? at(i) : float4{0, 0, 0, 0};
    }
  }
  __device__ void load(int width, const float* row) {
    load(width, [&](int i) { return reinterpret_cast<const float4*>(row)[i]; });
  }
  // visit(i, four) of each there is.
  template <class Visit>
  __device__ void each(int width, const Visit& visit) const {
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const int i = static_cast<int>(threadIdx.x) + j * kEagle3RowThreads;
      if (i < width / 4) visit(i, four[j]);
    }
  }
  // times `by` and times scale's
  __device__ Eagle3Row scaled(float by, const Eagle3Row& scale) const {
    Eagle3Row result;
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const float4 v = four[j], s = scale.four[j];
      result.four[j] = {v.x * by * s.x, v.y * by * s.y, v.z * by * s.z, v.w * by * s.w};
    }
    return result;
  }
  // 1 / sqrt(mean of squares + eps), by all threads together; `shared` holds a float per warp.
  __device__ float inverse(int width, float eps, float* shared) const {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const float4 v = four[j];
      squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    return 1.0f / sqrtf(block_sum<kEagle3RowThreads>(squares, shared) / static_cast<float>(width) + eps);
  }
};

__device__ __forceinline__ void eagle3_round(Bf16* to, int four, const float4& v) {
  uint2 words;
  words.x = ptx::pack_bf16(v.x, v.y), words.y = ptx::pack_bf16(v.z, v.w);
  reinterpret_cast<uint2*>(to)[four] = words;
}

// grid (rows, segments)     bytes rows * segments * width * (4 + 2 and 4 of the results)
__global__ void __launch_bounds__(kEagle3RowThreads, 1)
    any_eagle3_norm_f32(const __grid_constant__ Eagle3Norm::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  using Row = Eagle3Row<8>;
  static_assert(Row::kWidth == kEagle3MostWidth);
  ptx::grid_dependency_launch();
  const auto row = static_cast<int>(blockIdx.x), segment = static_cast<int>(blockIdx.y);
  const int64_t pitch = int64_t{args.segments} * args.width, first = int64_t{segment} * args.width;
  Row scale;
  if (args.scale != nullptr) scale.load(args.width, args.scale + first);
  ptx::grid_dependency_wait();
  const int from = args.which == nullptr ? row : args.which[row];
  const int64_t at = row * pitch + first;
  Row x;
  x.load(args.width, args.x + from * pitch + first);
  if (args.plain != nullptr)
    x.each(args.width, [&](int i, const float4& v) { reinterpret_cast<float4*>(args.plain + at)[i] = v; });
  if (args.scale != nullptr) x = x.scaled(x.inverse(args.width, args.eps, reinterpret_cast<float*>(smem)), scale);
  x.each(args.width, [&](int i, const float4& v) {
    if (args.rounded != nullptr) eagle3_round(args.rounded + at, i, v);
    if (args.normed != nullptr) reinterpret_cast<float4*>(args.normed + at)[i] = v;
  });
}

// grid a CTA per token     bytes tokens * hidden * 14
__global__ void __launch_bounds__(kEagle3RowThreads, 1)
    any_eagle3_enter_bf16(const __grid_constant__ Eagle3Enter::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  using Row = Eagle3Row<4>;
  static_assert(Row::kWidth == kEagle3MostHidden);
  constexpr int kWarps = kEagle3RowThreads / kWarpLanes;
  auto* const sums = reinterpret_cast<float*>(smem);  // [2][warps]
  ptx::grid_dependency_launch();
  const auto row = static_cast<int>(blockIdx.x);
  const int64_t hidden = args.hidden;
  Row input_norm, hidden_norm, feature, embedded;
  input_norm.load(args.hidden, args.input_norm);
  hidden_norm.load(args.hidden, args.hidden_norm);
  ptx::grid_dependency_wait();
  const int named = args.ids[row], from = -1 - named;
  feature.load(args.hidden, named < 0 ? args.features + from * hidden : args.residual + row * hidden);
  int id = named;
  if (named < 0) {
    id = max(0, args.sampled[from]);  // a draw that failed may be any token
    if (args.target_ids != nullptr) id = args.target_ids[id];
  }
  embedded.load(args.hidden, [&](int i) -> float4 {
    const uint2 words = reinterpret_cast<const uint2*>(args.embedding + id * hidden)[i];  // two bf16 each, the first in
    return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),       // the low half
            __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u)};
  });
  Bf16* const x = args.x + 2 * row * hidden;
  embedded.scaled(embedded.inverse(args.hidden, args.eps, sums), input_norm)
      .each(args.hidden, [&](int i, const float4& v) { eagle3_round(x, i, v); });
  const Row normed = feature.scaled(feature.inverse(args.hidden, args.eps, sums + kWarps), hidden_norm);
  normed.each(args.hidden, [&](int i, const float4& v) { eagle3_round(x + hidden, i, v); });
  auto* const residual = reinterpret_cast<float4*>(args.residual + row * hidden);
  const auto store = [&](int i, const float4& v) { residual[i] = v; };
  if (args.norm_before_residual)
    normed.each(args.hidden, store);
  else
    feature.each(args.hidden, store);
}

}  // namespace nibble::backend::cuda

#pragma once
// Keys and values in shared memory as operands of mma.sync.m16n8k16, for bf16 and e4m3 pages; queries as operand A.
// A page of a kv head is contiguous in global memory: [kPageTokens, kHeadDim]. In shared memory its rows keep their
// order and their chunks of 16 bytes are swizzled, so that ldmatrix meets no bank conflict.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/matrix_load.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "base/dtype.h"

namespace nibble::backend::cuda {

inline constexpr int kAttendLanes = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffu;
inline constexpr int kDimSteps = kHeadDim / 16;  // mma steps over the dimensions of q · k
inline constexpr int kDimTiles = kHeadDim / 8;   // column tiles of an mma over the dimensions of p · v

// What the two page types say: bytes per key, where a chunk lies, in which order the dimensions stand in the mma's
// slots, how fragments are loaded, which mma takes them.
//   step s, lane 4g + t, register half h holds dimensions query_dim(s, t, h) and + 1 of q and k
//   column tile j, lane 4g + t, i: out_dim(j, t, i)
struct KvBf16 {
  static constexpr int kBytes = 2;
  using Pair = uint32_t;  // two elements as pages hold them
  static constexpr int kRowBytes = kHeadDim * kBytes;
  static constexpr int kChunks = kRowBytes / 16;

  __device__ static uint32_t chunk_at(int key, int chunk) {
    return static_cast<uint32_t>(key * kRowBytes + (chunk ^ (key % 8)) * 16);
  }
  __device__ static int query_dim(int step, int t, int half) { return 16 * step + 2 * t + 8 * half; }
  __device__ static constexpr int out_dim(int tile, int t, int i) { return 8 * tile + 2 * t + i; }
  // b of keys [key, key + 8) for all steps.
  __device__ static void load_keys(uint32_t (&b)[kDimSteps][2], uint32_t keys, int key, int lane) {
    for (int half = 0; half < kDimSteps / 2; ++half) {
      uint32_t r[4];
      ptx::load_matrices(r, keys + chunk_at(key + lane % 8, 4 * half + lane / 8));
      for (int i = 0; i < 4; ++i) b[2 * half + i / 2][i % 2] = r[i];
    }
  }
  // b of keys [key, key + 16) for column tiles 4 * quad … 4 * quad + 3.
  __device__ static void load_values(uint32_t (&b)[4][2], uint32_t values, int key, int quad, int lane) {
    for (int two = 0; two < 2; ++two) {
      uint32_t r[4];
      ptx::load_matrices_transposed(r, values + chunk_at(key + lane % 16, 4 * quad + 2 * two + lane / 16));
      for (int i = 0; i < 4; ++i) b[2 * two + i / 2][i % 2] = r[i];
    }
  }
  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16_bf16(d, a, b[0], b[1]);
  }
  __device__ static uint32_t pack(float low, float high) { return ptx::pack_bf16(low, high); }
  __device__ static Pair page_pair(const float2& x) { return ptx::pack_bf16(x.x, x.y); }
  __device__ static void store_shared(uint32_t address, Pair pair) { ptx::store_shared4(address, pair); }
  __device__ static float half_of(uint32_t pair, int high) {
    return __uint_as_float(high != 0 ? pair & 0xffff0000u : pair << 16);
  }
};

// Widened exactly to f16 on the way to the mma. ldmatrix moves pairs of bytes, so a lane's dimensions are four
// consecutive ones of sixteen.
struct KvE4m3 {
  static constexpr int kBytes = 1;
  using Pair = uint16_t;  // two elements as pages hold them
  static constexpr int kRowBytes = kHeadDim * kBytes;
  static constexpr int kChunks = kRowBytes / 16;

  __device__ static uint32_t chunk_at(int key, int chunk) {
    return static_cast<uint32_t>(key * kRowBytes + (chunk ^ (key / 2 % 4)) * 16);
  }
  __device__ static int query_dim(int step, int t, int half) { return 16 * step + 4 * t + 2 * half; }
  __device__ static constexpr int out_dim(int tile, int t, int i) { return 16 * (tile / 2) + 4 * t + 2 * i + tile % 2; }
  __device__ static void load_keys(uint32_t (&b)[kDimSteps][2], uint32_t keys, int key, int lane) {
    uint32_t r[4];
    ptx::load_matrices(r, keys + chunk_at(key + lane % 8, lane / 8));
    for (int step = 0; step < kDimSteps; ++step) {
      b[step][0] = ptx::f16_of_e4m3(r[step] & 0xffffu);
      b[step][1] = ptx::f16_of_e4m3(r[step] >> 16);
    }
  }
  // Of the two tiles of a chunk the even one holds its even dimensions.
  __device__ static void load_values(uint32_t (&b)[4][2], uint32_t values, int key, int quad, int lane) {
    uint32_t r[4];
    ptx::load_matrices_transposed(r, values + chunk_at(key + lane % 16, 2 * quad + lane / 16));
    for (int i = 0; i < 4; ++i) {
      const uint32_t even_odd = ptx::permute_bytes(r[i], 0x3120);
      b[i / 2 * 2][i % 2] = ptx::f16_of_e4m3(even_odd & 0xffffu);
      b[i / 2 * 2 + 1][i % 2] = ptx::f16_of_e4m3(even_odd >> 16);
    }
  }
  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    ptx::mma_m16n8k16(d, a, b[0], b[1]);
  }
  __device__ static uint32_t pack(float low, float high) { return ptx::pack_f16(low, high); }
  __device__ static Pair page_pair(const float2& x) {
    return static_cast<Pair>(ptx::to_e4m3(x.x) | uint32_t{ptx::to_e4m3(x.y)} << 8);
  }
  __device__ static void store_shared(uint32_t address, Pair pair) { ptx::store_shared2(address, pair); }
  __device__ static float half_of(uint32_t pair, int high) { return ptx::f16_half(pair, high); }
};

// Queries of any type, two consecutive dimensions at a time.
__device__ __forceinline__ float2 load_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }

// A head's result: those dimensions of it that an mma leaves the lane, of its row lane / 4 or the one 8 below. All
// lanes of the warp together; a quad whose row is not asked for is not `mine`.
template <class Kv>
__device__ __forceinline__ void store_head(const FlashArgs& args, bool mine, int64_t token, int query_head,
                                           const float (&out)[kDimTiles][2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  constexpr bool kPairs = Kv::out_dim(0, 0, 1) == 1;  // a tile's two are neighbours
  const GemmInputRow row{args.rounded, token, args.heads * kHeadDim};
  if (args.rounded.at != nullptr && in_codes(args.rounded.type)) {
#pragma unroll
    for (int j = 0; j < kDimTiles; j += 4) {  // a block of 32
      const int k = query_head * kHeadDim + Kv::out_dim(j, t, 0);
      if constexpr (kPairs) {
        row.store_chunk_codes(k, mine,
                              {{out[j][0], out[j][1]},
                               {out[j + 1][0], out[j + 1][1]},
                               {out[j + 2][0], out[j + 2][1]},
                               {out[j + 3][0], out[j + 3][1]}});
      } else {
        row.template store_codes<InputType::kMxfp8>(k, 16, mine,
                                                    {out[j][0], out[j + 1][0], out[j][1], out[j + 1][1], out[j + 2][0],
                                                     out[j + 3][0], out[j + 2][1], out[j + 3][1]});
      }
    }
    return;
  }
  if (!mine) return;
  if (args.rounded.at == nullptr) {
    float* const to = args.out + (token * args.heads + query_head) * kHeadDim;
#pragma unroll
    for (int j = 0; j < kDimTiles; ++j) {
      if constexpr (kPairs) {
        *reinterpret_cast<float2*>(to + Kv::out_dim(j, t, 0)) = {out[j][0], out[j][1]};
      } else {
        for (int i = 0; i < 2; ++i) to[Kv::out_dim(j, t, i)] = out[j][i];
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kDimTiles; j += kPairs ? 4 : 2) {
    const int k = query_head * kHeadDim + Kv::out_dim(j, t, 0);
    if constexpr (kPairs) {
      row.store_chunk(k, {row.pack(out[j][0], out[j][1]), row.pack(out[j + 1][0], out[j + 1][1]),
                          row.pack(out[j + 2][0], out[j + 2][1]), row.pack(out[j + 3][0], out[j + 3][1])});
    } else {
      for (int i = 0; i < 2; ++i) row.store2(k + 2 * i, out[j][i], out[j + 1][i]);
    }
  }
}

// Scores are kept as log2: softmax takes 2^x.
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kScoreScale = 0.125f * kLog2E;  // 1 / sqrt(kHeadDim)
static_assert(kHeadDim == 64);

// Which keys a thread helps to copy: [first, first + kKeys), by `threads` threads, this one the `own`-th.
struct AttendCopy {
  uint32_t shared;
  int first, own, threads;
};

// Keys, then values. `row`: first's row among all pages' rows. What lies outside `visible` becomes zero: perhaps
// nobody has written it.
template <class Kv, int kKeys>
__device__ __forceinline__ void copy_keys(const FlashArgs& args, int64_t row, const KeyRange& visible,
                                          const AttendCopy& to) {
  static_assert(kPageTokens % kKeys == 0, "the keys lie in one page");
  const auto* keys = static_cast<const uint8_t*>(args.keys) + row * Kv::kRowBytes;
  const auto* values = static_cast<const uint8_t*>(args.values) + row * Kv::kRowBytes;
#pragma unroll 4
  for (int at = to.own; at < kKeys * Kv::kChunks; at += to.threads) {
    const int key = at / Kv::kChunks;
    const bool seen = to.first + key >= visible.first && to.first + key <= visible.last;
    const auto fill = seen ? ptx::Fill::kCopy : ptx::Fill::kZero;
    const uint32_t place = to.shared + Kv::chunk_at(key, at % Kv::kChunks);
    ptx::async_copy16(place, keys + at * 16, fill);
    ptx::async_copy16(place + kKeys * Kv::kRowBytes, values + at * 16, fill);
  }
}

}  // namespace nibble::backend::cuda

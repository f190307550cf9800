#pragma once
// Keys and values on their way to shared memory, and results on theirs out of an mma. In shared memory rows keep the
// pages' order and their chunks of 16 bytes are swizzled (PageRow chunk_at), so that ldmatrix meets no bank conflict.

#include "backend/kv_dtype.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/attention/page_rows.cuh"
#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "base/dtype.h"

namespace nibble::backend::cuda {

inline constexpr int kAttendLanes = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffu;
// Queries of any type, two consecutive dimensions at a time.
__device__ __forceinline__ float2 load_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }

// A head's result: those dimensions of it that an mma leaves the lane, of its row lane / 4 or the one 8 below. All
// lanes of the warp together; a quad whose row is not asked for is not `mine`.
template <class Kv>
__device__ __forceinline__ void store_head(const AttentionArgs& args, bool mine, int64_t token, int query_head,
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
      if constexpr (kPairs)
        *reinterpret_cast<float2*>(to + Kv::out_dim(j, t, 0)) = {out[j][0], out[j][1]};
      else
        for (int i = 0; i < 2; ++i) to[Kv::out_dim(j, t, i)] = out[j][i];
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

// Pages of e4m3 in a step whose attention is in FP8: queries and weights are rounded as backend/kv_dtype.h
// says, and the queries' scale comes after the products.
struct Fp8Row : PageRow<KvDtype::kE4m3> {
  static constexpr bool kRounds = true;
};
template <class Kv>
inline constexpr bool kRoundsOperands = requires { Kv::kRounds; };

// Which keys a thread helps to copy: [first, first + kKeys), by `threads` threads, this one the `own`-th.
struct AttendCopy {
  uint32_t shared;
  int first, own, threads;
};

// Keys, then values. `row`: first's row among all pages' rows. What lies outside `visible` becomes zero: perhaps
// nobody has written it.
template <class Kv, int kKeys>
__device__ __forceinline__ void copy_keys(const AttentionArgs& args, int64_t row, const KeyRange& visible,
                                          const AttendCopy& to) {
  static_assert(kPageTokens % kKeys == 0, "the keys lie in one page");
  const auto* keys = static_cast<const uint8_t*>(args.kv.keys) + row * rows_bytes<Kv>(1);
  const auto* values = static_cast<const uint8_t*>(args.kv.values) + row * rows_bytes<Kv>(1);
#pragma unroll 4
  for (int at = to.own; at < kKeys * Kv::kChunks; at += to.threads) {
    const int key = at / Kv::kChunks;
    const bool seen = to.first + key >= visible.first && to.first + key <= visible.last;
    const auto fill = seen ? ptx::Fill::kCopy : ptx::Fill::kZero;
    const uint32_t place = to.shared + Kv::chunk_at(key, at % Kv::kChunks);
    ptx::async_copy16(place, keys + at * 16, fill);
    ptx::async_copy16(place + rows_bytes<Kv>(kKeys), values + at * 16, fill);
  }
}

}  // namespace nibble::backend::cuda

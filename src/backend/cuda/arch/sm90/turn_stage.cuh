#pragma once
// What sm90_dense_gemm's rings hold where sums are turned: the rope table and the slots of a work's tokens.

#include "backend/cuda/dense/gemm_weights.cuh"
#include "backend/cuda/attention/head_quads.cuh"
#include "backend/cuda/ptx/async_copy.cuh"

namespace nibble::backend::cuda {

// The stage behind a work's where sums are turned: what goes with its tokens, 32 cosines and as many sines each, then
// the slots. 16 bytes of a token lie where lanes that read eight dimensions of four tokens meet no bank twice.
template <class Tile>
struct TurnStage {
  static constexpr int kBytes = 2 * kHalfHead * 4, kChunks = kBytes / 16;  // of a token
  static_assert(Tile::kTokens * (kBytes + 4) <= Tile::kStageBytes && Tile::kCopiers % kChunks == 0);
  __device__ static uint32_t chunk(int token, int i) {
    return static_cast<uint32_t>(token * kBytes + (i ^ token % 8) * 16);
  }
  __device__ static uint32_t cosine(int token, int d) { return chunk(token, d / 4) + static_cast<uint32_t>(d % 4 * 4); }
  __device__ static uint32_t slot(int token) { return static_cast<uint32_t>(Tile::kTokens * kBytes + token * 4); }

  __device__ __forceinline__ static void copy(const RopeSumsArgs& rope, const GemmWork& work, uint32_t stage,
                                              int thread) {
    const int i = thread % kChunks;
    const float* from = (i < kChunks / 2 ? rope.cosine : rope.sine) + i % (kChunks / 2) * 4;
#pragma unroll 1
    for (int token = thread / kChunks; token < work.count; token += Tile::kCopiers / kChunks)
      ptx::async_copy16(stage + chunk(token, i), from + int64_t{work.first + token} * kHalfHead, ptx::Fill::kCopy);
#pragma unroll 1
    for (int token = thread; token < work.count; token += Tile::kCopiers)
      ptx::async_copy4(stage + slot(token), rope.kv_slots + work.first + token);
  }
};

}  // namespace nibble::backend::cuda

#pragma once
// y = W·x for many tokens on wgmma, W packed bf16 or MXFP4 (widened to bf16 in registers, where it is exact), x bf16
// source: torch/model.py, Linear and MLPBlock; arguments: kernels/any/gemm_plan.h GemmArgs, with x and u bf16 whose
// blocks of 32 are in the order of layout/wgmma_b.h slot_of_k
// W    layout/packed.h, from L2 straight into registers as wgmma's A, one pair of 32-blocks ahead
// grid one CTA of two warpgroups per (8 tiles of 16 rows, 64 to 256 tokens), a warp per row tile; row blocks run
// fastest
//      x by cp.async in 4 stages of 64 k, 128-byte swizzle
// mma  wgmma m64nNk16: a pair's four run while the next pair's weights are widened into a second set of registers
// MXFP4: an e2m1 code moved to bits 15, 8..6 of a bf16 is that number times 2^-126; one multiplication by 2^(scale -
// 64)
//      makes it the weight times 2^-63, which the epilogue takes back. REQUIRES scale codes up to 191 (2^64); below 67
//      (2^-60) weights lose bits and below 60 become 0
// bytes, flops: cost()
// predicted (H200, 120b): 85 % of 800 TFLOP/s less the fill of 45 pairs per tile and the last wave: 600 TFLOP/s.
//      8192 tokens: gate_up 1.8 ms, down 0.9 ms, qkv 0.40 ms, o 0.32 ms. 2048 tokens (64 per expert): gate_up 0.6 ms
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other tokens

#include "backend/cuda/kernels/any/gemm_plan.h"
#include "backend/cuda/kernels/any/gemm_weights.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

template <layout::Packing kThePacking, int kTheTokens>
struct WgmmaTile {
  static constexpr layout::Packing kPacking = kThePacking;
  static constexpr int kTokens = kTheTokens;
  static constexpr int kThreads = 256;
  static constexpr int kColTiles = kTokens / 8;
  static constexpr int kStages = 4;
  static constexpr int kStageK = 2 * layout::kBlockK;
  static constexpr int kRowBytes = 2 * kStageK;
  static constexpr int kStageBytes = kTokens * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + layout::kAtomBytes;  // to align the ring
  static_assert(kRowBytes == layout::kAtomRowBytes && kStageBytes % layout::kAtomBytes == 0);
  static_assert(kGemmRowTiles == kThreads / layout::kWarpLanes, "a warp has one row tile");
  // The products are this power of two too small.
  static constexpr float kUnscale = kPacking == layout::Packing::kMxfp4 ? 0x1p63f : 1.0f;
};

__device__ __forceinline__ uint32_t bf16_pair_of_scale(uint32_t byte) {  // 2^(code - 64), byte = code + kScaleBias
  const uint32_t exponent = byte - layout::kScaleBias + 63;
  return exponent << 7 | exponent << 23;
}

// The A operands of a pair of blocks.
using PairOperand = uint32_t[4][4];

__device__ __forceinline__ void widen(WeightPair<layout::Packing::kBf16>& w, PairOperand& a) {
  for (int step = 0; step < 4; ++step)
    for (int i = 0; i < 4; ++i) a[step][i] = ptx::wgmma_operand(word_of(w.steps[step], i));
}

__device__ __forceinline__ void widen(WeightPair<layout::Packing::kMxfp4>& w, PairOperand& a) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t scale[2] = {bf16_pair_of_scale(w.scales & 0xffu), bf16_pair_of_scale(w.scales >> 16 & 0xffu)};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t half[4];
      w.a(step, half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // registers 1 and 3 are row + 8
        const uint32_t moved = (half[i] >> 3 & 0x01c001c0u) | (half[i] & 0x80008000u);
        a[2 * block + step][i] = ptx::mul_bf16x2(moved, scale[i % 2]);
      }
    }
    w.next_block();
  }
}

// A thread's share of the copies of x: one chunk of every 32nd token, to its swizzled place.
template <class Tile>
struct SwizzledCopy {
  static constexpr int kStep = Tile::kThreads / 8;  // tokens; a multiple of 8, so that a chunk's place only moves on
  static constexpr int kRows = Tile::kTokens / kStep;
  const uint16_t* x;
  uint32_t from[kRows];  // elements; check_args sees to the range
  uint32_t to;
  int count;

  __device__ SwizzledCopy(const GemmArgs& args, const GemmWork& work) : x(args.x), count(work.count) {
    const int token = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
    to = layout::swizzled_chunk(token, chunk);
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = token + i * kStep < count ? token_at(args, work, token + i * kStep) / args.x_share : 0;
      from[i] = static_cast<uint32_t>(row * args.cols + chunk * 8);
    }
  }
  // The pair's 64 k; always a group, so that counts stay true.
  __device__ void issue(uint32_t ring, int pair, int pairs) const {
    if (pair < pairs) {
      const uint32_t stage = ring + static_cast<uint32_t>(pair % Tile::kStages * Tile::kStageBytes) + to;
      const int token = static_cast<int>(threadIdx.x) / 8;
      for (int i = 0; i < kRows; ++i)
        ptx::async_copy16(stage + static_cast<uint32_t>(i * kStep * Tile::kRowBytes),
                          x + from[i] + pair * Tile::kStageK,
                          token + i * kStep < count ? ptx::Fill::kCopy : ptx::Fill::kZero);
    }
    ptx::async_commit();
  }
};

template <class Tile>
using WgmmaSums = float[Tile::kColTiles][4];

template <class Tile>
__device__ void store_rows(const GemmArgs& args, const GemmWork& work, int row_tile, const WgmmaSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto row = static_cast<int>(layout::source_row(args.order, row_tile, lane / 4 + 8 * half));
    const GemmPart part = part_of(args, row);
    const float bias = args.bias == nullptr ? 0.0f : args.bias[int64_t{work.expert} * args.rows + row].to_float();
#pragma unroll
    for (int n = 0; n < Tile::kColTiles; ++n) {
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * n + 2 * (lane % 4) + i;
        if (token >= work.count) continue;
        float& y = part.to[token_at(args, work, token) * part.rows + row - part.first_row];
        const float value = sums[n][2 * half + i] * Tile::kUnscale + bias;
        y = args.into == GemmInto::kAdd ? y + value : value;
      }
    }
  }
}

// Rows 0..7 of a tile are the gates of 8 channels, rows 8..15 their ups. Of two neighbour rows one lane stores both
// channels of the even column, the other of the odd one.
template <class Tile>
__device__ void store_gated(const GemmArgs& args, const GemmWork& work, int row_tile, const WgmmaSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, odd = g % 2;
  const int channel = row_tile * 8 + g - odd;
  const int place = channel / layout::kBlockK * layout::kBlockK + layout::slot_of_k(channel % layout::kBlockK);
  const Bf16* bias = args.bias + int64_t{work.expert} * args.rows + 2 * (row_tile * 8 + g);
  const float gate_bias = bias[0].to_float(), up_bias = bias[1].to_float();
#pragma unroll
  for (int n = 0; n < Tile::kColTiles; ++n) {
    float u[2];
    for (int i = 0; i < 2; ++i)
      u[i] =
          gated(sums[n][i] * Tile::kUnscale + gate_bias, sums[n][2 + i] * Tile::kUnscale + up_bias, args.swiglu_limit);
    const float other = __shfl_xor_sync(0xffffffffu, odd != 0 ? u[0] : u[1], 4);
    const int token = 8 * n + 2 * (lane % 4) + odd;
    if (token >= work.count) continue;
    const uint32_t two = odd != 0 ? ptx::pack_bf16(other, u[1]) : ptx::pack_bf16(u[0], other);
    *reinterpret_cast<uint32_t*>(args.u + token_at(args, work, token) * (args.rows / 2) + place) = two;
  }
}

template <class Tile, layout::RowOrder kOrder>
__global__ void __launch_bounds__(Tile::kThreads, 1) sm90_gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const GemmWork work = work_of(args, Tile::kTokens);
  if (work.count <= 0) return;
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const layout::Geometry geometry = layout::geometry(Tile::kPacking, args.cols);
  const int row_tiles = args.rows / layout::kTileRows, pairs = args.cols / Tile::kStageK;
  const int row_tile = work.first_row_tile + warp;  // one beyond the last is computed like it and not stored
  const uint8_t* tile =
      args.weights + (int64_t{work.expert} * row_tiles + min(row_tile, row_tiles - 1)) * geometry.tile_bytes;

  const uint32_t ring = (ptx::shared_address(smem) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes;
  const SwizzledCopy<Tile> copy(args, work);
  copy.issue(ring, 0, pairs);
  copy.issue(ring, 1, pairs);
  PairWalk<Tile::kPacking> walk(geometry);
  WeightPair<Tile::kPacking> w, ahead;
  ahead.load(tile, walk, lane);
  WgmmaSums<Tile> sums = {};
  PairOperand even, odd;  // wgmma reads one while the other is written
  const auto step = [&](int pair, PairOperand& a) {
    w = ahead;
    if (pair + 1 < pairs) walk.next();  // else the last again
    ahead.load(tile, walk, lane);
    ptx::async_wait<1>();
    ptx::wgmma_wait<1>();  // pair - 2 is done: its operand and its stage are free
    ptx::fence_async_proxy();
    __syncthreads();  // everybody's copies have landed, everybody's wgmmas of pair - 2 are done
    copy.issue(ring, pair + 2, pairs);
    widen(w, a);
    const uint32_t stage = ring + static_cast<uint32_t>(pair % Tile::kStages * Tile::kStageBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) ptx::wgmma_m64k16(sums, a[s], layout::matrix_descriptor(stage, s));
    ptx::wgmma_commit();
  };
  int pair = 0;
  for (; pair + 1 < pairs; pair += 2) {
    step(pair, even);
    step(pair + 1, odd);
  }
  if (pair < pairs) step(pair, even);
  ptx::wgmma_wait<0>();
#pragma unroll
  for (auto& tile_sums : sums) {
#pragma unroll
    for (float& sum : tile_sums) ptx::keep(sum);  // no use of them above the wait
  }
  ptx::async_wait<0>();
  if (row_tile >= row_tiles) return;
  if constexpr (kOrder == layout::RowOrder::kGateUp) {
    store_gated<Tile>(args, work, row_tile, sums);
  } else {
    store_rows<Tile>(args, work, row_tile, sums);
  }
}

}  // namespace nibble::backend::cuda

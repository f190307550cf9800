#pragma once
// y = W·x for many tokens, W packed bf16, MXFP8, MXFP4 or Q8_0 (exact: activations keep 16 bits)
// source: torch/model.py, Linear and MLPBlock; arguments: gemm_plan.h GemmArgs
// W    layout/packed.h     x  16 bits, [*, cols]     both by cp.async in stages of 32 or 64 k, in the order they lie in
// grid one CTA per (4 warps' rows, 64, 96 or 128 tokens); row blocks run fastest, so that a tile of tokens and
//      an expert's weights are read from DRAM once
// mma  m16n8k16, weights on the m side; a warp has 1 to 4 row tiles and up to 12 column tiles: as many as there are
//      tokens. A weight is widened by one warp, once per CTA
// MX   a scale that leaves every weight of its block an f16 number is multiplied into the weights (two at a time); a
//      stage with another scale is summed unscaled, scaled in f32 and added
// Q8_0 weights are rounded to bf16 as they are widened: the bits of a product of that matrix
// bytes, flops: testing/costs.h
// count (SASS of sm_90), instructions an mma: MXFP4 of 48 rows and 96 tokens 3.2, 64 tokens 4.0, of 32 rows 3.4
// and 4.3;
//      bf16 of 64 rows and 64 tokens 2.3. Cycles of shared memory an mma, of 6.4 that it takes an SM's quarter, at 64
//      tokens: MXFP4 of 48 rows 5.1, of 32 6.9; bf16 of 64 rows 5.5, of 48 6.3
// measured (H100 as sm_80, peak of mma.sync 635 TFLOP/s), 120b: experts 282 TFLOP/s at 2048 tokens, 360 at 8192; dense
//      247 to 298, before their early loads
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other tokens

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemm_tile.cuh"
#include "backend/cuda/ptx/mma.cuh"

#include <type_traits>

namespace nibble::backend::cuda {

template <class Tile>
using GemmSums = float[Tile::kRowTiles][Tile::kColTiles][4];

// A stage of the ring as a warp reads it.
template <class Tile>
struct StageView {
  uint32_t codes, scales, x;  // of the lane, at its first row tile and first token

  __device__ explicit StageView(uint32_t ring) {
    const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes,
              warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes, first = warp % Tile::kWarpsM * Tile::kRowTiles;
    codes = ring + static_cast<uint32_t>(first * Tile::kCodeBytes + lane * 16);
    scales = ring + static_cast<uint32_t>(Tile::kCodesBytes + (first * 8 + lane / 4) * (Tile::kScaleBytes / 8));
    x = ring + static_cast<uint32_t>(Tile::kWeightBytes) +
        Tile::chunk_place(warp / Tile::kWarpsM * Tile::kColTiles * 8 + lane / 4, lane % 4);
  }
  __device__ uint4 code(uint32_t stage, int row_tile, int at) const {
    return ptx::load_shared16(codes + stage + static_cast<uint32_t>(row_tile * Tile::kCodeBytes + at * 512));
  }
  __device__ auto scale(uint32_t stage, int row_tile) const {
    const uint32_t at = scales + stage + static_cast<uint32_t>(row_tile * Tile::kScaleBytes);
    if constexpr (Tile::kScaleBytes == 64)
      return ptx::load_shared8(at);
    else
      return ptx::load_shared4(at);
  }
  // The k of a block, of 8 tokens.
  __device__ uint4 input(uint32_t stage, int col_tile, int block) const {
    return ptx::load_shared16((x ^ static_cast<uint32_t>(block * 64)) + stage +
                              static_cast<uint32_t>(col_tile * 8 * Tile::kRowBytes));
  }
};

// A warp's weights of a block, as operands of the mma.
template <class Tile>
struct BlockWeights {
  uint32_t a[Tile::kRowTiles][2][4];
};

// A warp's weights of a stage: as they lie there, and the first block's as operands.
template <class Tile>
struct StageWeights {
  static constexpr int kWords4 = Tile::kCodeBytes / 512;
  uint4 codes[Tile::kRowTiles][kWords4];
  std::conditional_t<Tile::kPacking == layout::Packing::kQ8, uint2, uint32_t> scales[Tile::kRowTiles];
  bool fit = true;  // whether all scales may be multiplied into their weights
  BlockWeights<Tile> first;

  __device__ __forceinline__ void load(const StageView<Tile>& view, uint32_t stage) {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) {
      for (int i = 0; i < kWords4; ++i) codes[m][i] = view.code(stage, m, i);
      if constexpr (Tile::kScaleBytes > 0) scales[m] = view.scale(stage, m);
    }
    if constexpr (Tile::kMx) {
      uint32_t not_fit = 0;
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) not_fit |= scales_that_do_not_fit<Tile::kPacking>(scales[m]);
      fit = __all_sync(0xffffffffu, not_fit == 0) != 0;
    }
    widen_block(0, first);
  }
  // REQUIRES scales that fit, where the result is used.
  __device__ __forceinline__ void widen_block(int block, BlockWeights<Tile>& to) const {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) {
      if constexpr (Tile::kPacking == layout::Packing::kQ8) {
        for (int step = 0; step < 2; ++step) widen_q8(codes[m], scales[m], block, step, to.a[m][step]);
      } else if constexpr (!Tile::kMx) {
        for (int step = 0; step < 2; ++step)
          for (int i = 0; i < 4; ++i) to.a[m][step][i] = word_of(codes[m][step], i);
      } else {
        const uint32_t halves = scale_halves(scales[m]);
        const uint32_t low = scale_pair(halves, block), high = scale_pair(halves, block + 2);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          widen<Tile::kPacking>(codes[m], block, step, to.a[m][step]);
          for (int i = 0; i < 4; ++i) to.a[m][step][i] = ptx::multiply_f16(to.a[m][step][i], i % 2 == 0 ? low : high);
        }
      }
    }
  }
  // Zeros, whose scales fit.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) {
      for (int i = 0; i < kWords4; ++i) codes[m][i] = {};
      scales[m] = kScaleOfOne * 0x01010101u;
    }
    widen_block(0, first);
  }
};

// sums += a block's weights times its x. behind_loads runs when what is left needs nothing of the stage.
template <class Tile, int kCols, class BehindLoads>
__device__ __forceinline__ void multiply_block(const StageView<Tile>& view, uint32_t stage, int block,
                                               const BlockWeights<Tile>& w, GemmSums<Tile>& sums,
                                               const BehindLoads& behind_loads) {
  constexpr int kLate = Tile::kMx && kCols > 4 ? 4 : kCols > 2 ? 2 : 1;
  const auto add = [&](int n, const uint4& b) {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) Tile::mma(sums[m][n], w.a[m][0], b.x, b.y);
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) Tile::mma(sums[m][n], w.a[m][1], b.z, b.w);
  };
#pragma unroll
  for (int n = 0; n < kCols - kLate; ++n) add(n, view.input(stage, n, block));
  uint4 late[kLate];
#pragma unroll
  for (int i = 0; i < kLate; ++i) late[i] = view.input(stage, kCols - kLate + i, block);
  behind_loads();
#pragma unroll
  for (int i = 0; i < kLate; ++i) add(kCols - kLate + i, late[i]);
}

// Products of weights whose scales do not fit; rare, and so without registers of its own to speak of.
template <class Tile, int kCols>
__device__ __forceinline__ void multiply_unscaled(const StageView<Tile>& view, uint32_t stage,
                                                  const StageWeights<Tile>& w, GemmSums<Tile>& sums) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) {
      uint32_t a[2][4];
      for (int step = 0; step < 2; ++step) widen<Tile::kPacking>(w.codes[m], block, step, a[step]);
#pragma unroll
      for (int n = 0; n < kCols; ++n) {
        __syncwarp();  // one after the other
        const uint4 b = view.input(stage, n, block);
        float d[4] = {};
        Tile::mma(d, a[0], b.x, b.y);
        Tile::mma(d, a[1], b.z, b.w);
        for (int i = 0; i < 4; ++i) sums[m][n][i] += layout::scale_of(w.scales[m], block + i / 2 * 2) * d[i];
      }
    }
  }
}

// Adds a stage, whose weights are `w`. behind_loads may load the next one's.
template <class Tile, int kCols, class BehindLoads>
__device__ __forceinline__ void multiply_stage(const StageView<Tile>& view, uint32_t stage, StageWeights<Tile>& w,
                                               GemmSums<Tile>& sums, const BehindLoads& behind_loads) {
  if constexpr (Tile::kMx) {
    if (!w.fit) {
      multiply_unscaled<Tile, kCols>(view, stage, w, sums);
      w.clear();  // adds nothing below, so that the rare case is no second path for the common one's registers
    }
  }
  BlockWeights<Tile> last = w.first;
  if constexpr (Tile::kStageBlocks == 2) {
    w.widen_block(1, last);
    multiply_block<Tile, kCols>(view, stage, 0, w.first, sums, [] {});
  }
  multiply_block<Tile, kCols>(view, stage, Tile::kStageBlocks - 1, last, sums, behind_loads);
}

// All of K, for kCols column tiles.
template <class Tile, int kCols>
__device__ __forceinline__ void multiply(const GemmArgs& args, const GemmWork& work, uint32_t ring,
                                         GemmSums<Tile>& sums) {
  using Ring = Ring<Tile, kCols>;
  InputCopy<Tile> input(args, work);
  WeightCopy<Tile> weights(args, work);
  const StageView<Tile> view(ring);
  const int stages = args.cols / Tile::kStageK;
  const auto issue = [&](int i, uint32_t stage) {
    if (i < stages) {
      input.issue(ring + stage);
      weights.issue(ring + stage);
    }
    ptx::async_commit();  // always a group, so that counts stay true
  };
#pragma unroll 1
  for (int i = 0; i < Ring::kStages - 1; ++i) issue(i, static_cast<uint32_t>(i * Ring::kStageBytes));
  uint32_t read = 0, written = (Ring::kStages - 1) * Ring::kStageBytes;
  const auto next = [](uint32_t stage) {
    return stage == (Ring::kStages - 1) * Ring::kStageBytes ? 0 : stage + Ring::kStageBytes;
  };
  StageWeights<Tile> w;
  // The stage has landed, everybody's copies, and nobody reads the one before it any more.
  const auto open = [&](uint32_t stage) {
    ptx::async_wait<Ring::kStages - 2>();
    __syncthreads();
    w.load(view, stage);
  };
  if constexpr (Tile::kEarly) open(read);
#pragma unroll 1
  for (int i = 0; i < stages; ++i) {
    if constexpr (!Tile::kEarly) open(read);
    issue(i + Ring::kStages - 1, written);
    multiply_stage<Tile, kCols>(view, read, w, sums, [&] {
      if constexpr (Tile::kEarly) open(next(read));
    });
    written = next(written);
    read = next(read);
  }
  ptx::async_wait<0>();
}

// For as many column tiles as there are, in steps of Tile::kColStep.
template <class Tile, int kCols = Tile::kColStep>
__device__ __forceinline__ void multiply_columns(int cols, const GemmArgs& args, const GemmWork& work, uint32_t ring,
                                                 GemmSums<Tile>& sums) {
  if constexpr (kCols < Tile::kColTiles) {
    if (cols > kCols) return multiply_columns<Tile, kCols + Tile::kColStep>(cols, args, work, ring, sums);
  }
  multiply<Tile, kCols>(args, work, ring, sums);
}

// Sums of a lane: row lane / 4 + 8 (i / 2) of the tile, token 2 (lane % 4) + i % 2 of the column tile.
template <class Tile>
__device__ void store_rows(const GemmArgs& args, const GemmWork& work, int row_tile, const GemmSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int first = static_cast<int>(threadIdx.x) / layout::kWarpLanes / Tile::kWarpsM * Tile::kColTiles * 8;
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) {
    if ((row_tile + m) * layout::kTileRows >= args.rows) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = static_cast<int>(layout::source_row(args.order, row_tile + m, lane / 4 + 8 * half));
      const GemmPart part = part_of(args, row);
      const float bias = args.bias == nullptr ? 0.0f : args.bias[int64_t{work.expert} * args.rows + row].to_float();
#pragma unroll
      for (int n = 0; n < Tile::kColTiles; ++n) {
        for (int i = 0; i < 2; ++i) {
          const int token = first + 8 * n + 2 * (lane % 4) + i;
          if (token >= work.count) continue;
          part.to[token_at(args, work, token) * part.rows + row - part.first_row] = sums[m][n][2 * half + i] + bias;
        }
      }
    }
  }
}

// Rows 0..7 of a tile are the gates of 8 channels, rows 8..15 their ups: a lane holds both. Neighbour rows swap, so
// that a lane stores two channels of one token.
template <class Tile>
__device__ void store_gated(const GemmArgs& args, const GemmWork& work, int row_tile, const GemmSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, odd = g % 2;
  const int first = static_cast<int>(threadIdx.x) / layout::kWarpLanes / Tile::kWarpsM * Tile::kColTiles * 8;
  const int inter = args.rows / 2, width = layout::block_pair_width(inter);
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) {
    if ((row_tile + m) * layout::kTileRows >= args.rows) return;
    const int channel = (row_tile + m) * 8 + g;
    const Bf16* bias = args.bias + int64_t{work.expert} * args.rows + 2 * channel;
    const float gate_bias = bias[0].to_float(), up_bias = bias[1].to_float();
#pragma unroll
    for (int n = 0; n < Tile::kColTiles; ++n) {
      if (first + 8 * n >= work.count) break;
      float u[2];
      for (int i = 0; i < 2; ++i)
        u[i] = gated(sums[m][n][i] + gate_bias, sums[m][n][2 + i] + up_bias, args.swiglu_limit);
      const float other = __shfl_xor_sync(0xffffffffu, odd != 0 ? u[0] : u[1], 4);
      const int token = first + 8 * n + 2 * (lane % 4) + odd;
      if (token >= work.count) continue;
      const uint32_t two = odd != 0 ? ptx::pack_f16(other, u[1]) : ptx::pack_f16(u[0], other);
      auto* const to = reinterpret_cast<uint32_t*>(args.u + token_at(args, work, token) * width + channel - odd);
      *to = two;
      if (layout::fills_up(inter, channel)) to[layout::kBlockK / 2] = 0;
    }
  }
}

template <class Tile, layout::RowOrder kOrder>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtas) any_gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const GemmWork work = work_of(args, Tile::kTokens, Tile::kCtaRowTiles);
  if (work.count <= 0) return;
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int row_tile = work.first_row_tile + warp % Tile::kWarpsM * Tile::kRowTiles;
  GemmSums<Tile> sums = {};
  multiply_columns<Tile>((min(work.count, Tile::kColTiles * 8) + 7) / 8, args, work, ptx::shared_address(smem), sums);
  if constexpr (kOrder == layout::RowOrder::kGateUp) {
    store_gated<Tile>(args, work, row_tile, sums);
  } else if (Tile::kPacking == layout::Packing::kMxfp4 && args.y16 != nullptr) {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) {
      if ((row_tile + m) * layout::kTileRows >= args.rows) break;
      const RowBias bias(args.bias, int64_t{work.expert} * args.rows + (row_tile + m) * layout::kTileRows + lane / 4,
                         8);
      store_rows16({args.y16, args.rows, args.pairs}, work,
                   {row_tile + m, warp / Tile::kWarpsM * Tile::kColTiles * 8, 1.0f}, bias, sums[m]);
    }
  } else {
    store_rows<Tile>(args, work, row_tile, sums);
  }
}

}  // namespace nibble::backend::cuda

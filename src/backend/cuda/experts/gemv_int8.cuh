#pragma once
// y = W·x for up to 8 of an expert's pairs, W MXFP4, x int8     source: torch/model.py, MLPBlock
// arguments: experts.h     W: layout/mx_a_m16k32.h     x: round_blocks.h
// grid row tiles x tiles of pairs; 4 warps take the tile's slices in turn and add up their sums in shared memory
// dp4a on a lane's 8 k of rows g and g + 8 of a block; bytes of weights by layout/small_floats.h
// measured 2026-11-22 (H100, 120b, share of read bandwidth, the rounding before it included), gate_up: 1 token 18.0 us
//      (64 %), 8 98 us (85 %); down: 10.7 us (54 %), 52.7 us (79 %)
// bytes, flops: cost()     rounding: int32 within a block, f32 in the order of k, then over lanes and warps

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/quantise/round_blocks.h"
#include "backend/cuda/dense/row_warps.cuh"
#include "backend/cuda/layout/small_floats.h"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/convert.cuh"

namespace nibble::backend::cuda {

inline constexpr int kInt8Threads = kInt8Warps * layout::kWarpLanes;

// Codes of rows g and g + 8, four consecutive k.
struct Int8Codes {
  uint32_t row, row8;
  __device__ explicit Int8Codes(uint32_t word) {
    const layout::E2m1Pairs halves = layout::widen_e2m1x8(word);
    uint32_t bytes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      bytes[i] = ptx::fma_f16x2(halves.pair[i], layout::kInt8FromE2m1Factor, layout::kInt8FromE2m1Add);
    row = ptx::even_bytes(bytes[0], bytes[2]);
    row8 = ptx::even_bytes(bytes[1], bytes[3]);
  }
};

// sums[t] += the products of a block with row t's block of activations, for rows g and g + 8.
template <int kTokens>
__device__ __forceinline__ void multiply_block(const Int8Codes& low, const Int8Codes& high, const float (&scales)[2],
                                               const uint8_t* const (&x)[kTokens], int64_t at,
                                               float (&sums)[kTokens][2]) {
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const auto codes = *reinterpret_cast<const uint2*>(x[t] + at);
    const int64_t quarter = at % kInt8BlockBytes;
    const float scale = *reinterpret_cast<const float*>(x[t] + at - quarter + kInt8ScaleAt);
    sums[t][0] += scales[0] * scale *
                  static_cast<float>(ptx::dot_int8x4(high.row, codes.y, ptx::dot_int8x4(low.row, codes.x, 0)));
    sums[t][1] += scales[1] * scale *
                  static_cast<float>(ptx::dot_int8x4(high.row8, codes.y, ptx::dot_int8x4(low.row8, codes.x, 0)));
  }
}

// How int8 tiles are cut; kTheShort: the first slice may lack pairs (layout::slices_of).
template <int kTheBlocks, bool kTheShort = false>
struct Int8Tile {
  static constexpr int kBlocks = kTheBlocks;
  static constexpr bool kShort = kTheShort;
};

// A warp's slices of a row tile, of which the first lacks `missing` pairs.
template <class Tile, int kTokens>
__device__ __forceinline__ void multiply_slices(const uint8_t* tile, int slices, int missing,
                                                const uint8_t* const (&x)[kTokens], float (&sums)[kTokens][2]) {
  constexpr int kBlocks = Tile::kBlocks;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  for (int slice = static_cast<int>(threadIdx.x) / layout::kWarpLanes; slice < slices; slice += kInt8Warps) {
    const uint8_t* from = tile + int64_t{slice} * layout::slice_bytes(kBlocks);
    int first = 0;  // pair
    if constexpr (Tile::kShort) {
      from -= missing * layout::kBlockPairBytes;
      first = slice == 0 ? missing : 0;
    }
    uint4 codes[kBlocks / 2] = {};
    uint32_t scales[kBlocks / 2] = {};
#pragma unroll
    for (int q = 0; q < kBlocks / 2; ++q) {
      if (Tile::kShort && q < first) continue;
      codes[q] = *reinterpret_cast<const uint4*>(from + layout::code_offset(q, lane));
      scales[q] = *reinterpret_cast<const uint32_t*>(from + layout::scale_word_offset(kBlocks, lane / 4, q));
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (Tile::kShort && b / 2 < first) continue;
      const uint4& pair = codes[b / 2];
      const float of_rows[2] = {layout::scale_of(scales[b / 2], b % 2), layout::scale_of(scales[b / 2], 2 + b % 2)};
      const int64_t at =
          (int64_t{slice} * kBlocks + b - (Tile::kShort ? 2 * missing : 0)) * kInt8BlockBytes + lane % 4 * 8;
      multiply_block<kTokens>(Int8Codes(b % 2 == 0 ? pair.x : pair.z), Int8Codes(b % 2 == 0 ? pair.y : pair.w), of_rows,
                              x, at, sums);
    }
  }
}

// What the two products do around the loop. finish: one of the tile's results, `of(row)` their sums.
struct Int8UpOp {
  using Args = GroupedUp::Args;
  static constexpr int kResults = layout::kTileRows / 2;  // of a tile and pair
  const Args& a;
  __device__ int cols() const { return a.hidden; }
  __device__ const F16* row(int pair) const { return a.x + int64_t{pair / a.groups.topk} * a.hidden; }
  template <class Sum>
  __device__ void finish(int expert, int pair, int i, const Sum& of) const {
    const int channel = static_cast<int>(blockIdx.x) * kResults + i;
    const Bf16* bias = a.bias + (int64_t{expert} * a.inter + channel) * 2;
    store_channel(a.u, pair, a.inter, channel,
                  swiglu_f16(of(i) + bias[0].to_float(), of(i + 8) + bias[1].to_float(), a.swiglu_limit));
  }
};
struct Int8DownOp {
  using Args = GroupedDown::Args;
  static constexpr int kResults = layout::kTileRows;
  const Args& a;
  __device__ int cols() const { return a.inter; }
  __device__ const F16* row(int pair) const { return a.u + int64_t{pair} * a.inter; }
  template <class Sum>
  __device__ void finish(int expert, int pair, int i, const Sum& of) const {
    const int64_t r = int64_t{blockIdx.x} * kResults + i;
    a.y[int64_t{pair} * a.hidden + r] = of(i) + a.bias[int64_t{expert} * a.hidden + r].to_float();
  }
};

template <class Tile, int kTokens, class Op>
__device__ void multiply_tile_int8(const Op& op, const ExpertTile& group, float* shared) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes,
            warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int* pairs = op.a.groups.pairs + group.first;
  const uint8_t* x[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) x[t] = reinterpret_cast<const uint8_t*>(op.row(pairs[min(t, group.count - 1)]));
  constexpr int kSliceK = Tile::kBlocks * layout::kBlockK;
  const int slices = (op.cols() + (Tile::kShort ? kSliceK - 1 : 0)) / kSliceK;
  const int missing = Tile::kShort ? (slices * kSliceK - op.cols()) / (2 * layout::kBlockK) : 0;
  const int64_t tile = int64_t{group.expert} * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  float sums[kTokens][2] = {};
  const int tile_bytes = slices * layout::slice_bytes(Tile::kBlocks) - missing * layout::kBlockPairBytes;
  multiply_slices<Tile, kTokens>(op.a.weights + tile * tile_bytes, slices, missing, x, sums);
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    for (int half = 0; half < 2; ++half) {
      float sum = sums[t][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (lane % 4 == 0) shared[(warp * kTokens + t) * layout::kTileRows + lane / 4 + 8 * half] = sum;
    }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < group.count * Op::kResults; i += kInt8Threads) {
    const int t = i / Op::kResults;
    op.finish(group.expert, pairs[t], i % Op::kResults, [&](int row) {
      float sum = 0;
      for (int w = 0; w < kInt8Warps; ++w) sum += shared[(w * kTokens + t) * layout::kTileRows + row];
      return sum * layout::kE2m1FromInt8;
    });
  }
}

template <class Tile, class Op>
__global__ void __launch_bounds__(kInt8Threads) any_gemv_int8(const __grid_constant__ typename Op::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (static_cast<int>(blockIdx.y) >= args.groups.tile_counts[0]) return;
  const ExpertTile group = args.groups.tiles[blockIdx.y];
  const Op op{args};
  auto* const shared = reinterpret_cast<float*>(smem);
  if (group.count == 1) {
    multiply_tile_int8<Tile, 1>(op, group, shared);
  } else if (group.count == 2) {
    multiply_tile_int8<Tile, 2>(op, group, shared);
  } else if (group.count <= 4) {
    multiply_tile_int8<Tile, 4>(op, group, shared);
  } else {
    multiply_tile_int8<Tile, 8>(op, group, shared);
  }
}
inline constexpr int kInt8SharedBytes = kInt8Warps * kMoeTileTokens * layout::kTileRows * 4;

}  // namespace nibble::backend::cuda

#pragma once
// y = W·x for many tokens on wgmma: W and x in bf16; and what it shares with mxfp4_gemm.cuh
// source: torch/model.py, Linear; arguments: kernels/any/gemm_plan.h GemmArgs
// W    layout/packed.h     x  layout/wgmma_b.h panels
// grid one CTA per SM takes every gridDim.x-th work: 12 or 16 tiles of 16 rows, up to kTokens tokens; row blocks run
//      fastest, so that a tile of tokens is read from DRAM once
// warps three warpgroups with a row tile per warp, or two with two, multiply and store; one more copies x and weights
//      (64 k a stage) into two rings, on into the next work
// mma  wgmma, weights from registers, as wide as the tokens need
// bytes, flops: cost()
// bounds an SM gets 31 bytes a cycle from L2
// measured 2026-11-22 H100: qkv 93 to 96 us of 2048 tokens (116 with 192 rows), 346 to 360 of 8192 (408)
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other tokens

#include "backend/cuda/kernels/any/gemm_plan.h"
#include "backend/cuda/kernels/any/gemm_weights.cuh"
#include "backend/cuda/kernels/sm90/gemm_rings.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/register_count.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

// The A operands of a pair of blocks.
using PairOperand = uint32_t[4][4];
// Behind the wait for the wgmmas that read them: for the compiler they end with the instruction, and their registers
// would be written while the tensor cores still read them.
__device__ __forceinline__ void keep(PairOperand& a) {
#pragma unroll
  for (auto& step : a) {
#pragma unroll
    for (uint32_t& word : step) ptx::keep(word);
  }
}

// A row tile's weights of a pair, from the stage that holds its slice. widen makes the operands, in registers that no
// wgmma reads.
template <layout::Packing kPacking>
struct StagedPair;

template <>
struct StagedPair<layout::Packing::kMxfp4> {
  static constexpr ptx::WgmmaType kType = ptx::WgmmaType::kF16;
  // A scale's f16 exponent is its stored byte less kOffset: 30 for the largest code.
  static constexpr uint32_t kOffset = layout::kMaxWgmmaScaleCode + layout::kScaleBias - 30;
  static constexpr float kUnscale = 0x1p3f;  // the products are this power of two too small
  static_assert(kOffset == 127 - 12);        // 2^12: what kScaleBias, f16's bias of 15 and kUnscale leave
  uint4 codes;
  uint32_t scales;
  __device__ void load(uint32_t at_codes, uint32_t at_scales) {
    codes = ptx::load_shared16(at_codes);
    scales = ptx::load_shared4(at_scales);
  }
  __device__ void widen(PairOperand& a) const {
    constexpr uint32_t kBytes = 0x00ff00ffu, kOffsets = kOffset * 0x00010001u;
#pragma unroll
    for (int block = 0; block < 2; ++block) {  // bytes: row of blocks 0 and 1, row + 8 of both
      const uint32_t stored = (block == 0 ? scales : scales >> 8) & kBytes;
      const uint32_t both = (ptx::max_u16x2(stored, kOffsets) << 10) - (kOffsets << 10);  // what is too small becomes 0
      const uint32_t scale[2] = {ptx::low_halves(both), ptx::high_halves(both)};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const layout::E2m1Pairs pairs = layout::widen_e2m1x8(word_of(codes, 2 * block + step));
#pragma unroll
        for (int i = 0; i < 4; ++i)  // registers 1 and 3 are row + 8
          a[2 * block + step][i] = ptx::mul_f16x2(pairs.pair[i], scale[i % 2]);
      }
    }
  }
};

template <>
struct StagedPair<layout::Packing::kBf16> {
  static constexpr ptx::WgmmaType kType = ptx::WgmmaType::kBf16;
  static constexpr float kUnscale = 1.0f;
  uint32_t from;
  __device__ void load(uint32_t at) { from = at; }
  __device__ void widen(PairOperand& a) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint4 words = ptx::load_shared16(from + static_cast<uint32_t>(step * layout::kStepBytes));
      for (int i = 0; i < 4; ++i) a[step][i] = word_of(words, i);
    }
  }
};

// All works, by number: row blocks run fastest.
struct WorkList {
  const ExpertTile* tiles;
  int tokens, tile_tokens, row_tiles, blocks, count;

  __device__ WorkList(const GemmArgs& args, int tokens_of_tile, int row_tiles_of_tile)
      : tiles(args.tiles),
        tokens(args.tokens),
        tile_tokens(tokens_of_tile),
        row_tiles(row_tiles_of_tile),
        blocks((args.rows / layout::kTileRows + row_tiles - 1) / row_tiles),
        count(blocks * (tiles == nullptr ? (tokens + tile_tokens - 1) / tile_tokens : *args.tile_count)) {}
  __device__ GemmWork at(int work) const {
    const int tile = work / blocks, first = tile * tile_tokens, row_tile = work % blocks * row_tiles;
    if (tiles == nullptr) return {0, first, min(tile_tokens, tokens - first), row_tile};
    const ExpertTile group = tiles[tile];
    return {group.expert, group.first, group.count, row_tile};
  }
};

// The warps that copy, 8 lanes a row tile of weights, and the last one x: all that their CTA multiplies, in order. In
// panels x is long aligned copies; pieces of MXFP4 are aligned to 32 bytes only: bulk copies of them reach 8 bytes a
// cycle (H200), these do not mind.
template <class Tile>
__device__ __forceinline__ void copy_operands(const GemmArgs& args, const WorkList& list,
                                              const GemmRings<Tile>& rings) {
  const int thread = static_cast<int>(threadIdx.x) - Tile::kConsumers, first = thread % 8 * 16;  // bytes
  const bool weights = thread < Tile::kWeightCopiers, inputs = thread >= Tile::kCopiers - layout::kWarpLanes;
  const bool leads = thread == Tile::kCopiers - layout::kWarpLanes;  // of all that copies x
  const int row_tiles = args.rows / layout::kTileRows;
  const layout::Geometry geometry = layout::geometry(Tile::kPacking, args.cols);
  for (int i = 0; weights && i < Tile::kHeldWeights; ++i) ptx::mbarrier_arrive(rings.weight_full(i));
  for (int i = 0; leads && i < Tile::kHeldInputs; ++i) ptx::mbarrier_arrive(rings.input_full(i));
  RingPlace<Tile::kWeightStages> weight{Tile::kHeldWeights};
  RingPlace<Tile::kInputStages> input{Tile::kHeldInputs};
  for (int i = static_cast<int>(blockIdx.x); i < list.count; i += static_cast<int>(gridDim.x)) {
    const GemmWork work = list.at(i);
    // A row tile beyond the last is a copy of it, and not stored.
    const int row_tile = min(work.first_row_tile + thread / 8, row_tiles - 1);
    const uint8_t* tile = args.weights + (int64_t{work.expert} * row_tiles + row_tile) * geometry.tile_bytes;
    const uint16_t* x = args.x + int64_t{work.first} * layout::kPanelK;
    const auto bytes =
        static_cast<uint32_t>((work.count + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomBytes);
    PairWalk<Tile::kPacking> walk(geometry);
    for (int pair = 0; pair < args.cols / layout::kPanelK; ++pair, walk.next()) {
      if (weights) {
        ptx::mbarrier_wait(rings.weight_empty(weight.stage), weight.parity ^ 1u);
        const uint32_t to = rings.weight_stage(weight.stage) + static_cast<uint32_t>(thread / 8 * geometry.piece_bytes);
#pragma unroll 1
        for (int at = first; at < geometry.piece_bytes; at += layout::kAtomRowBytes)
          ptx::async_copy16(to + static_cast<uint32_t>(at), tile + walk.offset() + at, ptx::Fill::kCopy);
        ptx::mbarrier_arrive_behind_copies(rings.weight_full(weight.stage));
        weight.next();
      }
      if (!inputs) continue;
      ptx::mbarrier_wait(rings.input_empty(input.stage), input.parity ^ 1u);
      if (leads) {
        ptx::mbarrier_arrive_expect_tx(rings.input_full(input.stage), bytes);
        ptx::bulk_copy(rings.input_stage(input.stage), x + int64_t{pair} * args.x_rows * layout::kPanelK, bytes,
                       rings.input_full(input.stage));
      }
      input.next();
    }
  }
  ptx::async_wait<0>();
}

template <class Tile>
using WgmmaSums = float[Tile::kTokens / 8][4];

// Of what all lanes of a warp know: the vote tells ptxas that the warp goes one way, and descriptors stay in uniform
// registers.
__device__ __forceinline__ bool all_lanes(bool condition) { return __any_sync(0xffffffffu, condition); }

// sums += a · the columns of `count` tokens, as a group that is under way on return. ptxas overlaps wgmmas only so: the
// branch here, around the smallest piece (loops of several widths get registers of their own each), with its fence and
// its commit, and all widths from the first sums on (else C7510 to C7520).
template <class Tile, int kWidth = wgmma_width(Tile::kTokens, 1)>
__device__ __forceinline__ void multiply_tokens(int count, WgmmaSums<Tile>& sums, const PairOperand& a,
                                                uint32_t stage) {
  if (kWidth == Tile::kTokens || all_lanes(count <= kWidth)) {
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      ptx::wgmma_m64k16<StagedPair<Tile::kPacking>::kType>(reinterpret_cast<float(&)[kWidth / 8][4]>(sums), a[s],
                                                           layout::matrix_descriptor(stage, s));
    ptx::wgmma_commit();
    return;
  }
  if constexpr (kWidth < Tile::kTokens)
    multiply_tokens<Tile, wgmma_width(Tile::kTokens, kWidth + 1)>(count, sums, a, stage);
}

// One of a warp's two operands: wgmma reads one while the other is written.
struct HeldOperand {
  PairOperand a = {};
  uint32_t held = 0;  // the barrier for full of the stage of x that wgmma is done with when it is done with a
};

// The warps that multiply: where they are in the rings. A warp has the CTA's row tile `warp`, and its operands are
// those of even and odd pairs; or it has row tiles `warp` and warp + kWarps, and an operand for each.
template <class Tile>
struct GemmConsumer {
  using WarpSums = WgmmaSums<Tile>[Tile::kWarpTiles];
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const uint32_t apart, own_weights;  // bytes between the warp's row tiles in a stage of weights; the lane's there
  RingCursor<Tile::kInputStages, Tile::kInputBytes> input;
  RingCursor<Tile::kWeightStages, Tile::kWeightBytes> weight;
  uint32_t held_weights;  // as HeldOperand's
  uint32_t weights = 0;   // of the pair
  HeldOperand even, odd;

  __device__ GemmConsumer(const GemmRings<Tile>& rings, const layout::Geometry& geometry)
      : apart(static_cast<uint32_t>(Tile::kWarps * geometry.piece_bytes)),
        own_weights(static_cast<uint32_t>(warp * geometry.piece_bytes + lane * layout::kLaneBytes)),
        input(rings.input_stage(0), rings.input_full(0), Tile::kHeldInputs),
        weight(rings.weight_stage(0), rings.weight_full(0), Tile::kHeldWeights),
        held_weights(rings.weight_full(0)) {
    even.held = rings.input_full(0);
    odd.held = rings.input_full(Tile::kHeldInputs - 1);
  }

  // Gives the last stage of weights back and takes the next.
  __device__ __forceinline__ void next_weights() {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(decltype(weight)::empty(held_weights));
    held_weights = weight.full;
    ptx::mbarrier_wait(weight.full, weight.parity);
    weights = weight.stage + own_weights;
    weight.next();
  }

  // One pair of the warp's row tile `own`: sums += its weights · its columns, under way on return.
  __device__ __forceinline__ void step(int count, int own, HeldOperand& operand, WarpSums& sums) {
    const bool first = own == 0, last = own == Tile::kWarpTiles - 1;
    if (first) next_weights();
    StagedPair<Tile::kPacking> staged;
    staged.load(weights + static_cast<uint32_t>(own) * apart);
    ptx::wgmma_wait<1>();  // the operand's last wgmmas are done: it is free, and so is their stage when all rows are
    keep(operand.a);
    if (last) {
      if (lane == 0) ptx::mbarrier_arrive(decltype(input)::empty(operand.held));
      operand.held = input.full;
    }
    staged.widen(operand.a);
    if (first) ptx::mbarrier_wait(input.full, input.parity);
    multiply_tokens<Tile>(count, sums[own], operand.a, input.stage);
    if (last) input.next();
  }

  __device__ __forceinline__ void multiply(int count, int pairs, WarpSums& sums) {
    constexpr int kUnroll = 3 - Tile::kWarpTiles;  // pairs that use both operands
    int pair = 0;
    for (; pair + kUnroll <= pairs; pair += kUnroll) {
      step(count, 0, even, sums);
      step(count, Tile::kWarpTiles - 1, odd, sums);
    }
    if (pair < pairs) step(count, 0, even, sums);
    ptx::wgmma_wait<0>();
    keep(even.a);
    keep(odd.a);
#pragma unroll
    for (auto& tile_sums : sums) {
#pragma unroll
      for (auto& column : tile_sums) {
#pragma unroll
        for (float& sum : column) ptx::keep(sum);  // no use of them above the wait
      }
    }
  }
};

// Both rows of a lane lie in one part: check_args.
template <class Tile>
__device__ __forceinline__ void store_rows(const GemmArgs& args, const GemmWork& work, int row_tile,
                                           const WgmmaSums<Tile>& sums) {
  constexpr float kUnscale = StagedPair<Tile::kPacking>::kUnscale;
  // Of column tiles, whose rows are looked up together: one at a time would wait for each.
  constexpr int kBatch = Tile::kTokens == 64 ? 8 : 5;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const auto row = static_cast<int>(layout::source_row(args.order, row_tile, lane / 4));
  const int apart = static_cast<int>(layout::source_row(args.order, row_tile, lane / 4 + 8)) - row;
  const GemmPart part = part_of(args, row);
  float bias[2] = {};
  if (args.bias != nullptr)
    for (int half = 0; half < 2; ++half)
      bias[half] = args.bias[int64_t{work.expert} * args.rows + row + half * apart].to_float();
  auto* const to = reinterpret_cast<uint8_t*>(part.to + row - part.first_row);
  const int row_bytes = part.rows * 4;
#pragma unroll
  for (int from = 0; from < Tile::kTokens / 8; from += kBatch) {
    int to_row[2 * kBatch];
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      const int token = 8 * (from + i / 2) + 2 * (lane % 4) + i % 2;
      to_row[i] = work.first + token;
      if (args.pairs != nullptr && token < work.count) to_row[i] = args.pairs[work.first + token];
    }
#pragma unroll
    for (int i = 0; i < 2 * kBatch; ++i) {
      const int n = from + i / 2;
      if (8 * n + 2 * (lane % 4) + i % 2 >= work.count) continue;
      auto* const y = reinterpret_cast<float*>(to + int64_t{to_row[i]} * row_bytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) y[half * apart] = sums[n][2 * half + i % 2] * kUnscale + bias[half];
    }
  }
}

// Rows 0..7 of a tile are the gates of 8 channels, rows 8..15 their ups. Of two neighbour rows one lane stores both
// channels of the even column, the other of the odd one.
template <class Tile>
__device__ __forceinline__ void store_gated(const GemmArgs& args, const GemmWork& work, int row_tile,
                                            const WgmmaSums<Tile>& sums) {
  constexpr float kUnscale = StagedPair<Tile::kPacking>::kUnscale;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4, odd = g % 2;
  const int own = 2 * (lane % 4) + odd;  // of a column tile, the token that the lane stores
  uint16_t* const to = args.u + layout::place_in_panels(args.x_rows, work.first + own, row_tile * 8 + g - odd);
  const Bf16* bias = args.bias + int64_t{work.expert} * args.rows + 2 * (row_tile * 8 + g);
  const float gate_bias = bias[0].to_float(), up_bias = bias[1].to_float();
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n) {
    if (all_lanes(8 * n >= work.count)) break;
    float u[2];
    for (int i = 0; i < 2; ++i)
      u[i] = gated(sums[n][i] * kUnscale + gate_bias, sums[n][2 + i] * kUnscale + up_bias, args.swiglu_limit);
    const float other = __shfl_xor_sync(0xffffffffu, odd != 0 ? u[0] : u[1], 4);
    const uint32_t two = odd != 0 ? ptx::pack_f16(other, u[1]) : ptx::pack_f16(u[0], other);
    if (8 * n + own < work.count) *reinterpret_cast<uint32_t*>(to + n * (layout::kAtomBytes / 2)) = two;
  }
}

template <class Tile, layout::RowOrder kOrder>
__device__ __forceinline__ void store(const GemmArgs& args, const GemmWork& work, int row_tile,
                                      const WgmmaSums<Tile>& sums) {
  if constexpr (kOrder == layout::RowOrder::kGateUp) {
    store_gated<Tile>(args, work, row_tile, sums);
  } else if (Tile::kPacking == layout::Packing::kMxfp4 && args.y16 != nullptr) {
    store_rows16(args, work, {row_tile, 0, StagedPair<Tile::kPacking>::kUnscale}, sums);
  } else {
    store_rows<Tile>(args, work, row_tile, sums);
  }
}

template <class Tile, layout::RowOrder kOrder>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    sm90_gemm(const __grid_constant__ GemmArgs args, const int tile_tokens) {
  extern __shared__ __align__(128) uint8_t smem[];
  const GemmRings<Tile> rings(smem);
  if (threadIdx.x == 0) rings.init();
  __syncthreads();
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const WorkList list(args, tile_tokens, Tile::kRowTiles);
  if (threadIdx.x >= Tile::kConsumers) {
    ptx::give_registers_but<Tile::kProducerRegisters>();
    return copy_operands<Tile>(args, list, rings);
  }
  ptx::take_registers_up_to<Tile::kConsumerRegisters>();
  GemmConsumer<Tile> consumer(rings, layout::geometry(Tile::kPacking, args.cols));
  for (int i = static_cast<int>(blockIdx.x); i < list.count; i += static_cast<int>(gridDim.x)) {
    const GemmWork work = list.at(i);
    typename GemmConsumer<Tile>::WarpSums sums = {};
    consumer.multiply(work.count, args.cols / layout::kPanelK, sums);
#pragma unroll
    for (int own = 0; own < Tile::kWarpTiles; ++own) {
      const int row_tile = work.first_row_tile + own * Tile::kWarps + consumer.warp;
      if (all_lanes(row_tile < args.rows / layout::kTileRows)) store<Tile, kOrder>(args, work, row_tile, sums[own]);
    }
  }
}

}  // namespace nibble::backend::cuda

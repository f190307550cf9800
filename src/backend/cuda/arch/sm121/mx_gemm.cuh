#pragma once
// y = W·x for many tokens on block-scaled products: the dense layers, W in MXFP8 or MXFP4, x in MXFP8 (e4m3); a step's
// pairs by expert, W in MXFP4, x in MXFP8, MXFP6 (e2m3) or MXFP4
// source: torch/model.py Linear, MLPBlock, activations rounded (backend/activations.h); arguments: dense/gemm_plan.h
// W    layout/packed.h, from memory straight into registers, one pair of 32-blocks ahead: a byte is one warp's. MXFP4
//      is asked for a slice earlier still, into L2
// x, u layout/mx_b_n8k64.h rows; x is gathered by the copies, a row per token; u is rounded where it is made
// grid persistent: a CTA of 4 warps takes works of 8 tiles of 16 rows by up to 64 or 128 tokens in turn; row blocks run
//      fastest, so that a tile of tokens and an expert's weights are read from DRAM once. x by cp.async in 3 or 4
//      stages of 64 k; a work's scales at once
// mma  weights on the m side; a warp has 2 row tiles x all tokens, so that a fragment of x serves two mma and a weight
//      widens once; 32 tokens at a time, as many as the tile needs. m16n8k32 of MXFP4 weights as e5m2
//      (layout/small_floats.h) and of MXFP8 weights; m16n8k64 of MXFP4 weights with MXFP4 codes
// bytes, flops: testing/costs.h
// predicted for GB10 (cycles of an SM per 64 k of a work of 128 tokens): m16n8k32 1024 (16 each for a quarter of an
//      SM), m16n8k64 512; shared memory 320; widening 72 instructions of a warp beside 64 mma of MXFP4 weights, 16
//      beside 64 of MXFP8 ones, 120 beside 32 m16n8k64; weights 4.3 KB (MXFP8: 8.4), of which DRAM brings 2 bytes a
//      cycle: tiles of up to 128 tokens that nobody shares wait for memory
// registers and shared memory of each instance: arch/README.md; no spills: tools/check_spills.py,
//      tools/check_native.py
// rounding: f32 sums in the order of k; bitwise repeatable, whatever the other tokens

#include "backend/cuda/arch/sm121/mx_mma.h"
#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/dense/gemm_weights.cuh"
#include "backend/cuda/layout/small_floats.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

// Where a work's results go.
enum class MxResults : uint8_t {
  kGated,   // GemmArgs::u, in codes
  kRows16,  // GemmArgs::y16
  kRows,    // GemmArgs::sums or parts
};

template <layout::Packing kThePacking, InputType kTheCodes, int kTheTokens>
struct MxTile {
  static constexpr layout::Packing kPacking = kThePacking;
  static constexpr InputType kCodes = kTheCodes;
  static constexpr MxFormat kElement = element_of(kCodes);
  static constexpr bool kNibbles = kElement == MxFormat::kMxfp4;  // m16n8k64
  static constexpr int kTokens = kTheTokens;
  static constexpr int kRowTiles = kMxWarpRowTiles;  // of a warp
  static constexpr int kColTiles = kTokens / 8;
  static constexpr int kGroup = 4;  // column tiles that are multiplied or left out together
  static constexpr int kThreads = kMxThreads;
  static constexpr int kRowBytes = layout::mx_code_bytes(kElement, layout::kBlockPairK);  // of a stage
  static constexpr int kStageBytes = mx_stage_bytes(kCodes, kTokens);
  static constexpr int kStages = mx_stages(kCodes, kTokens);
  static constexpr int kRingBytes = kStages * kStageBytes;
  static_assert(kColTiles % kGroup == 0 && kStageBytes == kTokens * kRowBytes);
};

template <class Tile>
using MxSums = float[Tile::kRowTiles][Tile::kColTiles][4];

// A thread's share of the copies of x: 16 bytes of every kStep-th token, and some tokens' scales.
template <class Tile>
struct MxInputCopy {
  static constexpr int kChunks = Tile::kRowBytes / 16, kStep = Tile::kThreads / kChunks;  // tokens
  static constexpr int kRows = Tile::kTokens / kStep;
  static_assert(kRows * kStep == Tile::kTokens && Tile::kThreads % Tile::kTokens == 0);
  const uint8_t* x;
  uint32_t from[kRows];  // bytes; Sm121MxGemm::check sees to the range
  int token, chunk, count;

  __device__ MxInputCopy(const GemmArgs& args, const GemmWork& work)
      : x(reinterpret_cast<const uint8_t*>(args.x)),
        token(static_cast<int>(threadIdx.x) / kChunks),
        chunk(static_cast<int>(threadIdx.x) % kChunks),
        count(work.count) {
    for (int i = 0; i < kRows; ++i) from[i] = row_of(args, work, token + i * kStep) + static_cast<uint32_t>(chunk * 16);
  }
  // Where the row of the work's token starts; some row's beyond the last.
  __device__ static uint32_t row_of(const GemmArgs& args, const GemmWork& work, int token) {
    const int64_t row = token < work.count ? token_at(args, work, token) / args.x_share : 0;
    return static_cast<uint32_t>(row * layout::mx_row_bytes(Tile::kElement, args.cols));
  }
  // The pair's 64 k; always a group, so that counts stay true. What lies beyond the last token becomes 0.
  __device__ void issue(uint32_t ring, int pair, int pairs) const {
    if (pair < pairs) {
      const uint32_t stage =
          ring + static_cast<uint32_t>(pair % Tile::kStages * Tile::kStageBytes + token * Tile::kRowBytes + chunk * 16);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        ptx::async_copy16(stage + static_cast<uint32_t>(i * kStep * Tile::kRowBytes),
                          x + from[i] + pair * Tile::kRowBytes,
                          token + i * kStep < count ? ptx::Fill::kCopy : ptx::Fill::kZero);
    }
    ptx::async_commit();
  }
  // Copies the scales of all k, in the group of what is issued next.
  __device__ static void copy_scales(const GemmArgs& args, const GemmWork& work, uint32_t scales) {
    constexpr int kTogether = Tile::kThreads / Tile::kTokens;  // threads of a token
    const int own = static_cast<int>(threadIdx.x) / kTogether, bytes = layout::mx_scale_bytes(args.cols);
    const auto fill = own < work.count ? ptx::Fill::kCopy : ptx::Fill::kZero;
    const uint8_t* row = reinterpret_cast<const uint8_t*>(args.x) + row_of(args, work, own) +
                         layout::mx_scale_offset(Tile::kElement, args.cols, 0);
    for (int at = static_cast<int>(threadIdx.x) % kTogether * 16; at < bytes; at += kTogether * 16)
      ptx::async_copy16(scales + static_cast<uint32_t>(own * mx_scale_pitch(args.cols) + at), row + at, fill);
  }
};

// Bytes {row, block 0}, {row, block 1} of the row whose scale the lane has (layout::scale_lane_a).
__device__ __forceinline__ uint32_t own_scales(uint32_t word) { return threadIdx.x % 2 == 0 ? word : word >> 16; }

// A row tile's weights of a pair of blocks, as the instruction takes them.
template <class Tile, layout::Packing = Tile::kPacking>
struct MxOperand;

// MXFP4 as e5m2, or as the codes they are.
template <class Tile>
struct MxOperand<Tile, layout::Packing::kMxfp4> {
  static constexpr MxFormat kFormat = Tile::kNibbles ? MxFormat::kMxfp4 : MxFormat::kMxfp8E5m2;
  uint32_t a[2][4];  // of a block; of nibbles a[0] alone
  uint32_t scales;

  __device__ __forceinline__ explicit MxOperand(const WeightBlockPair<layout::Packing::kMxfp4>& w) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      layout::E5m2Registers step[2];
#pragma unroll
      for (int s = 0; s < 2; ++s) step[s] = layout::e5m2_of_e2m1x8(word_of(w.codes, 2 * block + s));
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if constexpr (Tile::kNibbles) {
          a[0][2 * block + row] = layout::nibbles_of(step[0].row[row], step[1].row[row]);
        } else {
          a[block][row] = step[0].row[row];
          a[block][2 + row] = step[1].row[row];
        }
      }
    }
    // The packed scales are 2^14 too large, which e5m2 undoes: of the codes themselves it is taken away.
    constexpr uint32_t kBias = 0x01010101u * layout::kScaleBias;
    scales = own_scales(Tile::kNibbles ? w.scales - kBias : w.scales);
  }
};

// MXFP8: a step's two words hold pairs of bytes of both rows, which go apart, in the order of layout::mx_byte_k.
template <class Tile>
struct MxOperand<Tile, layout::Packing::kMxfp8> {
  static constexpr MxFormat kFormat = MxFormat::kMxfp8E4m3;
  uint32_t a[2][4];  // of a block
  uint32_t scales;

  __device__ __forceinline__ explicit MxOperand(const WeightBlockPair<layout::Packing::kMxfp8>& w) {
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t first = word_of(w.codes[block], 2 * step), second = word_of(w.codes[block], 2 * step + 1);
        a[block][2 * step] = ptx::permute_bytes(first, second, layout::mx_word_bytes(0));
        a[block][2 * step + 1] = ptx::permute_bytes(first, second, layout::mx_word_bytes(1));
      }
    scales = own_scales(w.scales);
  }
};

// Where the tile's x lies.
struct MxStage {
  uint32_t codes, scales;  // of the stage; of the stage's pair of blocks, by mx_scale_pitch
  uint32_t pitch;
};

// sums += a pair of blocks of w times the columns of `count` tokens.
template <class Mma, class Tile>
__device__ __forceinline__ void multiply_pair(const MxStage& stage, int count,
                                              const WeightBlockPair<Tile::kPacking> (&w)[Tile::kRowTiles],
                                              MxSums<Tile>& sums) {
  using Operand = MxOperand<Tile>;
  constexpr MxFormat kA = Operand::kFormat, kB = Tile::kElement;
  const auto lane = static_cast<uint32_t>(threadIdx.x % layout::kWarpLanes), col = lane / 4;
  const Operand a[Tile::kRowTiles] = {Operand(w[0]), Operand(w[1])};
  static_assert(Tile::kRowTiles == 2);
#pragma unroll
  for (int group = 0; group < Tile::kColTiles; group += Tile::kGroup) {
    if (8 * group >= count) break;
#pragma unroll
    for (int n = group; n < group + Tile::kGroup; ++n) {
      const uint32_t token = col + static_cast<uint32_t>(8 * n);
      const uint32_t from = stage.codes + token * Tile::kRowBytes + lane % 4 * layout::mx_lane_bytes(kB);
      const uint32_t scales = ptx::load_shared2(stage.scales + token * stage.pitch);
      if constexpr (Tile::kNibbles) {
        const uint2 x = ptx::load_shared8(from);
        const uint32_t b[2] = {x.x, x.y};
#pragma unroll
        for (int m = 0; m < Tile::kRowTiles; ++m)
          Mma::template mma_k64<0, 0>(sums[m][n], a[m].a[0], b, a[m].scales, scales);
      } else {
        const uint4 x = ptx::load_shared16(from);
        const uint32_t b[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
        for (int m = 0; m < Tile::kRowTiles; ++m)
          Mma::template mma_k32<kA, kB, 0, 0>(sums[m][n], a[m].a[0], b[0], a[m].scales, scales);
#pragma unroll
        for (int m = 0; m < Tile::kRowTiles; ++m)
          Mma::template mma_k32<kA, kB, 1, 1>(sums[m][n], a[m].a[1], b[1], a[m].scales, scales);
      }
    }
  }
}

// swiglu of the warp's channels to shared memory: [token][kMxChannelPitch], f32. Rows 0..7 of a tile are the gates of 8
// channels, rows 8..15 their ups: a lane holds both.
template <class Tile>
__device__ __forceinline__ void leave_gated(const GemmArgs& args, const GemmWork& work, int row_tile, uint32_t to,
                                            const MxSums<Tile>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = lane / 4;
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) {
    const int own = min(row_tile + m, args.rows / layout::kTileRows - 1) * 8 + g;
    const RowBias bias(args.bias, int64_t{work.expert} * args.rows + 2 * own, 1);
    const int channel = (row_tile + m - work.first_row_tile) * 8 + g;
#pragma unroll
    for (int n = 0; n < Tile::kColTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float u = gated(sums[m][n][i] + bias.of(0), sums[m][n][2 + i] + bias.of(1), args.swiglu_limit);
        const int token = 8 * n + 2 * (lane % 4) + i;
        ptx::store_shared4(to + static_cast<uint32_t>(token * kMxChannelPitch + channel * 4), __float_as_uint(u));
      }
  }
}

// From there to u, rounded: eight channels of a token per thread, a block in four neighbour lanes.
template <class Mma, class Tile>
__device__ __forceinline__ void store_rounded(const GemmArgs& args, const GemmWork& work, uint32_t from) {
  constexpr int kEighths = kMxChannels / kEighth, kStep = Tile::kThreads / kEighths;  // of a token; tokens
  const int channel = static_cast<int>(threadIdx.x) % kEighths * kEighth, inter = args.rows / 2,
            width = layout::block_pair_width(inter);
  const int column = work.first_row_tile * layout::kTileRows / 2 + channel;
  for (int first = 0; first < work.count; first += kStep) {
    const int token = first + static_cast<int>(threadIdx.x) / kEighths;
    const uint32_t at = from + static_cast<uint32_t>(token * kMxChannelPitch + channel * 4);
    float v[kEighth];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint4 four = ptx::load_shared16(at + static_cast<uint32_t>(16 * q));
      for (int i = 0; i < 4; ++i) v[4 * q + i] = __uint_as_float(word_of(four, i));
    }
    if (column >= inter) {  // filled up
#pragma unroll
      for (float& value : v) value = 0;
    }
    const bool mine = token < work.count && column < width;
    const GemmInputRow to{{args.u, Tile::kCodes}, mine ? token_at(args, work, token) : 0, width};
    to.template store_codes<Tile::kCodes, Mma>(column, 4, mine, v);
  }
}

// A row tile as GemmArgs::sums: a word is two rows of a token, and of eight tokens a warp fills two lines.
template <class Tile>
__device__ __forceinline__ void store_sums(const GemmArgs& args, const GemmWork& work, int row_tile,
                                           const float (&sums)[Tile::kColTiles][4]) {
  constexpr int kWords = 64;  // of a row tile and eight tokens
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, own = 2 * (lane % 4);
  uint32_t* to = reinterpret_cast<uint32_t*>(args.sums) +
                 (int64_t{row_tile} * ((args.tokens + 7) / 8) + work.first / 8) * kWords + lane % 4 * 8 + lane / 4;
#pragma unroll
  for (int n = 0; n < Tile::kColTiles; ++n, to += kWords) {
    if (8 * n >= work.count) break;
#pragma unroll
    for (int i = 0; i < 2; ++i)  // tokens
      if (8 * n + own + i < work.count) to[i * (kWords / 2)] = ptx::pack_bf16(sums[n][i], sums[n][2 + i]);
  }
}

// A tile's rows in f32: GemmArgs::parts[0], which has all. A store has eight rows of four tokens: whole sectors.
template <class Tile>
__device__ __forceinline__ void store_rows32(const GemmArgs& args, const GemmWork& work, int row_tile,
                                             const float (&sums)[Tile::kColTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, row = row_tile * layout::kTileRows + lane / 4;
  const RowBias bias(args.bias, row, 8);
  float* const to = args.parts[0].to + int64_t{work.first} * args.rows + row;
#pragma unroll
  for (int n = 0; n < Tile::kColTiles; ++n) {
    if (8 * n >= work.count) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * n + 2 * (lane % 4) + i;
      float* const at = to + int64_t{token} * args.rows;
      if (token >= work.count) continue;
      at[0] = sums[n][i] + bias.of(0);
      at[8] = sums[n][2 + i] + bias.of(1);
    }
  }
}

// Tiles of tokens.
template <class Tile>
__device__ __forceinline__ int mx_tiles(const GemmArgs& args) {
  return args.tiles != nullptr ? *args.tile_count : (args.tokens + Tile::kTokens - 1) / Tile::kTokens;
}

// The grid's CTAs take works in turn, row blocks fastest; count 0: there is none.
template <class Tile>
__device__ __forceinline__ GemmWork mx_work(const GemmArgs& args, int tiles, int idx) {
  const int blocks = (args.rows / layout::kTileRows + kMxRowTiles - 1) / kMxRowTiles;
  const int own = idx / blocks, first_row_tile = idx % blocks * kMxRowTiles;
  if (own >= tiles) return {};
  if (args.tiles == nullptr)
    return {0, own * Tile::kTokens, min(Tile::kTokens, args.tokens - own * Tile::kTokens), first_row_tile};
  const ExpertTile tile = args.tiles[own];
  return {tile.expert, tile.first, tile.count, first_row_tile};
}

// A warp's row tiles. What lies beyond the last is computed like it and not stored.
template <class Tile>
struct MxRowTiles {
  const uint8_t* at[Tile::kRowTiles];
  __device__ MxRowTiles(const GemmArgs& args, const layout::Geometry& geometry, int expert, int row_tile) {
    const int row_tiles = args.rows / layout::kTileRows;
    for (int m = 0; m < Tile::kRowTiles; ++m)
      at[m] = args.weights + (int64_t{expert} * row_tiles + min(row_tile + m, row_tiles - 1)) * geometry.tile_bytes;
  }
  // The slice that starts at this byte of each, to L2. A pair ahead in registers is 8.7 KB of an SM, which two CTAs
  // ask for and await in turn: too little to keep memory busy. A line that two slices share is the later one's.
  __device__ void fetch(const layout::Geometry& geometry, int first) const {
    if constexpr (Tile::kPacking == layout::Packing::kMxfp4) {
      constexpr int kLine = 128, kLanes = layout::kWarpLanes / Tile::kRowTiles;
      static_assert(Tile::kRowTiles == 2);
      const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
      const int end = min(first + geometry.piece_bytes, static_cast<int>(geometry.tile_bytes));
#pragma unroll 1  // one round, of slices of 8 blocks two
      for (int byte = first + lane % kLanes * kLine; byte < end; byte += kLanes * kLine)
        ptx::prefetch_l2((lane < kLanes ? at[0] : at[1]) + byte);
    }
  }
};

template <class Mma, class Tile, MxResults kResults>
__global__ void __launch_bounds__(Tile::kThreads, mx_ctas(Tile::kTokens))
    sm121_mx_gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const layout::Geometry geometry = layout::geometry(Tile::kPacking, args.cols);
  const int row_tiles = args.rows / layout::kTileRows, pairs = args.cols / layout::kBlockPairK;
  const uint32_t ring = ptx::shared_address(smem), scales = ring + Tile::kRingBytes;
  const auto pitch = static_cast<uint32_t>(mx_scale_pitch(args.cols));
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int tiles = mx_tiles<Tile>(args);
  for (int idx = static_cast<int>(blockIdx.x);; idx += static_cast<int>(gridDim.x)) {
    const GemmWork work = mx_work<Tile>(args, tiles, idx);
    if (work.count == 0) return;
    const int row_tile = work.first_row_tile + warp * Tile::kRowTiles;
    const bool multiplies = row_tile < row_tiles;  // else the warp only copies
    const MxRowTiles<Tile> of_tiles(args, geometry, work.expert, row_tile);
    WeightBlockPair<Tile::kPacking> w[Tile::kRowTiles], ahead[Tile::kRowTiles];
    PairWalk<Tile::kPacking> walk(geometry);
    for (int m = 0; m < Tile::kRowTiles; ++m) w[m].load(of_tiles.at[m], walk, lane);
    of_tiles.fetch(geometry, walk.slice + geometry.piece_bytes);
    __syncthreads();  // nobody reads what is copied over next
    const MxInputCopy<Tile> copy(args, work);
    copy.copy_scales(args, work, scales);
    for (int i = 0; i < Tile::kStages - 1; ++i) copy.issue(ring, i, pairs);
    MxSums<Tile> sums = {};
    for (int pair = 0; pair < pairs; ++pair) {
      if (pair + 1 < pairs) {  // else the last again
        walk.next();
        if (walk.own == 0) of_tiles.fetch(geometry, walk.slice + geometry.piece_bytes);
      }
      for (int m = 0; m < Tile::kRowTiles; ++m) ahead[m].load(of_tiles.at[m], walk, lane);
      ptx::async_wait<Tile::kStages - 2>();
      __syncthreads();  // everybody's copies have landed, and nobody reads the stage that is filled next
      copy.issue(ring, pair + Tile::kStages - 1, pairs);
      if (multiplies)
        multiply_pair<Mma, Tile>({ring + static_cast<uint32_t>(pair % Tile::kStages * Tile::kStageBytes),
                                  scales + static_cast<uint32_t>(2 * pair), pitch},
                                 work.count, w, sums);
      for (int m = 0; m < Tile::kRowTiles; ++m) w[m] = ahead[m];
    }
    ptx::async_wait<0>();
    const GemmWork next = mx_work<Tile>(args, tiles, idx + static_cast<int>(gridDim.x));
    if (next.count > 0)  // while this one's results leave
      MxRowTiles<Tile>(args, geometry, next.expert, next.first_row_tile + warp * Tile::kRowTiles).fetch(geometry, 0);
    if constexpr (kResults == MxResults::kGated) {
      __syncthreads();  // x has been read
      leave_gated<Tile>(args, work, row_tile, ring, sums);
      __syncthreads();
      store_rounded<Mma, Tile>(args, work, ring);
    } else {
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) {
        if (row_tile + m >= row_tiles) continue;
        if constexpr (kResults == MxResults::kRows) {
          if (args.sums != nullptr)
            store_sums<Tile>(args, work, row_tile + m, sums[m]);
          else
            store_rows32<Tile>(args, work, row_tile + m, sums[m]);
          continue;
        }
        const RowBias bias(args.bias, int64_t{work.expert} * args.rows + (row_tile + m) * layout::kTileRows + lane / 4,
                           8);
        store_rows16({args.y16, args.rows, args.pairs}, work, {row_tile + m, 0, 1.0f}, bias, sums[m]);
      }
    }
  }
}

}  // namespace nibble::backend::cuda

#pragma once
// y = W·x for many tokens on wgmma, W and x in bf16
// source: torch/model.py, Linear; arguments: dense/gemm_plan.h GemmArgs
// W    layout/packed.h     x  layout/wgmma_b.h panels
// grid one CTA per SM takes every gridDim.x-th work: 16 tiles of 16 rows, kTokens tokens; or 12, and all tokens
// warps two warpgroups multiply and store, two row tiles a warp, or three, one a warp; one more copies 64 k of both a
//      stage, on into the next work
// mma  wgmma, W from registers: half a stage of a row tile is loaded while the other's is multiplied
// bytes, flops: testing/costs.h
// measured 2026-11-22 H100, 120b: 2048 tokens qkv 89 us, o 72; 8192: 417, 311; 256 tokens' logits 495, in two
//      tiles of tokens 539. A work of o and 192 tokens multiplies for 101,400 cycles, of which wgmma needs 98,300, and
//      stores for 8,200
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other tokens

#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/dense/gemm_weights.cuh"
#include "backend/cuda/arch/sm90/gemm_rings.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

template <int kTheTokens>
struct DenseTile {
  static constexpr int kTokens = kTheTokens;
  static constexpr bool kWide = kTokens == kDenseWide;
  static constexpr int kRowTiles = dense_row_tiles(kTokens);
  static constexpr int kColumns = kWide ? kTokens / 2 : kTokens;  // of a wgmma
  static constexpr int kParts = kTokens / kColumns;
  static constexpr int kOwn = kWide ? 1 : 2;       // row tiles of a warp
  static constexpr int kWarps = kRowTiles / kOwn;  // that multiply
  static constexpr int kConsumers = kWarps * layout::kWarpLanes;
  static constexpr int kCopiers = 8 * kRowTiles;
  static constexpr int kThreads = kConsumers + 4 * layout::kWarpLanes;
  static constexpr int kConsumerRegisters = kWide ? 160 : 240, kProducerRegisters = kWide ? 32 : 24;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of a thread; none come to a CTA later
  static_assert(kConsumers * kConsumerRegisters + (kThreads - kConsumers) * kProducerRegisters <=
                kThreads * kLaunchRegisters);
  static constexpr int kStages = dense_stages(kTokens);
  static constexpr int kInputBytes = kTokens * layout::kAtomRowBytes;
  static constexpr int kPieceBytes = layout::block_pair_bytes(layout::Packing::kBf16);
  static constexpr int kWeightBytes = kRowTiles * kPieceBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kSharedBytes = dense_shared_bytes(kTokens);
  static_assert(kStageBytes == dense_stage_bytes(kTokens) && kInputBytes % layout::kAtomBytes == 0);
};

// What follows from the arguments; given to the kernel, since registers are few where operands are copied.
struct DenseWalk {
  int work_tiles;                 // row blocks times tiles of tokens
  bool tokens_fastest;            // where they are fewer than rows: the larger operand is read from DRAM once
  int fastest;                    // as many of what runs fastest
  int row_tiles, tile_bytes;      // of W; of a row tile
  int slices, slice_block_pairs;  // of 64 k
  int panel_bytes;                // of x

  DenseWalk(const GemmArgs& args, int tile_tokens)
      : tokens_fastest(args.tokens < args.rows),
        row_tiles(args.rows / layout::kTileRows),
        panel_bytes(args.x_rows * layout::kAtomRowBytes) {
    const layout::Geometry geometry = layout::geometry(layout::Packing::kBf16, args.cols);
    tile_bytes = static_cast<int>(geometry.tile_bytes);
    slices = geometry.slices;
    slice_block_pairs = geometry.blocks / 2;
    const int blocks = static_cast<int>(dense_blocks(args.rows, tile_tokens)),
              tiles = (args.tokens + tile_tokens - 1) / tile_tokens;
    work_tiles = blocks * tiles;
    fastest = tokens_fastest ? tiles : blocks;
  }
};

// Work i of all.
template <class Tile>
__device__ __forceinline__ GemmWork work_at(const GemmArgs& args, const DenseWalk& walk, int i) {
  const int fast = i % walk.fastest, slow = i / walk.fastest;
  const int first = (walk.tokens_fastest ? fast : slow) * Tile::kTokens;
  return {0, first, min(Tile::kTokens, args.tokens - first), (walk.tokens_fastest ? slow : fast) * Tile::kRowTiles};
}

// The warps that copy all that their CTA multiplies, in order: 8 lanes a row tile of weights as it lies packed, which
// runs through the slices, and one of them also x.
template <class Tile>
__device__ __forceinline__ void copy_operands(const GemmArgs& args, const DenseWalk& walk,
                                              const StageRing<Tile>& ring) {
  const int thread = static_cast<int>(threadIdx.x) - Tile::kConsumers;
  if (thread >= Tile::kCopiers) return;
  const auto own = static_cast<uint32_t>(Tile::kInputBytes + thread / 8 * Tile::kPieceBytes + thread % 8 * 16);
  RingPlace<Tile::kStages> place{0};
  for (auto i = static_cast<int>(blockIdx.x); i < walk.work_tiles; i += static_cast<int>(gridDim.x)) {
    const GemmWork work = work_at<Tile>(args, walk, i);
    // A row tile beyond the last is a copy of it.
    const uint8_t* weights = args.weights +
                             int64_t{min(work.first_row_tile + thread / 8, walk.row_tiles - 1)} * walk.tile_bytes +
                             thread % 8 * 16;
#pragma unroll 1
    for (int pair = 0; pair < walk.slice_block_pairs * walk.slices;
         ++pair, place.next(), weights += Tile::kPieceBytes) {
      const uint32_t full = ring.full(place.stage), stage = ring.input(place.stage);
      ptx::mbarrier_wait(ring.empty(place.stage), place.parity ^ 1u);
      if (thread == 0) {
        const auto bytes =
            static_cast<uint32_t>((work.count + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomBytes);
        const int panel = pair % walk.slices * walk.slice_block_pairs + pair / walk.slices;
        ptx::mbarrier_arrive_expect_tx(full, bytes);
        ptx::bulk_copy(stage,
                       reinterpret_cast<const uint8_t*>(args.x) + int64_t{panel} * walk.panel_bytes +
                           int64_t{work.first} * layout::kAtomRowBytes,
                       bytes, full);
      }
#pragma unroll
      for (int at = 0; at < Tile::kPieceBytes; at += layout::kAtomRowBytes)
        ptx::async_copy16(stage + own + static_cast<uint32_t>(at), weights + at, ptx::Fill::kCopy);
      ptx::mbarrier_arrive_behind_copies(full);
    }
  }
  ptx::async_wait<0>();
}

// The warps that multiply: one or two row tiles of the CTA each, and an operand for each.
template <class Tile>
struct DenseConsumer {
  // Slices of 16 k: half a stage, or a quarter, as registers allow.
  using Operand = uint32_t[Tile::kOwn][4];
  using Sums = float[Tile::kColumns / 8][4];  // of a row tile and a part of the tokens, which run fastest
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const uint32_t own_weights;  // the lane's, in a stage
  using Cursor = RingCursor<Tile::kStages, Tile::kStageBytes>;
  Cursor at;

  __device__ explicit DenseConsumer(const StageRing<Tile>& ring)
      : own_weights(static_cast<uint32_t>(Tile::kInputBytes + Tile::kOwn * warp * Tile::kPieceBytes + lane * 16)),
        at(ring.input(0), ring.full(0), 0) {}

  // Multiplies an operand of the warp's row tile `own`, from slice kFirst of the stage on: under way on return, when at
  // most one of every row tile is.
  template <int kFirst>
  __device__ __forceinline__ void step(int own, Operand& a, Sums (&sums)[2]) {
    ptx::wgmma_wait<Tile::kOwn - 1>();
    ptx::keep(a);
#pragma unroll
    for (int s = 0; s < Tile::kOwn; ++s) {
      const uint4 words = ptx::load_shared16(
          at.stage + own_weights + static_cast<uint32_t>(own * Tile::kPieceBytes + (kFirst + s) * layout::kStepBytes));
      for (int i = 0; i < 4; ++i) a[s][i] = word_of(words, i);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < Tile::kOwn; ++s)
#pragma unroll
      for (int p = 0; p < Tile::kParts; ++p)
        ptx::wgmma(sums[own + p], a[s],
                   layout::matrix_descriptor(
                       at.stage + static_cast<uint32_t>(p * Tile::kColumns * layout::kAtomRowBytes), kFirst + s));
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void multiply(int pairs, Sums (&sums)[2]) {
    constexpr int kOwn = Tile::kOwn;
    Operand operands[kOwn] = {};
    uint32_t held = 0;  // the barrier for full of the stage before; 0: there is none
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair) {
      ptx::mbarrier_wait(at.full, at.parity);
      step<0>(0, operands[0], sums);
      step<2 - kOwn>(kOwn - 1, operands[kOwn - 1], sums);  // after its wait nothing reads the stage before
      if (held != 0) ptx::mbarrier_arrive(Cursor::empty(held));
      held = at.full;
      step<2>(0, operands[0], sums);
      step<4 - kOwn>(kOwn - 1, operands[kOwn - 1], sums);
      at.next();
    }
    ptx::wgmma_wait<0>();
    ptx::mbarrier_arrive(Cursor::empty(held));
    ptx::keep(operands);
    ptx::keep(sums);  // no use of them above the wait
  }
};

// The bias of the lane's rows, as what the sums begin with.
template <class Tile>
__device__ __forceinline__ void begin_sums(const GemmArgs& args, const GemmWork& work, int warp,
                                           typename DenseConsumer<Tile>::Sums (&sums)[2]) {
  const int row_of_lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes / 4;
  float bias[Tile::kOwn][2] = {};
  for (int t = 0; args.bias != nullptr && t < Tile::kOwn; ++t)
    for (int half = 0; half < 2; ++half) {
      const int row_tile = min(work.first_row_tile + Tile::kOwn * warp + t, args.rows / layout::kTileRows - 1);
      bias[t][half] = args.bias[layout::source_row(args.order, row_tile, row_of_lane + 8 * half)].to_float();
    }
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (auto& column : sums[t]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) column[i] = bias[t / Tile::kParts][i / 2];
    }
  }
}

// y, to its part: of a row tile, eight lanes fill the sectors of a token's rows g and those of rows g + 8. Shuffles
// that make 16 bytes a lane of them cost more than they save (H100: 13,700 cycles for 8,100).
template <class Tile>
__device__ __forceinline__ void store_part(const GemmArgs& args, const GemmWork& work, int row_tile,
                                           const typename DenseConsumer<Tile>::Sums (&sums)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, own = 2 * (lane % 4);
  float* y[Tile::kOwn];
  int pitch[Tile::kOwn], apart[Tile::kOwn];
  bool stores[Tile::kOwn];
  for (int t = 0; t < Tile::kOwn; ++t) {
    const auto row = static_cast<int>(layout::source_row(args.order, row_tile + t, lane / 4));
    const GemmPart part = part_of(args, row);
    y[t] = part.to + int64_t{work.first + own} * part.rows + row - part.first_row;
    pitch[t] = part.rows;
    apart[t] = static_cast<int>(layout::source_row(args.order, row_tile + t, lane / 4 + 8)) - row;
    stores[t] = row_tile + t < args.rows / layout::kTileRows;
  }
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n) {
    constexpr int kOf = Tile::kColumns / 8;
    if (__any_sync(0xffffffffu, 8 * n >= work.count)) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // tokens
#pragma unroll
      for (int t = 0; t < Tile::kOwn; ++t) {
        if (!stores[t] || 8 * n + own + i >= work.count) continue;
        const float(&four)[4] = sums[t + n / kOf][n % kOf];
        float* const to = y[t] + i * pitch[t];
        to[0] = four[i];
        to[apart[t]] = four[2 + i];
      }
    }
    for (int t = 0; t < Tile::kOwn; ++t) y[t] += int64_t{8} * pitch[t];
  }
}

// y as GemmArgs::sums: a word is two rows of a token, and of eight tokens a warp fills two lines.
template <class Tile>
__device__ __forceinline__ void store_sums(uint32_t* at, const GemmArgs& args, const GemmWork& work, int row_tile,
                                           const typename DenseConsumer<Tile>::Sums (&sums)[2]) {
  constexpr int kWords = 64;  // of a row tile and eight tokens
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, own = 2 * (lane % 4);
  const int64_t pitch = int64_t{(args.tokens + 7) / 8} * kWords;
  uint32_t* to = at + row_tile * pitch + work.first / 8 * kWords + lane % 4 * 8 + lane / 4;
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n, to += kWords) {
    constexpr int kOf = Tile::kColumns / 8;
    if (__any_sync(0xffffffffu, 8 * n >= work.count)) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // tokens
#pragma unroll
      for (int t = 0; t < Tile::kOwn; ++t) {
        if (row_tile + t >= args.rows / layout::kTileRows || 8 * n + own + i >= work.count) continue;
        const float(&four)[4] = sums[t + n / kOf][n % kOf];
        to[t * pitch + i * (kWords / 2)] = ptx::pack_bf16(four[i], four[2 + i]);
      }
    }
  }
}

// The place of sums, another rank's where that one adds them up. Apart: what finds the place makes a GEMM that sends
// nothing a tenth slower.
template <class Tile>
__device__ __forceinline__ void send_sums(const GemmArgs& args, const GemmWork& work, int row_tile,
                                          const typename DenseConsumer<Tile>::Sums (&sums)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, own = 2 * (lane % 4);
  const int blocks = (args.tokens + 7) / 8;  // of a row tile and eight tokens
  uint32_t* to[Tile::kOwn] = {};
#pragma unroll
  for (int n = 0; n < Tile::kTokens / 8; ++n) {
    constexpr int kOf = Tile::kColumns / 8;
    if (__any_sync(0xffffffffu, 8 * n >= work.count)) break;
#pragma unroll
    for (int t = 0; t < Tile::kOwn; ++t) {
      if (row_tile + t >= args.rows / layout::kTileRows) continue;
      const int64_t block = int64_t{row_tile + t} * blocks + work.first / 8 + n;
      if (n == 0 || block % PartPlaces::kChunkBlocks == 0)
        to[t] = args.places.place(reinterpret_cast<uint32_t*>(args.sums), block) + lane % 4 * 8 + lane / 4;
      else
        to[t] += PartPlaces::kBlockWords;
      const float(&four)[4] = sums[t + n / kOf][n % kOf];
#pragma unroll
      for (int i = 0; i < 2; ++i)  // tokens
        if (8 * n + own + i < work.count) to[t][i * 32] = ptx::pack_bf16(four[i], four[2 + i]);
    }
  }
}

template <class Tile, bool kSends>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    sm90_dense_gemm(const __grid_constant__ GemmArgs args, const __grid_constant__ DenseWalk walk) {
  extern __shared__ __align__(128) uint8_t smem[];
  const StageRing<Tile> ring(smem);
  // Full: who copies weights, and the bytes of x. Empty: every lane, for racecheck: see gemv.cuh warp_arrive.
  if (threadIdx.x == 0) ring.init(Tile::kCopiers + 1, Tile::kConsumers);
  __syncthreads();
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  if (threadIdx.x >= Tile::kConsumers) {
    ptx::give_registers_but<Tile::kProducerRegisters>();
    copy_operands<Tile>(args, walk, ring);
  } else {
    ptx::take_registers_up_to<Tile::kConsumerRegisters>();
    DenseConsumer<Tile> consumer(ring);
    for (auto i = static_cast<int>(blockIdx.x); i < walk.work_tiles; i += static_cast<int>(gridDim.x)) {
      typename DenseConsumer<Tile>::Sums sums[2];
      begin_sums<Tile>(args, work_at<Tile>(args, walk, i), consumer.warp, sums);
      consumer.multiply(args.cols / layout::kPanelK, sums);
      auto again = static_cast<uint32_t>(i);
      ptx::keep(again);  // else what is known of the work takes registers while it multiplies
      const GemmWork work = work_at<Tile>(args, walk, static_cast<int>(again));
      const int row_tile = work.first_row_tile + Tile::kOwn * consumer.warp;
      if constexpr (kSends) {
        if (args.places.own == nullptr) {
          send_sums<Tile>(args, work, row_tile, sums);
        } else {
          store_sums<Tile>(args.places.others, args, work, row_tile, sums);  // what crosses the link first
          store_sums<Tile>(args.places.own, args, work, row_tile, sums);
        }
      } else if (args.sums != nullptr) {
        store_sums<Tile>(reinterpret_cast<uint32_t*>(args.sums), args, work, row_tile, sums);
      } else {
        store_part<Tile>(args, work, row_tile, sums);
      }
    }
  }
}

}  // namespace nibble::backend::cuda

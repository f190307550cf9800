#pragma once
// A warp multiplies a row tile of MXFP4 weights with up to 24 columns of activations, all of K: weights through a ring
// of its own (cp.async), a slice a stage, on into its next tile; activations from shared memory; sums in registers. No
// warp waits for another. W: layout/packed.h
// mma  m16n8k16 f16, weights on the m side, unscaled; a block's sums are scaled before they are added
// bounds per row tile of 2880 columns (H200, cycles per SM): DRAM 1240; issue about 650 for 8 columns, 790 for 16;
//      shared memory 740, 1100 and for 24 columns 1460 (two row tiles per warp need 560 and 740, but leave fewer warps:
//      no faster)
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other columns

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/layout/mma_fragments.h"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

#include <cuda_fp16.h>

namespace nibble::backend::cuda {

inline constexpr int kRowMaxWarps = 16;

// kTheShort: the first slice may lack pairs (layout::slices_of).
template <int kTheBlocks, int kTheStages = kRowStages, bool kTheShort = false>
struct RowTile {
  static constexpr bool kShort = kTheShort;
  static constexpr int kBlocks = kTheBlocks;  // of a slice
  static constexpr int kStages = kTheStages;
  static constexpr int kPairs = kBlocks / 2;
  static constexpr int kSliceBytes = layout::slice_bytes(kBlocks);
  static constexpr int kCopies = (kSliceBytes + layout::kStepBytes - 1) / layout::kStepBytes;  // of 16 B per lane
};

// Dynamic shared memory: activations [rows][pitch] | rings [warps][stages] of slices | kRowExtraBytes
template <class Tile>
struct RowShared {
  uint32_t x, ring, extra;
  int pitch;

  __device__ RowShared(const uint8_t* memory, int cols, int rows)
      : x(ptx::shared_address(memory)), pitch(row_pitch(cols)) {
    constexpr int kRingBytes = Tile::kStages * Tile::kSliceBytes;
    const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes,
              warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
    ring = x + static_cast<uint32_t>(rows * pitch + warp * kRingBytes);
    extra = x + static_cast<uint32_t>(rows * pitch + warps * kRingBytes);
  }
  __device__ uint32_t stage(int i) const { return ring + static_cast<uint32_t>(i * Tile::kSliceBytes); }
};

// A lane's part of a slice, to and from the lane's addresses; a short tile's first slice lacks `missing` pairs. L2
// fetches whole lines, whose rest the next slice has.
template <class Tile>
__device__ __forceinline__ void copy_slice(uint32_t to, const uint8_t* from, int lane, bool is_first, int missing,
                                           uint64_t policy) {
#pragma unroll
  for (int i = 0; i < Tile::kCopies; ++i) {
    if (Tile::kShort && is_first && i < missing) continue;
    if (i + 1 < Tile::kCopies || lane * layout::kLaneBytes + i * layout::kStepBytes < Tile::kSliceBytes)
      ptx::async_copy16_of_256(to + static_cast<uint32_t>(i * layout::kStepBytes), from + i * layout::kStepBytes,
                               policy);
  }
}

// A warp's weights, slice after slice of the walk's row tiles, into its ring.
//   Walk: valid(), tile() (its number among the packed tiles), advance(); called by whole warps
template <class Tile, class Walk>
struct RowFeed {
  const RowShared<Tile>& shared;
  Walk walk;
  const uint8_t* weights;
  int slices, lane;
  int missing = 0;           // pairs that the first slice lacks
  int slice = 0, stage = 0;  // what is fetched next; where to
  const uint8_t* from = nullptr;
  uint64_t once = ptx::evict_first_policy();  // weights leave L2 before activations do

  __device__ RowFeed(const RowShared<Tile>& the_shared, const Walk& the_walk, const uint8_t* the_weights, int cols)
      : shared(the_shared),
        walk(the_walk),
        weights(the_weights),
        slices((cols + (Tile::kShort ? Tile::kBlocks * layout::kBlockK - 1 : 0)) / (Tile::kBlocks * layout::kBlockK)),
        lane(static_cast<int>(threadIdx.x) % layout::kWarpLanes) {
    if constexpr (Tile::kShort) missing = (slices * Tile::kBlocks - cols / layout::kBlockK) / 2;
    open();
    for (int i = 0; i + 1 < Tile::kStages; ++i) fetch();
  }
  __device__ void open() {
    if (!walk.valid()) return;
    if constexpr (Tile::kShort) {
      const int lacks = missing * layout::kBlockPairBytes;
      from = weights + walk.tile() * (slices * Tile::kSliceBytes - lacks) - lacks + lane * layout::kLaneBytes;
    } else {
      from = weights + walk.tile() * (slices * Tile::kSliceBytes) + lane * layout::kLaneBytes;
    }
  }
  // One group of copies, if only an empty one.
  __device__ void fetch() {
    if (walk.valid()) {
      const uint32_t to = shared.stage(stage) + static_cast<uint32_t>(lane * layout::kLaneBytes);
      copy_slice<Tile>(to, from, lane, slice == 0, missing, once);
      from += Tile::kSliceBytes;
      if (++slice == slices) {
        slice = 0;
        walk.advance();
        open();
      }
      stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
    }
    ptx::async_commit();
  }
};

// sums += a slice's weights, from pair `first` on where it is kPart of one, times kColumnTiles times 8 columns, whose k
// begin at x.
template <class Tile, int kColumnTiles, bool kPart = false>
__device__ __forceinline__ void multiply_slice(uint32_t stage, int first, uint32_t x, int pitch, int lane,
                                               float (&sums)[kColumnTiles][4]) {
  const uint32_t codes_at = stage + static_cast<uint32_t>(layout::code_offset(0, lane));
  const uint32_t scales_at = stage + static_cast<uint32_t>(layout::scale_word_offset(Tile::kBlocks, lane / 4, 0));
#pragma unroll(kColumnTiles > 2 || kPart ? 1 : Tile::kPairs)  // all at once would spill
  for (int q = kPart ? first : 0; q < Tile::kPairs; ++q) {
    const uint4 codes = ptx::load_shared16(codes_at + static_cast<uint32_t>(layout::code_offset(q, 0)));
    const uint32_t scales = ptx::load_shared4(scales_at + static_cast<uint32_t>(4 * q));
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float products[kColumnTiles][4] = {};
      const layout::E2m1Pairs low = layout::widen_e2m1x8(odd == 0 ? codes.x : codes.z);
      const layout::E2m1Pairs high = layout::widen_e2m1x8(odd == 0 ? codes.y : codes.w);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const uint4 b = ptx::load_shared16(x + static_cast<uint32_t>(n * kMmaColumns * pitch + (2 * q + odd) * 64));
        ptx::mma_m16n8k16(products[n], low.pair, b.x, b.y);
        ptx::mma_m16n8k16(products[n], high.pair, b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = layout::scale_of(scales, 2 * (i / 2) + odd);
        for (int n = 0; n < kColumnTiles; ++n) sums[n][i] += scale * products[n][i];
      }
    }
  }
}

// The ring's next row tile, with the activations whose first column lies at `columns`; stage moves on.
template <int kColumnTiles, class Tile, class Walk>
__device__ __forceinline__ void multiply_tile(RowFeed<Tile, Walk>& feed, int& stage, uint32_t columns,
                                              float (&sums)[kColumnTiles][4]) {
  uint32_t x = columns + static_cast<uint32_t>(feed.lane / 4 * feed.shared.pitch + feed.lane % 4 * 16);
  if constexpr (Tile::kShort) x -= static_cast<uint32_t>(feed.missing * 2 * 64);
#pragma unroll 1
  for (int slice = 0; slice < feed.slices; ++slice, x += Tile::kBlocks * 64) {
    ptx::async_wait<Tile::kStages - 2>();
    __syncwarp();  // every lane's copies are there, and the slice before this one is read
    feed.fetch();
    const uint32_t own = feed.shared.stage(stage);
    if (Tile::kShort && slice == 0)
      multiply_slice<Tile, kColumnTiles, true>(own, feed.missing, x, feed.shared.pitch, feed.lane, sums);
    else
      multiply_slice<Tile, kColumnTiles>(own, 0, x, feed.shared.pitch, feed.lane, sums);
    stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
  }
}

// torch/model.py swiglu. |u| <= 7 * 8 for the default limit: finite in f16.
__device__ __forceinline__ F16 swiglu_f16(float gate, float up, float limit) {
  constexpr float kAlpha = 1.702f;
  gate = gate > limit ? limit : gate;  // keeps NaN, which fminf would hide
  up = up > limit ? limit : up < -limit ? -limit : up;
  return {__half_as_ushort(__float2half_rn(gate / (1.0f + __expf(-kAlpha * gate)) * (up + 1.0f)))};
}

// Stores a channel of a pair's u, whose rows have block_pair_width channels.
__device__ __forceinline__ void store_channel(F16* u, int pair, int inter, int channel, F16 value) {
  F16* const to = u + int64_t{pair} * layout::block_pair_width(inter) + channel;
  *to = value;
  if (layout::fills_up(inter, channel)) to[layout::kBlockK] = {};
}

}  // namespace nibble::backend::cuda

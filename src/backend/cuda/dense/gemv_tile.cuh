#pragma once
// A warp's share of a tile in registers: weights in their four formats, activations as the other operand of the mma.
// Lane 4g + t. k of a 32-block: lane t holds k = 8t .. 8t + 7 (layout k_of).

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/experts/choice.cuh"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

// kBlocks (MXFP4 only): one row of activations; block j of a slice stands in column j, all other columns of that block
// zero, so that the sums of eight blocks end in one accumulator and are scaled once. kVectors: up to eight rows of
// activations, one per column; each block's sums are scaled before they are added.
enum class Columns { kBlocks, kVectors };

// kTheShort: the first slice may lack pairs (layout::slices_of).
template <layout::Packing kThePacking, int kSliceBlocks, Columns kTheColumns, bool kTheShort = false>
struct GemvTile {
  static constexpr bool kShort = kTheShort;
  static constexpr layout::Packing kPacking = kThePacking;
  static constexpr Columns kColumns = kTheColumns;
  static constexpr int kBlocks = kSliceBlocks;                                 // of the slice
  static constexpr int kPairs = layout::chunk_block_pairs(kPacking, kBlocks);  // of a chunk
  static constexpr int kChunks = kBlocks / 2 / kPairs;
  static constexpr int kPieceBytes = kPairs * layout::block_pair_bytes(kPacking);
  static constexpr int kOwnBlocks = kColumns == Columns::kBlocks ? 1 : kBlocks;  // that a lane brings
  static constexpr int kTerms = kPacking == layout::Packing::kBf16 ? 2 : 1;      // of an activation: high and low part
  static_assert(kPacking == layout::Packing::kMxfp4 || kColumns == Columns::kVectors);
  static_assert(!kShort || (kPacking == layout::Packing::kMxfp4 && kColumns == Columns::kVectors));
};

__device__ __forceinline__ int group_of(int lane) { return lane / 4; }
__device__ __forceinline__ int column_of(int lane, int j) { return 2 * (lane % 4) + j; }

// The B operand of a slice: block j's registers {step 0: 0, 1; step 1: 0, 1}.
template <class Tile>
struct Activations {
  uint32_t b[Tile::kTerms][Tile::kBlocks][4];

  // own: the lane's k of its column's blocks; with kBlocks, of block g only.
  __device__ void set(const float (&own)[Tile::kOwnBlocks][8], int lane) {
    if constexpr (Tile::kColumns == Columns::kBlocks) {
      uint32_t pairs[4];
      for (int i = 0; i < 4; ++i) pairs[i] = ptx::pack_f16(own[0][2 * i], own[0][2 * i + 1]);
      set_block({pairs[0], pairs[1], pairs[2], pairs[3]}, lane);
    } else {
      for (int j = 0; j < Tile::kBlocks; ++j)
        for (int i = 0; i < 4; ++i) set_pair(j, i, own[j][2 * i], own[j][2 * i + 1]);
    }
  }
  // One row alone, in column 0: own is block g's part, which lane t gets from lane 4j + t. Not with kBlocks.
  __device__ void set_row(const float (&own)[8], int lane) {
    uint32_t pairs[Tile::kTerms][4];
    for (int i = 0; i < 4; ++i) {
      set_pair(0, i, own[2 * i], own[2 * i + 1]);
      for (int term = 0; term < Tile::kTerms; ++term) pairs[term][i] = b[term][0][i];
    }
    for (int term = 0; term < Tile::kTerms; ++term)
      for (int j = 0; j < Tile::kBlocks; ++j)
        for (int i = 0; i < 4; ++i) {
          const uint32_t pair = __shfl_sync(kEveryLane, pairs[term][i], 4 * j + lane % 4);
          b[term][j][i] = group_of(lane) == 0 ? pair : 0;
        }
  }
  // kBlocks: block g of the one row as f16.
  __device__ void set_block(const uint4& own, int lane) {
    const uint32_t pairs[4] = {own.x, own.y, own.z, own.w};
    for (int j = 0; j < Tile::kBlocks; ++j)
      for (int i = 0; i < 4; ++i) {
        b[0][j][i] = group_of(lane) == j ? pairs[i] : 0;
        ptx::keep(b[0][j][i]);  // else four selects per block and tile
      }
  }
  // One column's block as f16; not for bf16 weights.
  __device__ void set_f16(int j, const uint4& v) {
    b[0][j][0] = v.x;
    b[0][j][1] = v.y;
    b[0][j][2] = v.z;
    b[0][j][3] = v.w;
  }

 private:
  __device__ void set_pair(int j, int i, float low, float high) {
    if constexpr (Tile::kPacking == layout::Packing::kBf16) {
      const uint32_t top = ptx::pack_bf16(low, high);
      b[0][j][i] = top;
      b[1][j][i] = ptx::pack_bf16(low - __uint_as_float(top << 16), high - __uint_as_float(top & 0xffff0000u));
    } else {
      b[0][j][i] = ptx::pack_f16(low, high);
    }
  }
};

// A warp's piece of a chunk, and the sums of a tile.
//   load(piece, lane)        from shared memory to registers; MXFP4: from which pair on there are any. What a slice
//                            lacks is loaded from the first pair that is there, and multiplied with zeros
//   multiply(x, chunk, acc)  acc += the chunk's products
//   sums(acc, out)           out: {row g, column 2t}, {g, 2t + 1}, {g + 8, 2t}, {g + 8, 2t + 1}; with kBlocks out[0]
//                            and out[2] hold the lane's two blocks, to be added over the quad
using Accumulators = float[2][4];

template <class Tile, layout::Packing = Tile::kPacking>
struct Piece;

template <class Tile>
struct Piece<Tile, layout::Packing::kBf16> {
  uint4 steps[4];

  __device__ void load(uint32_t piece, int lane) {
    for (int s = 0; s < 4; ++s) steps[s] = ptx::load_shared16(piece + s * layout::kStepBytes + lane * 16);
  }
  __device__ void multiply(const Activations<Tile>& x, int chunk, Accumulators& acc) const {
    for (int s = 0; s < 4; ++s) {
      const uint32_t a[4] = {steps[s].x, steps[s].y, steps[s].z, steps[s].w};
      for (int term = 0; term < 2; ++term) {
        const auto& b = x.b[term][2 * chunk + s / 2];
        ptx::mma_m16n8k16_bf16(acc[term], a, b[2 * (s % 2)], b[2 * (s % 2) + 1]);
      }
    }
  }
  __device__ void sums(const Accumulators& acc, float (&out)[4]) const {
    for (int i = 0; i < 4; ++i) out[i] = acc[0][i] + acc[1][i];
  }
};

template <class Tile>
struct Piece<Tile, layout::Packing::kMxfp8> {
  uint4 codes[2];
  uint32_t scales;

  __device__ void load(uint32_t piece, int lane) {
    for (int b = 0; b < 2; ++b) codes[b] = ptx::load_shared16(piece + b * layout::kStepBytes + lane * 16);
    scales = ptx::load_shared4(piece + static_cast<uint32_t>(layout::mxfp8_scale_offset(group_of(lane), 0)));
  }
  __device__ void multiply(const Activations<Tile>& x, int chunk, Accumulators& acc) const {
    for (int j = 0; j < 2; ++j) {
      float d[4] = {};
      for (int step = 0; step < 2; ++step) {
        const uint32_t low = step == 0 ? codes[j].x : codes[j].z, high = step == 0 ? codes[j].y : codes[j].w;
        const uint32_t a[4] = {ptx::f16_of_e4m3(low & 0xffffu), ptx::f16_of_e4m3(low >> 16),
                               ptx::f16_of_e4m3(high & 0xffffu), ptx::f16_of_e4m3(high >> 16)};
        const auto& b = x.b[0][2 * chunk + j];
        ptx::mma_m16n8k16(d, a, b[2 * step], b[2 * step + 1]);
      }
      for (int i = 0; i < 4; ++i) acc[0][i] += layout::scale_of(scales, 2 * (i / 2) + j) * d[i];
    }
  }
  __device__ void sums(const Accumulators& acc, float (&out)[4]) const {
    for (int i = 0; i < 4; ++i) out[i] = acc[0][i];
  }
};

template <class Tile>
struct Piece<Tile, layout::Packing::kQ8> {
  uint4 codes[2];
  uint2 scales;  // of rows g and g + 8: a half for each block

  __device__ void load(uint32_t piece, int lane) {
    for (int b = 0; b < 2; ++b) codes[b] = ptx::load_shared16(piece + b * layout::kStepBytes + lane * 16);
    scales = ptx::load_shared8(piece + static_cast<uint32_t>(layout::q8_scale_offset(group_of(lane), 0)));
  }
  __device__ void multiply(const Activations<Tile>& x, int chunk, Accumulators& acc) const {
    for (int j = 0; j < 2; ++j) {
      float d[4] = {};
      for (int step = 0; step < 2; ++step) {
        const uint32_t low = step == 0 ? codes[j].x : codes[j].z, high = step == 0 ? codes[j].y : codes[j].w;
        const uint32_t a[4] = {ptx::f16_of_byte_pair<0>(low), ptx::f16_of_byte_pair<1>(low),
                               ptx::f16_of_byte_pair<0>(high), ptx::f16_of_byte_pair<1>(high)};
        const auto& b = x.b[0][2 * chunk + j];
        ptx::mma_m16n8k16(d, a, b[2 * step], b[2 * step + 1]);
      }
      for (int i = 0; i < 4; ++i) acc[0][i] += ptx::f16_half(i < 2 ? scales.x : scales.y, j) * d[i];
    }
  }
  __device__ void sums(const Accumulators& acc, float (&out)[4]) const {
    for (int i = 0; i < 4; ++i) out[i] = acc[0][i];
  }
};

template <class Tile>
struct Piece<Tile, layout::Packing::kMxfp4> {
  static constexpr int kScaleWords = Tile::kColumns == Columns::kBlocks ? 1 : Tile::kPairs;
  uint4 codes[Tile::kPairs];
  uint32_t scales[kScaleWords];  // kBlocks: of blocks 2t and 2t + 1. kVectors: word q of blocks 2q and 2q + 1

  __device__ void load(uint32_t slice, int lane, int first_pair = 0) {
    const int g = group_of(lane), t = lane % 4;
    if constexpr (Tile::kShort) {
      for (int q = 0; q < Tile::kPairs; ++q) {
        const int own = q < first_pair ? first_pair : q;
        codes[q] = ptx::load_shared16(slice + static_cast<uint32_t>(layout::code_offset(own, lane)));
        scales[q] = ptx::load_shared4(slice + static_cast<uint32_t>(layout::scale_word_offset(Tile::kBlocks, g, own)));
      }
    } else {
      for (int q = 0; q < Tile::kPairs; ++q) codes[q] = ptx::load_shared16(slice + layout::code_offset(q, lane));
      load_scales(slice, g, t);
    }
  }
  __device__ void multiply(const Activations<Tile>& x, int /*chunk*/, Accumulators& acc) const {
    for (int j = 0; j < Tile::kBlocks; ++j) {
      const auto& b = x.b[0][j];
      if constexpr (Tile::kColumns == Columns::kBlocks) {  // two chains: an mma takes longer than its share of the pipe
        for (int step = 0; step < 2; ++step)
          ptx::mma_m16n8k16(acc[step], a(j, step).pair, b[2 * step], b[2 * step + 1]);
      } else {
        float d[4] = {};
        for (int step = 0; step < 2; ++step) ptx::mma_m16n8k16(d, a(j, step).pair, b[2 * step], b[2 * step + 1]);
        for (int i = 0; i < 4; ++i) acc[0][i] += layout::scale_of(scales[j / 2], 2 * (i / 2) + j % 2) * d[i];
      }
    }
  }
  __device__ void sums(const Accumulators& acc, float (&out)[4]) const {
    if constexpr (Tile::kColumns == Columns::kBlocks) {
      for (int row8 = 0; row8 < 2; ++row8) {
        const float even = acc[0][2 * row8] + acc[1][2 * row8], odd = acc[0][2 * row8 + 1] + acc[1][2 * row8 + 1];
        out[2 * row8] = layout::scale_of(scales[0], 2 * row8) * even + layout::scale_of(scales[0], 2 * row8 + 1) * odd;
        out[2 * row8 + 1] = 0;
      }
    } else {
      for (int i = 0; i < 4; ++i) out[i] = acc[0][i];
    }
  }

 private:
  __device__ void load_scales(uint32_t slice, int g, int t) {
    if constexpr (Tile::kColumns == Columns::kBlocks) {
      const uint32_t word =
          ptx::load_shared4(slice + layout::scale_word_offset(Tile::kBlocks, g, t < Tile::kPairs ? t : 0));
      scales[0] = t < Tile::kPairs ? word : 0;
    } else {
      for (int q = 0; q < Tile::kPairs; ++q)
        scales[q] = ptx::load_shared4(slice + layout::scale_word_offset(Tile::kBlocks, g, q));
    }
  }
  // Word `step` of block j: the A operand of one mma.
  __device__ layout::E2m1Pairs a(int j, int step) const {
    const uint4& v = codes[j / 2];
    return layout::widen_e2m1x8(j % 2 == 0 ? (step == 0 ? v.x : v.y) : (step == 0 ? v.z : v.w));
  }
};

// The decode kernels' shared memory.

inline constexpr int kRingMaxStages = 8;

// ring of chunks | partial sums [epilogues * slots][slices][32 lanes] of float4 | barriers, 256 B | routes: ids and
// weights [32], 256 B | squares [slices][8 tokens], 512 B
struct GemvShared {
  uint32_t ring, partials, barriers;
  int chunk_bytes, slices, stages, slots;

  template <class KernelArgs>
  __device__ GemvShared(const uint8_t* memory, const KernelArgs& args)
      : ring(ptx::shared_address(memory)),
        partials(ring + static_cast<uint32_t>(args.stages * args.chunk_bytes)),
        barriers(partials +
                 static_cast<uint32_t>(args.epilogues * kPartialSlots * args.slices * layout::kWarpLanes * 16)),
        chunk_bytes(args.chunk_bytes),
        slices(args.slices),
        stages(args.stages),
        slots(args.epilogues * kPartialSlots) {}

  __device__ uint32_t chunk(int stage) const { return ring + static_cast<uint32_t>(stage * chunk_bytes); }
  __device__ uint32_t partial(int slot, int slice, int lane) const {
    return partials + static_cast<uint32_t>(((slot * slices + slice) * layout::kWarpLanes + lane) * 16);
  }
  __device__ uint32_t chunk_full(int stage) const { return barriers + 8 * static_cast<uint32_t>(stage); }
  __device__ uint32_t chunk_empty(int stage) const { return chunk_full(kRingMaxStages + stage); }
  __device__ uint32_t partial_full(int slot) const { return chunk_full(2 * kRingMaxStages + slot); }
  __device__ uint32_t partial_empty(int slot) const { return partial_full(kGemvEpilogues * kPartialSlots + slot); }
  __device__ RouteShared routes() const { return {partial_empty(kGemvEpilogues * kPartialSlots), barriers + 256}; }
  __device__ uint32_t square(int slice, int token) const {
    return barriers + 512 + 4 * static_cast<uint32_t>(slice * kGemvTokens + token);
  }

  // choices: how many will be published.
  __device__ void init(int choices) const {
    const auto lanes = static_cast<uint32_t>(slices * layout::kWarpLanes);
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(chunk_full(s), ptx::kCopyArrivals);
      ptx::mbarrier_init(chunk_empty(s), lanes);
    }
    for (int s = 0; s < slots; ++s) {
      ptx::mbarrier_init(partial_full(s), lanes);
      ptx::mbarrier_init(partial_empty(s), layout::kWarpLanes);
    }
    if (choices > 0) routes().init(choices);
    ptx::fence_mbarrier_init();
  }
};
static_assert((2 * kRingMaxStages + 2 * kGemvEpilogues * kPartialSlots + 1) * 8 <= 256);

}  // namespace nibble::backend::cuda

#pragma once
// y = W·x for many tokens on wgmma: W in MXFP4, widened in registers to what x is multiplied in: f16 or, of the
// experts, FP8 (docs/decisions/0033)     source: torch/model.py, Linear and MLPBlock
// arguments: dense/gemm_plan.h GemmArgs
// W    layout/packed.h     x and u  layout/wgmma_b.h panels, grouped by place; codes of rows: x in byte panels there
//      panels with a scale a row, u in f16
// grid one CTA per SM takes a work of every wave: 12 tiles of 16 rows (fewer in the last: mxfp4_waves.h), up to kTokens
//      tokens; row blocks run fastest, so that a tile of tokens and an expert's weights are read from DRAM once
// warps three warpgroups with a row tile per warp multiply and store; one more copies x (64 k a stage) and weights (a
//      slice a stage) into two rings, on into the next work. Where no tile has more than kMxfp4Narrow tokens, known on
//      the device alone, both rings have more stages and the loop fewer widths
// down (GemmArgs) follows in the same work tiles: a CTA that ends its last work of gate_up goes on, its weights on
// their way.
//      Only the lane that copies x, now u, waits until all work tiles of its tile of tokens are stored; a CTA's lane
//      tells of its own a few stages later, so that no warp waits for its stores. All CTAs run at once: nobody waits in
//      vain
// loop a slice, its pairs unrolled: no instruction finds out where the next pair lies. An operand per pair of a slice
//      of three, so that all of them are known to the compiler; four pairs take turns at two
// mma  wgmma, weights from registers, as wide as the tokens need: a pair's run while the next pair's weights are
//      widened. One multiplication makes the weight times 2^-3 of the f16 that layout/small_floats.h finds in a word;
//      the epilogue takes 2^3 back. REQUIRES scale codes up to kMaxNarrowScaleCode (2^4); exact from 2^-20 on, smaller
//      ones lose bits and below 2^-25 become 0. bf16 would hold all, but finding it takes twice the instructions Codes
//      of rows: the same with the largest scale there is as top, and the upper byte is e5m2: exact for kByteScales
//      scales below it, which REQUIRES holds. A tile's scales of x come with its last stage, which is held until the
//      work is stored, and are multiplied into the sums before that
// bytes, flops: testing/costs.h
// bounds (cycles per 64 k of 192 rows): wgmma 6 N; widening 178, which runs beside wgmma only where tiles are wide: 363
//      of 204 and 178 for 32 tokens, 512 of 481 and 178 for 80; DRAM 477; prompts: 700 W, which hold the clock at
//      1.5 GHz. Codes of rows: wgmma 3 N, instructions 280 of all warps, x and weights from L2 465 at 160 tokens
// measured H100, routing of the dummy model: 120b, 2048 tokens both products 904 us (2026-11-23), 256 tokens 628; 20b,
//      256 tokens 186 (2026-11-23)
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other tokens; of codes with the bits that FP8
//      products are added with

#include "backend/cuda/arch/sm90/mxfp4_parts.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

#include <iterator>

namespace nibble::backend::cuda {

// kTheShort: the first slice of K may lack pairs (layout::slices_of). Its rings turn as if it had them, with nothing in
// the stages of x, and no products. Then down may also have another K than gate_up (a rank with some columns of every
// expert).
// kTheSplit: works may be parts of K (GemmArgs::splits). REQUIRES whole slices where there are several.
template <int kTheSliceBlockPairs, int kTheTokens, Mxfp4Input kTheInput, bool kTheShort = false, bool kTheSplit = false>
struct Mxfp4Tile {
  static constexpr bool kShort = kTheShort, kSplit = kTheSplit;
  static constexpr layout::Packing kPacking = layout::Packing::kMxfp4;
  static constexpr Mxfp4Input kInput = kTheInput;
  static constexpr int kTokens = kTheTokens;
  static constexpr int kSliceBlockPairs = kTheSliceBlockPairs;
  static constexpr int kRowTiles = kMxfp4RowTiles, kWarps = kRowTiles;
  static constexpr int kConsumers = kWarps * layout::kWarpLanes;
  static constexpr int kCopiers = 128;  // a warpgroup: 8 threads a row tile of weights; its last warp x
  static constexpr int kWeightCopiers = 8 * kRowTiles;
  static constexpr int kThreads = kConsumers + kCopiers;
  static constexpr int kConsumerRegisters = 160, kProducerRegisters = 32;
  static constexpr int kOperands = kSliceBlockPairs % 2 == 0 ? 2 : kSliceBlockPairs;
  static constexpr int kPieceBytes = layout::slice_bytes(2 * kSliceBlockPairs);  // of a row tile's slice
  static constexpr int kRowBytes = mxfp4_row_bytes(kInput), kInputBytes = kTokens * kRowBytes;
  static constexpr int kWeightBytes = kRowTiles * kPieceBytes;
  static constexpr int kInputStages = mxfp4_rings(kSliceBlockPairs, kTokens, kInput).inputs;
  static constexpr int kWeightStages = mxfp4_rings(kSliceBlockPairs, kTokens, kInput).weights;
  static constexpr bool kFewColumns = kTokens == kMxfp4Narrow;
  static constexpr int kWidths =
      static_cast<int>(kFewColumns ? std::size(kMxfp4NarrowWidths) : std::size(kMxfp4Widths));
  [[nodiscard]] static constexpr int width(int i) { return kFewColumns ? kMxfp4NarrowWidths[i] : kMxfp4Widths[i]; }
  static_assert(kInputStages % kSliceBlockPairs == 0);
};

// The slices of K that a work has, of `all` of its matrix, and the pairs that the first of all lacks.
template <class Tile>
struct WorkSlices {
  int all, first = 0, count, missing = 0;
  __device__ WorkSlices(const GemmArgs& args, const GemmWork& work, bool down) {
    constexpr int kSliceK = Tile::kSliceBlockPairs * layout::kPanelK;
    const int cols = Tile::kShort && down ? layout::block_pair_width(args.rows / 2) : args.cols;
    if constexpr (Tile::kShort) {
      all = (cols + kSliceK - 1) / kSliceK;
      missing = all * Tile::kSliceBlockPairs - cols / layout::kPanelK;
    } else {
      all = cols / kSliceK;
    }
    count = all;
    if constexpr (Tile::kSplit) {
      first = work.split * all / args.splits;
      count = (work.split + 1) * all / args.splits - first;
    }
  }
};

// sums += a · the columns of `count` tokens, as a group that is under way on return: the narrowest of the tile's widths
// kFirst to kLast that holds them. ptxas overlaps wgmmas only so: the branch here, around the smallest piece (loops of
// several widths get registers of their own each), with its fence and its commit (else C7510 to C7520). REQUIRES of
// count that ptxas knows it to be the same in all lanes: a vote in front of each branch would wait.
template <class Tile, int kFirst = 0, int kLast = Tile::kWidths - 1>
__device__ __forceinline__ void multiply_narrowest(int count, WgmmaSums<Tile>& sums,
                                                   const BlockPairOperand<Tile::kInput>& a, uint32_t stage) {
  if constexpr (Tile::kShort && kFirst == 0 && kLast == Tile::kWidths - 1)
    if (count == 0) {  // of a pair that is none
      ptx::wgmma_fence();
      return ptx::wgmma_commit();
    }
  if constexpr (kFirst < kLast) {
    constexpr int kMiddle = (kFirst + kLast) / 2;
    if (count <= Tile::width(kMiddle)) return multiply_narrowest<Tile, kFirst, kMiddle>(count, sums, a, stage);
    return multiply_narrowest<Tile, kMiddle + 1, kLast>(count, sums, a, stage);
  } else {
    auto& columns = reinterpret_cast<float(&)[Tile::width(kFirst) / 8][4]>(sums);
    ptx::wgmma_fence();
    if constexpr (Tile::kInput == Mxfp4Input::kF16) {
#pragma unroll
      for (int s = 0; s < 4; ++s) ptx::wgmma<ptx::WgmmaType::kF16>(columns, a[s], layout::matrix_descriptor(stage, s));
    } else {
#pragma unroll
      for (int block = 0; block < 2; ++block)
        ptx::wgmma<ptx::WgmmaType::kF8>(columns, a[block], layout::byte_matrix_descriptor(stage, block));
    }
    ptx::wgmma_commit();
  }
}

// A thread's part of a row tile's piece, which 8 threads copy line by line: pieces begin at any 32 bytes, and requests
// that span two lines would be twice as many. lacks: bytes at its beginning that a short slice does not have.
template <class Tile>
__device__ __forceinline__ void copy_lines(uint32_t to, const uint8_t* piece, int lacks, int thread) {
  constexpr int kLine = layout::kAtomRowBytes, kMostBefore = kLine - 16;
  constexpr int kLines = (Tile::kPieceBytes + kMostBefore + kLine - 1) / kLine;
  const int first = thread * 16 - static_cast<int>(reinterpret_cast<uintptr_t>(piece) % kLine);
  const uint8_t* const from = piece + first;
  to += static_cast<uint32_t>(first);
#pragma unroll
  for (int line = 0; line < kLines; ++line) {
    const int at = line * kLine;
    const bool within = (Tile::kShort ? first + at >= lacks : line > 0 || first >= 0) &&
                        (at + kLine <= Tile::kPieceBytes || first + at < Tile::kPieceBytes);
    if (within) ptx::async_copy16(to + static_cast<uint32_t>(at), from + at, ptx::Fill::kCopy);
  }
}

// A thread of the 8 that copy a row tile's weights. Pieces are aligned to 32 bytes only: bulk copies of them reach 8
// bytes a cycle (H200), these do not mind.
template <class Tile>
__device__ __forceinline__ void copy_weights(const GemmArgs& args, const WorkList& list, const GemmRings<Tile>& rings) {
  const int own = static_cast<int>(threadIdx.x) - Tile::kConsumers, own_tile = own / 8;
  ptx::mbarrier_arrive(rings.weight_full(0));  // consumers hold it: SliceWalk
  RingPlace<Tile::kWeightStages> weight{1};
  for (int wave = 0;; ++wave) {
    const GemmWork work = list.at<Tile>(args, wave);
    if (work.row_tiles == 0) break;
    const int row_tiles = (work.down ? args.cols : args.rows) / layout::kTileRows;
    const WorkSlices<Tile> k(args, work, work.down);
    const int lacks = k.missing * layout::kBlockPairBytes;
    // A row tile beyond the last is a copy of it, and not stored.
    const int row_tile = min(work.first_row_tile + own_tile, row_tiles - 1);
    const uint8_t* from = (work.down ? args.down.weights : args.weights) +
                          (int64_t{work.expert} * row_tiles + row_tile) * (k.all * Tile::kPieceBytes - lacks) - lacks +
                          k.first * Tile::kPieceBytes;
    for (int slice = 0; slice < k.count; ++slice, from += Tile::kPieceBytes) {
      ptx::mbarrier_wait(rings.weight_empty(weight.stage), weight.parity ^ 1u);
      if (own_tile < work.row_tiles)
        copy_lines<Tile>(rings.weight_stage(weight.stage) + static_cast<uint32_t>(own_tile * Tile::kPieceBytes), from,
                         slice == 0 ? lacks : 0, own % 8);
      ptx::mbarrier_arrive_behind_copies(rings.weight_full(weight.stage));
      weight.next();
    }
  }
  ptx::async_wait<0>();
}

// What the lane that copies x tells others of u: their work tiles of down wait for all work tiles of a tile of tokens.
// At most one work's is untold: the next one's last columns come after it.
template <class Tile>
struct StoredWorks {
  ExpertTile* tiles;
  uint32_t barrier;  // GemmRings::stored
  uint32_t parity = 0;
  int untold = -1;  // its tile

  __device__ void tell() {
    if (untold < 0) return;
    ptx::mbarrier_wait(barrier, parity);
    ptx::fence_proxy_async_global();  // to the bulk copies of other SMs
    ptx::add_release(&tiles[untold].stored, 1);
    untold = -1;
    parity ^= 1u;
  }
  // Nobody waits who has not told.
  __device__ void wait_for(int tile, int work_tiles) {
    while (ptx::load_acquire(&tiles[tile].stored) < work_tiles) tell();
    ptx::fence_proxy_async_global();
  }
};

// The lane that copies x, for down u.
template <class Tile>
__device__ __forceinline__ void copy_inputs(const GemmArgs& args, const WorkList& list, const GemmRings<Tile>& rings) {
  for (int i = 0; i < Tile::kSliceBlockPairs; ++i) ptx::mbarrier_arrive(rings.input_full(i));  // as weights
  RingPlace<Tile::kInputStages> input{Tile::kSliceBlockPairs % Tile::kInputStages};
  StoredWorks<Tile> stored{args.tiles, rings.stored()};
  for (int wave = 0;; ++wave) {
    const GemmWork work = list.at<Tile>(args, wave);
    if (work.row_tiles == 0) return stored.tell();
    if (work.down) stored.wait_for(work.tile, list.waves.before_blocks);
    const WorkSlices<Tile> k(args, work, work.down);
    const int pairs = k.count * Tile::kSliceBlockPairs - k.missing;
    const int told = min(Tile::kInputStages, pairs - 2);  // pairs until then: the work before is stored, or nearly
    const int64_t row = int64_t{k.first} * Tile::kSliceBlockPairs * args.x_rows + work.first;
    const auto* x = reinterpret_cast<const uint8_t*>(work.down ? args.u : args.x) + row * Tile::kRowBytes;
    const auto rows = static_cast<uint32_t>((work.count + layout::kAtomRows - 1) / layout::kAtomRows) *
                      static_cast<uint32_t>(layout::kAtomRows);
    const uint32_t bytes = rows * Tile::kRowBytes;
    for (int i = 0; Tile::kShort && i < k.missing; ++i) {
      ptx::mbarrier_wait(rings.input_empty(input.stage), input.parity ^ 1u);
      ptx::mbarrier_arrive(rings.input_full(input.stage));
      input.next();
    }
    for (int pair = 0; pair < pairs; ++pair, x += int64_t{args.x_rows} * Tile::kRowBytes) {
      const uint32_t full = rings.input_full(input.stage);
      ptx::mbarrier_wait(rings.input_empty(input.stage), input.parity ^ 1u);
      if (Tile::kInput == Mxfp4Input::kRowCodes && pair == pairs - 1) {  // this stage is held until the work is stored
        ptx::mbarrier_arrive_expect_tx(full, bytes + 4 * rows);
        ptx::bulk_copy(rings.row_scales_of(static_cast<uint32_t>(input.stage / Tile::kSliceBlockPairs)),
                       args.x_scales + work.first, 4 * rows, full);
      } else {
        ptx::mbarrier_arrive_expect_tx(full, bytes);
      }
      ptx::bulk_copy(rings.input_stage(input.stage), x, bytes, full);
      input.next();
      if (pair == told) stored.tell();
    }
    if (list.waves.before > 0 && !work.down) stored.untold = work.tile;
  }
}

// Where a warp that multiplies is in the rings. It gives a stage back when it takes a later one, of x when wgmma is
// done with it: as if it had had the first slice from the start, which is therefore full, of nothing, in the first
// round.
template <class Tile>
struct SliceWalk {
  static constexpr int kPairs = Tile::kSliceBlockPairs, kGroups = Tile::kInputStages / kPairs;
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const uint32_t own_codes = static_cast<uint32_t>(warp * Tile::kPieceBytes + lane * layout::kLaneBytes);
  const uint32_t own_scales =
      static_cast<uint32_t>(warp * Tile::kPieceBytes + layout::scale_word_offset(2 * kPairs, lane / 4, 0));
  const uint32_t offsets;  // of the weights' scales
  using Rings = GemmRings<Tile>;
  RingCursor<kGroups, kPairs * Tile::kInputBytes, kPairs> input;  // by the slice
  RingCursor<Tile::kWeightStages, Tile::kWeightBytes, 1, Rings::kWeights> weight;
  uint32_t held_input, held_weight;  // the barriers for full of the slice before
  uint32_t codes, scales;            // of the slice
  BlockPairOperand<Tile::kInput> operands[Tile::kOperands] = {};

  __device__ SliceWalk(const GemmArgs& args, const GemmRings<Tile>& rings)
      : offsets(scale_offsets(scale_top(args.scale_top))),
        input(rings.input_stage(0), rings.input_full(0), 1),
        weight(rings.weight_stage(0), rings.weight_full(0), 1),
        held_input(rings.input_full(0)),
        held_weight(rings.weight_full(0)) {
    for (int pair = 0; pair < kPairs - 2; ++pair) give_back(held_input, pair);
  }

  __device__ __forceinline__ void give_back(uint32_t full, int pair) const {
    if (lane == 0) ptx::mbarrier_arrive(full + 8 * static_cast<uint32_t>(Rings::kInputs + pair));
  }

  // Waits for the next slice's weights; the one before has been read.
  __device__ __forceinline__ void take_weights() {
    ptx::mbarrier_arrive(decltype(weight)::empty(held_weight));
    held_weight = weight.full;
    ptx::mbarrier_wait(weight.full, weight.parity);
    codes = weight.stage + own_codes;
    scales = weight.stage + own_scales;
    weight.next();
  }
  __device__ __forceinline__ void load(StagedBlockPair& staged, int pair) const {
    staged.load(codes + static_cast<uint32_t>(pair * layout::kBlockPairBytes),
                scales + static_cast<uint32_t>(pair * 4));
  }
  // Gives back the stage of x of the pair before the last.
  __device__ __forceinline__ void give_back_before(int pair) const {
    if (pair < 2)
      give_back(held_input, kPairs - 2 + pair);
    else
      give_back(input.full, pair - 2);
  }
  __device__ __forceinline__ void wait_for_input(int pair) const {
    ptx::mbarrier_wait(input.full + 8 * static_cast<uint32_t>(pair), input.parity);
  }
  __device__ __forceinline__ void end_slice() {
    held_input = input.full;
    input.next();
  }

  // sums += a slice's weights, from pair `first` on, · its columns; the last two pairs are under way on return.
  __device__ __forceinline__ void multiply(int count, int first, WgmmaSums<Tile>& sums) {
    take_weights();
    StagedBlockPair staged[kPairs];
    load(staged[0], 0);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      BlockPairOperand<Tile::kInput>& a = operands[pair % Tile::kOperands];
      if (pair + 1 < kPairs) load(staged[pair + 1], pair + 1);
      ptx::wgmma_wait<1>();  // the pair before the last is multiplied: its stage of x is free
      ptx::keep(a);
      give_back_before(pair);
      staged[pair].widen(a, offsets);
      wait_for_input(pair);
      multiply_narrowest<Tile>(Tile::kShort && pair < first ? 0 : count, sums, a,
                               input.stage + static_cast<uint32_t>(pair * Tile::kInputBytes));
    }
    end_slice();
  }
  // A slice of a work that has no row tile for this warp: nobody else may give its stages back.
  __device__ __forceinline__ void pass() {
    take_weights();
    for (int pair = 0; pair < kPairs; ++pair) {
      give_back_before(pair);
      wait_for_input(pair);
    }
    end_slice();
  }

  // Number in the ring of x of the slice that was multiplied last.
  [[nodiscard]] __device__ uint32_t last_slice(const GemmRings<Tile>& rings) const {
    return (held_input - rings.input_full(0)) / (8 * kPairs);
  }

  __device__ __forceinline__ void finish(WgmmaSums<Tile>& sums) {
    ptx::wgmma_wait<0>();
    ptx::keep(operands);
    ptx::keep(sums);  // no use of them above the wait
  }
};

template <class Tile, layout::RowOrder kOrder>
__device__ __forceinline__ void multiply_works(const GemmArgs& args, const WorkList& list,
                                               const GemmRings<Tile>& rings) {
  SliceWalk<Tile> walk(args, rings);
  for (int wave = 0;; ++wave) {
    const GemmWork work = list.at<Tile>(args, wave);
    if (all_lanes(work.row_tiles == 0)) return;
    const WorkSlices<Tile> k(args, work, all_lanes(work.down));
    if (all_lanes(walk.warp >= work.row_tiles)) {
      for (int slice = 0; slice < k.count; ++slice) walk.pass();
      continue;
    }
    const auto count = static_cast<int>(ptx::warp_max_u32(static_cast<uint32_t>(work.count)));
    const int row_tile = work.first_row_tile + walk.warp;
    const WorkRows rows = WorkRows::of<kOrder>(args, work);
    const bool stored = all_lanes(row_tile < rows.count / layout::kTileRows);
    const RowBias bias = bias_of(rows, work.expert, stored ? row_tile : 0);
    WgmmaSums<Tile> sums = {};
    int left = k.count;
    for (int missing = k.missing; left > 0; --left, missing = 0) walk.multiply(count, missing, sums);
    walk.finish(sums);
    if constexpr (Tile::kInput == Mxfp4Input::kRowCodes) {
      scale_tokens<Tile>(args, work.count, rings.row_scales_of(walk.last_slice(rings)), sums);
      __syncwarp();  // one lane gives the scales' stage back for all
    }
    if (stored) store<Tile, kOrder>(args, work, row_tile, bias, sums);
    if (list.waves.before > 0 && !work.down) ptx::mbarrier_arrive(rings.stored());
  }
}

template <class Tile>
__device__ __forceinline__ void copy(const GemmArgs& args, const WorkList& list, const GemmRings<Tile>& rings) {
  if (threadIdx.x < Tile::kConsumers + Tile::kWeightCopiers) return copy_weights<Tile>(args, list, rings);
  if (threadIdx.x == Tile::kConsumers + Tile::kWeightCopiers) copy_inputs<Tile>(args, list, rings);
}

template <int kSliceBlockPairs, layout::RowOrder kOrder, Mxfp4Input kInput, bool kShort>
__global__ void __launch_bounds__(Mxfp4Tile<kSliceBlockPairs, kMxfp4Tokens, kInput, kShort>::kThreads, 1)
    sm90_mxfp4_gemm(const __grid_constant__ GemmArgs args, const int tile_tokens) {
  constexpr bool kSplit = kOrder == layout::RowOrder::kPlain && kInput == Mxfp4Input::kF16;
  using Wide = Mxfp4Tile<kSliceBlockPairs, kMxfp4Tokens, kInput, kShort, kSplit>;
  using Narrow = Mxfp4Tile<kSliceBlockPairs, kMxfp4Narrow, kInput, kShort, kSplit>;
  extern __shared__ __align__(128) uint8_t smem[];
  if (threadIdx.x == 0) GemmRings<Wide>(smem).init();
  __syncthreads();
  ptx::grid_dependency_launch();
  // A dense product's weights come while the kernel before still runs: they, and where they lie, are nobody's result.
  const auto thread = static_cast<int>(threadIdx.x);
  const bool ahead = kSplit && thread >= Wide::kConsumers && thread < Wide::kConsumers + Wide::kWeightCopiers;
  if (!ahead || args.tiles != nullptr) ptx::grid_dependency_wait();
  const WorkList list(args, tile_tokens, matrices_of<kOrder>(args));
  const bool narrow = all_lanes(list.most_tokens() <= kMxfp4Narrow);
  if (threadIdx.x >= Wide::kConsumers) {
    ptx::give_registers_but<Wide::kProducerRegisters>();
    if (narrow) return copy<Narrow>(args, list, GemmRings<Narrow>(smem));
    return copy<Wide>(args, list, GemmRings<Wide>(smem));
  }
  ptx::take_registers_up_to<Wide::kConsumerRegisters>();
  if (narrow) return multiply_works<Narrow, kOrder>(args, list, GemmRings<Narrow>(smem));
  multiply_works<Wide, kOrder>(args, list, GemmRings<Wide>(smem));
}

}  // namespace nibble::backend::cuda

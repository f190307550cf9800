#pragma once
// Both products of the experts, of few pairs each, on wgmma     source: torch/model.py, MLPBlock
// arguments: dense/gemm_plan.h GemmArgs with down; W: layout/packed.h; x and u: layout/wgmma_b.h panels, by place
// grid one CTA per SM has a range of all groups of 64 rows, tile of tokens by tile; ranges of down follow those of
//      gate_up (grouped_walk.h). A tile's x is copied once per CTA and stays in shared memory while rows go by
// warps four warpgroups take groups in turn, a row tile a warp, weights through a ring of the warp's own: no warp waits
//      for another but in its wgmmas. One lane more copies x
// down waits, tile by tile, until all of gate_up's rows of the tile are stored: that lane counts what its CTA has
//      stored of a tile when all its warps are done with it. All CTAs run at once: nobody waits in vain
// mma  wgmma as in mxfp4_gemm.cuh, whose bits these are. REQUIRES what it requires of scales
// bytes, flops: testing/costs.h
// bounds (cycles per 64 k of 256 rows, H200): DRAM 440 at 1.78 GHz, 395 at 1.6, where the power limit holds it;
//      instructions 336; shared memory 136, and 32 for each 8 tokens
// measured 2026-11-26 (H200, 120b, both products), share of reads: 12 tokens 156 us (81 %), 256 543 us (70 %)
// rounding: f32 sums in the order of k: bitwise repeatable, whatever the other tokens

#include "backend/cuda/arch/sm90/grouped_walk.h"
#include "backend/cuda/arch/sm90/mxfp4_gemm.cuh"

namespace nibble::backend::cuda {

template <int kTheSliceBlockPairs>
struct Sm90GroupedTile {
  static constexpr bool kShort = false;
  static constexpr Mxfp4Input kInput = Mxfp4Input::kF16;
  static constexpr int kTokens = kSm90GroupedTokens, kSliceBlockPairs = kTheSliceBlockPairs;
  static constexpr int kConsumers = kSm90GroupedWarps * layout::kWarpLanes;
  static constexpr int kThreads = kConsumers + 128;  // a warpgroup more, since registers are given by warpgroup
  static constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;
  static constexpr int kStages = kSm90GroupedStages, kAhead = kStages - 1,
                       kPieceBytes = layout::slice_bytes(2 * kSliceBlockPairs);
  static constexpr int kOperands = kSliceBlockPairs % 2 == 0 ? 2 : kSliceBlockPairs;
  static constexpr int kPanelBytes = kTokens * layout::kAtomRowBytes;
  static constexpr int kWidths = kTokens / 8;
  [[nodiscard]] static constexpr int width(int i) { return 8 * (i + 1); }
};

// As multiply_narrowest, but the narrowest width is asked for first: most experts have it.
template <class Tile, int kWidth = 0>
__device__ __forceinline__ void multiply_widths(int count, WgmmaSums<Tile>& sums,
                                                const BlockPairOperand<Tile::kInput>& a, uint32_t stage) {
  if constexpr (kWidth + 1 < Tile::kWidths)
    if (count > Tile::width(kWidth)) return multiply_widths<Tile, kWidth + 1>(count, sums, a, stage);
  multiply_narrowest<Tile, kWidth, kWidth>(count, sums, a, stage);
}

// Dynamic shared memory: two barriers each for full and empty | x, a panel of kTokens rows per 64 k | a ring per warp
struct Sm90GroupedShared {
  uint32_t barriers, x;
  __device__ explicit Sm90GroupedShared(const uint8_t* memory)
      : barriers(ptx::shared_address(memory)),
        x((barriers + kWgmmaBarrierBytes + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes) {}
  // The barrier of a CTA's n-th part.
  [[nodiscard]] __device__ uint32_t full(int n) const { return barriers + static_cast<uint32_t>(n % 2 * 8); }
  [[nodiscard]] __device__ uint32_t empty(int n) const { return full(n) + 16; }
  [[nodiscard]] __device__ static uint32_t parity(int n) { return static_cast<uint32_t>(n / 2 % 2); }
  // Where x of a part begins.
  [[nodiscard]] __device__ uint32_t rows(const Sm90Places& places) const {
    return x + static_cast<uint32_t>(places.first * layout::kAtomRowBytes);
  }
};

// A warp's weights, slice after slice of its groups' row tiles, to where it is told.
template <class Tile>
struct Sm90Feed {
  const GemmArgs& args;
  Sm90Groups groups;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, slices;  // of a row tile
  int tile = -1, expert = 0;
  bool there = false;             // something is left to fetch
  const uint8_t* from = nullptr;  // the lane's first bytes of the next slice

  __device__ Sm90Feed(const GemmArgs& the_args, const Sm90Groups& its_groups)
      : args(the_args), groups(its_groups), slices(args.cols / (Tile::kSliceBlockPairs * layout::kPanelK)) {
    open();
  }
  // The next group's first slice is next.
  __device__ __forceinline__ void open() {
    there = groups.valid();
    if (there) {
      if (tile != groups.part.tile) expert = args.tiles[tile = groups.part.tile].expert;
      const int row_tiles = (groups.part.down ? args.cols : args.rows) / layout::kTileRows;
      const int row_tile = groups.group * kMxfp4WarpgroupTiles +
                           static_cast<int>(threadIdx.x) / layout::kWarpLanes % kMxfp4WarpgroupTiles;
      from = (groups.part.down ? args.down.weights : args.weights) +
             (int64_t{expert} * row_tiles + row_tile) * (slices * Tile::kPieceBytes) + lane * layout::kLaneBytes;
      groups.advance();
    }
    __syncwarp();  // for ptxas, which else takes the loops after this for ones whose lanes go their own ways
  }
  // One group of copies, if only an empty one. to: the lane's first bytes of a stage.
  __device__ __forceinline__ void fetch(uint32_t to) {
    constexpr int kStep = layout::kStepBytes, kSteps = (Tile::kPieceBytes + kStep - 1) / kStep;
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (there && (i + 1 < kSteps || lane * layout::kLaneBytes + i * kStep < Tile::kPieceBytes))
        ptx::async_copy16(to + static_cast<uint32_t>(i * kStep), from + i * kStep, ptx::Fill::kCopy);
    from += Tile::kPieceBytes;
    ptx::async_commit();
  }
};

// A warp's products.
template <class Tile>
struct Sm90Rows {
  static constexpr int kRingBytes = Tile::kStages * Tile::kPieceBytes;
  Sm90Feed<Tile> feed;
  uint32_t codes, scales, last;  // the lane's of the next slice; codes of the ring's last stage
  uint32_t before;               // codes of the slice before: where the next one comes to lie
  BlockPairOperand<Tile::kInput> operands[Tile::kOperands] = {};

  __device__ Sm90Rows(const GemmArgs& args, const Sm90Groups& groups, uint32_t ring) : feed(args, groups) {
    codes = ring + static_cast<uint32_t>(feed.lane * layout::kLaneBytes);
    scales = ring + static_cast<uint32_t>(layout::scale_word_offset(2 * Tile::kSliceBlockPairs, feed.lane / 4, 0));
    last = before = codes + (Tile::kStages - 1) * Tile::kPieceBytes;
    for (int i = 0; i < Tile::kAhead; ++i) feed.fetch(codes + static_cast<uint32_t>(i * Tile::kPieceBytes));
  }

  // sums += the next row tile · the columns whose first panel lies at x; done on return. count, x: of all lanes.
  __device__ __forceinline__ void multiply(int count, uint32_t x, WgmmaSums<Tile>& sums) {
    for (int slice = 0, end = feed.slices - Tile::kAhead;; end = feed.slices) {
#pragma unroll 1
      for (; slice < end; ++slice, x += Tile::kSliceBlockPairs * Tile::kPanelBytes) multiply_slice(count, x, sums);
      if (end == feed.slices) break;
      feed.open();
    }
    ptx::wgmma_wait<0>();
    ptx::keep(operands);
    ptx::keep(sums);  // no use of them above the wait
  }
  __device__ __forceinline__ void multiply_slice(int count, uint32_t x, WgmmaSums<Tile>& sums) {
    ptx::async_wait<Tile::kAhead - 1>();
    __syncwarp();  // every lane's copies are there, and the slice before this one is read
    feed.fetch(before);
    before = codes;
    StagedBlockPair staged[Tile::kSliceBlockPairs];
    load(staged[0], 0);
#pragma unroll
    for (int pair = 0; pair < Tile::kSliceBlockPairs; ++pair) {
      BlockPairOperand<Tile::kInput>& a = operands[pair % Tile::kOperands];
      if (pair + 1 < Tile::kSliceBlockPairs) load(staged[pair + 1], pair + 1);
      ptx::wgmma_wait<Tile::kOperands - 1>();
      ptx::keep(a);
      staged[pair].widen(a, 0);
      multiply_widths<Tile>(count, sums, a, x + static_cast<uint32_t>(pair * Tile::kPanelBytes));
    }
    const int step = codes == last ? -(Tile::kStages - 1) * Tile::kPieceBytes : Tile::kPieceBytes;
    codes += static_cast<uint32_t>(step);
    scales += static_cast<uint32_t>(step);
  }
  __device__ __forceinline__ void load(StagedBlockPair& staged, int pair) const {
    staged.load(codes + static_cast<uint32_t>(pair * layout::kBlockPairBytes),
                scales + static_cast<uint32_t>(pair * 4));
  }
};

template <class Tile>
__device__ __forceinline__ void multiply_parts(const GemmArgs& args, Sm90Parts parts, const Sm90GroupedShared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
  const uint32_t ring = shared.x + static_cast<uint32_t>(args.cols / layout::kPanelK * Tile::kPanelBytes +
                                                         warp * Tile::kStages * Tile::kPieceBytes);
  int group = warp / kMxfp4WarpgroupTiles;  // its next one, from the part's first on
  Sm90Rows<Tile> rows(args, Sm90Groups(parts, group), ring);
  Sm90Places places;
  for (int n = 0;; ++n) {
    const Sm90Part part = parts.next();
    if (all_lanes(!part.there())) break;
    const ExpertTile tile = args.tiles[part.tile];
    places.take(tile.count);
    const auto count = static_cast<int>(ptx::warp_max_u32(static_cast<uint32_t>(tile.count)));
    uint32_t x = shared.x;  // where places.first begins; in a uniform register, thanks to the votes
    for (int at = layout::kAtomRows; at < Tile::kTokens; at += layout::kAtomRows)
      if (all_lanes(places.first >= at)) x += layout::kAtomBytes;
    group += part.first;
    ptx::mbarrier_wait(shared.full(n), Sm90GroupedShared::parity(n));  // without a group, too: else it would be ahead
    for (; all_lanes(group < part.end); group += kSm90GroupedWarpgroups) {
      const int row_tile = group * kMxfp4WarpgroupTiles + warp % kMxfp4WarpgroupTiles;
      const GemmWork work{tile.expert, tile.first, tile.count, row_tile, 1, part.tile, part.down};
      const RowBias bias = bias_of(WorkRows::of<layout::RowOrder::kGateUp>(args, work), tile.expert, row_tile);
      WgmmaSums<Tile> sums = {};
      rows.multiply(count, x, sums);
      store<Tile, layout::RowOrder::kGateUp>(args, work, row_tile, bias, sums);
    }
    group -= part.end;
    ptx::mbarrier_arrive(shared.empty(n));
  }
  ptx::async_wait<0>();
}

// The lane that copies x, for down u.
template <class Tile>
__device__ __forceinline__ void copy_parts(const GemmArgs& args, Sm90Parts parts, const Sm90GroupedShared& shared) {
  const int up_groups = parts.up.groups, panels = args.cols / layout::kPanelK;
  Sm90Parts ended = parts;
  int done = 0;  // parts
  const auto end_part = [&] {
    ptx::mbarrier_wait(shared.empty(done), Sm90GroupedShared::parity(done));
    ++done;
    const Sm90Part part = ended.next();
    if (part.down) return;
    ptx::fence_proxy_async_global();  // to the bulk copies of other SMs
    ptx::add_release(&args.tiles[part.tile].stored, part.end - part.first);
  };
  Sm90Places places;
  int n = 0;
  for (;; ++n) {
    const Sm90Part part = parts.next();
    if (!part.there()) break;
    const ExpertTile* const tile = args.tiles + part.tile;
    const bool in_turn = places.take(tile->count);
    while (done < (in_turn ? n : n - 1)) end_part();
    if (part.down) {
      while (ptx::load_acquire(&tile->stored) < up_groups)
        if (done < n) end_part();  // nobody waits who has not told
      ptx::fence_proxy_async_global();
    }
    const auto bytes = static_cast<uint32_t>(places.rows * layout::kAtomRowBytes);
    const auto* from =
        reinterpret_cast<const uint8_t*>(part.down ? args.u : args.x) + int64_t{tile->first} * layout::kAtomRowBytes;
    ptx::mbarrier_arrive_expect_tx(shared.full(n), bytes * static_cast<uint32_t>(panels));
    for (uint32_t panel = 0, to = shared.rows(places); panel < static_cast<uint32_t>(panels);
         ++panel, to += Tile::kPanelBytes, from += int64_t{args.x_rows} * layout::kAtomRowBytes)
      ptx::bulk_copy(to, from, bytes, shared.full(n));
  }
  while (done < n) end_part();
}

template <int kSliceBlockPairs>
__global__ void __launch_bounds__(Sm90GroupedTile<kSliceBlockPairs>::kThreads, 1)
    sm90_grouped(const __grid_constant__ GemmArgs args) {
  using Tile = Sm90GroupedTile<kSliceBlockPairs>;
  extern __shared__ __align__(128) uint8_t smem[];
  const Sm90GroupedShared shared(smem);
  if (threadIdx.x == 0) {
    for (int n = 0; n < 2; ++n) {
      ptx::mbarrier_init(shared.full(n), 1);
      ptx::mbarrier_init(shared.empty(n), Tile::kConsumers);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int tiles = *args.tile_count, cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const Sm90Parts parts{{args.rows / kSm90GroupedRows, tiles, cta, ctas},
                        {args.cols / kSm90GroupedRows, tiles, cta, ctas}};
  if (threadIdx.x >= Tile::kConsumers) {
    ptx::give_registers_but<Tile::kProducerRegisters>();
    if (threadIdx.x == Tile::kConsumers) copy_parts<Tile>(args, parts, shared);
    return;
  }
  ptx::take_registers_up_to<Tile::kConsumerRegisters>();
  multiply_parts<Tile>(args, parts, shared);
}

}  // namespace nibble::backend::cuda

#pragma once
// The row tiles of a CTA, slice after slice, in equal runs, one for each of its warps: few row tiles keep all warps
// busy, and no warp has more than another. (row_warps.cuh gives a warp whole row tiles.) Where a run ends inside a
// tile, the warp that began the tile adds what those after it have of it, in their order.
// rounding: f32 sums in an order fixed by the number of tiles and of warps: bitwise repeatable

#include "backend/cuda/dense/row_warps.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"

namespace nibble::backend::cuda {

// Dynamic shared memory: RowShared's | parts [warps][32 lanes] of float4. A warp has at most one: of the tile in which
// its run begins.
template <class Tile>
struct RunShared : RowShared<Tile> {
  uint32_t parts_there;  // a barrier in `extra`

  __device__ RunShared(const uint8_t* memory, int cols, int rows, uint32_t barrier_at)
      : RowShared<Tile>(memory, cols, rows), parts_there(this->extra + barrier_at) {}
  __device__ uint32_t part(int warp) const {
    const uint32_t lane = threadIdx.x % layout::kWarpLanes;
    return this->extra + kRowExtraBytes + static_cast<uint32_t>(warp * kRowPartBytes) + lane * 16;
  }
  __device__ void init() const { ptx::mbarrier_init(parts_there, blockDim.x); }
};

// How a CTA's slices are dealt to its warps, and where this warp begins.
struct Runs {
  int all, shift;   // slices; 2^shift warps
  int tile, slice;  // of the CTA, of the tile

  // slices: of a tile. REQUIRES 1, 2, 4, 8 or 16 warps.
  __device__ Runs(int tiles, int slices) : all(tiles * slices) {
    shift = __ffs(static_cast<int>(blockDim.x) / layout::kWarpLanes) - 1;
    const int begin = first(static_cast<int>(threadIdx.x) / layout::kWarpLanes);
    tile = begin / slices;
    slice = begin - tile * slices;
  }
  [[nodiscard]] __device__ int first(int warp) const { return all * warp >> shift; }
  [[nodiscard]] __device__ int end(int warp) const { return first(warp + 1); }
};

// A warp's run into its ring.
//   Walk: tile() (its number among the packed tiles), advance(); called by whole warps
template <class Tile, class Walk>
struct RunFeed {
  static_assert(!Tile::kShort);
  const RunShared<Tile>& shared;
  Walk walk;
  const uint8_t* weights;
  int slices, lane;
  int slice, left;  // what is fetched next; slices to fetch
  int stage = 0;    // where to
  const uint8_t* from = nullptr;
  uint64_t once = ptx::evict_first_policy();  // weights leave L2 before activations do

  __device__ RunFeed(const RunShared<Tile>& the_shared, const Runs& runs, const Walk& the_walk,
                     const uint8_t* the_weights, int slices_of_tile)
      : shared(the_shared),
        walk(the_walk),
        weights(the_weights),
        slices(slices_of_tile),
        lane(static_cast<int>(threadIdx.x) % layout::kWarpLanes),
        slice(runs.slice) {
    const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes;
    left = runs.end(warp) - runs.first(warp);
    open();
    for (int i = 0; i + 1 < Tile::kStages; ++i) fetch();
  }
  __device__ void open() {
    if (left > 0) from = weights + (walk.tile() * slices + slice) * Tile::kSliceBytes + lane * layout::kLaneBytes;
  }
  // One group of copies, if only an empty one.
  __device__ void fetch() {
    if (left > 0) {
      const uint32_t to = shared.stage(stage) + static_cast<uint32_t>(lane * layout::kLaneBytes);
      copy_slice<Tile>(to, from, lane, slice == 0, 0, once);
      --left;
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

// sums += the ring's next `count` slices, of a tile from slice `first` on, with the activations in shared.x; stage
// moves on.
template <class Tile, class Walk>
__device__ __forceinline__ void multiply_slices(RunFeed<Tile, Walk>& feed, int& stage, int first, int count,
                                                float (&sums)[1][4]) {
  uint32_t x = feed.shared.x + static_cast<uint32_t>(feed.lane / 4 * feed.shared.pitch + feed.lane % 4 * 16 +
                                                     first * Tile::kBlocks * 64);
#pragma unroll 1
  for (int slice = 0; slice < count; ++slice, x += Tile::kBlocks * 64) {
    ptx::async_wait<Tile::kStages - 2>();
    __syncwarp();  // every lane's copies are there, and the slice before this one is read
    feed.fetch();
    multiply_slice<Tile, 1>(feed.shared.stage(stage), 0, x, feed.shared.pitch, feed.lane, sums);
    stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
  }
}

// The warp's run, in which `at` stands at the first tile.
//   Op: open(at)      a tile that this warp will finish
//       finish(sums)  of that tile
template <class Tile, class Walk, class Op>
__device__ __forceinline__ void multiply_run(RunFeed<Tile, Walk>& feed, const Runs& runs, Walk at, Op& op) {
  const RunShared<Tile>& shared = feed.shared;
  const int warp = static_cast<int>(threadIdx.x) / layout::kWarpLanes, end = runs.end(warp);
  int next = runs.first(warp), slice = runs.slice, stage = 0;
  bool owns = slice == 0;                                             // the tile
  if (owns || next == end) ptx::mbarrier_arrive(shared.parts_there);  // it has no part
  for (; next < end; at.advance(), slice = 0) {
    if (owns) op.open(at);
    const int tile_end = next + feed.slices - slice, count = min(tile_end, end) - next;
    float sums[1][4] = {};
    multiply_slices(feed, stage, slice, count, sums);
    next += count;
    if (!owns) {
      ptx::store_shared16(shared.part(warp), sums[0]);
      ptx::mbarrier_arrive(shared.parts_there);
      owns = true;
      continue;
    }
    if (next < tile_end) {
      ptx::mbarrier_wait(shared.parts_there, 0);
      for (int other = warp + 1; runs.first(other) < tile_end; ++other) {
        if (runs.first(other) == runs.end(other)) continue;
        const uint4 v = ptx::load_shared16(shared.part(other));
        sums[0][0] += __uint_as_float(v.x);
        sums[0][1] += __uint_as_float(v.y);
        sums[0][2] += __uint_as_float(v.z);
        sums[0][3] += __uint_as_float(v.w);
      }
    }
    op.finish(sums[0]);
  }
}

}  // namespace nibble::backend::cuda

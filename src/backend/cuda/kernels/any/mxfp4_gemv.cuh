#pragma once
// y = W·x for 1 to 8 tokens, W MXFP4, exact (no activation is quantised)      source: torch/model.py, Linear and
// MLPBlock W    mxfp4 tiles of 16 rows, layout/mx_a_m16k32.h            x  f16, see mxfp4_plan.h            sums f32
// grid one CTA per SM, tiles interleaved (mxfp4_walk.h); a ring of 2..8 tiles filled by cp.async.bulk;
//      warps: one per slice of K (consumers), one producer, one epilogue; no barrier in the loop but mbarriers
// mma  m16n8k16, weights on the m side, columns: see Columns and mxfp4_ops.cuh
// rounding: f32 accumulation in an order fixed by the shape: bitwise repeatable; not bitwise equal to the reference

#include "backend/cuda/kernels/any/mxfp4_ops.cuh"
#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/shared_memory.cuh"

namespace nibble::backend::cuda {

inline constexpr int kGemvMaxThreads = (layout::kMaxSlices + 2) * layout::kWarpLanes;
inline constexpr int kRingMaxStages = 8;
inline constexpr int kPartialSlots = 2;

// kBlocks: one row of activations; block j of a slice stands in column j, all other columns of that block zero, so that
// the sums of eight blocks end in one accumulator and are scaled once. kVectors: up to eight rows of activations, one
// per column; each block's sums are scaled before they are added.
enum class Columns { kBlocks, kVectors };

template <int kSliceBlocks, Columns kTheColumns>
struct GemvTile {
  static constexpr int kBlocks = kSliceBlocks;
  static constexpr int kPairs = kBlocks / 2;
  static constexpr Columns kColumns = kTheColumns;
};

template <class OpArgs>
struct GemvKernelArgs {
  OpArgs op;
  const uint8_t* weights;
  int stages, slices, tile_bytes;
};

// Position in a ring: stage and the parity of its current round.
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Shared memory: ring of tiles | partial sums [2][slices][32 lanes] of float4 | barriers.
struct GemvShared {
  uint32_t ring, partials, barriers;
  int tile_bytes, slices, stages;

  template <class KernelArgs>
  __device__ GemvShared(const uint8_t* memory, const KernelArgs& args)
      : ring(ptx::shared_address(memory)),
        partials(ring + static_cast<uint32_t>(args.stages * args.tile_bytes)),
        barriers(partials + static_cast<uint32_t>(kPartialSlots * args.slices * layout::kWarpLanes * 16)),
        tile_bytes(args.tile_bytes),
        slices(args.slices),
        stages(args.stages) {}

  __device__ uint32_t tile(int stage) const { return ring + static_cast<uint32_t>(stage * tile_bytes); }
  __device__ uint32_t partial(int slot, int slice, int lane) const {
    return partials + static_cast<uint32_t>(((slot * slices + slice) * layout::kWarpLanes + lane) * 16);
  }
  __device__ uint32_t tile_full(int stage) const { return barriers + 8 * static_cast<uint32_t>(stage); }
  __device__ uint32_t tile_empty(int stage) const { return tile_full(kRingMaxStages + stage); }
  __device__ uint32_t partial_full(int slot) const { return tile_full(2 * kRingMaxStages + slot); }
  __device__ uint32_t partial_empty(int slot) const { return tile_full(2 * kRingMaxStages + kPartialSlots + slot); }

  __device__ void init() const {
    for (int s = 0; s < stages; ++s) {
      ptx::mbarrier_init(tile_full(s), 1);
      ptx::mbarrier_init(tile_empty(s), static_cast<uint32_t>(slices));
    }
    for (int s = 0; s < kPartialSlots; ++s) {
      ptx::mbarrier_init(partial_full(s), static_cast<uint32_t>(slices));
      ptx::mbarrier_init(partial_empty(s), 1);
    }
    ptx::fence_mbarrier_init();
  }
};

// One arrival for the warp, after all its lanes' earlier accesses.
__device__ __forceinline__ void warp_arrive(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(barrier);
}

template <class Op, class KernelArgs>
__device__ void produce(const KernelArgs& args, const GemvShared& shared, int lane) {
  if (Op::waits_for_ids(args.op)) ptx::grid_dependency_wait();
  const Op op(args.op, lane);
  if (Op::kLaunchesAfterWait) ptx::grid_dependency_launch();
  const auto walk = op.walk();
  const uint64_t policy = ptx::evict_first_policy();
  RingPosition at;
  for (Cursor c = walk.first(static_cast<int>(blockIdx.x)); walk.valid(c); c = walk.next(c)) {
    const uint8_t* from = args.weights + op.tile(c) * shared.tile_bytes;
    if (lane == 0) {
      ptx::mbarrier_wait(shared.tile_empty(at.stage), at.parity ^ 1);  // a fresh barrier's previous round is complete
      ptx::mbarrier_arrive_expect_tx(shared.tile_full(at.stage), static_cast<uint32_t>(shared.tile_bytes));
      ptx::bulk_copy(shared.tile(at.stage), from, static_cast<uint32_t>(shared.tile_bytes), shared.tile_full(at.stage),
                     policy);
    }
    __syncwarp();
    at.advance(shared.stages);
  }
}

// The B operand of a slice: for block j, registers {step 0: 0, 1; step 1: 0, 1} hold k = 8t..8t+7 (layout k_of).
template <class Tile>
struct Activations {
  uint32_t b[Tile::kBlocks][4];

  // row: this lane's column of x, or null; slice: the calling warp's.
  __device__ void load_vectors(const F16* row, int slice, int lane) {
    for (int j = 0; j < Tile::kBlocks; ++j) {
      const uint4 v = row == nullptr ? uint4{} : load(row, slice * Tile::kBlocks + j, lane);
      set(j, v);
    }
  }
  // One row; lane 4g + t keeps block g of the slice in column g and zeros elsewhere.
  __device__ void load_blocks(const F16* row, int slice, int lane) {
    const int own = group_of(lane);
    const uint4 v = own < Tile::kBlocks ? load(row, slice * Tile::kBlocks + own, lane) : uint4{};
    for (int j = 0; j < Tile::kBlocks; ++j) set(j, own == j ? v : uint4{});
    for (auto& block : b)
      for (uint32_t& reg : block) ptx::keep(reg);  // else four selects per block and tile
  }

 private:
  __device__ static uint4 load(const F16* row, int block, int lane) {
    return *reinterpret_cast<const uint4*>(row + block * layout::kBlockK + layout::k_of(lane % 4, 0, 0, 0));
  }
  __device__ void set(int j, const uint4& v) {
    b[j][0] = v.x;
    b[j][1] = v.y;
    b[j][2] = v.z;
    b[j][3] = v.w;
  }
};

// Byte i of a scale word as the float 2^(byte - 127).
__device__ __forceinline__ float scale_of(uint32_t word, int i) {
  return __uint_as_float((i == 3 ? word >> 1 : word << (23 - 8 * i)) & 0x7f800000u);
}

// A slice's codes and scales in registers.
template <class Tile>
struct SliceWeights {
  static constexpr int kScaleWords = Tile::kColumns == Columns::kBlocks ? 1 : Tile::kPairs;
  uint4 codes[Tile::kPairs];
  uint32_t scales[kScaleWords];  // kBlocks: of blocks 2t and 2t + 1. kVectors: word q of blocks 2q and 2q + 1

  __device__ void load(uint32_t slice, int lane) {
    const int g = group_of(lane), t = lane % 4;
    for (int q = 0; q < Tile::kPairs; ++q) codes[q] = ptx::load_shared16(slice + layout::code_offset(q, lane));
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

// The slice's contribution to a tile; sums as in mxfp4_ops.cuh. kBlocks leaves per lane the two blocks' sums of row g
// in sums[0] and of row g + 8 in sums[2]; the epilogue adds the quad.
template <class Tile>
__device__ void multiply(const SliceWeights<Tile>& w, const Activations<Tile>& x, float (&sums)[4]) {
  if constexpr (Tile::kColumns == Columns::kBlocks) {
    float d[2][4] = {};  // two chains: an mma's latency is longer than its share of the pipe
    for (int j = 0; j < Tile::kBlocks; ++j)
      for (int step = 0; step < 2; ++step)
        ptx::mma_m16n8k16(d[step], w.a(j, step).pair, x.b[j][2 * step], x.b[j][2 * step + 1]);
    for (int row8 = 0; row8 < 2; ++row8) {
      const float even = d[0][2 * row8] + d[1][2 * row8], odd = d[0][2 * row8 + 1] + d[1][2 * row8 + 1];
      sums[2 * row8] = scale_of(w.scales[0], 2 * row8) * even + scale_of(w.scales[0], 2 * row8 + 1) * odd;
    }
  } else {
    for (float& sum : sums) sum = 0;
    for (int j = 0; j < Tile::kBlocks; ++j) {
      float d[4] = {};
      for (int step = 0; step < 2; ++step)
        ptx::mma_m16n8k16(d, w.a(j, step).pair, x.b[j][2 * step], x.b[j][2 * step + 1]);
      for (int i = 0; i < 4; ++i) sums[i] += scale_of(w.scales[j / 2], 2 * (i / 2) + j % 2) * d[i];
    }
  }
}

template <class Tile, class Op, class KernelArgs>
__device__ void consume(const KernelArgs& args, const GemvShared& shared, int slice, int lane) {
  ptx::grid_dependency_wait();
  const Op op(args.op, lane);
  const auto walk = op.walk();
  Cursor c = walk.first(static_cast<int>(blockIdx.x));
  if (!walk.valid(c)) return;
  Activations<Tile> x;
  if constexpr (Tile::kColumns == Columns::kBlocks) {
    x.load_blocks(op.column(c, 0), slice, lane);
  } else {
    x.load_vectors(op.column(c, group_of(lane)), slice, lane);
  }
  RingPosition at, out;
  while (true) {
    SliceWeights<Tile> w;
    ptx::mbarrier_wait(shared.tile_full(at.stage), at.parity);
    w.load(shared.tile(at.stage) + static_cast<uint32_t>(slice * layout::slice_bytes(Tile::kBlocks)), lane);
    const Cursor after = walk.next(c);
    const bool more = walk.valid(after);
    [[maybe_unused]] Activations<Tile> x_after = x;
    if constexpr (Op::kReload) {  // issued early: its latency hides behind this tile
      if (more && after.slot != c.slot) x_after.load_vectors(op.column(after, group_of(lane)), slice, lane);
    }
    warp_arrive(shared.tile_empty(at.stage), lane);
    at.advance(shared.stages);

    float sums[4] = {};
    multiply(w, x, sums);
    ptx::mbarrier_wait(shared.partial_empty(out.stage), out.parity ^ 1);
    ptx::store_shared16(shared.partial(out.stage, slice, lane), sums);
    warp_arrive(shared.partial_full(out.stage), lane);
    out.advance(kPartialSlots);
    if (!more) return;
    if constexpr (Op::kReload) x = x_after;
    c = after;
  }
}

// Adds the slices' partial sums in their order; bias, activation function and store are the op's.
template <class Tile, class Op, class KernelArgs>
__device__ void finish(const KernelArgs& args, const GemvShared& shared, int lane) {
  ptx::grid_dependency_wait();
  Op op(args.op, lane);
  const auto walk = op.walk();
  RingPosition at;
  for (Cursor c = walk.first(static_cast<int>(blockIdx.x)); walk.valid(c); c = walk.next(c)) {
    const typename Op::Fetched fetched = op.fetch(c);
    ptx::mbarrier_wait(shared.partial_full(at.stage), at.parity);
    float sums[4] = {};
    for (int slice = 0; slice < shared.slices; ++slice) {
      const uint4 v = ptx::load_shared16(shared.partial(at.stage, slice, lane));
      sums[0] += __uint_as_float(v.x);
      sums[1] += __uint_as_float(v.y);
      sums[2] += __uint_as_float(v.z);
      sums[3] += __uint_as_float(v.w);
    }
    warp_arrive(shared.partial_empty(at.stage), lane);
    at.advance(kPartialSlots);
    if constexpr (Tile::kColumns == Columns::kBlocks) {
      for (int i = 0; i < 4; i += 2) {
        sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 1);
        sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 2);
      }
    }
    op.finish(c, sums, fetched);
  }
}

template <class Tile, class Op>
__global__ void __launch_bounds__(kGemvMaxThreads, 1)
    mxfp4_gemv(const __grid_constant__ GemvKernelArgs<typename Op::Args> args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const GemvShared shared(smem, args);
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / layout::kWarpLanes, 0);  // uniform
  if (threadIdx.x == 0) {
    shared.init();
    if (!Op::kLaunchesAfterWait) ptx::grid_dependency_launch();
  }
  __syncthreads();
  if (warp < shared.slices) {
    consume<Tile, Op>(args, shared, warp, lane);
  } else if (warp == shared.slices) {
    produce<Op>(args, shared, lane);
  } else {
    finish<Tile, Op>(args, shared, lane);
  }
}

}  // namespace nibble::backend::cuda

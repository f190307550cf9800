#pragma once
// y = W·x for 1 to 8 columns of activations, W in any packing     source: torch/model.py, Linear and MLPBlock
// W    tiles of 16 rows, layout/packed.h            x  see gemv_plan.h            sums f32
// grid one CTA per SM, tiles interleaved (gemv_walk.h); a ring of 2..8 chunks filled by counted copies;
//      warps: one per slice of K (consumers), one producer, one or two epilogues, which take turns unit by unit; no
//      barrier in the loop but mbarriers
// mma  m16n8k16, weights on the m side, columns: see Columns and gemv_ops.cuh
// rounding: f32 accumulation in an order fixed by the shape: bitwise repeatable; not bitwise equal to the reference

#include "backend/cuda/dense/gemv_rows.cuh"
#include "backend/cuda/ptx/counted_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

inline constexpr int kGemvMaxThreads = (layout::kMaxSlices + 1 + kGemvEpilogues) * layout::kWarpLanes;

template <class OpArgs>
struct GemvKernelArgs {
  OpArgs op;
  const uint8_t* weights;
  int stages, slices, chunk_bytes, epilogues, under_way;
  int missing;  // pairs that the first slice lacks
};
template <class OpArgs>
GemvKernelArgs<OpArgs> gemv_kernel_args(const OpArgs& args, const GemvPlan& plan) {
  const layout::Geometry& g = plan.geometry;
  return {args,           args.weights,   plan.stages, g.slices, static_cast<int>(g.chunk_bytes),
          plan.epilogues, plan.under_way, g.missing};
}

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

// Every lane arrives, for its own accesses: those of lanes that only met the arriving one at a __syncwarp are ordered,
// too, but racecheck does not know.
__device__ __forceinline__ void warp_arrive(uint32_t barrier) {
  ptx::mbarrier_arrive(barrier);
  __syncwarp();  // together into the mma
}

// The walk's tiles into the ring, one call after the other.
template <class Tile, class KernelArgs>
struct Feeder {
  const KernelArgs& args;
  const GemvShared& shared;
  int lane;
  uint64_t policy = ptx::evict_first_policy();
  RingPosition at = {}, landing = {};  // landing: of the oldest chunk that may be under way
  int under_way = 0;                   // chunks that may be

  // fresh: none of its stages was used before.
  template <class Op>
  __device__ void tile(const Op& op, const Cursor& c, bool fresh = false) {
    const auto bytes = static_cast<uint32_t>(shared.chunk_bytes);
    const uint8_t* from = args.weights + op.tile(c) * (Tile::kChunks * shared.chunk_bytes);
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      if (Tile::kChunks > 1 && !op.takes(c, chunk, Tile::kChunks)) continue;
      if (under_way == args.under_way) {
        if (lane < ptx::kCopyLanes) ptx::mbarrier_wait(shared.chunk_full(landing.stage), landing.parity);
        landing.advance(shared.stages);
        --under_way;
      }
      ++under_way;
      if (lane < ptx::kCopyLanes) {
        if (!fresh)
          ptx::mbarrier_wait(shared.chunk_empty(at.stage), at.parity ^ 1);  // complete in a stage's first round
        ptx::counted_copy(shared.chunk(at.stage), from + chunk * shared.chunk_bytes, bytes, shared.chunk_full(at.stage),
                          policy);
      }
      __syncwarp();
      at.advance(shared.stages);
    }
  }
};

// How many choices are published. For one token it is the producer that chooses, so that it can fetch at once; for
// several, consumers.
template <class Op>
__device__ int choices(const typename Op::Args& args) {
  if constexpr (Op::kChooses)
    return args.tokens;
  else
    return 0;
}

template <class Op>
__device__ void await_choice(const GemvShared& shared) {
  if constexpr (Op::kChooses) ptx::mbarrier_wait(shared.routes().chosen, 0);
}

// One token's tiles: those of the first expert are fetched before the others are known.
template <class Tile, class Op, class KernelArgs>
__device__ void choose_and_produce(const KernelArgs& args, const GemvShared& shared, int lane) {
  Choice choice(args.op.choice, 0, lane);
  Op op(args.op, Routing{choice.c.topk, 0, 0}, lane);
  const auto walk = op.walk();
  Feeder<Tile, KernelArgs> feed{args, shared, lane};
  Cursor c = walk.first(static_cast<int>(blockIdx.x));
  op.routing.expert = choice.pick();
  for (int ahead = 0; ahead < shared.stages && walk.valid(c) && c.slot == 0; ++ahead, c = walk.next(c))
    feed.tile(op, c, true);
  while (choice.picked < choice.c.topk) choice.pick();
  choice.publish(shared.routes());
  op.routing.expert = choice.id;
  for (; walk.valid(c); c = walk.next(c)) feed.tile(op, c);
}

template <class Tile, class Op, class KernelArgs>
__device__ void produce(const KernelArgs& args, const GemvShared& shared, int lane) {
  if constexpr (Op::kChooses) {
    if (args.op.tokens == 1) return choose_and_produce<Tile, Op>(args, shared, lane);
    await_choice<Op>(shared);
  }
  if constexpr (requires { Op::kListed; })
    if (Op::kListed) ptx::grid_dependency_wait();
  const Op op(args.op, shared, lane);
  const auto walk = op.walk();
  Feeder<Tile, KernelArgs> feed{args, shared, lane};
  for (Cursor c = walk.first(static_cast<int>(blockIdx.x)); walk.valid(c); c = walk.next(c)) feed.tile(op, c);
}

template <class Tile, class Op, class KernelArgs>
__device__ void consume(const KernelArgs& args, const GemvShared& shared, int slice, int lane) {
  if constexpr (Op::kChooses) {
    for (int token = slice; args.op.tokens > 1 && token < args.op.tokens; token += shared.slices) {
      Choice choice(args.op.choice, token, lane);
      while (choice.picked < choice.c.topk) choice.pick();
      choice.publish(shared.routes());
    }
  }
  Activations<Tile> x;
  if constexpr (kReadsRows<Op>) {
    RowLoader<Tile> rows;
    rows.before(args.op, slice, lane);
    ptx::grid_dependency_wait();
    rows.after(Op(args.op, shared, lane), shared, slice, lane, x);
  } else {
    ptx::grid_dependency_wait();
    load_activations<Tile>(Op(args.op, Routing{}, lane), slice, Tile::kShort ? args.missing : 0, lane, x);
  }
  await_choice<Op>(shared);
  const Op op(args.op, shared, lane);
  const auto walk = op.walk();
  Cursor c = walk.first(static_cast<int>(blockIdx.x));
  if (!walk.valid(c)) return;
  RingPosition at, out, other;  // other: of the epilogue whose turn it is not
  int first_slot = 0;
  while (true) {
    const Cursor after = walk.next(c);
    const bool more = walk.valid(after);
    Accumulators acc = {};
    Piece<Tile> w;
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      if (Tile::kChunks > 1 && !op.takes(c, chunk, Tile::kChunks)) continue;
      ptx::mbarrier_wait(shared.chunk_full(at.stage), at.parity);
      if constexpr (Tile::kShort) {
        w.load(shared.chunk(at.stage) +
                   static_cast<uint32_t>(slice * Tile::kPieceBytes - args.missing * layout::kBlockPairBytes),
               lane, slice == 0 ? args.missing : 0);
      } else {
        w.load(shared.chunk(at.stage) + static_cast<uint32_t>(slice * Tile::kPieceBytes), lane);
      }
      warp_arrive(shared.chunk_empty(at.stage));
      at.advance(shared.stages);
      w.multiply(x, chunk, acc);
    }
    float sums[4];
    w.sums(acc, sums);
    const int slot = first_slot + out.stage;
    ptx::mbarrier_wait(shared.partial_empty(slot), out.parity ^ 1);
    ptx::store_shared16(shared.partial(slot, slice, lane), sums);
    warp_arrive(shared.partial_full(slot));
    out.advance(kPartialSlots);
    if (!more) return;
    if (c.ends_unit && args.epilogues == kGemvEpilogues) {
      const RingPosition next = other;
      other = out;
      out = next;
      first_slot ^= kPartialSlots;
    }
    c = after;
  }
}

// The next cursor of epilogue `own`, from c on, whose unit is number `unit` of the CTA.
template <class Walk>
__device__ Cursor own_unit(const Walk& walk, Cursor c, int own, int epilogues, int& unit) {
  while (walk.valid(c) && unit % epilogues != own) {
    unit += c.ends_unit ? 1 : 0;
    c = walk.next(c);
  }
  return c;
}

// Adds the slices' partial sums in their order; bias, activation function and store are the op's. A warp's latency per
// tile bounds the kernel, so two take turns where shared memory allows it, operands of the next tile are fetched one
// tile ahead, and the partial sums of eight slices are under way together.
template <class Tile, class Op, class KernelArgs>
__device__ void finish(const KernelArgs& args, const GemvShared& shared, int own, int lane) {
  ptx::grid_dependency_wait();
  await_choice<Op>(shared);
  Op op(args.op, shared, lane);
  const auto walk = op.walk();
  RingPosition at;
  int unit = 0;
  Cursor c = own_unit(walk, walk.first(static_cast<int>(blockIdx.x)), own, args.epilogues, unit);
  if (!walk.valid(c)) return;
  typename Op::Fetched fetched = op.fetch(c);
  while (true) {
    unit += c.ends_unit ? 1 : 0;
    const Cursor after = own_unit(walk, walk.next(c), own, args.epilogues, unit);
    const bool more = walk.valid(after);
    typename Op::Fetched fetched_after{};
    if (more) fetched_after = op.fetch(after);
    const int slot = own * kPartialSlots + at.stage;
    ptx::mbarrier_wait(shared.partial_full(slot), at.parity);
    constexpr int kTogether = 8;
    float sums[4] = {};
#pragma unroll
    for (int first = 0; first < layout::kMaxSlices; first += kTogether) {
      uint4 v[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        v[i] = first + i < shared.slices ? ptx::load_shared16(shared.partial(slot, first + i, lane)) : uint4{};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        sums[0] += __uint_as_float(v[i].x);
        sums[1] += __uint_as_float(v[i].y);
        sums[2] += __uint_as_float(v[i].z);
        sums[3] += __uint_as_float(v[i].w);
      }
    }
    warp_arrive(shared.partial_empty(slot));
    at.advance(kPartialSlots);
    if constexpr (Tile::kColumns == Columns::kBlocks) {
      for (int i = 0; i < 4; i += 2) {
        sums[i] += __shfl_xor_sync(kEveryLane, sums[i], 1);
        sums[i] += __shfl_xor_sync(kEveryLane, sums[i], 2);
      }
    }
    op.finish(c, sums, fetched);
    if (!more) return;
    fetched = fetched_after;
    c = after;
  }
}

template <class Tile, class Op>
__global__ void __launch_bounds__(kGemvMaxThreads, 1)
    gemv(const __grid_constant__ GemvKernelArgs<typename Op::Args> args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const GemvShared shared(smem, args);
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes;
  const int warp = __shfl_sync(kEveryLane, static_cast<int>(threadIdx.x) / layout::kWarpLanes, 0);  // uniform
  if (threadIdx.x == 0) shared.init(choices<Op>(args.op));
  __syncthreads();
  ptx::grid_dependency_launch();
  if (warp < shared.slices)
    consume<Tile, Op>(args, shared, warp, lane);
  else if (warp == shared.slices)
    produce<Tile, Op>(args, shared, lane);
  else
    finish<Tile, Op>(args, shared, warp - shared.slices - 1, lane);
}

}  // namespace nibble::backend::cuda

#pragma once
// y = W·x for 1 to 8 columns of activations, W bf16, MXFP8 or MXFP4     source: torch/model.py, Linear and MLPBlock
// W    tiles of 16 rows, layout/packed.h            x  see gemv_plan.h            sums f32
// grid one CTA per SM, tiles interleaved (gemv_walk.h); a ring of 2..8 chunks filled by cp.async.bulk;
//      warps: one per slice of K (consumers), one producer, one epilogue; no barrier in the loop but mbarriers
// mma  m16n8k16, weights on the m side, columns: see Columns and gemv_ops.cuh
// rounding: f32 accumulation in an order fixed by the shape: bitwise repeatable; not bitwise equal to the reference

#include "backend/cuda/kernels/any/gemv_ops.cuh"
#include "backend/cuda/ptx/bulk_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/named_barrier.cuh"
#include "backend/cuda/ptx/prefetch.cuh"

namespace nibble::backend::cuda {

inline constexpr int kGemvMaxThreads = (layout::kMaxSlices + 2) * layout::kWarpLanes;

template <class OpArgs>
struct GemvKernelArgs {
  OpArgs op;
  const uint8_t* weights;
  int stages, slices, chunk_bytes;
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

// One arrival for the warp, after all its lanes' earlier accesses.
__device__ __forceinline__ void warp_arrive(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(barrier);
}

template <class Tile, class Op, class KernelArgs>
__device__ void produce(const KernelArgs& args, const GemvShared& shared, int lane) {
  const Op op(args.op, shared, lane);
  const auto walk = op.walk();
  const uint64_t policy = ptx::evict_first_policy();
  const auto bytes = static_cast<uint32_t>(shared.chunk_bytes);
  RingPosition at;
  for (Cursor c = walk.first(static_cast<int>(blockIdx.x)); walk.valid(c); c = walk.next(c)) {
    const uint8_t* from = args.weights + op.tile(c) * (Tile::kChunks * shared.chunk_bytes);
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      if (lane == 0) {
        ptx::mbarrier_wait(shared.chunk_empty(at.stage), at.parity ^ 1);  // a fresh barrier's last round is complete
        ptx::mbarrier_arrive_expect_tx(shared.chunk_full(at.stage), bytes);
        ptx::bulk_copy(shared.chunk(at.stage), from + chunk * shared.chunk_bytes, bytes, shared.chunk_full(at.stage),
                       policy);
      }
      __syncwarp();
      at.advance(shared.stages);
    }
  }
}

// v, the lane's part of its column (k = 8t.. of its blocks), to its rmsnorm. Called by all consumer warps together.
template <class Tile, class Op>
__device__ void normalise(const Op& op, const GemvShared& shared, int slice, float (&v)[Tile::kOwnBlocks][8]) {
  constexpr int kConsumers = 1;  // the barrier's name
  constexpr bool kOneColumn = Tile::kColumns == Columns::kBlocks;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = group_of(lane);
  float squares = 0;
  for (int j = 0; j < Tile::kOwnBlocks; ++j)
    for (int i = 0; i < 8; ++i) squares += v[j][i] * v[j][i];
  for (int step = 1; step < (kOneColumn ? layout::kWarpLanes : 4); step *= 2)
    squares += __shfl_xor_sync(kEveryLane, squares, step);
  if (kOneColumn ? lane == 0 : lane % 4 == 0)
    ptx::store_shared4(shared.square(slice, kOneColumn ? 0 : g), std::bit_cast<uint32_t>(squares));
  ptx::named_barrier(kConsumers, shared.slices * layout::kWarpLanes);
  float sum = 0;
#pragma unroll
  for (int s = 0; s < layout::kMaxSlices; ++s)
    sum += s < shared.slices ? __uint_as_float(ptx::load_shared4(shared.square(s, kOneColumn ? 0 : g))) : 0.0f;
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(op.a.cols) + op.a.in.eps);
  const bool writes = op.a.in.normed != nullptr && static_cast<int>(blockIdx.x) == slice % static_cast<int>(gridDim.x);
  for (int j = 0; j < Tile::kOwnBlocks; ++j) {
    if (kOneColumn && g >= Tile::kBlocks) continue;
    const int k = (slice * Tile::kBlocks + (kOneColumn ? g : j)) * layout::kBlockK + 8 * (lane % 4);
    const uint4 norm = *reinterpret_cast<const uint4*>(op.a.in.norm + k);
    const uint32_t words[4] = {norm.x, norm.y, norm.z, norm.w};
    for (int i = 0; i < 8; ++i)
      v[j][i] *= inverse * __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    const int column = kOneColumn ? 0 : g;
    if (writes && column < op.a.tokens)
      for (int i = 0; i < 8; ++i) op.a.in.normed[int64_t{column} * op.a.cols + k + i] = v[j][i];
  }
}

template <class Op>
inline constexpr bool kReadsRows = requires(const Op& op) { op.a.in.norm; };

// The activations of this lane's column of the cursor's slot.
template <class Tile, class Op>
__device__ void load_activations(const Op& op, const Cursor& c, const GemvShared& shared, int slice,
                                 Activations<Tile>& x) {
  constexpr bool kOneColumn = Tile::kColumns == Columns::kBlocks;
  const int lane = static_cast<int>(threadIdx.x) % layout::kWarpLanes, g = group_of(lane);
  const int column = kOneColumn ? 0 : g, first = slice * Tile::kBlocks * layout::kBlockK + 8 * (lane % 4);
  if constexpr (Op::kHalf) {
    static_assert(!kOneColumn && Tile::kPacking == layout::Packing::kMxfp4);
    const F16* row = op.column(c, column);
    for (int j = 0; j < Tile::kBlocks; ++j)
      x.set_f16(j, row == nullptr ? uint4{} : *reinterpret_cast<const uint4*>(row + first + j * layout::kBlockK));
  } else {
    float v[Tile::kOwnBlocks][8] = {};
    if (op.has(c, column) && (!kOneColumn || g < Tile::kBlocks))
      for (int j = 0; j < Tile::kOwnBlocks; ++j)
        op.read8(c, column, first + (kOneColumn ? g : j) * layout::kBlockK, v[j]);
    if constexpr (kReadsRows<Op>) {
      if (op.a.in.norm != nullptr) normalise<Tile>(op, shared, slice, v);
    }
    x.set(v, lane);
  }
}

// Static data that the prologue will want, while the kernel before still runs.
template <class Tile, class Op>
__device__ void prefetch(const typename Op::Args& args, int slice, int lane) {
  if constexpr (kReadsRows<Op>) {
    constexpr int kLine = 64;  // of bf16 values: 128 bytes
    const int k = slice * Tile::kBlocks * layout::kBlockK + lane * kLine;
    if (args.in.norm != nullptr && lane * kLine < Tile::kBlocks * layout::kBlockK) ptx::prefetch_l2(args.in.norm + k);
  }
}

template <class Tile, class Op, class KernelArgs>
__device__ void consume(const KernelArgs& args, const GemvShared& shared, int slice, int lane) {
  prefetch<Tile, Op>(args.op, slice, lane);
  ptx::grid_dependency_wait();
  const Op op(args.op, shared, lane);
  const auto walk = op.walk();
  Cursor c = walk.first(static_cast<int>(blockIdx.x));
  if (!walk.valid(c)) return;
  Activations<Tile> x;
  load_activations<Tile>(op, c, shared, slice, x);
  RingPosition at, out;
  while (true) {
    const Cursor after = walk.next(c);
    const bool more = walk.valid(after);
    Accumulators acc = {};
    Piece<Tile> w;
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      ptx::mbarrier_wait(shared.chunk_full(at.stage), at.parity);
      w.load(shared.chunk(at.stage) + static_cast<uint32_t>(slice * Tile::kPieceBytes), lane);
      warp_arrive(shared.chunk_empty(at.stage), lane);
      at.advance(shared.stages);
      w.multiply(x, chunk, acc);
    }
    float sums[4];
    w.sums(acc, sums);
    if constexpr (Op::kReload) {  // two sets of activations would not fit into the registers
      if (more && after.slot != c.slot) load_activations<Tile>(op, after, shared, slice, x);
    }
    ptx::mbarrier_wait(shared.partial_empty(out.stage), out.parity ^ 1);
    ptx::store_shared16(shared.partial(out.stage, slice, lane), sums);
    warp_arrive(shared.partial_full(out.stage), lane);
    out.advance(kPartialSlots);
    if (!more) return;
    c = after;
  }
}

// Adds the slices' partial sums in their order; bias, activation function and store are the op's. One warp does this
// for every tile of the CTA, so its latency per tile bounds the kernel: operands of the next tile are fetched one tile
// ahead, and the partial sums of eight slices are under way together.
template <class Tile, class Op, class KernelArgs>
__device__ void finish(const KernelArgs& args, const GemvShared& shared, int lane) {
  ptx::grid_dependency_wait();
  Op op(args.op, shared, lane);
  const auto walk = op.walk();
  RingPosition at;
  Cursor c = walk.first(static_cast<int>(blockIdx.x));
  if (!walk.valid(c)) return;
  typename Op::Fetched fetched = op.fetch(c);
  while (true) {
    const Cursor after = walk.next(c);
    const bool more = walk.valid(after);
    typename Op::Fetched fetched_after{};
    if (more) fetched_after = op.fetch(after);
    ptx::mbarrier_wait(shared.partial_full(at.stage), at.parity);
    constexpr int kTogether = Op::kReload ? 4 : 8;  // registers
    float sums[4] = {};
#pragma unroll
    for (int first = 0; first < layout::kMaxSlices; first += kTogether) {
      uint4 v[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        v[i] = first + i < shared.slices ? ptx::load_shared16(shared.partial(at.stage, first + i, lane)) : uint4{};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        sums[0] += __uint_as_float(v[i].x);
        sums[1] += __uint_as_float(v[i].y);
        sums[2] += __uint_as_float(v[i].z);
        sums[3] += __uint_as_float(v[i].w);
      }
    }
    warp_arrive(shared.partial_empty(at.stage), lane);
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
  if (threadIdx.x == 0) shared.init();
  if constexpr (Op::kWaitsFirst) ptx::grid_dependency_wait();
  if (threadIdx.x == 0) ptx::grid_dependency_launch();
  if constexpr (Op::kChooses) {
    const int warps = static_cast<int>(blockDim.x) / layout::kWarpLanes;
    for (int token = warp; token < args.op.tokens; token += warps) choose_experts(args.op.choice, shared, token, lane);
  }
  __syncthreads();
  if (warp < shared.slices) {
    consume<Tile, Op>(args, shared, warp, lane);
  } else if (warp == shared.slices) {
    produce<Tile, Op>(args, shared, lane);
  } else {
    finish<Tile, Op>(args, shared, lane);
  }
}

}  // namespace nibble::backend::cuda

#pragma once
// How the decode kernels' consumer warps come by their activations: rows of floats, normed on the way where asked for,
// or rows of f16 as they are.

#include "backend/cuda/dense/gemv_ops.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"

namespace nibble::backend::cuda {

template <class Op>
inline constexpr bool kReadsRows = requires(const Op& op) { op.a.in.norm; };

// How a warp reads its slice of a row of activations. One row: lane 4g + t has k = 8t.. of block g. Up to eight: of
// every block of row g.
template <class Tile, bool kOneRow>
struct RowPart {
  static constexpr int kOwn = kOneRow ? 1 : Tile::kBlocks;
  int lane, slice;
  [[nodiscard]] __device__ int row() const { return kOneRow ? 0 : group_of(lane); }
  [[nodiscard]] __device__ bool has() const { return !kOneRow || group_of(lane) < Tile::kBlocks; }
  [[nodiscard]] __device__ int k(int j) const {
    return (slice * Tile::kBlocks + (kOneRow ? group_of(lane) : j)) * layout::kBlockK + 8 * (lane % 4);
  }
};

// The norm's factors where the lane's activations are: static, so read before the kernel before has ended. Those of
// several rows would not fit into the registers.
template <class Tile, bool kOneRow>
struct NormPart {
  using Part = RowPart<Tile, kOneRow>;
  static constexpr bool kHeld = kOneRow;
  const Bf16* norm = nullptr;
  uint4 factors[kHeld ? Part::kOwn : 1];

  __device__ void load(const Bf16* from, const Part& part) {
    norm = from;
    if constexpr (kHeld) {
#pragma unroll
      for (int j = 0; j < Part::kOwn; ++j)
        factors[j] = norm != nullptr && part.has() ? *reinterpret_cast<const uint4*>(norm + part.k(j)) : uint4{};
    }
  }
  __device__ void multiply(const Part& part, int j, float inverse, float (&v)[8]) const {
    uint4 own{};
    if constexpr (kHeld)
      own = factors[j];
    else
      own = *reinterpret_cast<const uint4*>(norm + part.k(j));
    const uint32_t words[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v[i] *= inverse * __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
};

// v, the lane's part of its row, to its rmsnorm. Called by all consumer warps together.
template <class Tile, bool kOneRow, class Op>
__device__ void normalise(const Op& op, const GemvShared& shared, const RowPart<Tile, kOneRow>& part,
                          const NormPart<Tile, kOneRow>& norm, float (&v)[RowPart<Tile, kOneRow>::kOwn][8]) {
  constexpr int kConsumers = 1;  // the barrier's name
  float squares = 0;
#pragma unroll
  for (int j = 0; j < part.kOwn; ++j)
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += v[j][i] * v[j][i];
  for (int step = 1; step < (kOneRow ? layout::kWarpLanes : 4); step *= 2)
    squares += __shfl_xor_sync(kEveryLane, squares, step);
  if (kOneRow ? part.lane == 0 : part.lane % 4 == 0)
    ptx::store_shared4(shared.square(part.slice, part.row()), std::bit_cast<uint32_t>(squares));
  ptx::named_barrier(kConsumers, shared.slices * layout::kWarpLanes);
  float sum = 0;
#pragma unroll
  for (int s = 0; s < layout::kMaxSlices; ++s)
    sum += s < shared.slices ? __uint_as_float(ptx::load_shared4(shared.square(s, part.row()))) : 0.0f;
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(op.a.cols) + op.a.in.eps);
#pragma unroll
  for (int j = 0; j < part.kOwn; ++j) norm.multiply(part, j, inverse, v[j]);
}

// The lane's part of RowsIn, normed where they are to be.
template <class Tile, bool kOneRow, class Op>
__device__ void read_rows(const Op& op, const GemvShared& shared, const RowPart<Tile, kOneRow>& part,
                          const NormPart<Tile, kOneRow>& norm, float (&v)[RowPart<Tile, kOneRow>::kOwn][8]) {
  if (part.has() && part.row() < op.a.tokens) {
#pragma unroll
    for (int j = 0; j < part.kOwn; ++j) op.read8(part.row(), part.k(j), v[j]);
  }
  // Each warp's slice by one CTA. No division: all wait for this.
  const bool writes = op.a.in.sum != nullptr && part.has() && part.row() < op.a.tokens &&
                      static_cast<int>(blockIdx.x) == min(part.slice, static_cast<int>(gridDim.x) - 1);
  if (writes) {
#pragma unroll
    for (int j = 0; j < part.kOwn; ++j) write_floats(op.a.in.sum + int64_t{part.row()} * op.a.cols + part.k(j), v[j]);
  }
  if (op.a.in.norm != nullptr) normalise<Tile, kOneRow>(op, shared, part, norm, v);
}

// Rows of floats, of which there are one or several: before and after the dependency wait.
template <class Tile>
struct RowLoader {
  static constexpr bool kBlocks = Tile::kColumns == Columns::kBlocks;
  NormPart<Tile, true> one;
  NormPart<Tile, kBlocks> several;

  template <class Args>
  __device__ void before(const Args& args, int slice, int lane) {
    if (kBlocks || args.tokens == 1)
      one.load(args.in.norm, {lane, slice});
    else
      several.load(args.in.norm, {lane, slice});
  }
  template <class Op>
  __device__ void after(const Op& op, const GemvShared& shared, int slice, int lane, Activations<Tile>& x) const {
    if (kBlocks || op.a.tokens == 1) {
      float v[1][8] = {};
      read_rows<Tile, true>(op, shared, {lane, slice}, one, v);
      if constexpr (kBlocks)
        x.set(v, lane);
      else
        x.set_row(v[0], lane);
    } else if constexpr (!kBlocks) {
      float v[Tile::kBlocks][8] = {};
      read_rows<Tile, false>(op, shared, {lane, slice}, several, v);
      x.set(v, lane);
    }
  }
};

// The activations of this lane's column, rows of f16; RowsIn has RowLoader. missing: pairs that the first slice lacks,
// which get zeros.
template <class Tile, class Op>
__device__ void load_activations(const Op& op, int slice, int missing, int lane, Activations<Tile>& x) {
  static_assert(Tile::kPacking == layout::Packing::kMxfp4 && Tile::kColumns == Columns::kVectors);
  const RowPart<Tile, false> part{lane, slice};
  const F16* row = op.column(part.row());
#pragma unroll
  for (int j = 0; j < part.kOwn; ++j) {
    const int k = part.k(j) - (Tile::kShort ? missing * 2 * layout::kBlockK : 0);
    x.set_f16(j, row == nullptr || (Tile::kShort && k < 0) ? uint4{} : *reinterpret_cast<const uint4*>(row + k));
  }
}

}  // namespace nibble::backend::cuda

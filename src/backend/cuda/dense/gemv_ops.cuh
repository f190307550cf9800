#pragma once
// What the decode kernels do around the common main loop (gemv.cuh): which tiles, which activations stand in the mma's
// columns, what becomes of a tile's sums. Every warp holds its own copy; methods are called by whole warps.
//
//   kListed      of an Op that has it: whether its walk waits for the kernel before
//   takes        whether a cursor's tile is read in that one of its chunks
//   kChooses     the CTA chooses experts; an Op made with an empty Routing knows all that does not depend on them
//   column       a column's row of f16 activations, or null; RowsIn: read8, rows of floats
//   sums         as gemv_tile.cuh leaves them, added over slices

#include "backend/cuda/attention/page_rows.cuh"
#include "backend/cuda/dense/gemv_tile.cuh"
#include "backend/cuda/dense/gemv_walk.h"
#include "backend/cuda/ptx/memory.cuh"

namespace nibble::backend::cuda {

__device__ __forceinline__ float widen(Bf16 value) { return __uint_as_float(uint32_t{value.bits} << 16); }

__device__ __forceinline__ void read_floats(const float* from, float (&v)[8]) {
  for (int half = 0; half < 2; ++half) {
    const uint4 four = *reinterpret_cast<const uint4*>(from + 4 * half);
    v[4 * half] = __uint_as_float(four.x);
    v[4 * half + 1] = __uint_as_float(four.y);
    v[4 * half + 2] = __uint_as_float(four.z);
    v[4 * half + 3] = __uint_as_float(four.w);
  }
}

__device__ __forceinline__ void write_floats(float* to, const float (&v)[8]) {
  for (int half = 0; half < 2; ++half)
    *reinterpret_cast<float4*>(to + 4 * half) = {v[4 * half], v[4 * half + 1], v[4 * half + 2], v[4 * half + 3]};
}

struct BiasPair {
  float bias[2] = {};
};

// Column t = token t, of RowsIn.
template <class TheArgs>
struct RowsOp {
  using Args = TheArgs;
  static constexpr bool kChooses = false;
  const Args& a;
  int lane;

  __device__ RowsOp(const Args& args, const GemvShared&, int lane_idx) : a(args), lane(lane_idx) {}
  __device__ int64_t tile(const Cursor& c) const { return c.row_tile; }
  __device__ bool takes(const Cursor& /*c*/, int /*chunk*/, int /*chunks*/) const { return true; }
  __device__ void read8(int col, int k, float (&v)[8]) const {
    const int64_t at = int64_t{a.in.which == nullptr ? col : a.in.which[col]} * a.cols + k;
    read_floats(a.in.x + at, v);
#pragma unroll
    for (const float* const part : a.in.delta) {
      float delta[8] = {};  // no branch around the sum: all loads are under way together
      if (part != nullptr) read_floats(part + at, delta);
      for (int i = 0; i < 8; ++i) v[i] += delta[i];
    }
  }
};

// kTokenColumns: how many of a lane's two columns can be tokens'; one token alone has one. kTheListed: of tiles that a
// kernel before has listed.
template <int kTokenColumns, bool kTheListed = false>
struct DenseOp : RowsOp<GemvDense::Args> {
  static constexpr bool kListed = kTheListed;
  struct Fetched {
    float bias[2] = {};  // rows g and g + 8
  };
  using RowsOp::RowsOp;

  // With `rest`, slots are halves of K.
  __device__ TileWalk walk() const {
    if constexpr (kListed) {
      const int count = a.listed->count;
      return {max(count, 1), min(count, 1), static_cast<int>(gridDim.x)};
    }
    return {a.rows / layout::kTileRows, a.rest == nullptr ? 1 : 2, static_cast<int>(gridDim.x)};
  }
  __device__ int64_t tile(const Cursor& c) const {
    if constexpr (kListed) return a.tiles[c.row_tile];
    return c.row_tile;
  }
  __device__ bool takes(const Cursor& c, int chunk, int chunks) const {
    return a.rest == nullptr || (chunk >= chunks / 2) == (c.slot == 1);
  }
  __device__ Fetched fetch(const Cursor& c) const {
    Fetched f;
    for (int i = 0; i < 2; ++i)
      if (a.bias != nullptr && c.slot == 0) f.bias[i] = widen(a.bias[row_of(c, i)]);
    return f;
  }
  __device__ void finish(const Cursor& c, const float (&sums)[4], const Fetched& f) {
    float* const y = c.slot == 0 ? a.y : a.rest;
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < kTokenColumns; ++j) {
        const int col = column_of(lane, j);
        if (col < a.tokens) y[int64_t{col} * a.rows + row_of(c, i)] = sums[2 * i + j] + f.bias[i];
      }
  }

 private:
  [[nodiscard]] __device__ int row_of(const Cursor& c, int i) const {
    return static_cast<int>(tile(c)) * layout::kTileRows + group_of(lane) + 8 * i;
  }
};

template <int kTokenColumns>
struct QkvOp : RowsOp<GemvQkv::Args> {
  static constexpr int kHalfHead = kGemvHeadDim / 2, kHeadTiles = kGemvHeadDim / layout::kTileRows;
  struct Fetched {
    float bias[2] = {}, cosine[kTokenColumns] = {}, sine[kTokenColumns] = {};  // bias of rows g and g + 8
    int slot[kTokenColumns] = {};
  };
  using RowsOp::RowsOp;

  __device__ TileWalk walk() const { return {a.rows() / layout::kTileRows, 1, static_cast<int>(gridDim.x)}; }
  __device__ int dim(const Cursor& c) const { return c.row_tile % kHeadTiles * 8 + group_of(lane); }
  __device__ Fetched fetch(const Cursor& c) const {
    const Bf16* bias = a.bias + c.row_tile / kHeadTiles * kGemvHeadDim + dim(c);
    Fetched f{{widen(bias[0]), widen(bias[kHalfHead])}};
    for (int j = 0; j < kTokenColumns; ++j) {
      const int token = column_of(lane, j);
      if (token >= a.tokens) continue;
      f.cosine[j] = a.cosine[token * kHalfHead + dim(c)];
      f.sine[j] = a.sine[token * kHalfHead + dim(c)];
      f.slot[j] = a.kv_slots[token];
    }
    return f;
  }
  __device__ void finish(const Cursor& c, const float (&sums)[4], const Fetched& f) {
    const int head = c.row_tile / kHeadTiles;
    for (int j = 0; j < kTokenColumns; ++j) {
      const int token = column_of(lane, j);
      if (token >= a.tokens) continue;
      float first = sums[j] + f.bias[0], second = sums[2 + j] + f.bias[1];
      if (head < a.heads + a.kv_heads) {
        const float turned = first * f.cosine[j] - second * f.sine[j];
        second = second * f.cosine[j] + first * f.sine[j];
        first = turned;
      }
      if (head < a.heads) {
        float* q = a.q + (int64_t{token} * a.heads + head) * kGemvHeadDim + dim(c);
        q[0] = first;
        q[kHalfHead] = second;
        continue;
      }
      const bool is_key = head < a.heads + a.kv_heads;
      const int64_t kv_head = head - a.heads - (is_key ? 0 : a.kv_heads);
      const int64_t page = f.slot[j] / kPageTokens, offset = f.slot[j] % kPageTokens;
      const int64_t at = ((page * a.kv_heads + kv_head) * kPageTokens + offset) * kGemvHeadDim + dim(c);
      store_page(is_key ? a.kv.keys : a.kv.values, a.kv.type, at, first);
      store_page(is_key ? a.kv.keys : a.kv.values, a.kv.type, at + kHalfHead, second);
    }
  }
};

// Column p = pair p: activations stay in registers.
struct MoeDownOp {
  using Args = GemvMoeDown::Args;
  using Fetched = BiasPair;
  static constexpr bool kChooses = true;
  const Args& a;
  int lane;
  Routing routing;
  float weight = 0;   // of pair `lane`
  float acc[4] = {};  // of the unit so far; sums' places

  __device__ MoeDownOp(const Args& args, const Routing& of_step, int lane_idx)
      : a(args), lane(lane_idx), routing(of_step) {}
  __device__ MoeDownOp(const Args& args, const GemvShared& shared, int lane_idx)
      : MoeDownOp(args, Routing::read(shared.routes(), args.choice, args.tokens, lane_idx), lane_idx) {
    if (lane < args.tokens * args.choice.topk)
      weight = std::bit_cast<float>(ptx::load_shared4(shared.routes().weight(lane)));
  }
  __device__ int row_tiles() const { return a.hidden / layout::kTileRows; }
  __device__ UnitWalk walk() const { return {row_tiles(), routing.count, a.parts, static_cast<int>(gridDim.x)}; }
  __device__ bool takes(const Cursor& /*c*/, int /*chunk*/, int /*chunks*/) const { return true; }
  __device__ int64_t tile(const Cursor& c) const {
    return int64_t{routing.expert_at(c.slot)} * row_tiles() + c.row_tile;
  }
  // One token's pairs are the slots: a CTA of one part has only its own (UnitWalk).
  __device__ bool may_use(int pair) const {
    const auto ctas = static_cast<int>(gridDim.x);
    if (a.tokens > 1 || ctas < a.parts) return true;
    const int part = static_cast<int>(blockIdx.x) / (ctas / a.parts);
    return part * a.choice.topk / a.parts <= pair && pair < (part + 1) * a.choice.topk / a.parts;
  }
  __device__ const F16* column(int col) const {
    return col < a.tokens * a.choice.topk && may_use(col) ? a.u + int64_t{col} * a.inter : nullptr;
  }
  __device__ Fetched fetch(const Cursor& c) const {
    const Bf16* bias = a.bias + int64_t{routing.expert_at(c.slot)} * a.hidden + c.row_tile * layout::kTileRows;
    return {{widen(bias[group_of(lane)]), widen(bias[group_of(lane) + 8])}};
  }
  __device__ void finish(const Cursor& c, const float (&sums)[4], const Fetched& fetched) {
    const uint32_t pairs = routing.pairs_at(c.slot);
    for (int j = 0; j < 2; ++j) {
      const int pair = column_of(lane, j);
      const float w = __shfl_sync(kEveryLane, weight, pair);
      if ((pairs >> pair & 1u) == 0) continue;
      acc[j] += w * (sums[j] + fetched.bias[0]);
      acc[2 + j] += w * (sums[2 + j] + fetched.bias[1]);
    }
    if (!c.ends_unit) return;
    store_pairs(c);
    for (float& value : acc) value = 0;
  }
  // Adds the columns of each token, in the order of k. Quad lane 0 stores row g, quad lane 1 row g + 8.
  __device__ void store_pairs(const Cursor& c) const {
    for (int token = 0; token < a.tokens; ++token) {
      float value = 0;
      for (int k = 0; k < a.choice.topk; ++k) {
        const int pair = token * a.choice.topk + k, from = (lane & ~3) + pair / 2;
        const float even = __shfl_sync(kEveryLane, acc[0], from);
        const float odd = __shfl_sync(kEveryLane, acc[1], from);
        const float even8 = __shfl_sync(kEveryLane, acc[2], from), odd8 = __shfl_sync(kEveryLane, acc[3], from);
        value += lane % 4 == 0 ? (pair % 2 == 0 ? even : odd) : (pair % 2 == 0 ? even8 : odd8);
      }
      if (lane % 4 < 2) store(c, token, 8 * (lane % 4), value);
    }
  }
  __device__ void store(const Cursor& c, int token, int row, float value) const {
    const int64_t at = int64_t{token} * a.hidden + c.row_tile * layout::kTileRows + group_of(lane) + row;
    (c.part == 0 ? a.y[0] : a.y[1])[at] = value;
  }
};

}  // namespace nibble::backend::cuda

#pragma once
// What the three MXFP4 kernels do around the common main loop (mxfp4_gemv.cuh): which tiles, which activations stand in
// the mma's columns, what becomes of a tile's sums. Every warp holds its own copy; methods are called by whole warps.
//
// sums, lane 4g + t: {row g, column 2t}, {g, 2t + 1}, {g + 8, 2t}, {g + 8, 2t + 1}, as layout/mma_m16n8k16.h d_row,
// d_col.

#include "backend/cuda/kernels/any/mxfp4_plan.h"
#include "backend/cuda/kernels/any/mxfp4_walk.h"
#include "backend/cuda/layout/mx_a_m16k32.h"

#include <cuda_fp16.h>

namespace nibble::backend::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float widen(Bf16 value) { return __uint_as_float(uint32_t{value.bits} << 16); }

__device__ __forceinline__ int group_of(int lane) { return lane / 4; }
__device__ __forceinline__ int column_of(int lane, int j) { return 2 * (lane % 4) + j; }

// The step's distinct experts in order of first use. Lane d of the warp holds the d-th.
struct Routing {
  int count;       // distinct experts
  int expert;      // of lane d < count
  uint32_t pairs;  // bit t * topk + k: this expert is the k-th of token t

  __device__ static Routing read(const int32_t* ids, int pair_count, int lane) {
    const int id = lane < pair_count ? ids[lane] : -1 - lane;  // no expert has a negative id
    const uint32_t same = __match_any_sync(kAllLanes, id);
    const bool is_first = lane < pair_count && __ffs(static_cast<int>(same)) - 1 == lane;
    const uint32_t firsts = __ballot_sync(kAllLanes, is_first);
    uint32_t rest = firsts;
    for (int d = 0; d < lane; ++d) rest &= rest - 1;  // drops the lowest bit
    const int from = rest == 0 ? 0 : __ffs(static_cast<int>(rest)) - 1;
    return {__popc(firsts), __shfl_sync(kAllLanes, id, from), __shfl_sync(kAllLanes, same, from)};
  }
  __device__ int expert_at(int slot) const { return __shfl_sync(kAllLanes, expert, slot); }
  __device__ uint32_t pairs_at(int slot) const { return __shfl_sync(kAllLanes, pairs, slot); }
};

// The pair t * topk + k of a token in an expert's pairs; -1 when the expert is not among its topk.
__device__ __forceinline__ int pair_of_token(uint32_t pairs, int token, int tokens, int topk) {
  if (token >= tokens) return -1;
  const uint32_t own = pairs >> (token * topk) & ((1u << topk) - 1);
  return own == 0 ? -1 : token * topk + __ffs(static_cast<int>(own)) - 1;
}

// Column t = token t.
struct DenseOp {
  using Args = DenseArgs;
  static constexpr bool kReload = false;             // activations are the same for every tile
  static constexpr bool kLaunchesAfterWait = false;  // the next kernel may start at once
  struct Fetched {
    float bias[2];
  };
  const Args& a;
  int lane;

  __device__ DenseOp(const Args& args, int lane_idx) : a(args), lane(lane_idx) {}
  __device__ static bool waits_for_ids(const Args&) { return false; }
  __device__ TileWalk walk() const { return {a.rows / layout::kTileRows, 1, static_cast<int>(gridDim.x)}; }
  __device__ int64_t tile(const Cursor& c) const { return c.row_tile; }
  __device__ const F16* column(const Cursor&, int col) const {
    return col < a.tokens ? a.x + int64_t{col} * a.cols : nullptr;
  }
  __device__ Fetched fetch(const Cursor& c) const {
    if (a.bias == nullptr) return {};
    const Bf16* bias = a.bias + c.row_tile * layout::kTileRows + group_of(lane);
    return {{widen(bias[0]), widen(bias[8])}};
  }
  __device__ void finish(const Cursor& c, const float (&sums)[4], const Fetched& fetched) {
    for (int i = 0; i < 4; ++i) {
      const int col = column_of(lane, i % 2);
      if (col >= a.tokens) continue;
      float* y = a.y + int64_t{col} * a.rows + c.row_tile * layout::kTileRows + group_of(lane) + 8 * (i / 2);
      const float value = sums[i] + fetched.bias[i / 2];
      *y = a.into == Into::kAdd ? *y + value : value;
    }
  }
};

// Column t = token t for every expert, so that the activations stay in registers; only routed tokens are stored.
struct MoeUpOp {
  using Args = MoeUpArgs;
  static constexpr bool kReload = false;
  static constexpr bool kLaunchesAfterWait = true;  // behind it, the route kernel is known to be complete
  struct Fetched {
    float bias[2];  // gate, up
  };
  const Args& a;
  int lane;
  Routing routing;

  __device__ MoeUpOp(const Args& args, int lane_idx)
      : a(args), lane(lane_idx), routing(Routing::read(args.expert_ids, args.tokens * args.topk, lane_idx)) {}
  __device__ static bool waits_for_ids(const Args&) { return true; }
  __device__ int row_tiles() const { return 2 * a.inter / layout::kTileRows; }
  __device__ TileWalk walk() const { return {row_tiles(), routing.count, static_cast<int>(gridDim.x)}; }
  __device__ int64_t tile(const Cursor& c) const {
    return int64_t{routing.expert_at(c.slot)} * row_tiles() + c.row_tile;
  }
  __device__ const F16* column(const Cursor&, int col) const {
    return col < a.tokens ? a.x + int64_t{col} * a.hidden : nullptr;
  }
  __device__ Fetched fetch(const Cursor& c) const {
    const int64_t expert = routing.expert_at(c.slot);
    const Bf16* bias = a.bias + expert * 2 * a.inter + c.row_tile * layout::kTileRows + 2 * group_of(lane);
    return {{widen(bias[0]), widen(bias[1])}};
  }
  __device__ void finish(const Cursor& c, const float (&sums)[4], const Fetched& fetched) {
    const uint32_t pairs = routing.pairs_at(c.slot);
    for (int j = 0; j < 2; ++j) {
      const int pair = pair_of_token(pairs, column_of(lane, j), a.tokens, a.topk);
      if (pair < 0) continue;
      const float u = swiglu(sums[j] + fetched.bias[0], sums[2 + j] + fetched.bias[1]);
      a.u[int64_t{pair} * a.inter + c.row_tile * 8 + group_of(lane)] = {__half_as_ushort(__float2half_rn(u))};
    }
  }
  // torch/model.py swiglu. |u| <= 7 * 8 for the default limit: finite in f16.
  __device__ float swiglu(float gate, float up) const {
    constexpr float kAlpha = 1.702f;
    gate = gate > a.swiglu_limit ? a.swiglu_limit : gate;  // keeps NaN, which fminf would hide
    up = up > a.swiglu_limit ? a.swiglu_limit : up < -a.swiglu_limit ? -a.swiglu_limit : up;
    return gate / (1.0f + __expf(-kAlpha * gate)) * (up + 1.0f);
  }
};

// kPairs: column p = pair p (tokens * topk <= 8), activations stay in registers. kTokens: column t = token t, with the
// activations of the tile's expert, reloaded when the expert changes.
enum class DownColumns { kPairs, kTokens };

template <DownColumns kColumns>
struct MoeDownOp {
  using Args = MoeDownArgs;
  static constexpr bool kReload = kColumns == DownColumns::kTokens;
  static constexpr bool kLaunchesAfterWait = false;
  struct Fetched {
    float bias[2];
  };
  const Args& a;
  int lane;
  Routing routing;
  float weight = 0;   // of pair `lane`; read at the first finish, after the dependency wait
  float acc[4] = {};  // of the unit so far; sums' places
  bool has_weight = false;

  __device__ MoeDownOp(const Args& args, int lane_idx)
      : a(args), lane(lane_idx), routing(Routing::read(args.expert_ids, args.tokens * args.topk, lane_idx)) {}
  __device__ static bool waits_for_ids(const Args& args) { return args.ids_ready == IdsReady::kAfterWait; }
  __device__ int row_tiles() const { return a.hidden / layout::kTileRows; }
  __device__ UnitWalk walk() const { return {row_tiles(), routing.count, a.parts, static_cast<int>(gridDim.x)}; }
  __device__ int64_t tile(const Cursor& c) const {
    return int64_t{routing.expert_at(c.slot)} * row_tiles() + c.row_tile;
  }
  __device__ int pair_of_column(uint32_t pairs, int col) const {
    if constexpr (kColumns == DownColumns::kTokens) return pair_of_token(pairs, col, a.tokens, a.topk);
    return (pairs >> col & 1u) != 0 ? col : -1;
  }
  __device__ const F16* column(const Cursor& c, int col) const {
    if constexpr (kColumns == DownColumns::kPairs)
      return col < a.tokens * a.topk ? a.u + int64_t{col} * a.inter : nullptr;
    const int pair = pair_of_column(routing.pairs_at(c.slot), col);
    return pair < 0 ? nullptr : a.u + int64_t{pair} * a.inter;
  }
  __device__ Fetched fetch(const Cursor& c) const {
    const Bf16* bias = a.bias + int64_t{routing.expert_at(c.slot)} * a.hidden + c.row_tile * layout::kTileRows;
    return {{widen(bias[group_of(lane)]), widen(bias[group_of(lane) + 8])}};
  }
  __device__ void finish(const Cursor& c, const float (&sums)[4], const Fetched& fetched) {
    if (!has_weight) weight = lane < a.tokens * a.topk ? a.expert_weights[lane] : 0.0f;
    has_weight = true;
    const uint32_t pairs = routing.pairs_at(c.slot);
    for (int j = 0; j < 2; ++j) {
      const int pair = pair_of_column(pairs, column_of(lane, j));
      const float w = __shfl_sync(kAllLanes, weight, pair < 0 ? 0 : pair);
      if (pair < 0) continue;
      acc[j] += w * (sums[j] + fetched.bias[0]);
      acc[2 + j] += w * (sums[2 + j] + fetched.bias[1]);
    }
    if (!c.ends_unit) return;
    if constexpr (kColumns == DownColumns::kPairs) {
      store_pairs(c);
    } else {
      for (int i = 0; i < 4; ++i)
        if (column_of(lane, i % 2) < a.tokens) store(c, column_of(lane, i % 2), 8 * (i / 2), acc[i]);
    }
    for (float& value : acc) value = 0;
  }
  // Adds the columns of each token, in the order of k. Quad lane 0 stores row g, quad lane 1 row g + 8.
  __device__ void store_pairs(const Cursor& c) const {
    for (int token = 0; token < a.tokens; ++token) {
      float value = 0;
      for (int k = 0; k < a.topk; ++k) {
        const int pair = token * a.topk + k, from = (lane & ~3) + pair / 2;
        const float even = __shfl_sync(kAllLanes, acc[0], from);
        const float odd = __shfl_sync(kAllLanes, acc[1], from);
        const float even8 = __shfl_sync(kAllLanes, acc[2], from), odd8 = __shfl_sync(kAllLanes, acc[3], from);
        value += lane % 4 == 0 ? (pair % 2 == 0 ? even : odd) : (pair % 2 == 0 ? even8 : odd8);
      }
      if (lane % 4 < 2) store(c, token, 8 * (lane % 4), value);
    }
  }
  __device__ void store(const Cursor& c, int token, int row, float value) const {
    const int64_t at = int64_t{token} * a.hidden + c.row_tile * layout::kTileRows + group_of(lane) + row;
    if (a.parts == 1) {
      a.y[at] += value;
    } else {
      a.y[int64_t{c.part} * a.tokens * a.hidden + at] = value;
    }
  }
};

}  // namespace nibble::backend::cuda

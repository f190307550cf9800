#pragma once
// attend_prefill: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tiles of 16 tokens of a row, whose keys may
// have come in earlier steps                                                               source: torch/model.py sdpa
// args: attend_plan.h AttentionArgs     keys, values as PageRow says     q f32, out f32, rounded or in codes of MXFP8
// grid one CTA of 4 warps per (tile, kv head), the longest tiles first; 3 stages of one page of 64 keys by cp.async,
//      shared by all warps; pages behind every window are skipped, masks are computed at the edges only
// mma  m16n8k16, rows = (token, query head of the kv head): a warp has 4 tokens x 8 heads in two tiles, so that each
//      fragment of keys and values serves two mma. q and p are rounded to the keys' operand type (PageRow pack)
// bytes keys * kv_heads * 128 * sizeof(element) per tile, from L2 for all but the first     flops 4 * heads * 64 * keys
//      per token
// measured (H200): 8192 tokens, full layer 2.15 ms, 256 TFLOP/s; window layer 0.19 ms; 2048 tokens 0.19 and 0.055 ms;
//      for Hopper and bf16 pages there is arch/sm90/attend.cuh
// rounding: f32 sums, order fixed by the tile's positions: bitwise repeatable

#include "backend/cuda/attention/attend_tile.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

template <class TheKv>
struct PrefillTile {
  using Kv = TheKv;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kAttendLanes;
  static constexpr int kRowTiles = 2;   // of 16 rows, per warp: 2 tokens each
  static constexpr int kStepKeys = 32;  // of a page, between two looks at the softmax: all 64 would spill
  static constexpr int kKeyTiles = kStepKeys / 8;
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = 2 * rows_bytes<Kv>(kPageTokens);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // CTAs of an SM, where they fit: 32 keys take a lone warp 1290 cycles and a scheduler 545 instructions (SASS of
  // sm_90), so that two warps leave it idle. Of e4m3 they are 1350 instructions: two warps fill it.
  static constexpr int kCtas = rows_bytes<Kv>(1) == 2 * kHeadDim ? 3 : 2;
  static_assert(kWarps * kRowTiles * 2 == kPrefillTokens);
  static_assert(2 * (kSharedBytes + 1024) <= 100 * 1024, "two CTAs per SM of SM121");
};

// One row tile of a warp: rows 0..7 are the heads of one token, rows 8..15 those of the next.
struct PrefillState {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // the lane's share
  float out[kDimTiles][4] = {};
};

struct PrefillRows {
  int kv_head;
  int token[2];  // in the tile; those beyond the tile's are computed like its last and not stored
  KeyRange visible[2];
};

template <class Tile>
__device__ PrefillRows rows_of(const AttentionArgs& args, const AttendTile& tile, int row_tile) {
  const int warp = static_cast<int>(threadIdx.x) / kAttendLanes;
  PrefillRows rows;
  rows.kv_head = static_cast<int>(blockIdx.y);
  for (int half = 0; half < 2; ++half) {
    rows.token[half] = (warp * Tile::kRowTiles + row_tile) * 2 + half;
    rows.visible[half] = visible_keys(tile.first_position + min(rows.token[half], tile.tokens - 1), args.window);
  }
  return rows;
}

template <class Kv>
__device__ void load_queries(const AttentionArgs& args, const AttendTile& tile, const PrefillRows& rows,
                             uint32_t (&q)[kDimSteps][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int group = args.heads / args.kv_heads, head = lane / 4;
  for (int half = 0; half < 2; ++half) {
    const int64_t token = tile.first_token + min(rows.token[half], tile.tokens - 1);
    const float* from = args.q + (token * args.heads + rows.kv_head * group + head) * kHeadDim;
    for (int s = 0; s < kDimSteps; ++s) {
      for (int k = 0; k < 2; ++k) {
        float2 x{};
        if (head < group) x = load_pair(from + Kv::query_dim(s, lane % 4, k));
        q[s][2 * k + half] = Kv::pack(x.x * kScoreScale, x.y * kScoreScale);
      }
    }
  }
}

// Turns scores into weights relative to the top, which rises only when they pass it by this: up to 2^8 is as good as 1,
// and what there is need not be multiplied.
inline constexpr float kSlack = 8;
__device__ __forceinline__ float base_of(float top) {
  return top == -INFINITY ? 0.0f : top;  // a page may lie outside a row's window altogether
}

// The tops; what there is has still to be multiplied by `shrink`.
template <int kKeyTiles>
__device__ __forceinline__ void raise_tops(const float (&score)[kKeyTiles][4], PrefillState& state,
                                           float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = score[0][2 * half];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) top = fmaxf(top, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
    if (top <= state.top[half] + kSlack) top = state.top[half];
    shrink[half] = ptx::exp2_approx(state.top[half] - base_of(top));
    state.top[half] = top;
  }
}
// The weights, and their sums.
template <int kKeyTiles>
__device__ __forceinline__ void soften(float (&score)[kKeyTiles][4], PrefillState& state, const float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float base = base_of(state.top[half]);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = score[n][2 * half + i];
        x = ptx::exp2_approx(x - base);
        sum += x;
      }
    }
    state.sum[half] = state.sum[half] * shrink[half] + sum;
  }
}

__device__ __forceinline__ void rescale(PrefillState& state, const float (&shrink)[2]) {
  if (!__any_sync(kWholeWarp, shrink[0] != 1 || shrink[1] != 1)) return;
#pragma unroll
  for (int j = 0; j < kDimTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[j][i] *= shrink[i / 2];
  }
}

// Hides what the rows of a row tile do not see of the keys from first_key on.
template <class Tile>
__device__ void hide(const AttentionArgs& args, const AttendTile& tile, int row_tile, int first_key,
                     float (&score)[Tile::kKeyTiles][4]) {
  const PrefillRows rows = rows_of<Tile>(args, tile, row_tile);
#pragma unroll
  for (int n = 0; n < Tile::kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2;
      const KeyRange& visible = rows.visible[i / 2];
      if (key < visible.first || key > visible.last) score[n][i] = -INFINITY;
    }
  }
}

// Adds kStepKeys keys of a page to both row tiles: those from first_key on.
template <class Tile>
__device__ void add_keys(const AttentionArgs& args, const AttendTile& tile, uint32_t stage, int first_key,
                         const uint32_t (&q)[Tile::kRowTiles][kDimSteps][4], PrefillState (&state)[Tile::kRowTiles]) {
  const int from = first_key % kPageTokens;
  using Kv = typename Tile::Kv;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  float score[Tile::kRowTiles][Tile::kKeyTiles][4] = {};
#pragma unroll
  for (int n = 0; n < Tile::kKeyTiles; ++n) {
    uint32_t b[kDimSteps][2];
    Kv::load_keys(b, stage, from + 8 * n, lane);
#pragma unroll
    for (int s = 0; s < kDimSteps; ++s) {
#pragma unroll
      for (int m = 0; m < Tile::kRowTiles; ++m) Kv::mma(score[m][n], q[m][s], b[s]);
    }
  }
  const int last = tile.first_position + tile.tokens - 1;  // of the tile's positions
  if (first_key < visible_keys(last, args.window).first || first_key + Tile::kStepKeys - 1 > tile.first_position) {
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) hide<Tile>(args, tile, m, first_key, score[m]);
  }
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) {
    float shrink[2];
    raise_tops(score[m], state[m], shrink);
    soften(score[m], state[m], shrink);
    rescale(state[m], shrink);
  }
#pragma unroll
  for (int n = 0; n < Tile::kKeyTiles; n += 2) {
    uint32_t p[Tile::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < Tile::kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[m][i] = Kv::pack(score[m][n + i / 2][i % 2 * 2], score[m][n + i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int quad = 0; quad < kDimTiles / 4; ++quad) {
      uint32_t b[4][2];
      Kv::load_values(b, stage + rows_bytes<Kv>(kPageTokens), from + 8 * n, quad, lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int m = 0; m < Tile::kRowTiles; ++m) Kv::mma(state[m].out[4 * quad + j], p[m], b[j]);
      }
    }
  }
}

template <class Kv>
__device__ void store_rows(const AttentionArgs& args, const AttendTile& tile, const PrefillRows& rows,
                           PrefillState& state) {
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int group = args.heads / args.kv_heads, head = lane / 4;
  const int query_head = rows.kv_head * group + head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half] + __shfl_xor_sync(kWholeWarp, state.sum[half], 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    const bool mine = head < group && rows.token[half] < tile.tokens;
    float scale = 1;
    if (args.sinks != nullptr && mine) {
      const float sink = args.sinks[query_head].to_float() * kLog2E, top = fmaxf(sink, state.top[half]);
      scale = ptx::exp2_approx(state.top[half] - top);
      sum = sum * scale + ptx::exp2_approx(sink - top);
    }
    scale /= sum;
    const int64_t token = tile.first_token + rows.token[half];
    float out[kDimTiles][2];
#pragma unroll
    for (int j = 0; j < kDimTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) out[j][i] = state.out[j][2 * half + i] * scale;
    }
    store_head<Kv>(args, mine, token, query_head, out);
  }
}

// Calls add(stage, first key) for every kStepKeys keys of the pages that the tile sees, from the first on; their rows
// are in shared memory from `ring` on.
template <class Tile, class Add>
__device__ __forceinline__ void walk_pages(const AttentionArgs& args, const AttendTile& tile, uint32_t ring,
                                           const Add& add) {
  using Kv = typename Tile::Kv;
  const KeyRange visible{visible_keys(tile.first_position, args.window).first, tile.first_position + tile.tokens - 1};
  const int32_t* pages = args.pages + int64_t{tile.row} * args.pages_per_row;
  const int first_page = visible.first_page(), count = visible.pages();
  const auto issue = [&](int i) {  // always a group, so that counts stay true
    if (i < count) {
      const int64_t row = (int64_t{pages[first_page + i]} * args.kv_heads + blockIdx.y) * kPageTokens;
      copy_keys<Kv, kPageTokens>(args, row, visible,
                                 {ring + static_cast<uint32_t>(i % Tile::kStages * Tile::kStageBytes),
                                  (first_page + i) * kPageTokens, static_cast<int>(threadIdx.x), Tile::kThreads});
    }
    ptx::async_commit();
  };
  for (int i = 0; i < Tile::kStages - 1; ++i) issue(i);
  for (int i = 0; i < count; ++i) {
    ptx::async_wait<Tile::kStages - 2>();
    __syncthreads();  // everybody's copies have landed, and nobody reads the stage that is filled next
    issue(i + Tile::kStages - 1);
    const uint32_t stage = ring + static_cast<uint32_t>(i % Tile::kStages * Tile::kStageBytes);
#pragma unroll 1
    for (int key = 0; key < kPageTokens; key += Tile::kStepKeys) add(stage, (first_page + i) * kPageTokens + key);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtas)
    any_attend_prefill(const __grid_constant__ AttentionArgs args) {
  using Kv = typename Tile::Kv;
  extern __shared__ __align__(128) uint8_t smem[];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const AttendTile tile = args.tiles[gridDim.x - 1 - blockIdx.x];
  uint32_t q[Tile::kRowTiles][kDimSteps][4];
  PrefillState state[Tile::kRowTiles];
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) load_queries<Kv>(args, tile, rows_of<Tile>(args, tile, m), q[m]);
  walk_pages<Tile>(args, tile, ptx::shared_address(smem),
                   [&](uint32_t stage, int first_key) { add_keys<Tile>(args, tile, stage, first_key, q, state); });
#pragma unroll
  for (int m = 0; m < Tile::kRowTiles; ++m) store_rows<Kv>(args, tile, rows_of<Tile>(args, tile, m), state[m]);
  ptx::async_wait<0>();
}

}  // namespace nibble::backend::cuda

#pragma once
// attend_decode: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tokens one by one     source: torch/model.py
// sdpa args: attend_plan.h FlashArgs     keys, values bf16 or e4m3     q, out f32 grid one CTA of 4 warps per (chunk of
// a token's pages, kv head), see chunk_pages; the last CTA of a token and kv head
//      adds the chunks' parts in their order. A warp takes every fourth step of 32 keys through a ring of its own.
// mma  m16n8k16; the kv head's 8 query heads are rows 0..7 with the high halves of q (and of p), rows 8..15 the same
//      heads with the low halves: the tile's idle half buys q and p of 16 bits
// bytes keys * kv_heads * 128 * sizeof(element) per token     flops 4 * heads * 64 * keys per token
// predicted (H200, 4.6 TB/s, one token): 32768 keys bf16 14.6 µs of bytes + 4 µs = 18.6 µs, 78 %; e4m3 7.3 + 4 = 11.3
// µs;
//      2048 keys 4 µs; window of 128 keys 2.5 µs. 64 tokens at 2048 keys: 58 + 4 µs
// rounding: f32 sums, order fixed by the step's positions: bitwise repeatable

#include "backend/cuda/kernels/any/attend_tile.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

template <class TheKv>
struct DecodeTile {
  using Kv = TheKv;
  static constexpr int kWarps = kDecodeWarps;
  static constexpr int kThreads = kWarps * kAttendLanes;
  static constexpr int kStepKeys = 32;
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = kStepKeys * 2 * Kv::kRowBytes;
  static constexpr int kSharedBytes = kWarps * kStages * kStageBytes;
  static_assert(kSharedBytes <= 99 * 1024, "SM121's shared memory per block");
};

// What a CTA does: a chunk of one token's pages.
struct DecodeUnit {
  int token = 0;  // in the step
  int chunk = 0, chunks = 0;
  int first_partial = 0;  // of a token in several chunks: units of such tokens before it
  KeyRange visible;
  bool any = false;
};

__device__ __forceinline__ int decode_token(const FlashArgs& args, int entry) {
  return args.decode_tokens == nullptr ? entry : args.decode_tokens[entry];
}

// Units, and those of tokens in several chunks: two counts in one word, for one scan.
inline constexpr int kSplitShift = 16;
__device__ __forceinline__ int count_units(int pages, int size) {
  const int chunks = chunks_of(pages, size);
  return chunks > 1 ? chunks | chunks << kSplitShift : chunks;
}

// Finds unit `wanted`. All lanes call it together.
__device__ inline DecodeUnit find_unit(const FlashArgs& args, int wanted, int lane) {
  constexpr int kUnits = (1 << kSplitShift) - 1;
  const auto pages_at = [&](int entry) {
    if (entry >= args.decode_count) return 0;
    return visible_keys(args.positions[decode_token(args, entry)], args.window).pages();
  };
  int all = 0;
  for (int base = 0; base < args.decode_count; base += kAttendLanes) all += pages_at(base + lane);
  for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(kWholeWarp, all, step);
  const int size = chunk_pages(all, args.target);
  DecodeUnit unit;
  int before = 0;
  for (int base = 0; base < args.decode_count; base += kAttendLanes) {
    const int own = count_units(pages_at(base + lane), size);
    int until = own;  // of the lanes up to this one
    for (int step = 1; step < kAttendLanes; step *= 2) {
      const int other = __shfl_sync(kWholeWarp, until, lane >= step ? lane - step : lane);
      if (lane >= step) until += other;
    }
    until += before;
    const uint32_t beyond = __ballot_sync(kWholeWarp, (until & kUnits) > wanted);
    if (beyond != 0) {
      const int owner = __ffs(static_cast<int>(beyond)) - 1;
      const int count = __shfl_sync(kWholeWarp, own, owner), first = __shfl_sync(kWholeWarp, until, owner) - count;
      unit.token = decode_token(args, base + owner);
      unit.chunks = count & kUnits;
      unit.chunk = wanted - (first & kUnits);
      unit.first_partial = first >> kSplitShift;
      unit.visible = visible_keys(args.positions[unit.token], args.window);
      unit.any = true;
      return unit;
    }
    before = __shfl_sync(kWholeWarp, until, kAttendLanes - 1);
  }
  return unit;
}

// Softmax so far of one row (head) and the weighted values, in base 2. top and sum: of row lane / 4; sum is the lane's
// share of it.
struct DecodeState {
  float top = -INFINITY, sum = 0;
  float out[kDimTiles][4] = {};
};

// A fragment whose rows 0..7 hold the high halves and rows 8..15 the low halves of the same numbers.
template <class Kv>
__device__ __forceinline__ void split(const float2& x, uint32_t& high, uint32_t& low) {
  high = Kv::pack(x.x, x.y);
  low = Kv::pack(x.x - Kv::half_of(high, 0), x.y - Kv::half_of(high, 1));
}

template <class Kv>
__device__ void load_query(const FlashArgs& args, const DecodeUnit& unit, int lane, uint32_t (&q)[kDimSteps][4]) {
  const int group = args.heads / args.kv_heads, head = lane / 4;
  const float* from =
      args.q + (int64_t{unit.token} * args.heads + static_cast<int>(blockIdx.y) * group + head) * kHeadDim;
  for (int s = 0; s < kDimSteps; ++s) {
    for (int half = 0; half < 2; ++half) {
      float2 x{};
      if (head < group) x = load_pair(from + Kv::query_dim(s, lane % 4, half));
      x.x *= kScoreScale;
      x.y *= kScoreScale;
      split<Kv>(x, q[s][2 * half], q[s][2 * half + 1]);
    }
  }
}

// Adds the keys [first, first + kStepKeys) of a stage, those of `visible`: at least one.
template <class Tile>
__device__ void add_step(uint32_t stage, int first, const KeyRange& visible, const uint32_t (&q)[kDimSteps][4],
                         DecodeState& state) {
  using Kv = typename Tile::Kv;
  constexpr int kKeyTiles = Tile::kStepKeys / 8;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  float score[kKeyTiles][2];
  float top = state.top;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    uint32_t b[kDimSteps][2];
    Kv::load_keys(b, stage, 8 * n, lane);
    float d[4] = {};
#pragma unroll
    for (int s = 0; s < kDimSteps; ++s) Kv::mma(d, q[s], b[s]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first + 8 * n + 2 * (lane % 4) + i;
      score[n][i] = key >= visible.first && key <= visible.last ? d[i] + d[2 + i] : -INFINITY;
      top = fmaxf(top, score[n][i]);
    }
  }
  top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
  if (__any_sync(kWholeWarp, top != state.top)) {            // else all would be multiplied by one
    const float shrink = ptx::exp2_approx(state.top - top);  // 0 at the first step
    state.top = top;
    state.sum *= shrink;
#pragma unroll
    for (int j = 0; j < kDimTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[j][i] *= shrink;
    }
  }
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    uint32_t p[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x{ptx::exp2_approx(score[n + half][0] - top), ptx::exp2_approx(score[n + half][1] - top)};
      state.sum += x.x + x.y;
      split<Kv>(x, p[2 * half], p[2 * half + 1]);
    }
#pragma unroll
    for (int quad = 0; quad < kDimTiles / 4; ++quad) {
      uint32_t b[4][2];
      Kv::load_values(b, stage + Tile::kStepKeys * Kv::kRowBytes, 8 * n, quad, lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) Kv::mma(state.out[4 * quad + j], p, b[j]);
    }
  }
}

// The warp's steps of the keys of `span`, through its ring.
template <class Tile>
__device__ void walk_keys(const FlashArgs& args, const DecodeUnit& unit, uint32_t ring, DecodeState& state) {
  using Kv = typename Tile::Kv;
  constexpr int kPageSteps = kPageTokens / Tile::kStepKeys;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int warp = static_cast<int>(threadIdx.x) / kAttendLanes;
  uint32_t q[kDimSteps][4];
  load_query<Kv>(args, unit, lane, q);

  const PageSpan span = chunk_span(unit.visible.pages(), unit.chunks, unit.chunk);
  const int first_page = unit.visible.first_page() + span.first, end_page = first_page + span.count;
  const int from = max(first_page * kPageSteps, unit.visible.first / Tile::kStepKeys);
  const int to = min(end_page * kPageSteps, unit.visible.last / Tile::kStepKeys + 1);  // steps [from, to)
  const int32_t* pages = args.pages + int64_t{args.token_row[unit.token]} * args.pages_per_row;
  const int kv_head = static_cast<int>(blockIdx.y);
  int ids = 0;                     // of the pages of the warp's next 32 steps, one per lane
  const auto issue = [&](int i) {  // the warp's i-th step; always a group, so that counts stay true
    const int step = from + warp + i * Tile::kWarps;
    if (i % kAttendLanes == 0) {
      const int mine = from + warp + (i + lane) * Tile::kWarps;
      ids = mine < to ? pages[mine / kPageSteps] : 0;
    }
    const int64_t page = __shfl_sync(kWholeWarp, ids, i % kAttendLanes);
    if (step < to) {
      const int64_t row = (page * args.kv_heads + kv_head) * kPageTokens + step % kPageSteps * Tile::kStepKeys;
      const uint32_t stage = ring + static_cast<uint32_t>(i % Tile::kStages * Tile::kStageBytes);
      copy_keys<Kv, Tile::kStepKeys>(args, row, unit.visible, {stage, step * Tile::kStepKeys, lane, kAttendLanes});
    }
    ptx::async_commit();
  };
  for (int i = 0; i < Tile::kStages - 1; ++i) issue(i);
  for (int i = 0; from + warp + i * Tile::kWarps < to; ++i) {
    ptx::async_wait<Tile::kStages - 2>();
    __syncwarp();  // everybody's copies have landed, and nobody reads the stage that is filled next
    issue(i + Tile::kStages - 1);
    add_step<Tile>(ring + static_cast<uint32_t>(i % Tile::kStages * Tile::kStageBytes),
                   (from + warp + i * Tile::kWarps) * Tile::kStepKeys, unit.visible, q, state);
  }
  ptx::async_wait<0>();
}

// A thread's part of the result: 4 dimensions of a head.
struct DecodePart {
  float top = -INFINITY, sum = 0;
  float4 out{};

  __device__ void scale_to(float new_top) {
    const float share = top == -INFINITY ? 0.0f : ptx::exp2_approx(top - new_top);
    sum *= share;
    out = {out.x * share, out.y * share, out.z * share, out.w * share};
    top = new_top;
  }
  __device__ void add(DecodePart other) {
    const float new_top = fmaxf(top, other.top);
    scale_to(new_top);
    other.scale_to(new_top);
    sum += other.sum;
    out = {out.x + other.out.x, out.y + other.out.y, out.z + other.out.z, out.w + other.out.w};
  }
};

// Shared memory when the rings are done: out [warps][8 heads][64], then {top, sum} [warps][8 heads].
template <class Tile>
__device__ DecodePart merge_warps(float* shared, const DecodeState& state, int head, int dim) {
  using Kv = typename Tile::Kv;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int warp = static_cast<int>(threadIdx.x) / kAttendLanes;
  float* tops = shared + Tile::kWarps * kGroupHeads * kHeadDim;
  float sum = state.sum + __shfl_xor_sync(kWholeWarp, state.sum, 1);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  __syncthreads();  // all rings are done
  const int row = warp * kGroupHeads + lane / 4;
  if (lane % 4 == 0) {
    tops[2 * row] = state.top;
    tops[2 * row + 1] = sum;
  }
#pragma unroll
  for (int j = 0; j < kDimTiles; ++j) {
    for (int i = 0; i < 2; ++i)
      shared[row * kHeadDim + Kv::out_dim(j, lane % 4, i)] = state.out[j][i] + state.out[j][2 + i];
  }
  __syncthreads();
  DecodePart part;
  for (int w = 0; w < Tile::kWarps; ++w) {
    const int at = w * kGroupHeads + head;
    part.add({tops[2 * at], tops[2 * at + 1], *reinterpret_cast<const float4*>(shared + at * kHeadDim + dim)});
  }
  return part;
}

// Partials in global memory: out [kv_heads][split units][8 heads][64], then {top, sum} [kv_heads][split units][8
// heads].
struct Partials {
  int units;
  float* out;
  float* tops;

  __device__ explicit Partials(const FlashArgs& args)
      : units(max_split_units(args.target)),
        out(args.partials),
        tops(out + int64_t{units} * args.kv_heads * kGroupHeads * kHeadDim) {}
  __device__ int64_t row(int unit, int head) const { return (int64_t{blockIdx.y} * units + unit) * kGroupHeads + head; }
  __device__ void store(int unit, int head, int dim, const DecodePart& part) const {
    *reinterpret_cast<float4*>(out + row(unit, head) * kHeadDim + dim) = part.out;
    if (dim == 0) *reinterpret_cast<float2*>(tops + 2 * row(unit, head)) = {part.top, part.sum};
  }
  __device__ DecodePart load(int unit, int head, int dim) const {
    const float2 top_sum = __ldcg(reinterpret_cast<const float2*>(tops + 2 * row(unit, head)));
    return {top_sum.x, top_sum.y, __ldcg(reinterpret_cast<const float4*>(out + row(unit, head) * kHeadDim + dim))};
  }
};

// True in all threads of the CTA that is the last of its token and kv head to come here; it sees the others' parts.
__device__ inline bool is_last(const FlashArgs& args, const DecodeUnit& unit, int* shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int* finished = args.finished + static_cast<int>(blockIdx.y) * max_split_units(args.target) + unit.first_partial;
    *shared = atomicAdd(finished, 1) == unit.chunks - 1 ? 1 : 0;
    if (*shared != 0) *finished = 0;  // for the next launch
    __threadfence();
  }
  __syncthreads();
  return *shared != 0;
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2) any_attend_decode(const __grid_constant__ FlashArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int tid = static_cast<int>(threadIdx.x);
  const int head = tid / (kHeadDim / 4), dim = tid % (kHeadDim / 4) * 4;
  static_assert(Tile::kThreads == kGroupHeads * kHeadDim / 4);
  const DecodeUnit unit = find_unit(args, static_cast<int>(blockIdx.x), tid % kAttendLanes);
  if (!unit.any) return;
  DecodeState state;
  walk_keys<Tile>(
      args, unit,
      ptx::shared_address(smem) + static_cast<uint32_t>(tid / kAttendLanes * Tile::kStages * Tile::kStageBytes), state);
  auto* shared = reinterpret_cast<float*>(smem);
  DecodePart part = merge_warps<Tile>(shared, state, head, dim);
  if (unit.chunks > 1) {
    const Partials partials(args);
    partials.store(unit.first_partial + unit.chunk, head, dim, part);
    if (!is_last(args, unit, reinterpret_cast<int*>(shared + Tile::kWarps * kGroupHeads * (kHeadDim + 2)))) return;
    part = {};
    for (int c = 0; c < unit.chunks; ++c) part.add(partials.load(unit.first_partial + c, head, dim));
  }
  const int group = args.heads / args.kv_heads;
  if (head >= group) return;
  const int query_head = static_cast<int>(blockIdx.y) * group + head;
  if (args.sinks != nullptr) part.add({args.sinks[query_head].to_float() * kLog2E, 1.0f, {}});
  const float scale = 1.0f / part.sum;
  *reinterpret_cast<float4*>(args.out + (int64_t{unit.token} * args.heads + query_head) * kHeadDim + dim) = {
      part.out.x * scale, part.out.y * scale, part.out.z * scale, part.out.w * scale};
}

}  // namespace nibble::backend::cuda

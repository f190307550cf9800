#pragma once
// attend_decode: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tokens one by one     source: torch/model.py
// sdpa args: attend_plan.h FlashArgs     keys, values bf16 or e4m3     q, out f32 grid one CTA per (chunk of a token's
// keys, kv head), see chunk_blocks; the last CTA of a token and kv head adds the chunks' parts in their order. Warps
//      take steps of 16 keys in turn, each through a ring of its own.
// chain what a step leaves as it is (positions, pages, keys of earlier steps) is read before the dependency wait
// mma  m16n8k16; the kv head's 8 query heads are rows 0..7 with the high halves of q (and of p), rows 8..15 the same
//      heads with the low halves: the tile's idle half buys q and p of 16 bits
// bytes keys * kv_heads * 128 * sizeof(element) per token     flops 4 * heads * 64 * keys per token
// rounding: f32 sums, order fixed by the step's positions: bitwise repeatable

#include "backend/cuda/kernels/any/attend_tile.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

#include <climits>

namespace nibble::backend::cuda {

template <class TheKv, int kTheWarps, int kTheStages, int kTheCtas>
struct DecodeTile {
  using Kv = TheKv;
  static constexpr int kWarps = kTheWarps;
  static constexpr int kThreads = kWarps * kAttendLanes;
  static constexpr int kCtas = kTheCtas;  // of an SM: bounds the registers
  static constexpr int kStepKeys = kDecodeStepKeys;
  static constexpr int kStages = kTheStages;
  static constexpr int kStageBytes = kStepKeys * 2 * Kv::kRowBytes;
  static constexpr int kDims = kGroupHeads * kHeadDim / kThreads;  // of the result, per thread
  static constexpr int kMergeBytes = kWarps * kGroupHeads * (kHeadDim + 2) * 4 + 16;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSharedBytes = kRingBytes > kMergeBytes ? kRingBytes : kMergeBytes;
  static_assert(kSharedBytes <= 99 * 1024, "SM121's shared memory per block");
};

template <class Kv>
using DecodeTileOf = DecodeTile<Kv, kDecodeWarps, decode_stages(Kv::kBytes), 2>;

// What a CTA does: a chunk of one token's keys.
struct DecodeUnit {
  int token = 0;  // in the step
  int row = 0;    // of the page table
  int chunk = 0, chunks = 0;
  int first_partial = 0;  // of a token in several chunks: units of such tokens before it
  KeyRange visible;
  bool any = false;

  // The chunk's keys.
  __device__ KeyRange keys() const {
    const BlockSpan span = chunk_span(visible.blocks(), chunks, chunk);
    const int first = visible.first + span.first * kPageTokens;
    return {first, min(first + span.count * kPageTokens - 1, visible.last)};
  }
};

// A token that decodes; one per lane.
struct DecodeEntry {
  int token = 0, row = 0;
  KeyRange visible{0, -1};
  __device__ DecodeEntry(const FlashArgs& args, int entry) {
    if (entry >= args.decode_count) return;
    token = args.decode_tokens == nullptr ? entry : args.decode_tokens[entry];
    row = args.token_row[token];
    visible = visible_keys(args.positions[token], args.window);
  }
};

// Units, and those of tokens in several chunks: two counts in one word, for one scan.
inline constexpr int kSplitShift = 16;
__device__ __forceinline__ int count_units(int blocks, int size) {
  const int chunks = chunks_of(blocks, size);
  return chunks > 1 ? chunks | chunks << kSplitShift : chunks;
}

// Finds unit `wanted`. All lanes call it together.
__device__ inline DecodeUnit find_unit(const FlashArgs& args, int wanted, int lane) {
  constexpr int kUnits = (1 << kSplitShift) - 1;
  const DecodeEntry first_entry(args, lane);
  const auto entry_at = [&](int base) { return base == 0 ? first_entry : DecodeEntry(args, base + lane); };
  int all = 0;
  for (int base = 0; base < args.decode_count; base += kAttendLanes) all += entry_at(base).visible.blocks();
  for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(kWholeWarp, all, step);
  const int size = chunk_blocks(all, args.target);
  DecodeUnit unit;
  int before = 0;
  for (int base = 0; base < args.decode_count; base += kAttendLanes) {
    const DecodeEntry entry = entry_at(base);
    const int own = count_units(entry.visible.blocks(), size);
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
      unit.token = __shfl_sync(kWholeWarp, entry.token, owner);
      unit.row = __shfl_sync(kWholeWarp, entry.row, owner);
      unit.visible = {__shfl_sync(kWholeWarp, entry.visible.first, owner),
                      __shfl_sync(kWholeWarp, entry.visible.last, owner)};
      unit.chunks = count & kUnits;
      unit.chunk = wanted - (first & kUnits);
      unit.first_partial = first >> kSplitShift;
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

// Adds the keys [first, first + kStepKeys) of a stage, those up to `last`: at least one.
template <class Tile>
__device__ void add_step(uint32_t stage, int first, int last, const uint32_t (&q)[kDimSteps][4], DecodeState& state) {
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
      score[n][i] = key <= last ? d[i] + d[2 + i] : -INFINITY;
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

// The steps of a warp: every kWarps-th of the chunk's, the first its own. Each goes through a stage of the warp's ring.
template <class Tile>
struct DecodeSteps {
  using Kv = typename Tile::Kv;
  const FlashArgs& args;
  const int32_t* pages;  // of the token's row
  KeyRange keys;         // of the chunk
  int old;               // the last key that is older than this step
  uint32_t ring;
  int lane, warp;
  int ids[2] = {};  // pages of the warp's next 32 steps, one per lane: of a step's first and last key

  __device__ DecodeSteps(const FlashArgs& a, const DecodeUnit& unit, uint32_t rings)
      : args(a),
        pages(a.pages + int64_t{unit.row} * a.pages_per_row),
        keys(unit.keys()),
        old(unit.visible.last - kMaxDecodeTokens),
        lane(static_cast<int>(threadIdx.x) % kAttendLanes),
        warp(static_cast<int>(threadIdx.x) / kAttendLanes) {
    ring = rings + static_cast<uint32_t>(warp * Tile::kStages * Tile::kStageBytes);
  }
  __device__ int first_key(int i) const { return keys.first + (warp + i * Tile::kWarps) * Tile::kStepKeys; }
  __device__ bool has(int i) const { return first_key(i) <= keys.last; }
  __device__ uint32_t stage(int i) const { return ring + static_cast<uint32_t>(i % Tile::kStages * Tile::kStageBytes); }

  // Of step i and the 31 behind it.
  __device__ void load_pages(int i) {
    const int mine = first_key(i + lane);
    ids[0] = mine <= keys.last ? pages[mine / kPageTokens] : 0;
    ids[1] = mine <= keys.last ? pages[min(mine + Tile::kStepKeys - 1, keys.last) / kPageTokens] : 0;
  }
  // Copies step i's keys of [from, to]; those behind the last become zero: perhaps nobody has written them.
  __device__ void copy(int i, int from, int to) const {
    const int head = static_cast<int>(blockIdx.y), first = first_key(i);
    const int near = __shfl_sync(kWholeWarp, ids[0], i % kAttendLanes);
    const int far = __shfl_sync(kWholeWarp, ids[1], i % kAttendLanes);
#pragma unroll
    for (int at = lane; at < Tile::kStepKeys * Kv::kChunks; at += kAttendLanes) {
      const int slot = at / Kv::kChunks, key = first + slot;
      if (key < from || key > to) continue;
      const int64_t page = key / kPageTokens != first / kPageTokens ? far : near;
      const int64_t byte =
          ((page * args.kv_heads + head) * kPageTokens + key % kPageTokens) * Kv::kRowBytes + at % Kv::kChunks * 16;
      const auto fill = key <= keys.last ? ptx::Fill::kCopy : ptx::Fill::kZero;
      const uint32_t place = stage(i) + Kv::chunk_at(slot, at % Kv::kChunks);
      ptx::async_copy16(place, static_cast<const uint8_t*>(args.keys) + byte, fill);
      ptx::async_copy16(place + Tile::kStepKeys * Kv::kRowBytes, static_cast<const uint8_t*>(args.values) + byte, fill);
    }
  }
  // All of step i; always a group, so that counts stay true.
  __device__ void issue(int i) {
    if (i % kAttendLanes == 0) load_pages(i);
    if (has(i)) copy(i, 0, INT_MAX);
    ptx::async_commit();
  }
};

// The warp's steps of the unit's keys. Waits for the kernel before.
template <class Tile>
__device__ void walk_keys(const FlashArgs& args, const DecodeUnit& unit, uint32_t rings, DecodeState& state) {
  using Kv = typename Tile::Kv;
  DecodeSteps<Tile> steps(args, unit, rings);
  constexpr int kAhead = Tile::kStages - 1;
  steps.load_pages(0);
  for (int i = 0; i < kAhead; ++i) {
    if (steps.has(i)) steps.copy(i, 0, steps.old);
    ptx::async_commit();
  }
  ptx::grid_dependency_wait();
  bool late = false;  // some of these steps have keys of this one; then nothing comes behind them
  for (int i = 0; i < kAhead; ++i) {
    if (!steps.has(i) || steps.first_key(i) + Tile::kStepKeys - 1 <= steps.old) continue;
    steps.copy(i, steps.old + 1, INT_MAX);
    late = true;
  }
  if (late) ptx::async_commit();
  uint32_t q[kDimSteps][4];
  load_query<Kv>(args, unit, steps.lane, q);
  for (int i = 0; steps.has(i); ++i) {
    if (late) {
      ptx::async_wait<0>();
    } else {
      ptx::async_wait<kAhead - 1>();
    }
    __syncwarp();  // everybody's copies have landed, and nobody reads the stage that is filled next
    steps.issue(i + kAhead);
    add_step<Tile>(steps.stage(i), steps.first_key(i), steps.keys.last, q, state);
  }
  ptx::async_wait<0>();
}

// A thread's part of the result: some dimensions of a head.
template <int kDims>
struct DecodePart {
  struct alignas(4 * kDims) Dims {
    float at[kDims] = {};
  };
  float top = -INFINITY, sum = 0;
  Dims out;

  __device__ void scale_to(float new_top) {
    const float share = top == -INFINITY ? 0.0f : ptx::exp2_approx(top - new_top);
    sum *= share;
    for (float& x : out.at) x *= share;
    top = new_top;
  }
  __device__ void add(DecodePart other) {
    const float new_top = fmaxf(top, other.top);
    scale_to(new_top);
    other.scale_to(new_top);
    sum += other.sum;
    for (int d = 0; d < kDims; ++d) out.at[d] += other.out.at[d];
  }
};

// Parts of several warps or chunks in memory: out [parts][8 heads][64], then {top, sum} [parts][8 heads].
template <int kDims>
struct DecodeParts {
  using Part = DecodePart<kDims>;
  float* out;
  float* tops;

  __device__ DecodeParts(float* memory, int64_t parts) : out(memory), tops(memory + parts * kGroupHeads * kHeadDim) {}
  __device__ Part load(int64_t part, int head, int dim) const {
    const int64_t row = part * kGroupHeads + head;
    const float2 top_sum = *reinterpret_cast<const float2*>(tops + 2 * row);
    return {top_sum.x, top_sum.y, *reinterpret_cast<const typename Part::Dims*>(out + row * kHeadDim + dim)};
  }
  __device__ void store(int64_t part, int head, int dim, const Part& value) const {
    const int64_t row = part * kGroupHeads + head;
    *reinterpret_cast<typename Part::Dims*>(out + row * kHeadDim + dim) = value.out;
    if (dim == 0) *reinterpret_cast<float2*>(tops + 2 * row) = {value.top, value.sum};
  }
  // In their order; several loads are under way together.
  __device__ Part sum(int64_t first, int count, int head, int dim) const {
    constexpr int kTogether = 8;
    Part total;
    for (int at = 0; at < count; at += kTogether) {
      Part part[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (at + i < count) part[i] = load(first + at + i, head, dim);
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (at + i < count) total.add(part[i]);
    }
    return total;
  }
};

// Shared memory when the rings are done: the warps' parts.
template <class Tile>
__device__ DecodePart<Tile::kDims> merge_warps(float* shared, const DecodeState& state, int head, int dim) {
  using Kv = typename Tile::Kv;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int warp = static_cast<int>(threadIdx.x) / kAttendLanes;
  const DecodeParts<Tile::kDims> parts(shared, Tile::kWarps);
  float sum = state.sum + __shfl_xor_sync(kWholeWarp, state.sum, 1);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  __syncthreads();  // all rings are done
  const int row = warp * kGroupHeads + lane / 4;
  if (lane % 4 == 0) {
    parts.tops[2 * row] = state.top;
    parts.tops[2 * row + 1] = sum;
  }
#pragma unroll
  for (int j = 0; j < kDimTiles; ++j) {
    for (int i = 0; i < 2; ++i)
      parts.out[row * kHeadDim + Kv::out_dim(j, lane % 4, i)] = state.out[j][i] + state.out[j][2 + i];
  }
  __syncthreads();
  return parts.sum(0, Tile::kWarps, head, dim);
}

// True in all threads of the CTA that is the last of its token and kv head to come here; it sees the others' parts.
__device__ inline bool is_last(const FlashArgs& args, const DecodeUnit& unit, int* shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    int* finished = args.finished + static_cast<int>(blockIdx.y) * max_split_units(args.target) + unit.first_partial;
    *shared = atomicAdd(finished, 1) == unit.chunks - 1 ? 1 : 0;
    if (*shared != 0) *finished = 0;  // for the next launch
    __threadfence();
  }
  __syncthreads();
  return *shared != 0;
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtas)
    any_attend_decode(const __grid_constant__ FlashArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  ptx::grid_dependency_launch();
  const int tid = static_cast<int>(threadIdx.x);
  const int head = tid / (kHeadDim / Tile::kDims), dim = tid % (kHeadDim / Tile::kDims) * Tile::kDims;
  const DecodeUnit unit = find_unit(args, static_cast<int>(blockIdx.x), tid % kAttendLanes);
  if (!unit.any) return;
  DecodeState state;
  walk_keys<Tile>(args, unit, ptx::shared_address(smem), state);
  auto* shared = reinterpret_cast<float*>(smem);
  DecodePart<Tile::kDims> part = merge_warps<Tile>(shared, state, head, dim);
  if (unit.chunks > 1) {
    const int units = max_split_units(args.target);
    const DecodeParts<Tile::kDims> parts(args.partials, int64_t{units} * args.kv_heads);
    const int64_t first = int64_t{blockIdx.y} * units + unit.first_partial;
    parts.store(first + unit.chunk, head, dim, part);
    if (!is_last(args, unit, reinterpret_cast<int*>(shared + Tile::kWarps * kGroupHeads * (kHeadDim + 2)))) return;
    part = parts.sum(first, unit.chunks, head, dim);
  }
  const int group = args.heads / args.kv_heads;
  if (head >= group) return;
  const int query_head = static_cast<int>(blockIdx.y) * group + head;
  if (args.sinks != nullptr) part.add({args.sinks[query_head].to_float() * kLog2E, 1.0f, {}});
  const float scale = 1.0f / part.sum;
  for (float& x : part.out.at) x *= scale;
  *reinterpret_cast<typename DecodePart<Tile::kDims>::Dims*>(
      args.out + (int64_t{unit.token} * args.heads + query_head) * kHeadDim + dim) = part.out;
}

}  // namespace nibble::backend::cuda

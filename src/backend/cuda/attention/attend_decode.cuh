#pragma once
// attend_decode: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tokens one by one
// source: torch/model.py sdpa; args: attend_plan.h AttentionArgs
// keys, values as PageRow says     q f32     out f32 or rounded
// grid one CTA of 8 warps, 4 where there are many, 1 where there are more, per (kv head, chunk of a token's keys), see
//      attend_units.cuh; warps take steps of 16 keys in turn, each through a ring of its own; the last CTA of a token
//      and kv head adds the chunks' parts in their order
// chain launched as a dependent: what a step leaves as it is (positions, pages, keys of earlier steps) is read before
//      the dependency wait; the next kernel may start after it
// mma  m16n8k16; the kv head's 8 query heads are rows 0..7 with the high halves of q (and of p), rows 8..15 the same
//      heads with the low halves: the tile's idle half buys q and p of 16 bits
// bytes keys * kv_heads * 2 rows per token, a row page_row_bytes (backend/kv_dtype.h); flops 4 * heads * 64 * keys
// measured (H200, bf16, one token; between a qkv and an o, and as share of the read bandwidth in a chain of its own):
//      window of 128 keys 2.2 µs; 128 keys 2.6; 2048 keys 4.7; 8192 keys 8.7; 32768 keys 20.4, 77 %; 131072 keys 91 %
//      256 tokens of 20b, a warp each (H100): 1 to 32 keys 7.4 µs after rope_sums, where CTAs of 4 warps took 22; 1024
//      keys, window and not by turns, 88 % of the read bandwidth
// rounding: f32 sums, order fixed by the step's positions: bitwise repeatable. Of Fp8Row q and p have 4 bits; their low
//      halves are 0

#include "backend/cuda/attention/attend_tile.cuh"
#include "backend/cuda/attention/attend_units.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

namespace nibble::backend::cuda {

// Softmaxes over some of the keys each, and their sum: what warps and CTAs leave to each other.

// A thread's part of the result: some dimensions of a head.
template <int kDims>
struct DecodePart {
  struct alignas(kDims < 4 ? 4 * kDims : 16) Dims {
    float at[kDims] = {};
  };
  float top = -INFINITY, sum = 0;
  Dims out;

  // Adds the parts in their order; their exponentials are taken together.
  template <int kParts>
  __device__ void add(const DecodePart (&parts)[kParts]) {
    const float before = top;
#pragma unroll
    for (const DecodePart& part : parts) top = fmaxf(top, part.top);
    const float base = top == -INFINITY ? 0.0f : top;
    const auto share_of = [&](float other) { return ptx::exp2_approx(other - base); };
    const float own = share_of(before);
    sum *= own;
#pragma unroll
    for (float& x : out.at) x *= own;
#pragma unroll
    for (const DecodePart& part : parts) {
      const float share = share_of(part.top);
      sum += share * part.sum;
#pragma unroll
      for (int d = 0; d < kDims; ++d) out.at[d] += share * part.out.at[d];
    }
  }
};

// Parts of several warps or chunks in memory: out [parts][8 heads][kRow], then {top, sum} [parts][8 heads].
template <int kDims, int kRow>
struct DecodeParts {
  using Part = DecodePart<kDims>;
  float* out;
  float* tops;

  __device__ DecodeParts(float* memory, int64_t parts) : out(memory), tops(memory + parts * kGroupHeads * kRow) {}
  __device__ Part load(int64_t part, int head, int dim) const {
    const int64_t row = part * kGroupHeads + head;
    const float2 top_sum = *reinterpret_cast<const float2*>(tops + 2 * row);
    return {top_sum.x, top_sum.y, *reinterpret_cast<const typename Part::Dims*>(out + row * kRow + dim)};
  }
  __device__ void store(int64_t part, int head, int dim, const Part& value) const {
    const int64_t row = part * kGroupHeads + head;
    *reinterpret_cast<typename Part::Dims*>(out + row * kRow + dim) = value.out;
    if (dim == 0) *reinterpret_cast<float2*>(tops + 2 * row) = {value.top, value.sum};
  }
  // In their order; so many loads are under way together.
  template <int kTogether>
  __device__ Part sum(int64_t first, int count, int head, int dim) const {
    Part total;
#pragma unroll 1
    for (int at = 0; at < count; at += kTogether) {
      Part parts[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (at + i < count) parts[i] = load(first + at + i, head, dim);
      total.add(parts);
    }
    return total;
  }
};

inline constexpr int kMergeRow = kHeadDim + 8;  // floats of a head in shared memory: no bank conflicts

template <class TheKv, int kTheWarps, int kTheStages>
struct DecodeTile {
  using Kv = TheKv;
  static constexpr int kWarps = kTheWarps;
  static constexpr int kThreads = kWarps * kAttendLanes;
  static constexpr int kStepKeys = kDecodeStepKeys;
  static constexpr int kStages = kTheStages;  // of a warp's ring of steps
  static constexpr int kCtasPerSm = 16 / kWarps;
  static constexpr int kStageBytes = 2 * rows_bytes<Kv>(kStepKeys);
  static constexpr int kDims = kGroupHeads * kHeadDim / kThreads;  // of the result, per thread
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSharedBytes = decode_smem_bytes(rows_bytes<Kv>(1), {kWarps, kStages});
  // Index of the first part of the query that the thread's warp deals with.
  __device__ static int first_part() { return kWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / kAttendLanes; }
  static_assert(kRingBytes + (kWarps > 1 ? kDimSteps * kAttendLanes * 16 : 0) == kSharedBytes,
                "the queries' operands behind the rings");
  static_assert(kWarps * kGroupHeads * (kMergeRow + 2) * 4 + 16 <= kSharedBytes);
  static_assert(kSharedBytes <= 99 * 1024, "SM121's shared memory per block");
};

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

// The CTA's query heads as operands, high halves and low ones. Each warp splits a part of them for all, through shared
// memory, [steps][lanes] of 4 words; one alone keeps its own. All threads put, then all take.
template <class Tile>
struct SharedQuery {
  using Kv = typename Tile::Kv;
  uint32_t own;  // the lane's
  uint32_t (&q)[kDimSteps][4];

  // Part 2 s + h of 2 * kDimSteps: two dimensions of step s, half h.
  __device__ __forceinline__ void put(int part, const float2& x) const {
    uint32_t high, low;
    if constexpr (kRoundsOperands<Kv>) {
      high = ptx::f16_of_e4m3(ptx::pack_e4m3(x.x, x.y));
      low = 0;
    } else {
      split<Kv>({x.x * kScoreScale, x.y * kScoreScale}, high, low);
    }
    if constexpr (Tile::kWarps == 1) {
      q[part / 2][part % 2 * 2] = high;
      q[part / 2][part % 2 * 2 + 1] = low;
    } else {
      const uint32_t place = own + static_cast<uint32_t>(part / 2 * kAttendLanes * 16 + part % 2 * 8);
      ptx::store_shared4(place, high);
      ptx::store_shared4(place + 4, low);
    }
  }
  __device__ __forceinline__ void take() const {
    if constexpr (Tile::kWarps == 1) return;
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kDimSteps; ++s) {
      const uint4 words = ptx::load_shared16(own + static_cast<uint32_t>(s * kAttendLanes * 16));
      q[s][0] = words.x;
      q[s][1] = words.y;
      q[s][2] = words.z;
      q[s][3] = words.w;
    }
  }
};

// The thread's parts of the query, under way.
template <class Tile>
struct OwnQuery {
  using Kv = typename Tile::Kv;
  static constexpr int kParts = 2 * kDimSteps / Tile::kWarps;
  static_assert(kParts * Tile::kWarps == 2 * kDimSteps);
  float2 parts[kParts] = {};

  __device__ __forceinline__ OwnQuery(const AttentionArgs& args, const DecodeUnit& unit) {
    const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
    const int group = args.heads / args.kv_heads, head = lane / 4;
    if (head >= group) return;
    const float* from =
        args.q + (int64_t{unit.token} * args.heads + static_cast<int>(blockIdx.x) * group + head) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int part = Tile::first_part() + i * Tile::kWarps;
      parts[i] = load_pair(from + Kv::query_dim(part / 2, lane % 4, part % 2));
    }
  }
  __device__ __forceinline__ void share(const SharedQuery<Tile>& to) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) to.put(Tile::first_part() + i * Tile::kWarps, parts[i]);
    to.take();
  }
};

// Adds the keys [first, first + kStepKeys) of a stage, those up to `last`: at least one.
template <class Tile>
__device__ void add_step(uint32_t stage, int first, int last, const uint32_t (&q)[kDimSteps][4], DecodeState& state) {
  using Kv = typename Tile::Kv;
  constexpr int kKeyTiles = Tile::kStepKeys / 8;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  constexpr bool kRounds = kRoundsOperands<Kv>;
  float score[kKeyTiles][2];
  float top = kRounds ? -INFINITY : state.top;
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
      score[n][i] = key <= last ? (kRounds ? d[i] * kScoreScale : d[i] + d[2 + i]) : -INFINITY;
      top = fmaxf(top, score[n][i]);
    }
  }
  top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
  if constexpr (kRounds) top = fmaxf(state.top, ceilf(top) - kWeightBits);
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
      if constexpr (kRounds) {
        p[2 * half] = ptx::f16_of_e4m3(ptx::pack_e4m3(x.x, x.y));
        p[2 * half + 1] = 0;
        state.sum += ptx::f16_half(p[2 * half], 0) + ptx::f16_half(p[2 * half], 1);
      } else {
        state.sum += x.x + x.y;
        split<Kv>(x, p[2 * half], p[2 * half + 1]);
      }
    }
#pragma unroll
    for (int quad = 0; quad < kDimTiles / 4; ++quad) {
      uint32_t b[4][2];
      Kv::load_values(b, stage + rows_bytes<Kv>(Tile::kStepKeys), 8 * n, quad, lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) Kv::mma(state.out[4 * quad + j], p, b[j]);
    }
  }
}

// The steps of a warp: every kWarps-th of the chunk's, the first its own. Each goes through a stage of the warp's ring.
template <class Tile>
struct DecodeSteps {
  using Kv = typename Tile::Kv;
  const AttentionArgs& args;
  const int32_t* pages;  // of the token's row
  KeyRange keys;         // of the chunk
  int old;               // the last key that is older than this step
  uint32_t ring;
  int lane, warp;
  int ids[2] = {};  // pages of the warp's next 32 steps, one per lane: of a step's first and last key

  __device__ DecodeSteps(const AttentionArgs& a, const DecodeUnit& unit, uint32_t rings)
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

  // Loads the pages of step i and the 31 after it.
  __device__ void load_pages(int i) {
    const int mine = first_key(i + lane);
    ids[0] = mine <= keys.last ? pages[mine / kPageTokens] : 0;
    ids[1] = mine <= keys.last ? pages[min(mine + Tile::kStepKeys - 1, keys.last) / kPageTokens] : 0;
  }
  // Copies step i's keys: those that no kernel of this step writes, the others, or all. Those after the last become
  // zero: perhaps nobody has written them.
  enum class Keys : uint8_t { kOld, kNew, kAll };
  __device__ void copy(int i, Keys which) const {
    const int head = static_cast<int>(blockIdx.x), first = first_key(i);
    const int near = __shfl_sync(kWholeWarp, ids[0], i % kAttendLanes);
    const int far = __shfl_sync(kWholeWarp, ids[1], i % kAttendLanes);
#pragma unroll
    for (int at = lane; at < Tile::kStepKeys * Kv::kChunks; at += kAttendLanes) {
      const int slot = at / Kv::kChunks, key = first + slot;
      const bool is_new = key > old && key <= keys.last;
      if (which != Keys::kAll && is_new != (which == Keys::kNew)) continue;
      const int64_t page = key / kPageTokens != first / kPageTokens ? far : near;
      const int64_t row = (page * args.kv_heads + head) * kPageTokens + key % kPageTokens;
      const int64_t byte = Kv::code_bytes(row * kHeadDim) + at % Kv::kChunks * 16;
      const auto fill = key <= keys.last ? ptx::Fill::kCopy : ptx::Fill::kZero;
      const uint32_t place = stage(i) + Kv::chunk_at(slot, at % Kv::kChunks);
      ptx::async_copy16(place, static_cast<const uint8_t*>(args.kv.keys) + byte, fill);
      ptx::async_copy16(place + rows_bytes<Kv>(Tile::kStepKeys), static_cast<const uint8_t*>(args.kv.values) + byte,
                        fill);
    }
  }
  // All of step i; always a group, so that counts stay true.
  __device__ void issue(int i) {
    if (i % kAttendLanes == 0) load_pages(i);
    if (has(i)) copy(i, Keys::kAll);
    ptx::async_commit();
  }
};

// The warp's steps of the unit's keys. Waits for the kernel before. What it copies sooner is there: earlier steps wrote
// it, and a step's first kernel (embed), which is not chained, starts when all of them have ended.
template <class Tile>
__device__ void walk_keys(const AttentionArgs& args, const DecodeUnit& unit, uint32_t rings, DecodeState& state) {
  using Keys = typename DecodeSteps<Tile>::Keys;
  DecodeSteps<Tile> steps(args, unit, rings);
  constexpr int kAhead = Tile::kStages - 1;
  steps.load_pages(0);
  for (int i = 0; i < kAhead; ++i) {
    if (steps.has(i)) steps.copy(i, Keys::kOld);
    ptx::async_commit();
  }
  uint32_t q[kDimSteps][4];
  const SharedQuery<Tile> query{rings + Tile::kRingBytes + static_cast<uint32_t>(steps.lane) * 16, q};
  ptx::grid_dependency_wait();
  const OwnQuery<Tile> own(args, unit);  // before the copies, whose addresses take a while
  ptx::grid_dependency_launch();         // not before: what follows would take bandwidth from what this waits for
  bool late = false;                     // some of these steps have keys of this one; then nothing comes after them
  for (int i = 0; i < kAhead; ++i) {
    if (!steps.has(i) || steps.first_key(i) + Tile::kStepKeys - 1 <= steps.old) continue;
    steps.copy(i, Keys::kNew);
    late = true;
  }
  if (late) ptx::async_commit();
  own.share(query);
  for (int i = 0; steps.has(i); ++i) {
    if (late)
      ptx::async_wait<0>();
    else
      ptx::async_wait<kAhead - 1>();
    __syncwarp();  // everybody's copies have landed, and nobody reads the stage that is filled next
    steps.issue(i + kAhead);
    add_step<Tile>(steps.stage(i), steps.first_key(i), steps.keys.last, q, state);
  }
  ptx::async_wait<0>();
}

// Shared memory when the rings are done: the warps' parts.
template <class Tile>
__device__ DecodePart<Tile::kDims> merge_warps(float* shared, const DecodeState& state, int head, int dim) {
  using Kv = typename Tile::Kv;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int warp = static_cast<int>(threadIdx.x) / kAttendLanes;
  const DecodeParts<Tile::kDims, kMergeRow> parts(shared, Tile::kWarps);
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
    const float2 x{state.out[j][0] + state.out[j][2], state.out[j][1] + state.out[j][3]};
    float* const to = parts.out + row * kMergeRow + Kv::out_dim(j, lane % 4, 0);
    if constexpr (Kv::out_dim(0, 0, 1) == 1) {
      *reinterpret_cast<float2*>(to) = x;
    } else {
      to[0] = x.x;
      to[Kv::out_dim(0, 0, 1)] = x.y;
    }
  }
  __syncthreads();
  return parts.template sum<Tile::kWarps>(0, Tile::kWarps, head, dim);
}

// True in all threads of the CTA that is the last of its token and kv head to come here; it sees the others' parts.
__device__ inline bool is_last(const AttentionArgs& args, const DecodeUnit& unit, int* shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int* finished = args.finished + static_cast<int>(blockIdx.x) * max_split_units(args.target) + unit.first_partial;
    *shared = ptx::add_acq_rel(finished, 1) == unit.chunks - 1 ? 1 : 0;
    if (*shared != 0) *finished = 0;  // for the next launch
  }
  __syncthreads();
  return *shared != 0;
}

// The result of a warp that has seen all keys, from its registers.
template <class Kv>
__device__ void store_alone(const AttentionArgs& args, const DecodeUnit& unit, const DecodeState& state) {
  const int group = args.heads / args.kv_heads, head = static_cast<int>(threadIdx.x) / 4;
  const int query_head = static_cast<int>(blockIdx.x) * group + head;
  float sum = state.sum + __shfl_xor_sync(kWholeWarp, state.sum, 1);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  const bool mine = head < group;
  const float sink = args.sinks == nullptr || !mine ? -INFINITY : args.sinks[query_head].to_float() * kLog2E;
  const float top = fmaxf(state.top, sink), own = ptx::exp2_approx(state.top - top);
  const float scale = own / (sum * own + ptx::exp2_approx(sink - top));
  float out[kDimTiles][2];
#pragma unroll
  for (int j = 0; j < kDimTiles; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) out[j][i] = (state.out[j][i] + state.out[j][2 + i]) * scale;
  store_head<Kv>(args, mine, unit.token, query_head, out);
}

// Columns k to k + kDims - 1 of the result in MXFP8, which neighbour lanes go on with: blocks of 32. All lanes of the
// warp together.
template <int kDims>
__device__ __forceinline__ void store_codes(const AttentionArgs& args, bool mine, int64_t token, int k,
                                            const float (&x)[kDims]) {
  constexpr MxFormat kElement = MxFormat::kMxfp8E4m3;
  float most = 0;
#pragma unroll
  for (const float value : x) most = ptx::max_nan(most, fabsf(value));
#pragma unroll
  for (int step = 1; step < layout::kBlockK / kDims; step *= 2)
    most = ptx::max_nan(most, __shfl_xor_sync(kWholeWarp, most, step));
  const MxScale<backend::Activations::kMxfp8> block(most);
  if (!mine) return;
  const int cols = args.heads * kHeadDim;
  uint8_t* const own = GemmInputRow{args.rounded, token, cols}.codes(kElement);
#pragma unroll
  for (int d = 0; d < kDims; ++d) own[layout::mx_code_offset(kElement, k + d)] = ptx::to_e4m3(x[d] * block.down);
  if (k % layout::kBlockK == 0) own[layout::mx_scale_offset(kElement, cols, k / layout::kBlockK)] = block.scale.bits;
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtasPerSm)
    any_attend_decode(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int tid = static_cast<int>(threadIdx.x);
  const int head = tid / (kHeadDim / Tile::kDims), dim = tid % (kHeadDim / Tile::kDims) * Tile::kDims;
  const int group = args.heads / args.kv_heads, query_head = static_cast<int>(blockIdx.x) * group + head;
  const DecodeUnit unit = find_unit(args, static_cast<int>(blockIdx.y), tid % kAttendLanes);
  if (!unit.any) return;
  using Part = DecodePart<Tile::kDims>;
  Part sink[1];
  if (args.sinks != nullptr && head < group) sink[0] = {args.sinks[query_head].to_float() * kLog2E, 1.0f, {}};
  DecodeState state;
  walk_keys<Tile>(args, unit, ptx::shared_address(smem), state);
  if (Tile::kWarps == 1 && unit.chunks == 1) return store_alone<typename Tile::Kv>(args, unit, state);
  auto* shared = reinterpret_cast<float*>(smem);
  Part part = merge_warps<Tile>(shared, state, head, dim);
  if (unit.chunks > 1) {
    const int units = max_split_units(args.target);
    const DecodeParts<Tile::kDims, kHeadDim> parts(args.partials, int64_t{units} * args.kv_heads);
    const int64_t first = int64_t{blockIdx.x} * units + unit.first_partial;
    parts.store(first + unit.chunk, head, dim, part);
    if (!is_last(args, unit, reinterpret_cast<int*>(shared + Tile::kWarps * kGroupHeads * (kMergeRow + 2)))) return;
    part = parts.template sum<(Tile::kDims > 4 ? 4 : 16)>(first, unit.chunks, head, dim);
  }
  const bool mine = head < group;
  if (!mine && !in_codes(args.rounded.type)) return;
  part.add(sink);
  const float scale = 1.0f / part.sum;
  for (float& x : part.out.at) x *= scale;
  if (args.rounded.at != nullptr && in_codes(args.rounded.type))
    return store_codes(args, mine, unit.token, query_head * kHeadDim + dim, part.out.at);
  if (!mine) return;
  if (args.rounded.at != nullptr) {
    const GemmInputRow row{args.rounded, unit.token, args.heads * kHeadDim};
    for (int d = 0; d < Tile::kDims; d += 2)
      row.store2(query_head * kHeadDim + dim + d, part.out.at[d], part.out.at[d + 1]);
    return;
  }
  *reinterpret_cast<typename Part::Dims*>(args.out + (int64_t{unit.token} * args.heads + query_head) * kHeadDim + dim) =
      part.out;
}

}  // namespace nibble::backend::cuda

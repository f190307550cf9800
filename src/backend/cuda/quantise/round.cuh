#pragma once
// round: RoundArgs (gemm_plan.h), to nearest, or in MX blocks; group_round: GroupArgs' lists too
// grid one CTA per token, a thread per chunk of 8 slots, by ranges per four; of group_round each places its token's
//      pairs, after those of its range (ExpertRanges) or of all tokens, which it counts, and its warps list an expert's
//      tiles each
// bytes tokens * cols * (4 + 2 copies); group_round: and of ids, from L2, its range's or tokens^2 * topk * 4
// measured 2026-11-21 (H200), panels: 8192 x 2880 37 µs, with 4 copies 93 µs (67 % of read speed); 2026-11-22 (H100),
//      in a step of 20b, 256 x 2880 with 4 copies: group_round 5.9 µs, moe_group and round 8.3; 2026-11-26 (H200), 4
//      copies: 8192 round 88 µs, moe_group 19; (H100) by ranges, normed: 8192 110 µs (2.6 TB/s; 117 with a chunk a
//      thread, whose twelve warps each looked for the places), of which reads 35; 2048 27 (31); rows side by side 103

#include "backend/cuda/dense/gemm_input.cuh"
#include "backend/cuda/experts/moe_group.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/quantise/mx_block.cuh"
#include "backend/cuda/quantise/round.h"

namespace nibble::backend::cuda {

inline constexpr int kRoundTokenThreads = 512;
[[nodiscard]] constexpr int round_threads(int cols) {
  const int threads = (cols / 8 + 31) / 32 * 32;
  return threads < kRoundTokenThreads ? threads : kRoundTokenThreads;
}

// Eight columns of a token, k, k + 1, k + 8, … k + 25: a chunk of the panels.
struct RoundChunk {
  int k;
  float2 v[4];

  __device__ RoundChunk(const RoundArgs& args, int64_t token, int chunk)
      : k(chunk / 4 * layout::kBlockK + chunk % 4 * 2) {
    const auto* from = reinterpret_cast<const float2*>(args.from + token * args.cols + k);
#pragma unroll
    for (int t = 0; t < 4; ++t) v[t] = from[4 * t];
    if (args.norm == nullptr) return;
    const float inverse = args.inverse[token];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint32_t norm = *reinterpret_cast<const uint32_t*>(args.norm + k + 8 * t);
      v[t].x *= inverse * __uint_as_float(norm << 16);
      v[t].y *= inverse * __uint_as_float(norm & 0xffff0000u);
    }
  }
  // As MXFP8 rounds them: four consecutive lanes have a block. All lanes of the warp together.
  __device__ void round_mxfp8() {
    float x[kEighth];
#pragma unroll
    for (int i = 0; i < kEighth; ++i) x[i] = i % 2 == 0 ? v[i / 2].x : v[i / 2].y;
    round_mx<backend::Activations::kMxfp8>(x);
#pragma unroll
    for (int t = 0; t < 4; ++t) v[t] = {x[2 * t], x[2 * t + 1]};
  }
  // As they are stored.
  __device__ void pack(const RoundArgs& args, uint32_t (&words)[4]) const {
    const GemmInputRow to{args.to, 0, args.cols};
#pragma unroll
    for (int t = 0; t < 4; ++t) words[t] = to.pack(v[t].x, v[t].y);
  }
  // To each copy's row.
  template <class RowOf>
  __device__ void store(const RoundArgs& args, const RowOf& row_of) const {
    GemmInputRow to{args.to, 0, args.cols};
    uint32_t words[4];
    pack(args, words);
    for (int copy = 0; copy < args.copies; ++copy) {
      to.row = row_of(copy);
      if (to.row >= 0) to.store_chunk(k, words);
    }
  }
};

__global__ void __launch_bounds__(kRoundTokenThreads) any_round_f32(const __grid_constant__ RoundArgs args) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const int chunks = args.cols / 8;
  for (int first = 0; first < chunks; first += static_cast<int>(blockDim.x)) {  // whole warps: blocks' lanes meet
    const int i = first + static_cast<int>(threadIdx.x);
    const bool mine = i < chunks;
    RoundChunk chunk(args, token, mine ? i : static_cast<int>(threadIdx.x) % 4);
    if (in_codes(args.to.type)) {
      GemmInputRow{args.to, token, args.cols}.store_chunk_codes(chunk.k, mine, chunk.v);
      continue;
    }
    if (args.to.in_mxfp8) chunk.round_mxfp8();
    if (!mine) continue;
    chunk.store(args, [&](int copy) {
      return args.places == nullptr ? token : int64_t{args.places[token * args.copies + copy]};
    });
  }
}

// Dynamic shared memory.
struct GroupRoundShared {
  int counts[kGroupMaxExperts];  // pairs of each expert
  int experts[32], before[32];   // of the token's pairs: the expert, and its pairs before this one
  int places[32];
};

// Lists the tiles of some experts: of as many CTAs as there are, then of their warps, the last one first, since the
// others store beside it.
__device__ __forceinline__ void store_own_tiles(const GroupArgs& group, const int* counts) {
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int e = static_cast<int>(blockIdx.x) + (warps - 1 - warp) * group.tokens; e < group.experts;
       e += warps * group.tokens)
    store_tiles(group, counts, e, first_place(counts, e));
}

// REQUIRES topk up to 32, and a thread per chunk.
__global__ void __launch_bounds__(kRoundTokenThreads)
    any_group_round_f32(const __grid_constant__ GroupArgs group, const __grid_constant__ RoundArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<GroupRoundShared*>(smem);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int threads = static_cast<int>(blockDim.x), warps = threads / 32, token = static_cast<int>(blockIdx.x);
  const int first_pair = token * group.topk, pairs = group.tokens * group.topk;
  for (int e = tid; e < group.experts; e += threads) shared.counts[e] = 0;
  if (tid < 32) shared.before[tid] = 0;
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  constexpr int kTogether = 4;  // pairs of a thread whose loads are under way together, the first ones with those of x
  int own[kTogether];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      own[i] = first + i * threads < pairs ? group.own.number_of(group.expert_ids[first + i * threads]) : -1;
  };
  load(tid);
  const bool mine = tid < args.cols / 8;
  const RoundChunk chunk(args, token, mine ? tid : 0);
  if (tid < group.topk) shared.experts[tid] = group.own.number_of(group.expert_ids[first_pair + tid]);
  __syncthreads();
  for (int first = tid; first < pairs; first += kTogether * threads) {
    if (first != tid) load(first);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (own[i] < 0) continue;
      atomicAdd(&shared.counts[own[i]], 1);
      for (int k = 0; k < group.topk; ++k)
        if (own[i] == shared.experts[k] && first + i * threads < first_pair + k) atomicAdd(&shared.before[k], 1);
    }
  }
  __syncthreads();
  for (int k = warp; k < group.topk; k += warps) {
    const bool is_own = shared.experts[k] >= 0;
    const int place = is_own ? first_place(shared.counts, shared.experts[k]) + shared.before[k] : -1;
    if (lane != 0) continue;
    shared.places[k] = place;
    group.places[first_pair + k] = place;
    if (is_own) group.pairs[place] = first_pair + k;
  }
  __syncthreads();
  store_own_tiles(group, shared.counts);
  if (mine) chunk.store(args, [&](int copy) { return int64_t{shared.places[copy]}; });
}

// Eight columns of a token from k on.
struct RoundEight {
  float v[kEighth];

  __device__ void load(const RoundArgs& args, int64_t token, int k) {
    const auto* const from = reinterpret_cast<const float4*>(args.from + token * args.cols + k);
    const float4 four[2] = {from[0], from[1]};
    v[0] = four[0].x, v[1] = four[0].y, v[2] = four[0].z, v[3] = four[0].w;
    v[4] = four[1].x, v[5] = four[1].y, v[6] = four[1].z, v[7] = four[1].w;
  }
  __device__ void scale(float inverse, const Bf16* norm) {
    const uint4 eight = *reinterpret_cast<const uint4*>(norm);
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < kEighth / 2; ++i) {
      v[2 * i] *= inverse * __uint_as_float(pairs[i] << 16);
      v[2 * i + 1] *= inverse * __uint_as_float(pairs[i] & 0xffff0000u);
    }
  }
};

// Where chunk i of a row lies in panels: place_in_panels of k = 2 (i % 4) of block i / 4, in fewer instructions.
[[nodiscard]] constexpr int64_t chunk_in_panels(int64_t rows, uint32_t row, uint32_t i) {
  return i / 8 * rows * layout::kPanelK + int64_t{row} * layout::kPanelK + (i % 8 ^ row % layout::kAtomRows) * 8;
}
static_assert([] {
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t i = 0; i < 16; ++i)
      if (chunk_in_panels(16, row, i) != layout::place_in_panels(16, row, i / 4 * layout::kBlockK + i % 4 * 2))
        return false;
  return true;
}());

inline constexpr int kRoundTogether = 4;  // chunks of a thread
[[nodiscard]] constexpr int round_ranges_threads(int cols) {
  return (cols / 8 + kRoundTogether * 32 - 1) / (kRoundTogether * 32) * 32;
}

// Rounding with ExpertRanges: every warp finds the places of the token's pairs for itself, that of pair k in lane k,
// while the columns that it rounds are on their way.
__global__ void __launch_bounds__(kRoundTokenThreads / kRoundTogether)
    any_group_round_ranges_f32(const __grid_constant__ GroupArgs group, const __grid_constant__ RoundArgs args) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kTogether = 4;  // loads of ids under way
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, token = static_cast<int>(blockIdx.x);
  const int threads = static_cast<int>(blockDim.x), chunks = args.cols / 8;
  const int range = token / kRangeTokens, first_pair = token * group.topk, end = first_pair + group.topk;
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const bool has_pair = lane < group.topk;
  const int expert = has_pair ? group.expert_ids[first_pair + lane] : -1;
  const float inverse = args.norm != nullptr ? args.inverse[token] : 1.0f;
  const auto first_k = [&](int c) { return tid + c * threads < chunks ? kEighth * (tid + c * threads) : 0; };
  RoundEight eights[kRoundTogether];
#pragma unroll
  for (int c = 0; c < kRoundTogether; ++c) eights[c].load(args, token, first_k(c));
  int place = has_pair ? group.ranges.starts[int64_t{range} * group.experts + expert] : 0;
  for (int from = range * kRangeTokens * group.topk; from < end; from += kTogether * 32) {
    int others[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int pair = from + i * 32 + lane;
      others[i] = pair < end ? group.expert_ids[pair] : -1;
    }
    for (int k = 0; k < group.topk; ++k) {
      const int own = __shfl_sync(kAll, expert, k);
      int before = 0;
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        before += __popc(__ballot_sync(kAll, others[i] == own && from + i * 32 + lane < first_pair + k));
      if (lane == k) place += before;
    }
  }
  if (tid < group.topk) {
    group.places[first_pair + lane] = place;
    group.pairs[place] = first_pair + lane;
  }
  store_own_tiles(group, group.ranges.counts);
  if (args.norm != nullptr)
#pragma unroll
    for (int c = 0; c < kRoundTogether; ++c) eights[c].scale(inverse, args.norm + first_k(c));
  const GemmInputRow to{args.to, 0, args.cols};
#pragma unroll
  for (int c = 0; c < kRoundTogether; ++c) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = to.pack(eights[c].v[2 * i], eights[c].v[2 * i + 1]);
    exchange_words(words);
    const int chunk = tid + c * threads;
#pragma unroll 1
    for (int copy = 0; copy < args.copies; ++copy) {
      const auto row = static_cast<uint32_t>(__shfl_sync(kAll, place, copy));
      if (chunk < chunks)
        *reinterpret_cast<uint4*>(args.to.at + chunk_in_panels(args.to.rows, row, static_cast<uint32_t>(chunk))) = {
            words[0], words[1], words[2], words[3]};
    }
  }
}

// any_round_rows: rows in MX blocks of MXFP8, then relative to the row's largest scale
// grid a CTA per token, a thread per 8 values, 4 threads per block     bytes tokens * cols * (4 or 2, then copies)
// rounding: to nearest, twice where a block's scale is not the row's

// Where a thread's values are: k, k + 1, k + 8, … k + 25, a chunk of f16 panels. The codes of two such chunks are one
// of bytes; of it this thread stores `half`.
struct RowChunk {
  int panel, in_panel;
  __device__ explicit RowChunk(int chunk) : panel(chunk / 8), in_panel(chunk % 8) {}
  [[nodiscard]] __device__ int k() const {
    return panel * layout::kPanelK + in_panel / 4 * layout::kBlockK + in_panel % 4 * 2;
  }
  [[nodiscard]] __device__ int64_t in_panels(int rows, int row) const {  // in values
    const uint32_t own = layout::swizzled_chunk(row % layout::kAtomRows, in_panel) / 2;
    return int64_t{panel} * rows * layout::kPanelK + int64_t{row / layout::kAtomRows} * (layout::kAtomBytes / 2) + own;
  }
  [[nodiscard]] __device__ int64_t in_byte_panels(int rows, int row) const {
    const uint32_t own =
        layout::swizzled_byte_chunk(row % layout::kAtomRows, in_panel / 2) + static_cast<uint32_t>(8 * (in_panel % 2));
    return int64_t{panel} * rows * layout::kByteRowBytes + int64_t{row / layout::kAtomRows} * layout::kByteAtomBytes +
           own;
  }
};

__device__ __forceinline__ void load_chunk(const RoundRowsArgs& args, int64_t token, const RowChunk& chunk,
                                           float (&x)[kEighth]) {
  if (args.panels != nullptr) {
    const uint4 eight =
        *reinterpret_cast<const uint4*>(args.panels + chunk.in_panels(args.rows, args.places[token * args.copies]));
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < kEighth; ++i) x[i] = ptx::f16_half(pairs[i / 2], i % 2);
    return;
  }
  const int k = chunk.k();
  const float inverse = args.norm == nullptr ? 1.0f : args.inverse[token];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float2 two = *reinterpret_cast<const float2*>(args.from + token * args.cols + k + 8 * t);
    x[2 * t] = two.x, x[2 * t + 1] = two.y;
    if (args.norm == nullptr) continue;
    const uint32_t norm = *reinterpret_cast<const uint32_t*>(args.norm + k + 8 * t);
    x[2 * t] *= inverse * __uint_as_float(norm << 16);
    x[2 * t + 1] *= inverse * __uint_as_float(norm & 0xffff0000u);
  }
}

// The largest of all threads' numbers; by all threads together.
__device__ __forceinline__ uint32_t largest_of_all(uint32_t own, uint32_t* warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t of_warp = ptx::warp_max_u32(own);
  if (lane == 0) warps[warp] = of_warp;
  __syncthreads();
  return ptx::warp_max_u32(lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : 0);
}

// The codes, two to a half word, of values that are `binades` below the row's scale.
__device__ __forceinline__ uint32_t row_pair(float low, float high, float down) {
  const uint32_t halves = ptx::f16_of_e4m3(ptx::pack_e4m3(low, high));
  return ptx::pack_e4m3(ptx::f16_half(halves, 0) * down, ptx::f16_half(halves, 1) * down);
}

__global__ void __launch_bounds__(kRoundRowsCols / 8) any_round_rows_e4m3(const __grid_constant__ RoundRowsArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x;
  const auto tid = static_cast<int>(threadIdx.x);
  const bool mine = tid < args.cols / 8;  // whole warps go on: blocks' threads meet
  const RowChunk chunk(mine ? tid : tid % 4);
  float x[kEighth] = {};
  if (mine) load_chunk(args, token, chunk, x);
  const MxScale<backend::Activations::kMxfp8> block(largest(x));
  const uint32_t own = block.scale.bits, row = largest_of_all(own, reinterpret_cast<uint32_t*>(smem));
  constexpr uint32_t kMost = 30;  // binades, beyond which nothing is left of e4m3
  const float down = __uint_as_float((127 - min(row - own, kMost)) << 23);
  uint32_t pairs[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) pairs[t] = row_pair(x[2 * t] * block.down, x[2 * t + 1] * block.down, down);
  // The neighbour has the other two k of each of the chunk's words: this thread makes two of the words.
  const bool second = chunk.in_panel % 2 != 0;
  const uint32_t others =
      __shfl_xor_sync(0xffffffffu, second ? pairs[0] | pairs[1] << 16 : pairs[2] | pairs[3] << 16, 1);
  if (!mine) return;
  uint2 words;
  words.x = second ? (others & 0xffffu) | pairs[2] << 16 : pairs[0] | others << 16;
  words.y = second ? others >> 16 | pairs[3] << 16 : pairs[1] | (others & 0xffff0000u);
  for (int copy = 0; copy < args.copies; ++copy) {
    const int place = args.places[token * args.copies + copy];
    *reinterpret_cast<uint2*>(args.codes + chunk.in_byte_panels(args.rows, place)) = words;
    if (tid == 0) args.scales[place] = E8m0{static_cast<uint8_t>(row)}.to_float();
  }
}

// any_round_blocks: activations in blocks of 32, with a scale each
// grid 4 lanes per block, 8 values per lane     bytes values * (4 or 2, then 2, with from 4 more)
// rounding: that of backend/activations.h, to the bit
inline constexpr int kRoundThreads = 256, kRoundValues = kEighth;  // of a lane

// Where the largest is not finite, so is the scale, and a code of 0 times it is NaN.
__device__ __forceinline__ void store_int8(const float (&x)[kRoundValues], float most, uint8_t* block, int quarter) {
  const float inverse = most < kInt8Least ? 0.0f : 127.0f / most;
  uint2 codes{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes.x |= static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int>(rintf(x[i] * inverse)))) << 8 * i;
    codes.y |= static_cast<uint32_t>(static_cast<uint8_t>(static_cast<int>(rintf(x[4 + i] * inverse)))) << 8 * i;
  }
  *reinterpret_cast<uint2*>(block + 8 * quarter) = codes;
  if (quarter == 0) *reinterpret_cast<float*>(block + kInt8ScaleAt) = most / 127.0f;
}

template <Activations kForm>
__global__ void __launch_bounds__(kRoundThreads) any_round_blocks_f32(const __grid_constant__ RoundBlocksArgs args) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int64_t lane = int64_t{blockIdx.x} * kRoundThreads + threadIdx.x, at = lane * kRoundValues;
  const bool mine = at < args.values;  // all lanes of a warp go on: blocks' lanes meet
  float x[kRoundValues] = {};
  if (mine && args.from != nullptr) {
#pragma unroll
    for (int i = 0; i < kRoundValues; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(args.from + at + i);
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
  } else if (mine) {
    const uint4 eight = *reinterpret_cast<const uint4*>(args.to + at);
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < kRoundValues; ++i) x[i] = ptx::f16_half(pairs[i / 2], i % 2);
  }
  if constexpr (kForm == Activations::kInt8) {
    const float most = largest(x);  // from here on nobody reads the block
    if (mine)
      store_int8(x, most, reinterpret_cast<uint8_t*>(args.to + at / kMxBlock * kMxBlock), static_cast<int>(lane % 4));
  } else {
    round_mx<kForm>(x);
    if (!mine) return;
    uint4 eight;
    eight.x = ptx::pack_f16(x[0], x[1]);
    eight.y = ptx::pack_f16(x[2], x[3]);
    eight.z = ptx::pack_f16(x[4], x[5]);
    eight.w = ptx::pack_f16(x[6], x[7]);
    *reinterpret_cast<uint4*>(args.to + at) = eight;
    if (args.from == nullptr) return;
#pragma unroll
    for (int i = 0; i < kRoundValues; i += 4)
      *reinterpret_cast<float4*>(args.from + at + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
  }
}

}  // namespace nibble::backend::cuda

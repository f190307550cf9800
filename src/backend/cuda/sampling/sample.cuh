#pragma once
// The kernels of sampling: what sampling.h says of a row of logits, on a card.

#include "backend/cuda/sampling/gumbel.cuh"
#include "backend/cuda/sampling/sample.h"

#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"

#include <bit>
#include <cmath>
#include <cstdint>

namespace nibble::backend::cuda {

// The order in which sampling ranks tokens, as integers: a larger key is a larger logit, or the lower id on a tie.

// Rises with the value; -0 and +0 give the same.
__host__ __device__ inline uint32_t order_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__host__ __device__ inline uint64_t sample_key(float logit, int32_t token) {
  return (uint64_t{order_of(logit)} << 32) | (0xffffffffu - static_cast<uint32_t>(token));
}

// Every key of a logit of at least `least` is at least this.
__host__ __device__ inline uint64_t first_key_of(float least) { return uint64_t{order_of(least)} << 32; }

// Every key of a logit above -infinity is at least this.
__host__ __device__ inline uint64_t first_finite_key() { return (uint64_t{order_of(-INFINITY)} + 1) << 32; }

inline constexpr int kSampleThreads = 256, kSampleWarps = kSampleThreads / kWarpLanes;
inline constexpr int kFilterThreads = 512, kFilterWarps = kFilterThreads / kWarpLanes;
inline constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;

// sample_mask: -infinity in place of every logit that its row's mask does not allow     source: sampling.h
// logits f32 [rows, vocab]     masks u32 [masks, vocab / 32]     grid (kSampleParts, rows)     rounding: none
__global__ void __launch_bounds__(kSampleThreads) any_sample_mask_f32(const __grid_constant__ Sample::Args args) {
  const int row = blockIdx.y, which = args.params[row].mask;
  if (which < 0) return;
  const uint32_t* mask = args.masks + which * mask_words(args.mask_vocab);
  float* logits = args.logits + int64_t{row} * args.vocab;
  for (int i = blockIdx.x * kSampleThreads + threadIdx.x; i < args.vocab; i += kSampleParts * kSampleThreads) {
    const int token = args.first + i;
    if ((mask[token / 32] >> (token % 32) & 1) == 0) logits[i] = -INFINITY;
  }
}

// sample_adjust: bias, then repetition, presence and frequency penalty, on the tokens that have any (sampling.h)
// logits f32 [rows, vocab]     shifts: sample.h, a token once per row     grid (shifts / 256, rows)
// rounding: each step as the host rounds it, no fused multiply-add
__global__ void __launch_bounds__(kSampleThreads) any_sample_adjust_f32(const __grid_constant__ Sample::Args args) {
  const int row = blockIdx.y, i = blockIdx.x * kSampleThreads + threadIdx.x;
  const SampleRowParams& p = args.params[row];
  if (i >= p.shifts) return;
  const LogitShift shift = args.shifts[p.first_shift + i];
  const int column = shift.token - args.first;
  if (column < 0 || column >= args.vocab) return;  // another rank's
  float& at = args.logits[int64_t{row} * args.vocab + column];
  float logit = at;
  for (int b = 0; b < shift.biases; ++b) logit = __fadd_rn(logit, args.biases[shift.first_bias + b]);
  if (shift.seen != 0) {
    const float penalty = p.get<&SamplingParams::repetition_penalty>();
    logit = logit > 0 ? __fdiv_rn(logit, penalty) : __fmul_rn(logit, penalty);
  }
  if (shift.has_subtract != 0) logit = __fsub_rn(logit, shift.subtract);
  at = logit;
}

// A row as the filters see it.
struct RowView {
  const float* logits;
  int vocab;
  float temperature;
  __device__ float operator[](int token) const { return __fdiv_rn(logits[token], temperature); }
};

// What a token weighs in a selection: one in top_k, its share in top_p as fixed point, so that sums have no order.
struct Weigh {
  bool by_share;
  float top;
  __device__ uint64_t operator()(float logit) const {
    constexpr float kOne = 0x1p44f;  // 2^18 tokens of the largest weight stay below 2^63
    return by_share ? static_cast<uint64_t>(expf(logit - top) * kOne) : 1;
  }
};

struct FilterShared {
  uint64_t warp_bins[kFilterWarps][kDigits];
  uint64_t bins[kDigits];
  float warp_tops[kFilterWarps];
};

// bins[digit] = the weight of the keys of at least `least` whose bits above `shift + kDigitBits` are those of `prefix`,
// by the digit at `shift`.
__device__ inline void weigh_digits(const RowView& row, const Weigh& weigh, uint64_t least, uint64_t prefix, int shift,
                                    FilterShared& shared) {
  uint64_t mine[kDigits] = {};
  for (int token = threadIdx.x; token < row.vocab; token += kFilterThreads) {
    const float logit = row[token];
    const uint64_t key = sample_key(logit, token);
    // Shifting by 64 is undefined: two shifts.
    if (key < least || (key >> shift >> kDigitBits) != (prefix >> shift >> kDigitBits)) continue;
    const uint64_t weight = weigh(logit);
    const int digit = static_cast<int>(key >> shift) & (kDigits - 1);
#pragma unroll
    for (int d = 0; d < kDigits; ++d) mine[d] += digit == d ? weight : 0;
  }
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int d = 0; d < kDigits; ++d) {
#pragma unroll
    for (int step = kWarpLanes / 2; step > 0; step /= 2) mine[d] += __shfl_xor_sync(kAllLanes, mine[d], step);
    if (lane == 0) shared.warp_bins[warp][d] = mine[d];
  }
  __syncthreads();
  if (threadIdx.x < kDigits) {
    uint64_t sum = 0;
    for (int w = 0; w < kFilterWarps; ++w) sum += shared.warp_bins[w][threadIdx.x];
    shared.bins[threadIdx.x] = sum;
  }
  __syncthreads();
}

// The largest key T >= least such that the keys of at least T weigh want(total) or more; `least` when all together do
// not weigh more than that. Every thread gets it.
template <class Want>
__device__ uint64_t select(const RowView& row, const Weigh& weigh, uint64_t least, const Want& want,
                           FilterShared& shared) {
  uint64_t prefix = 0, above = 0, wanted = 0;
  constexpr int kTopShift = 64 - kDigitBits;
  for (int shift = kTopShift; shift >= 0; shift -= kDigitBits) {
    weigh_digits(row, weigh, least, prefix, shift, shared);
    if (shift == kTopShift) {
      uint64_t total = 0;
      for (int d = 0; d < kDigits; ++d) total += shared.bins[d];
      wanted = want(total);
      if (wanted >= total) return least;
    }
    int digit = kDigits - 1;
    while (digit > 0 && above + shared.bins[digit] < wanted) above += shared.bins[digit--];
    prefix |= static_cast<uint64_t>(digit) << shift;
    const uint64_t here = shared.bins[digit];
    __syncthreads();  // before the next pass writes the bins
    if (shift == 32) {
      // All logits of this value have the same weight; when even the last of them is needed, ids need no look.
      const uint32_t rank = static_cast<uint32_t>(prefix >> 32);
      const float logit = __uint_as_float((rank & 0x80000000u) != 0 ? rank & 0x7fffffffu : ~rank);
      if (above + here - weigh(logit) < wanted) return max(prefix, least);
    }
  }
  return max(prefix, least);
}

__device__ inline float row_top(const RowView& row, FilterShared& shared) {
  float top = -INFINITY;
  for (int token = threadIdx.x; token < row.vocab; token += kFilterThreads) top = fmaxf(top, row[token]);
  top = warp_max(top);
  if (threadIdx.x % kWarpLanes == 0) shared.warp_tops[threadIdx.x / kWarpLanes] = top;
  __syncthreads();
  for (int w = 0; w < kFilterWarps; ++w) top = fmaxf(top, shared.warp_tops[w]);
  return top;
}

// sample_filter: threshold[row] = the smallest key of logits / T that min_p, then top_k, then top_p keep (sampling.h)
// logits f32 [rows, vocab]     threshold u64 [rows]     grid one CTA per row; keys: sample_key
// selection by digits of 4 bits from the top: 8 passes over the row per filter, more only when equal logits are parted
// bytes rows * vocab * 4 * (1 to 25), from L2 after the first     rounding: shares to f32 and then 2^-44 of the largest
__global__ void __launch_bounds__(kFilterThreads) any_sample_filter_f32(const __grid_constant__ Sample::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  FilterShared& shared = *reinterpret_cast<FilterShared*>(smem);
  const SampleRowParams& p = args.params[blockIdx.x];
  uint64_t least = first_finite_key();
  const float min_p = p.get<&SamplingParams::min_p>(), share = p.get<&SamplingParams::top_p>();
  const int most = p.get<&SamplingParams::top_k>();
  const bool top_k = most > 0 && most < args.vocab, top_p = share < 1.0f;
  if (!p.greedy() && (min_p > 0 || top_k || top_p)) {
    const RowView row{args.logits + int64_t{blockIdx.x} * args.vocab, args.vocab,
                      p.get<&SamplingParams::temperature>()};
    const float top = row_top(row, shared);
    if (min_p > 0) least = max(least, first_key_of(__fadd_rn(top, p.log_min_p)));
    if (top_k) {
      const auto wanted = static_cast<uint64_t>(most);
      least = select(row, Weigh{false, top}, least, [&](uint64_t) { return wanted; }, shared);
    }
    if (top_p) {
      const auto want = [&](uint64_t total) {
        return max(uint64_t{1}, static_cast<uint64_t>(ceil(double{share} * static_cast<double>(total))));
      };
      least = select(row, Weigh{true, top}, least, want, shared);
    }
  }
  if (threadIdx.x == 0) args.threshold[blockIdx.x] = least;
}

// The block's first value by rank; thread 0 has it.
__device__ inline RankedValue block_first(RankedValue mine, RankedValue* shared) {
  mine = warp_first(mine);
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = mine;
  __syncthreads();
  for (int w = 0; w < kSampleWarps; ++w)
    if (before(shared[w], mine)) mine = shared[w];
  return mine;
}

// Four logits of a row, -infinity before the first and after the last.
__device__ __forceinline__ float4 load_quad(const float* logits, int quad, int vocab) {
  const auto at = [&](int i) { return quad >= 0 && quad * 4 + i < vocab ? logits[quad * 4 + i] : -INFINITY; };
  if (quad < 0 || vocab % 4 != 0) return {at(0), at(1), at(2), at(3)};
  return reinterpret_cast<const float4*>(logits)[quad];
}

// `best`, or the first of the quad's tokens that the threshold keeps, where that comes before it. quad: of all tokens.
__device__ __forceinline__ void take_quad(const float4& four, int quad, const SampleRowParams& p, uint64_t least,
                                          RankedValue& best) {
  const float values[] = {four.x, four.y, four.z, four.w};
  Philox4 random{};  // one value serves four tokens
  if (!p.greedy()) random = philox(p.seed, static_cast<uint64_t>(quad), p.position);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = quad * 4 + i;
    RankedValue candidate = {values[i], token};
    if (!(candidate.value < INFINITY)) {
      candidate = {INFINITY, kNotFinite};  // comes before every token
    } else if (candidate.value == -INFINITY) {
      continue;
    } else if (!p.greedy()) {
      candidate.value = __fdiv_rn(candidate.value, p.get<&SamplingParams::temperature>());
      if (sample_key(candidate.value, token) < least) continue;
      candidate.value += gumbel(random[i]);
    }
    if (before(candidate, best)) best = candidate;
  }
}

// A thread's tokens of a row: quads from the last one on.
struct DrawWalk {
  const float* logits;
  int vocab, first, stride;
  int quads_before;  // other ranks'
  [[nodiscard]] __device__ int quads() const { return (vocab + 3) / 4; }
  // visit(four logits, their quad), the loads of kTogether of them under way together.
  template <int kTogether, class Visit>
  __device__ __forceinline__ void each_quad(const Visit& visit) const {
    for (int from = first; from < quads(); from += kTogether * stride) {
      float4 four[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) four[i] = load_quad(logits, quads() - 1 - from - i * stride, vocab);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) visit(four[i], quads() - 1 - from - i * stride);
    }
  }
};

// The largest logit's token, without randomness: a maximum per quad, and its token at the end.
__device__ __forceinline__ RankedValue largest(const DrawWalk& walk, const SampleRowParams& p) {
  float most = -INFINITY;
  int where = -1;
  bool finite = true;
  walk.each_quad<8>([&](const float4& four, int quad) {
    const float top = ptx::max_nan(ptx::max_nan(four.x, four.y), ptx::max_nan(four.z, four.w));
    finite = finite && top < INFINITY;
    if (top >= most) {  // of equals the later visited, which has the lower tokens
      most = top;
      where = quad;
    }
  });
  RankedValue best = {-INFINITY, kNoToken};
  if (!finite) return {INFINITY, kNotFinite};
  if (most > -INFINITY) take_quad(load_quad(walk.logits, where, walk.vocab), walk.quads_before + where, p, 0, best);
  return best;
}

// sample_draw: the largest logit of a part of the row (temperature 0), or the largest logit/T + Gumbel(seed; token,
//              position) of what the threshold keeps (sampling.h)
// logits f32 [rows, vocab], 16-byte aligned     part_value f32, part_token int32 [rows, kSampleParts]
// grid (parts, rows); from the last token, which the GEMM has just left in L2, to the first
// bytes rows * vocab * 4     rounding: f32; logf may differ from the host's in the last bit
__global__ void __launch_bounds__(kSampleThreads, 4) any_sample_draw_f32(const __grid_constant__ Sample::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto* warps = reinterpret_cast<RankedValue*>(smem);
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int row = blockIdx.y;
  const SampleRowParams p = args.params[row];
  const DrawWalk walk{args.logits + int64_t{row} * args.vocab, args.vocab,
                      static_cast<int>(blockIdx.x * kSampleThreads + threadIdx.x),
                      static_cast<int>(gridDim.x) * kSampleThreads, args.first / 4};
  RankedValue best = {-INFINITY, kNoToken};
  if (!p.greedy()) {
    const uint64_t least = args.filters ? args.threshold[row] : first_finite_key();
    walk.each_quad<4>([&](const float4& four, int quad) { take_quad(four, walk.quads_before + quad, p, least, best); });
  } else {
    best = largest(walk, p);
  }
  best = block_first(best, warps);
  if (threadIdx.x == 0) {
    args.part_value[row * kSampleParts + blockIdx.x] = best.value;
    args.part_token[row * kSampleParts + blockIdx.x] = best.idx;
  }
}

// sample_pick: tokens[row] = the best of the row's parts     grid one warp per row     bytes rows * parts * 8
__global__ void __launch_bounds__(kWarpLanes)
    any_sample_pick(const __grid_constant__ Sample::Args args, const int parts) {
  ptx::grid_dependency_wait();
  RankedValue own = {-INFINITY, kNoToken};
  for (int part = threadIdx.x; part < parts; part += kWarpLanes) {
    const int at = blockIdx.x * kSampleParts + part;
    const RankedValue next = {args.part_value[at], args.part_token[at]};
    if (before(next, own)) own = next;
  }
  const RankedValue best = warp_first(own);
  if (threadIdx.x == 0) args.tokens[blockIdx.x] = best.idx == kNoToken ? kNothingAllowed : best.idx;
}

}  // namespace nibble::backend::cuda

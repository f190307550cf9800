#pragma once
// The kernels of a screen (screen.h).

#include "backend/cuda/sampling/gumbel.cuh"
#include "backend/cuda/sampling/screen.h"

#include "backend/cuda/launch/warp.cuh"
#include "backend/cuda/ptx/async_copy.cuh"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/mma.cuh"

#include <cmath>
#include <cstdint>

namespace nibble::backend::cuda {

// By sets of tokens: more of them need more registers, of which a thread of 1024 has 64.
template <int kSets>
inline constexpr int kScreenThreads = kSets == 1 ? 1024 : 768;
template <int kSets>
inline constexpr int kScreenWarps = kScreenThreads<kSets> / kWarpLanes;
inline constexpr int kMostScreenWarps = kScreenWarps<1>;
inline constexpr int kScreenDigit = 7;      // bits of the low one
inline constexpr int kScreenSteps = 16256;  // most X of a row: 127 high digits
inline constexpr int kPickThreads = 512;
// What floats may lose. Two full products: two bf16 for an activation (2^-18), sums of tensor cores (24 times 2^-22),
// together below 2^-16 of |v||w| each, and with those of the draw below kOfProducts. The exact value of the best row is
// a sum of a lane's cols / 32: in kOfRows, as the short copy's.
inline constexpr float kOfProducts = 0x1p-14f;

// Shared memory of a CTA, behind the operands.
struct ScreenShared {
  float sums[kMostScreenWarps][4];
  int whole[kMostScreenWarps];
  RankedValue best[kMostScreenWarps][kGemvTokens];
  float step[kGemvTokens];
  int sum[kGemvTokens];  // of X
};

// Teams of warps, one for each token.
__device__ inline int teams_of(int tokens) {
  return tokens > kSetTokens ? kGemvTokens : tokens < 3 ? tokens : kSetTokens;
}

// Sums over the warps of a team, `count` of them from `first` on, in their order.
__device__ inline float team_sum(const float (&of)[kMostScreenWarps][4], int first, int count, int which) {
  float sum = 0;
  for (int w = first; w < first + count; ++w) sum += of[w][which];
  return sum;
}

// A row of activations as the screen takes it: column k of token `token`.
struct ScreenRow {
  const Screen::Args& a;
  int64_t at;
  __device__ ScreenRow(const Screen::Args& args, int token)
      : a(args), at(int64_t{args.in.which == nullptr ? token : args.in.which[token]} * args.copy.cols) {}
  __device__ float raw(int k) const {
    float value = a.in.x[at + k];
    for (const float* const part : a.in.delta)
      if (part != nullptr) value += part[at + k];
    return value;
  }
  __device__ float factor(int k) const { return a.in.norm == nullptr ? 1.0f : a.in.norm[k].to_float(); }
};

// Rounds the rows to two digits and leaves them as B operands. A token has a team of warps. Ends with a barrier.
template <int kSets>
__device__ void round_screened(const Screen::Args& a, uint8_t* operands, ScreenShared& shared) {
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes, cols = a.copy.cols;
  const int parts = cols / layout::kScreenColumns;
  auto* words = reinterpret_cast<uint32_t*>(operands);
  for (int i = threadIdx.x; i < kSets * parts * kWarpLanes * 4; i += kScreenThreads<kSets>) words[i] = 0;
  const int teams = teams_of(a.tokens), warps = kScreenWarps<kSets> / teams, token = warp / warps,
            first = token * warps;
  const int from = warp % warps * kWarpLanes + lane, stride = warps * kWarpLanes;
  const bool has = token < a.tokens;
  const ScreenRow row(a, has ? token : 0);
  float squares = 0, normed = 0, lengths = 0, most = 0;
#pragma unroll 4
  for (int k = from; has && k < cols; k += stride) {
    const float raw = row.raw(k), value = raw * row.factor(k), x = value * a.copy.rms[k];
    squares += raw * raw;
    normed += value * value;
    lengths += x * x;
    most = fmaxf(most, fabsf(x));
  }
  squares = warp_sum(squares), normed = warp_sum(normed), lengths = warp_sum(lengths), most = warp_max(most);
  if (lane == 0) {
    float(&own)[4] = shared.sums[warp];
    own[0] = squares, own[1] = normed, own[2] = lengths, own[3] = most;
  }
  __syncthreads();
  most = 0;
  for (int w = first; w < first + warps; ++w) most = fmaxf(most, shared.sums[w][3]);
  const float inverse =
      a.in.norm == nullptr ? 1.0f
                           : 1.0f / sqrtf(team_sum(shared.sums, first, warps, 0) / static_cast<float>(cols) + a.in.eps);
  constexpr float kUp = 1.0f + 0x1p-10f;  // what is rounded up
  const float length = sqrtf(team_sum(shared.sums, first, warps, 2)) * inverse * kUp;
  const float product = sqrtf(team_sum(shared.sums, first, warps, 1)) * inverse * kUp;
  const bool finite = length < INFINITY && product < INFINITY;
  const float step = finite && most > 0 ? most * inverse / static_cast<float>(kScreenSteps) : 1.0f;
  float missed = 0, common = 0;
  int sum = 0;
  for (int k = from; has && finite && k < cols; k += stride) {
    const float v = row.raw(k) * row.factor(k) * inverse, x = v * a.copy.rms[k];
    if (blockIdx.x == 0) {
      a.at.v[int64_t{token} * cols + k] = v;
      common += v * a.copy.mean[k];
    }
    const int steps = static_cast<int>(rintf(x / step));
    const float miss = x - step * static_cast<float>(steps);
    missed += miss * miss;
    sum += steps;
    constexpr int kHalf = 1 << (kScreenDigit - 1);
    const int high = (steps + kHalf) >> kScreenDigit, low = steps - (high << kScreenDigit);
    const layout::ScreenPlace place = layout::screen_place(k % layout::kScreenColumns);
    const int set = token / kSetTokens, column = 2 * (token % kSetTokens);
    uint8_t* const to = operands +
                        ((set * parts + k / layout::kScreenColumns) * kWarpLanes + 4 * column + place.t) * 16 +
                        place.reg * 4 + place.byte;
    to[0] = static_cast<uint8_t>(high);
    to[4 * 16] = static_cast<uint8_t>(low);  // the next column's lane
  }
  missed = warp_sum(missed), common = warp_sum(common);
#pragma unroll
  for (int bits = kWarpLanes / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
  __syncthreads();  // the sums have been read
  if (lane == 0) {
    shared.sums[warp][0] = missed, shared.sums[warp][1] = common;
    shared.whole[warp] = sum;
  }
  __syncthreads();
  if (threadIdx.x % (warps * kWarpLanes) == 0 && has) {
    int all = 0;
    for (int w = first; w < first + warps; ++w) all += shared.whole[w];
    shared.sum[token] = all;
    shared.step[token] = step;
    if (blockIdx.x == 0)
      a.at.tokens[token] = {.common = team_sum(shared.sums, first, warps, 1),
                            .length = length,
                            .missed = sqrtf(team_sum(shared.sums, first, warps, 0)) * kUp + kOfRows * length,
                            .rounding = kOfProducts * product * a.copy.longest};
  }
  __syncthreads();
}

// Parts of a warp's first group that L2 is asked for while the activations are rounded: what memory brings in that
// time.
inline constexpr int kScreenFetched = 3;

// What a warp reads: the parts of its groups, one after the other.
struct ScreenWalk {
  const uint8_t* codes;
  uint64_t policy;
  int lane, parts, groups, stride;

  __device__ ScreenWalk(const Screen::Args& a, int warps, int lane_idx)
      : codes(a.copy.codes),
        policy(ptx::evict_first_policy()),
        lane(lane_idx),
        parts(a.copy.cols / layout::kScreenColumns),
        groups(a.copy.rows / layout::kScreenRows),
        stride(static_cast<int>(gridDim.x) * warps) {}
  // Neighbours in time are neighbours in memory.
  __device__ int first(int warp) const { return static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x); }
  __device__ void fetch(int group) const {
    const uint8_t* from = codes + (int64_t{group} * parts + 1) * layout::kScreenPartBytes;
    const int bytes = min(kScreenFetched, parts - 1) * layout::kScreenPartBytes;
    for (int at = lane * 128; at < bytes; at += kWarpLanes * 128) ptx::prefetch_l2(from + at);
  }
  __device__ void load(int group, int part, uint2 (&words)[layout::kScreenWords]) const {
    const uint8_t* from = codes + (int64_t{group} * parts + part) * layout::kScreenPartBytes;
#pragma unroll
    for (int i = 0; i < layout::kScreenWords; ++i)
      words[i] = ptx::load_once8(from + layout::screen_word_offset(2 * i, lane), policy);
  }
};

// screen: y = the logits by the short copy, without what all rows have in common; part_* = each CTA's best draw of them
// codes u7 [rows / 32, cols / 64, 14, 32]     x as two digits of s8, exact sums in s32     grid: one CTA per SM
// bytes rows * cols * 7 / 8 + rows * (4 + 4 * tokens)     flops 2 * 8 * kSets * rows * cols of bytes
template <int kSets>
__global__ void __launch_bounds__(kScreenThreads<kSets>, 1) any_screen(const __grid_constant__ Screen::Args a) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const ScreenWalk walk(a, kScreenWarps<kSets>, lane);
  auto& shared = *reinterpret_cast<ScreenShared*>(smem + screen_operand_bytes(a.copy.cols, a.tokens));
  uint2 words[layout::kScreenWords];  // of the next part
  int group = walk.first(warp);
  if (group < walk.groups) {
    walk.load(group, 0, words);
    walk.fetch(group);
  }
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (a.at.state->resting > 0) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) a.at.state->count = 0;
  round_screened<kSets>(a, smem, shared);

  const int t = lane % 4, g = lane / 4;
  RankedValue best[kSets];
  for (RankedValue& each : best) each = {-INFINITY, kNoToken};
  for (; group < walk.groups; group += walk.stride) {
    int sums[layout::kScreenTiles][kSets][4] = {};
    for (int part = 0; part < walk.parts; ++part) {
      uint32_t codes[layout::kScreenTiles][layout::kScreenRegisters];
#pragma unroll
      for (int tile = 0; tile < layout::kScreenTiles; ++tile) {
        uint32_t own[layout::kScreenWords];
#pragma unroll
        for (int w = 0; w < layout::kScreenWords; ++w) {
          const int at = tile * layout::kScreenWords + w;
          own[w] = at % 2 == 0 ? words[at / 2].x : words[at / 2].y;
        }
        layout::lengthen(own, codes[tile]);
      }
      if (part + 1 < walk.parts)
        walk.load(group, part + 1, words);
      else if (group + walk.stride < walk.groups)
        walk.load(group + walk.stride, 0, words);
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        const uint4 x = *reinterpret_cast<const uint4*>(smem + ((set * walk.parts + part) * kWarpLanes + lane) * 16);
#pragma unroll
        for (int tile = 0; tile < layout::kScreenTiles; ++tile) {
          const uint32_t(&c)[layout::kScreenRegisters] = codes[tile];
          ptx::mma_m16n8k32_u8s8(sums[tile][set], {c[0], c[1], c[2], c[3]}, x.x, x.y);
          ptx::mma_m16n8k32_u8s8(sums[tile][set], {c[4], c[5], c[6], c[7]}, x.z, x.w);
        }
      }
    }
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const int token = set * kSetTokens + t;
      if (token >= a.tokens) continue;
      const SampleRowParams& p = a.params[token];
      const float step = shared.step[token];
      const int64_t zero = int64_t{layout::kScreenZero} * shared.sum[token];
#pragma unroll
      for (int i = 0; i < 2 * layout::kScreenTiles; ++i) {
        const int row = group * layout::kScreenRows + 8 * i + g;
        const int(&own)[4] = sums[i / 2][set];
        const int64_t steps = (int64_t{own[i % 2 * 2]} << kScreenDigit) + own[i % 2 * 2 + 1] - zero;
        const float y = a.copy.scale[row] * (step * static_cast<float>(steps));
        a.y[int64_t{token} * a.copy.rows + row] = y;
        RankedValue draw = {y, row};
        if (!p.greedy()) draw.value = y / p.get<&SamplingParams::temperature>() + gumbel(p.seed, p.position, row);
        if (before(draw, best[set])) best[set] = draw;
      }
    }
  }
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
#pragma unroll
    for (int bits = 4; bits < kWarpLanes; bits *= 2) {
      const RankedValue other = {__shfl_xor_sync(kAllLanes, best[set].value, bits),
                                 __shfl_xor_sync(kAllLanes, best[set].idx, bits)};
      if (before(other, best[set])) best[set] = other;
    }
    if (g == 0) shared.best[warp][set * kSetTokens + t] = best[set];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= a.tokens) return;
  RankedValue own = shared.best[0][threadIdx.x];
  for (int w = 1; w < kScreenWarps<kSets>; ++w)
    if (before(shared.best[w][threadIdx.x], own)) own = shared.best[w][threadIdx.x];
  const int at = static_cast<int>(threadIdx.x) * kScreenParts + static_cast<int>(blockIdx.x);
  a.at.part_value[at] = own.value;
  a.at.part_token[at] = own.idx;
}

// The best row by the short copy. Every lane gets it.
__device__ inline RankedValue best_part(const ScreenPick::Args& args, int token, int lane) {
  RankedValue best = {-INFINITY, kNoToken};
#pragma unroll 5
  for (int part = lane; part < args.parts; part += kWarpLanes) {
    const int at = token * kScreenParts + part;
    const RankedValue next = {args.of.at.part_value[at], args.of.at.part_token[at]};
    if (before(next, best)) best = next;
  }
  return warp_first(best);
}

// A lane's part of v · the row: pairs of blocks from `first` on, a quad of lanes for each.
__device__ inline float part_of_product(const ScreenCopy& copy, const float* v, int row, int first, int stride, int t) {
  using layout::Packing;
  const layout::Geometry g = layout::geometry(Packing::kBf16, copy.cols);
  const int own = row % 8 * 4 + t, high = row % layout::kTileRows / 8;  // of the lanes that hold it
  float sum = 0;
  for (int pair = first; pair < copy.cols / (2 * layout::kBlockK); pair += stride) {
    const uint8_t* from =
        copy.matrix + layout::block_pair_offset(Packing::kBf16, g, row / layout::kTileRows, pair) + own * 16;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + step * layout::kStepBytes);
      const int k = pair * 2 * layout::kBlockK + layout::block_pair_element(own, step, 0, 0).k;  // and three more
      const float4 x = *reinterpret_cast<const float4*>(v + k);
      const uint32_t low = high != 0 ? four.y : four.x, rest = high != 0 ? four.w : four.z;
      sum += x.x * __uint_as_float(low << 16) + x.y * __uint_as_float(low & 0xffff0000u);
      sum += x.z * __uint_as_float(rest << 16) + x.w * __uint_as_float(rest & 0xffff0000u);
    }
  }
  return sum;
}

// The least that a logit with its noise must reach, in logits' units and without what all have in common: what the best
// row by the short copy has for sure. product: v · that row.
__device__ inline float least_draw(const Screen::Args& a, int token, int row, float product) {
  const ScreenedToken& own = a.at.tokens[token];
  const float least = least_screened(own, product, a.copy.lost[row], a.copy.kept[row]);
  const SampleRowParams& p = a.params[token];
  if (p.greedy()) return least;
  return least + p.get<&SamplingParams::temperature>() * gumbel(p.seed, p.position, row);
}

// least_draw of each token, to `least`. A token has a team of warps, whose sums go to `sums`. Ends with a barrier.
__device__ inline void least_draws(const ScreenPick::Args& args, float* least, float* sums) {
  const Screen::Args& a = args.of;
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const int warps = kPickThreads / kWarpLanes / teams_of(a.tokens), token = warp / warps;
  int row = kNoToken;
  if (token < a.tokens) {
    row = best_part(args, token, lane).idx;
    constexpr int kQuads = kWarpLanes / 4;
    const float* v = a.at.v + int64_t{token} * a.copy.cols;
    float sum = 0;
    if (row != kNoToken)
      sum = part_of_product(a.copy, v, row, warp % warps * kQuads + lane / 4, warps * kQuads, lane % 4);
    sum = warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
  }
  __syncthreads();
  if (token < a.tokens && warp % warps == 0 && lane == 0) {
    float product = 0;
    for (int w = warp; w < warp + warps; ++w) product += sums[w];
    least[token] = row == kNoToken ? -INFINITY : least_draw(a, token, row, product);
  }
  __syncthreads();
}

// Four rows' bounds: |w' - q| and |q| of each.
struct BoundQuad {
  float4 lost{}, kept{};
  __device__ void load(const ScreenCopy& copy, int quad) {
    lost = reinterpret_cast<const float4*>(copy.lost)[quad];
    kept = reinterpret_cast<const float4*>(copy.kept)[quad];
  }
};

__device__ inline float4* logits_of(const Screen::Args& a, int token, int quad) {
  return reinterpret_cast<float4*>(a.y + int64_t{token} * a.copy.rows) + quad;
}

// Whether one of four rows may reach what some token's draw has for sure.
__device__ inline bool reaches(const Screen::Args& a, const BoundQuad& bounds, const float* least, int quad) {
  const float lost[4] = {bounds.lost.x, bounds.lost.y, bounds.lost.z, bounds.lost.w};
  const float kept[4] = {bounds.kept.x, bounds.kept.y, bounds.kept.z, bounds.kept.w};
  bool does = false;
  for (int token = 0; token < a.tokens; ++token) {
    const ScreenedToken& own = a.at.tokens[token];
    const SampleRowParams& p = a.params[token];
    Philox4 random{};
    if (!p.greedy()) random = philox(p.seed, static_cast<uint64_t>(quad), p.position);
    const float4 four = *logits_of(a, token, quad);
    const float y[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float most = y[i] + above_screened(own, lost[i], kept[i]);
      if (!p.greedy())
        most += p.get<&SamplingParams::temperature>() * (gumbel(random[static_cast<size_t>(i)]) + kOfNoise);
      does |= !(most < least[token]);  // NaN: whoever looks closer sees it
    }
  }
  return does;
}

// screen_pick: tiles = those of a row whose logit may reach the best one's; y = -infinity in all others
// grid: CTAs that all run at once     bytes rows * (8 + 8 * tokens), the best rows, from L2
__global__ void __launch_bounds__(kPickThreads) any_screen_pick(const __grid_constant__ ScreenPick::Args args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto* least = reinterpret_cast<float*>(smem);  // [tokens]
  float* const sums = least + kGemvTokens;       // of warps
  const Screen::Args& a = args.of;
  const int lane = threadIdx.x % kWarpLanes, tiles = a.copy.rows / layout::kTileRows;
  const int thread = static_cast<int>(blockIdx.x * kPickThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x) * kPickThreads;
  constexpr int kQuads = layout::kTileRows / 4;
  BoundQuad bounds;  // of the first four rows: before the screen has ended
  if (thread < tiles * kQuads) bounds.load(a.copy, thread);
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int resting = a.at.state->resting;
  if (resting > 0) {
    for (int tile = thread; tile < tiles; tile += threads) a.at.tiles[tile] = tile;
  } else {
    least_draws(args, least, sums);
    // Whole warps: a tile's rows are four lanes'.
    for (int quad = thread; quad - lane < tiles * kQuads; quad += threads) {
      const bool has = quad < tiles * kQuads;
      if (has && quad != thread) bounds.load(a.copy, quad);
      const uint32_t all = __ballot_sync(kAllLanes, has && reaches(a, bounds, least, quad));
      if (!has) continue;
      if ((all >> (lane / kQuads * kQuads) & ((1u << kQuads) - 1)) != 0) {
        if (lane % kQuads == 0) a.at.tiles[atomicAdd(&a.at.state->count, 1)] = quad / kQuads;
        continue;
      }
      for (int token = 0; token < a.tokens; ++token)
        *logits_of(a, token, quad) = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    }
  }
  __syncthreads();
  if (threadIdx.x != 0 || ptx::add_acq_rel(&a.at.state->done, 1) + 1 < static_cast<int>(gridDim.x)) return;
  // The last CTA: all have read `resting`, and all have counted.
  ScreenState& state = *a.at.state;
  state.done = 0;
  if (resting > 0) {
    state.count = tiles;
    state.resting = resting - 1;
    return;
  }
  if (state.count > tiles / kManyCandidates) state.resting = kRestingSteps;
  ++state.total.steps;
  state.total.tiles += state.count;
  *a.at.shown = state.total;
}

// What makes a copy.
inline constexpr int kCopyThreads = 256, kCopyWarps = kCopyThreads / kWarpLanes;

// A lane's values of 16 rows of a pair of blocks: visit(step, reg, half, w), as layout::block_pair_element says.
template <class Visit>
__device__ void each_of_pair(const ScreenCopy& copy, int64_t tile, int pair, int lane, const Visit& visit) {
  const layout::Geometry g = layout::geometry(layout::Packing::kBf16, copy.cols);
  const uint8_t* from = copy.matrix + layout::block_pair_offset(layout::Packing::kBf16, g, tile, pair) + lane * 16;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint4 four = *reinterpret_cast<const uint4*>(from + step * layout::kStepBytes);
    const uint32_t registers[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      visit(step, i / 2, i % 2, __uint_as_float(i % 2 == 0 ? registers[i / 2] << 16 : registers[i / 2] & 0xffff0000u));
  }
}

// screen_columns: mean and rms of each column, of the tiles that a CTA reads; any would do, the bounds hold for all
// grid: a CTA per pair of blocks; a warp has every kCopyWarps-th tile, of kSampledTiles at most
inline constexpr int kSampledTiles = 2048;
__global__ void __launch_bounds__(kCopyThreads) screen_columns(const __grid_constant__ ScreenCopy copy) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto(&sums)[kCopyWarps][2][layout::kScreenColumns] =
      *reinterpret_cast<float(*)[kCopyWarps][2][layout::kScreenColumns]>(smem);
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes, pair = blockIdx.x;
  const int tiles = copy.rows / layout::kTileRows, every = (tiles + kSampledTiles - 1) / kSampledTiles;
  float sum[16] = {}, squares[16] = {};  // by step, reg / 2 and half
  int count = 0;
  for (int tile = warp * every; tile < tiles; tile += kCopyWarps * every)
    each_of_pair(copy, tile, pair, lane, [&](int step, int reg, int half, float w) {
      const int i = step * 4 + reg / 2 * 2 + half;
      sum[i] += w;
      squares[i] += w * w;
    });
#pragma unroll
  for (int i = 0; i < 16; ++i) {
#pragma unroll
    for (int bits = 4; bits < kWarpLanes; bits *= 2) {
      sum[i] += __shfl_xor_sync(kAllLanes, sum[i], bits);
      squares[i] += __shfl_xor_sync(kAllLanes, squares[i], bits);
    }
    const int k = layout::block_pair_element(lane, i / 4, i / 2 % 2 * 2, i % 2).k;
    if (lane / 4 == 0) sums[warp][0][k] = sum[i], sums[warp][1][k] = squares[i];
  }
  __syncthreads();
  if (threadIdx.x >= layout::kScreenColumns) return;
  count = (tiles + every - 1) / every * layout::kTileRows;
  float mean = 0, square = 0;
  for (int w = 0; w < kCopyWarps; ++w) mean += sums[w][0][threadIdx.x], square += sums[w][1][threadIdx.x];
  mean /= static_cast<float>(count);
  const float rms = sqrtf(fmaxf(square / static_cast<float>(count) - mean * mean, 0.0f));
  const bool serves = mean * mean < INFINITY && rms > 1e-20f && rms < 1e20f;
  const int at = pair * layout::kScreenColumns + static_cast<int>(threadIdx.x);
  copy.mean[at] = serves ? mean : 0.0f;
  copy.rms[at] = serves ? rms : 1.0f;
}

// screen_rows: the codes of 32 rows, and what they lose     grid: a CTA per group of rows
__global__ void __launch_bounds__(kCopyThreads) screen_rows(const __grid_constant__ ScreenCopy copy) {
  extern __shared__ __align__(128) uint8_t smem[];
  constexpr int kRows = layout::kScreenRows, kOwn = 2 * layout::kScreenTiles;  // rows of a lane, 8 apart
  auto(&of_warps)[2][kCopyWarps][kRows] = *reinterpret_cast<float(*)[2][kCopyWarps][kRows]>(smem);
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes,
            parts = copy.cols / layout::kScreenColumns;
  const int group = blockIdx.x, row = group * kRows + static_cast<int>(threadIdx.x);
  // a and b of all warps' rows, added or, of a, the larger.
  const auto over_warps = [&](const float(&a)[kOwn], const float(&b)[kOwn]) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float both = a[i] + __shfl_xor_sync(kAllLanes, a[i], 1), more = b[i] + __shfl_xor_sync(kAllLanes, b[i], 1);
      const float all = both + __shfl_xor_sync(kAllLanes, both, 2), rest = more + __shfl_xor_sync(kAllLanes, more, 2);
      if (lane % 4 == 0) of_warps[0][warp][8 * i + lane / 4] = all, of_warps[1][warp][8 * i + lane / 4] = rest;
    }
    __syncthreads();
  };
  const auto shifted = [&](int part, int step, int reg, int half, float w) {
    const int k = part * layout::kScreenColumns + layout::block_pair_element(lane, step, reg, half).k;
    return (w - copy.mean[k]) / copy.rms[k];
  };
  const auto each = [&](int part, const auto& visit) {
#pragma unroll
    for (int tile = 0; tile < layout::kScreenTiles; ++tile)
      each_of_pair(copy, int64_t{group} * layout::kScreenTiles + tile, part, lane,
                   [&](int step, int reg, int half, float w) {
                     visit(2 * tile + reg % 2, step, reg, half, w, shifted(part, step, reg, half, w));
                   });
  };
  float most[kOwn] = {}, lengths[kOwn] = {};
  for (int part = warp; part < parts; part += kCopyWarps)
    each(part, [&](int own, int, int, int, float w, float value) {
      most[own] = fmaxf(most[own], fabsf(value));
      lengths[own] += w * w;
    });
#pragma unroll
  for (float& own : most) {
    own = fmaxf(own, __shfl_xor_sync(kAllLanes, own, 1));
    own = fmaxf(own, __shfl_xor_sync(kAllLanes, own, 2)) / 4;  // of a quad, whose four will be added
  }
  over_warps(most, lengths);
  float scale[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    float top = 0;
    for (int w = 0; w < kCopyWarps; ++w) top = fmaxf(top, of_warps[0][w][8 * i + lane / 4]);
    scale[i] = top > 0 && top < INFINITY ? top / layout::kScreenMost : 1.0f;
    if (warp == 0 && lane % 4 == 0) copy.scale[group * kRows + 8 * i + lane / 4] = scale[i];
  }
  const auto root = [&](int which) {
    float sum = 0;
    for (int w = 0; w < kCopyWarps; ++w) sum += of_warps[which][w][threadIdx.x];
    return sqrtf(sum) * kRowUp;
  };
  if (threadIdx.x < kRows) copy.length[row] = root(1);
  float lost[kOwn] = {}, kept[kOwn] = {};
  for (int part = warp; part < parts; part += kCopyWarps) {
    uint32_t codes[layout::kScreenTiles][layout::kScreenRegisters] = {};
    each(part, [&](int own, int step, int reg, int half, float, float value) {
      const float top = static_cast<float>(layout::kScreenMost);
      const float code = fminf(fmaxf(rintf(value / scale[own]), -top), top);
      const float rest = value - scale[own] * code;
      lost[own] += rest * rest;
      kept[own] += scale[own] * code * (scale[own] * code);
      const int k = step % 2 * 4 + reg / 2 * 2 + half;  // of the lane's eight of the block
      codes[own / 2][step / 2 * 4 + reg % 2 + k / 4 * 2] |=
          static_cast<uint32_t>(static_cast<int>(code) + layout::kScreenZero) << 8 * (k % 4);
    });
    uint32_t words[layout::kScreenTiles * layout::kScreenWords];
#pragma unroll
    for (int tile = 0; tile < layout::kScreenTiles; ++tile) {
      uint32_t own[layout::kScreenWords];
      layout::shorten(codes[tile], own);
#pragma unroll
      for (int i = 0; i < layout::kScreenWords; ++i) words[tile * layout::kScreenWords + i] = own[i];
    }
    uint8_t* to = copy.codes + (int64_t{group} * parts + part) * layout::kScreenPartBytes;
#pragma unroll
    for (int i = 0; i < layout::kScreenWords; ++i)
      *reinterpret_cast<uint2*>(to + layout::screen_word_offset(2 * i, lane)) = {words[2 * i], words[2 * i + 1]};
  }
  over_warps(lost, kept);
  if (threadIdx.x >= kRows) return;
  copy.lost[row] = root(0);
  copy.kept[row] = root(1);
}

}  // namespace nibble::backend::cuda

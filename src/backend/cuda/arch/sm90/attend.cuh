#pragma once
// attend_prefill on wgmma: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tiles of tokens of a row, whose keys
// may have come in earlier steps                                                           source: torch/model.py sdpa
// args: attend_plan.h AttentionArgs     keys, values bf16     q, out f32
// grid one CTA per SM takes (tile, kv head) after (tile, kv head), the longest tiles first: 3 warpgroups of 64 rows = 8
//      tokens x 8 query heads, and four warps that copy pages by cp.async, swizzled, into a ring that they share, on
//      into the next work, whose queries they call to L2; pages behind every window are skipped, positions are looked
//      at on the first and the last pages
// mma  wgmma m64n64k16 (bf16). A page's scores are begun before the exponentials of the page before it, from queries in
//      shared memory: a wgmma with operands in registers holds its warp until it begins. Only the values' has them
// exp  by rows' bases (base_near): no look at the largest score stands between scores and exponentials
// bytes keys * kv_heads * 256 per tile, from L2 for all but the first     flops 4 * heads * 64 * keys per token
// measured 2026-11-26 H100, alone: 8192 tokens 977 us a full layer (57 % of the matrix peak), 147 a sliding one (62 %
//      of the limit of bytes, queries and results in f32); 2048 tokens 84 and 43
// rounding: f32 sums, order fixed by the tile's positions: bitwise repeatable

#include "backend/cuda/ptx/convert.cuh"
#include "backend/cuda/attention/attend_tile.cuh"
#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/attention/attend_prefill.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/registers.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/memory.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

// Scores of a page to weights 2^(score - base), without a look at the largest. A row's base is set once, at the first
// page in which it sees a key, to a multiple of 64 near that page's top: 0 in the usual case. Weights are kept in f32
// and multiplied in bf16, which reach from 2^-126 to 2^127: another top moves their size, not their precision. Only
// when a lane's weights of a page add up to more than kMostWeight does the base rise; whoever calls looks at that.

inline constexpr float kMostWeight = 0x1p80f;

// -infinity stays: no key yet.
__device__ __forceinline__ float base_near(float top) {
  constexpr float kStep = 64;
  return truncf(top * (1 / kStep)) * kStep;
}

__device__ __forceinline__ float base_or_zero(float base) { return base == -INFINITY ? 0.0f : base; }

// Scores above their bases to weights, and a lane's sums of them.
template <int kKeyTiles>
__device__ __forceinline__ void make_weights(float (&score)[kKeyTiles][4], float (&sum)[2]) {
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[n][i] = ptx::exp2_approx(score[n][i]);
      sum[i / 2] += score[n][i];
    }
  }
}
__device__ __forceinline__ bool too_heavy(float sum) { return !(sum <= kMostWeight); }

// Which of a lane's columns of the page from first_key on are visible: bit 2n + i is column i of key tile n.
__device__ __forceinline__ uint32_t visible_columns(const KeyRange& visible, int first_key) {
  const int own = first_key + 2 * (static_cast<int>(threadIdx.x) % 4);
  const auto before = [&](int key) {  // columns of keys below it
    const int keys = min(max(key - own, 0), kPageTokens);
    return keys / 8 * 2 + min(keys % 8, 2);
  };
  return ~0u << before(visible.first) & ~(~0u << before(visible.last + 1));
}

__device__ __forceinline__ bool hidden(uint32_t columns, int n, int i) {
  return (columns >> (2 * n + i % 2) & 1u) == 0;
}

// The largest of a row's, of which a lane has one.
__device__ __forceinline__ float top_of_row(float top) {
  top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
  return fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
}

struct WgmmaAttend {
  using Kv = PageRow<kSm90PrefillPages>;
  static constexpr int kWarps = 12;     // that multiply
  static constexpr int kCopyWarps = 4;  // and a warpgroup that copies
  static constexpr int kThreads = (kWarps + kCopyWarps) * kAttendLanes;
  static constexpr int kConsumerRegisters = 152, kProducerRegisters = 56;
  static constexpr int kWarpTokens = 2, kWarpRows = kWarpTokens * kGroupHeads;
  static constexpr int kGroupThreads = 4 * kAttendLanes, kGroupRows = 4 * kWarpRows;
  static_assert(kWarps * kWarpTokens == kSm90PrefillTokens);
  static constexpr int kRowTiles = 1;
  static constexpr int kKeyTiles = kPageTokens / 8;
  static constexpr int kStages = 8;
  static constexpr int kRowBytes = rows_bytes<Kv>(1);
  static constexpr int kHalfBytes = kPageTokens * kRowBytes;  // keys or values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kQueryBytes = kWarps * kWarpRows * layout::kAtomRowBytes;
  static constexpr int kBarriersAt = kStages * kStageBytes + 2 * kQueryBytes;
  static constexpr int kSharedBytes = kBarriersAt + kStages * 16 + layout::kAtomBytes;  // to align the ring
};

template <class Tile>
struct PageRing {
  uint32_t base;
  __device__ explicit PageRing(const uint8_t* memory)
      : base((ptx::shared_address(memory) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes) {}
  __device__ static uint32_t place(int i) { return static_cast<uint32_t>(i) % Tile::kStages; }
  __device__ uint32_t stage(int i) const { return base + place(i) * Tile::kStageBytes; }
  __device__ uint32_t full(int i) const { return base + Tile::kBarriersAt + place(i) * 8; }
  __device__ uint32_t empty(int i) const { return full(i) + Tile::kStages * 8; }
  // Beside the ring: a warpgroup's queries, of this work and of the next.
  __device__ uint32_t queries(int buffer, int warpgroup) const {
    return base + static_cast<uint32_t>(Tile::kStages * Tile::kStageBytes + buffer * Tile::kQueryBytes +
                                        warpgroup * Tile::kGroupRows * layout::kAtomRowBytes);
  }
  __device__ void init() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), Tile::kWarps);
    }
    ptx::fence_mbarrier_init();
  }
  __device__ void wait_full(int i) const { ptx::mbarrier_wait(full(i), static_cast<uint32_t>(i) / Tile::kStages % 2); }
  __device__ void wait_empty(int i) const {
    ptx::mbarrier_wait(empty(i), static_cast<uint32_t>(i) / Tile::kStages % 2 ^ 1);
  }
};

// A CTA's share of (tile, kv head), the longest first, dealt to and fro so that every CTA gets as much.
struct AttendWorkTiles {
  const AttentionArgs& args;
  int round = 0;
  struct Work {
    AttendTile tile;
    int kv_head = -1;  // < 0: there is none
    KeyRange visible;
  };
  __device__ Work next() {
    const int ctas = static_cast<int>(gridDim.x), own = static_cast<int>(blockIdx.x);
    const int at = round * ctas + (round % 2 == 0 ? own : ctas - 1 - own);
    ++round;
    if (at >= args.tile_count * args.kv_heads) return {};
    const AttendTile tile = args.tiles[args.tile_count - 1 - at / args.kv_heads];
    return {tile,
            at % args.kv_heads,
            {visible_keys(tile.first_position, args.window).first, tile.first_position + tile.tokens - 1}};
  }
};

// A token's of a kv head, to L2: who reads them waits for them.
__device__ __forceinline__ void prefetch_queries(const AttentionArgs& args, int token, int kv_head) {
  constexpr int kLine = 128 / int{sizeof(float)};
  const int values = args.heads / args.kv_heads * kHeadDim;
  const float* const from = args.q + (int64_t{token} * args.heads) * kHeadDim + int64_t{kv_head} * values;
  for (int at = 0; at < values; at += kLine) ptx::prefetch_l2(from + at);
}

// A warp that copies: every kCopyWarps-th of the CTA's work tiles' pages, each tile's last page first. What lies
// outside `visible` becomes zero: perhaps nobody has written it. A warp has one page under way: the fence waits for all
// of its copies, so that pages overlap only between warps.
template <class Tile>
__device__ void copy_pages(const AttentionArgs& args, const PageRing<Tile>& ring, int own) {
  using Kv = typename Tile::Kv;
  constexpr int kRows = kAttendLanes / Kv::kChunks;  // that the lanes copy at once
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes, row = lane / Kv::kChunks, chunk = lane % Kv::kChunks;
  int i = 0;  // of all work tiles' pages
  AttendWorkTiles work_tiles{args};
  for (AttendWorkTiles::Work work = work_tiles.next(), next; work.kv_head >= 0; work = next) {
    next = work_tiles.next();  // early: it waits for memory
    const KeyRange& visible = work.visible;
    const int32_t* pages = args.pages + int64_t{work.tile.row} * args.pages_per_row;
    if (own == 0 && lane < work.tile.tokens) prefetch_queries(args, work.tile.first_token + lane, work.kv_head);
    for (int page = visible.last / kPageTokens; page >= visible.first_page(); --page, ++i) {
      if (i % Tile::kCopyWarps != own) continue;
      const int64_t from = (int64_t{pages[page]} * args.kv_heads + work.kv_head) * Tile::kHalfBytes + lane * 16;
      const auto* keys = static_cast<const uint8_t*>(args.kv.keys) + from;
      const auto* values = static_cast<const uint8_t*>(args.kv.values) + from;
      const int first_key = page * kPageTokens + row;
      ring.wait_empty(i);
#pragma unroll
      for (int r = 0; r < kPageTokens; r += kRows) {
        const auto fill =
            first_key + r >= visible.first && first_key + r <= visible.last ? ptx::Fill::kCopy : ptx::Fill::kZero;
        const uint32_t to = ring.stage(i) + Kv::chunk_at(row + r, chunk);
        ptx::async_copy16(to, keys + r * Tile::kRowBytes, fill);
        ptx::async_copy16(to + Tile::kHalfBytes, values + r * Tile::kRowBytes, fill);
      }
      ptx::async_commit();
      ptx::async_wait<0>();
      ptx::fence_async_proxy();
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring.full(i));
    }
  }
}

// The queries of a warp's rows, scaled, where the warpgroup's begin in shared memory: row 8 * token + head.
template <class Tile>
__device__ void copy_queries(const AttentionArgs& args, const AttendWorkTiles::Work& work, uint32_t to) {
  using Kv = typename Tile::Kv;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int warp = static_cast<int>(threadIdx.x) / kAttendLanes, group = args.heads / args.kv_heads;
  constexpr int kChunks = kHeadDim / 8, kRows = kAttendLanes / kChunks;  // of eight dimensions; rows at once
#pragma unroll
  for (int r = 0; r < Tile::kWarpRows; r += kRows) {
    const int row = r + lane / kChunks, head = row % kGroupHeads, chunk = lane % kChunks;
    const int token = min(Tile::kWarpTokens * warp + row / kGroupHeads, work.tile.tokens - 1);
    const auto* const from = reinterpret_cast<const float4*>(
        args.q + ((int64_t{work.tile.first_token} + token) * args.heads + work.kv_head * group + head) * kHeadDim +
        8 * chunk);
    float4 x{}, y{};
    if (head < group) {
      x = from[0];
      y = from[1];
    }
    const auto pair = [](float a, float b) { return __uint_as_float(Kv::pack(a * kScoreScale, b * kScoreScale)); };
    ptx::store_shared16(to + layout::swizzled_chunk(warp % 4 * Tile::kWarpRows + row, chunk),
                        {pair(x.x, x.y), pair(x.z, x.w), pair(y.x, y.y), pair(y.z, y.w)});
  }
  ptx::fence_async_proxy();
}

// Scores of page i; asynchronous.
template <class Tile>
__device__ __forceinline__ void start_scores(const PageRing<Tile>& ring, int i, uint32_t queries,
                                             float (&score)[Tile::kKeyTiles][4]) {
  ptx::wgmma_fence();
  ptx::wgmma_first(score, layout::matrix_descriptor(queries, 0), layout::matrix_descriptor(ring.stage(i), 0));
#pragma unroll
  for (int s = 1; s < kDimSteps; ++s)
    ptx::wgmma(score, layout::matrix_descriptor(queries, s), layout::matrix_descriptor(ring.stage(i), s));
  ptx::wgmma_commit();
}

template <class Tile>
__device__ __forceinline__ void start_values(const PageRing<Tile>& ring, int i,
                                             const uint32_t (&p)[Tile::kKeyTiles / 2][4], PrefillState& state) {
  constexpr uint32_t kSliceBytes = 16 * Tile::kRowBytes;  // 16 keys
  ptx::wgmma_fence();
#pragma unroll
  for (uint32_t s = 0; s < Tile::kKeyTiles / 2; ++s)
    ptx::wgmma_rows(state.out, p[s], layout::matrix_descriptor(ring.stage(i) + Tile::kHalfBytes + s * kSliceBytes, 0));
  ptx::wgmma_commit();
}

// A warpgroup's rows of a work. Its pages are `first` and on in the ring, the last one's first: of all pages a row sees
// its own position's first, and takes its base there.
template <class Tile>
class AttendRows {
 public:
  using Kv = typename Tile::Kv;
  using Scores = float[Tile::kKeyTiles][4];

  __device__ AttendRows(const AttentionArgs& args, const AttendWorkTiles::Work& work, const PageRing<Tile>& ring,
                        uint32_t queries, int first)
      : args_(args), work_(work), ring_(ring), queries_(queries), first_(first) {
    const int last_page = work.visible.last / kPageTokens;
    // Seen by all from this key on, and up to the first position.
    const int seen = visible_keys(work.visible.last, args.window).first;
    settled_ = last_page - work.tile.first_position / kPageTokens + 1;
    seen_end_ = last_page - (seen + kPageTokens - 1) / kPageTokens + 1;
    plain_end_ = seen_end_;
  }

  // Leaves the last page's values under way.
  __device__ void add_pages() {
    Scores even, odd;
    ring_.wait_full(first_);
    start_scores(ring_, first_, queries_, even);
    ptx::wgmma_wait<0>();
    ptx::keep(even);
    const int count = work_.visible.pages();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      add_page(i, even, odd);
      if (++i == count) break;
      add_page(i, odd, even);
    }
  }

  __device__ void finish() {
    ptx::wgmma_wait<0>();
    keep_values();
    give_back(work_.visible.pages() - 1);
  }

  __device__ void store() {
    PrefillRows rows = own_rows();
    rows.kv_head = work_.kv_head;
    store_rows<Kv>(args_, work_.tile, rows, state_);
  }

 private:
  // Page i, whose scores are there. After it those of the next are; after the last its own once more: a branch around
  // the wgmmas would serialize them.
  __device__ __forceinline__ void add_page(int i, Scores& score, Scores& next) {
    const int following = first_ + min(i + 1, work_.visible.pages() - 1);
    ring_.wait_full(following);
    start_scores(ring_, following, queries_, next);
    if (i < settled_ || i >= plain_end_) {
      if (i < settled_ || i >= seen_end_) hide(i, score);
      if (i < settled_) settle(score);
      subtract_bases(score);
    }
    float sum[2];
    make_weights(score, sum);
    // The branch keeps the exponentials before the wait: ptxas would move them after it.
    if (__any_sync(kWholeWarp, too_heavy(sum[0]) || too_heavy(sum[1]))) raise_bases(i, score, sum);
    ptx::wgmma_wait<1>();
    keep_values();
    if (i > 0) give_back(i - 1);
    state_.sum[0] += sum[0];
    state_.sum[1] += sum[1];
#pragma unroll
    for (int s = 0; s < Tile::kKeyTiles / 2; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        p_[s][r] = Kv::pack(score[2 * s + r / 2][r % 2 * 2], score[2 * s + r / 2][r % 2 * 2 + 1]);
    }
    start_values(ring_, first_ + i, p_, state_);
    // For the next scores, here and not where they are read: ptxas serializes all wgmmas where a loop's next turn reads
    // what this one has begun.
    ptx::wgmma_wait<1>();
    ptx::keep(next);
  }

  __device__ __forceinline__ void keep_values() {
    ptx::keep(state_.out);
    ptx::keep(p_);
  }
  __device__ __forceinline__ void give_back(int i) const {
    if (threadIdx.x % kAttendLanes == 0) ptx::mbarrier_arrive(ring_.empty(first_ + i));
  }

  __device__ PrefillRows own_rows() const { return rows_of<Tile>(args_, work_.tile, 0); }
  __device__ int first_key(int i) const { return (work_.visible.last / kPageTokens - i) * kPageTokens; }

  __device__ __forceinline__ void hide(int i, Scores& score) const {
    const PrefillRows rows = own_rows();
    const uint32_t columns[] = {visible_columns(rows.visible[0], first_key(i)),
                                visible_columns(rows.visible[1], first_key(i))};
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (hidden(columns[c / 2], n, c)) score[n][c] = -INFINITY;
    }
  }
  __device__ __forceinline__ float base(int half) const { return base_or_zero(state_.top[half]); }
  __device__ __forceinline__ void subtract_bases(Scores& score) const {
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) score[n][i] -= base(i / 2);
    }
  }
  // Gives a base to rows that have none.
  __device__ __forceinline__ void settle(const Scores& score) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; ++n) top = fmaxf(top, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
      top = top_of_row(top);
      if (state_.top[half] == -INFINITY) state_.top[half] = base_near(top);
    }
    look_for_bases();
  }
  __device__ __forceinline__ void look_for_bases() {
    if (__any_sync(kWholeWarp, base(0) != 0 || base(1) != 0)) plain_end_ = 0;
  }

  // Rare: weights of page i again, of rows where they are too heavy, above a base that its scores need. These are gone:
  // once more, by mma.sync.
  __device__ __forceinline__ void raise_bases(int i, Scores& score, float (&sum)[2]) {
    ptx::wgmma_wait<0>();
    keep_values();
    const PrefillRows rows = own_rows();
    const uint32_t columns[] = {visible_columns(rows.visible[0], first_key(i)),
                                visible_columns(rows.visible[1], first_key(i))};
    float top[2] = {-INFINITY, -INFINITY}, shrink[2];
    bool heavy[2];
    const auto scores_of = [&](int n, float(&s)[4]) {
      score_again(i, n, s);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (hidden(columns[c / 2], n, c)) s[c] = -INFINITY;
    };
#pragma unroll 1
    for (int n = 0; n < Tile::kKeyTiles; ++n) {
      float s[4] = {};
      scores_of(n, s);
#pragma unroll
      for (int c = 0; c < 4; ++c) top[c / 2] = fmaxf(top[c / 2], s[c]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      heavy[half] = top_of_row(too_heavy(sum[half]) ? 1.0f : 0.0f) != 0;
      top[half] = top_of_row(top[half]);
      const float before = base(half);
      if (heavy[half]) state_.top[half] = fmaxf(before, base_near(top[half]));
      shrink[half] = ptx::exp2_approx(before - base(half));
      state_.sum[half] *= shrink[half];
      sum[half] = 0;
    }
    rescale(state_, shrink);
#pragma unroll 1
    for (int n = 0; n < Tile::kKeyTiles; ++n) {
      float s[4] = {};
      scores_of(n, s);
#pragma unroll
      for (int c = 0; c < 4; ++c) s[c] = ptx::exp2_approx(s[c] - base(c / 2));
#pragma unroll
      for (int m = 0; m < Tile::kKeyTiles; ++m) {  // registers have no index
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (m == n && heavy[c / 2]) score[m][c] = s[c];
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[c / 2] += score[n][c];
    }
    look_for_bases();
  }
  // Scores of key tile n of page i.
  __device__ __forceinline__ void score_again(int i, int n, float (&score)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kAttendLanes, warp = static_cast<int>(threadIdx.x) / kAttendLanes;
    uint32_t b[kDimSteps][2];
    Kv::load_keys(b, ring_.stage(first_ + i), 8 * n, lane);
#pragma unroll
    for (int s = 0; s < kDimSteps; ++s) {
      uint32_t a[4];
      ptx::load_matrices(a,
                         queries_ + layout::swizzled_chunk(warp % 4 * Tile::kWarpRows + lane % 16, 2 * s + lane / 16));
      Kv::mma(score, a, b[s]);
    }
  }

  const AttentionArgs& args_;
  const AttendWorkTiles::Work& work_;
  const PageRing<Tile>& ring_;
  uint32_t queries_;
  int first_;
  PrefillState state_;      // top: the base; -infinity before a row has one
  int settled_, seen_end_;  // pages [settled_, seen_end_): all rows see all keys and have bases
  int plain_end_;           // seen_end_ where all bases are 0, else 0
  uint32_t p_[Tile::kKeyTiles / 2][4] = {};
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) sm90_attend_prefill(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const PageRing<Tile> ring(smem);
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  if (threadIdx.x >= Tile::kWarps * kAttendLanes) {
    ptx::give_registers_but<Tile::kProducerRegisters>();
    copy_pages<Tile>(args, ring, static_cast<int>(threadIdx.x) / kAttendLanes - Tile::kWarps);
  } else {
    ptx::take_registers_up_to<Tile::kConsumerRegisters>();
    // By a shuffle: then ptxas knows it for the same in all lanes.
    const int warpgroup = __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x) / Tile::kGroupThreads, 0);
    AttendWorkTiles work_tiles{args};
    AttendWorkTiles::Work work = work_tiles.next();
    int first = 0, buffer = 0;
    if (work.kv_head >= 0) copy_queries<Tile>(args, work, ring.queries(buffer, warpgroup));
    while (work.kv_head >= 0) {
      ptx::named_barrier(1 + warpgroup, Tile::kGroupThreads);
      AttendRows<Tile> rows(args, work, ring, ring.queries(buffer, warpgroup), first);
      const AttendWorkTiles::Work next = work_tiles.next();  // early: it waits for memory
      rows.add_pages();
      buffer ^= 1;  // whose queries all warps have done with: they are a barrier further
      if (next.kv_head >= 0) copy_queries<Tile>(args, next, ring.queries(buffer, warpgroup));
      rows.finish();
      rows.store();
      first += work.visible.pages();
      work = next;
    }
  }
}

}  // namespace nibble::backend::cuda

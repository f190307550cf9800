#pragma once
// attend_prefill on wgmma: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tiles of tokens of a row, whose keys
// may have come in earlier steps                                                           source: torch/model.py sdpa
// args: attend_plan.h FlashArgs     keys, values bf16     q, out f32
// grid one CTA per SM takes (tile, kv head) after (tile, kv head), the longest tiles first: 3 warpgroups of 64 rows = 8
//      tokens x 8 query heads, and a warp that copies pages by cp.async, swizzled, into a ring that they share, on into
//      the next work; pages behind every window are skipped, positions are looked at on the first and the last pages
// mma  wgmma m64n64k16, q and p as register operands (bf16): the values of the page before begin when the tops of a
//      page's scores are known and run between its exponentials: 3 % faster than right behind the scores, where they
//      hold a warp until the last of them has begun
// bytes keys * kv_heads * 256 per tile, from L2 for all but the first     flops 4 * heads * 64 * keys per token
// measured 2026-11-22 H100, 120b, in a prompt, both kinds of layer: 2048 tokens 79 us (when all warps copied, a CTA per
//      tile: 92), 8192 tokens 791 us (797); 37 % of the peak. Neither turns of the warpgroups at the tensor cores nor a
//      share of the exponentials on the multipliers made it faster
// rounding: f32 sums, order fixed by the tile's positions: bitwise repeatable

#include "backend/cuda/arch/sm90/plans.h"
#include "backend/cuda/attention/attend_prefill.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/register_count.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

#include <type_traits>

namespace nibble::backend::cuda {

struct WgmmaAttend {
  using Kv = PageRow<kSm90PrefillPages>;
  static constexpr int kWarps = 12;                             // that multiply
  static constexpr int kThreads = (kWarps + 4) * kAttendLanes;  // and a warpgroup more, of which one copies
  static constexpr int kConsumerRegisters = 152, kProducerRegisters = 56;
  static constexpr int kTokens = 2 * kWarps;
  static_assert(kTokens == kSm90PrefillTokens);
  static constexpr int kRowTiles = 1;
  static constexpr int kKeyTiles = kPageTokens / 8;
  static constexpr int kStages = 8;
  static constexpr int kAhead = 2;  // pages under way behind the one that is said to have landed
  static constexpr int kRowBytes = rows_bytes<Kv>(1);
  static constexpr int kHalfBytes = kPageTokens * kRowBytes;  // keys or values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + layout::kAtomBytes;  // to align the ring
};

template <class Tile>
struct PageRing {
  uint32_t base;
  __device__ explicit PageRing(const uint8_t* memory)
      : base((ptx::shared_address(memory) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes) {}
  __device__ static uint32_t place(int i) { return static_cast<uint32_t>(i) % Tile::kStages; }
  __device__ uint32_t stage(int i) const { return base + place(i) * Tile::kStageBytes; }
  __device__ uint32_t full(int i) const { return base + Tile::kStages * Tile::kStageBytes + place(i) * 8; }
  __device__ uint32_t empty(int i) const { return full(i) + Tile::kStages * 8; }
  __device__ void init() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), Tile::kWarps);
    }
    ptx::fence_mbarrier_init();
  }
  __device__ void wait_full(int i) const { ptx::mbarrier_wait(full(i), static_cast<uint32_t>(i / Tile::kStages % 2)); }
  __device__ void wait_empty(int i) const {
    ptx::mbarrier_wait(empty(i), static_cast<uint32_t>(i / Tile::kStages % 2 ^ 1));
  }
};

// A CTA's share of (tile, kv head), the longest first, dealt to and fro so that every CTA gets as much.
struct AttendWorkTiles {
  const FlashArgs& args;
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

// The warp that copies: the pages of the CTA's work tiles, in order. What lies outside `visible` becomes zero: perhaps
// nobody has written it.
template <class Tile>
__device__ void copy_pages(const FlashArgs& args, const PageRing<Tile>& ring) {
  using Kv = typename Tile::Kv;
  constexpr int kRows = kAttendLanes / Kv::kChunks;  // that the lanes copy at once
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes, row = lane / Kv::kChunks, chunk = lane % Kv::kChunks;
  const auto landed = [&](int i) {
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.full(i));
  };
  int i = 0;  // of all work tiles' pages
  AttendWorkTiles work_tiles{args};
  for (AttendWorkTiles::Work work = work_tiles.next(); work.kv_head >= 0; work = work_tiles.next()) {
    const KeyRange& visible = work.visible;
    const int32_t* pages = args.pages + int64_t{work.tile.row} * args.pages_per_row;
    for (int page = visible.first_page(); page < visible.first_page() + visible.pages(); ++page, ++i) {
      const int64_t from = (int64_t{pages[page]} * args.kv_heads + work.kv_head) * Tile::kHalfBytes + lane * 16;
      const auto* keys = static_cast<const uint8_t*>(args.keys) + from;
      const auto* values = static_cast<const uint8_t*>(args.values) + from;
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
      ptx::async_wait<Tile::kAhead>();
      if (i >= Tile::kAhead) landed(i - Tile::kAhead);
    }
  }
  ptx::async_wait<0>();
  for (int last = max(0, i - Tile::kAhead); last < i; ++last) landed(last);
}

// Scores of page i; asynchronous.
template <class Tile>
__device__ __forceinline__ void start_scores(const PageRing<Tile>& ring, int i, const uint32_t (&q)[kDimSteps][4],
                                             float (&score)[Tile::kKeyTiles][4]) {
  ptx::wgmma_m64k16_first(score, q[0], layout::matrix_descriptor(ring.stage(i), 0));
#pragma unroll
  for (int s = 1; s < kDimSteps; ++s) ptx::wgmma_m64k16(score, q[s], layout::matrix_descriptor(ring.stage(i), s));
  ptx::wgmma_commit();
}

template <class Tile>
__device__ __forceinline__ void start_values(const PageRing<Tile>& ring, int i,
                                             const uint32_t (&p)[Tile::kKeyTiles / 2][4], PrefillState& state) {
  constexpr uint32_t kSliceBytes = 16 * Tile::kRowBytes;  // 16 keys
#pragma unroll
  for (uint32_t s = 0; s < Tile::kKeyTiles / 2; ++s)
    ptx::wgmma_m64k16_rows(state.out, p[s],
                           layout::matrix_descriptor(ring.stage(i) + Tile::kHalfBytes + s * kSliceBytes, 0));
  ptx::wgmma_commit();
}

// A warp's registers: the weights of a page, and what has been added up.
template <class Tile>
struct TileSums {
  PrefillState state;
  float score[Tile::kKeyTiles][4];
  uint32_t p[Tile::kKeyTiles / 2][4];  // the page's weights in bf16

  // Wait for the wgmmas; no use of their registers moves above.
  __device__ __forceinline__ void wait_scores() {
    ptx::wgmma_wait<0>();
    keep_scores();
  }
  __device__ __forceinline__ void keep_scores() {
#pragma unroll
    for (auto& tile : score) {
#pragma unroll
      for (float& x : tile) ptx::keep(x);
    }
  }
  __device__ __forceinline__ void wait_values() {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (auto& tile : state.out) {
#pragma unroll
      for (float& x : tile) ptx::keep(x);
    }
#pragma unroll
    for (auto& step : p) {
#pragma unroll
      for (uint32_t& x : step) ptx::keep(x);
    }
  }
  // Behind wait_values: makes weights of what soften has made of the scores.
  __device__ __forceinline__ void weigh(const float (&shrink)[2]) {
    rescale(state, shrink);
#pragma unroll
    for (int s = 0; s < Tile::kKeyTiles / 2; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        p[s][r] = Tile::Kv::pack(score[2 * s + r / 2][r % 2 * 2], score[2 * s + r / 2][r % 2 * 2 + 1]);
    }
  }
};

// A warpgroup's rows of a work, whose pages are `first` and on in the ring.
template <class Tile>
__device__ void attend_tile(const FlashArgs& args, const AttendWorkTiles::Work& work, const PageRing<Tile>& ring,
                            int first) {
  using Kv = typename Tile::Kv;
  const AttendTile& tile = work.tile;
  const int first_page = work.visible.first_page(), last = work.visible.pages() - 1;
  PrefillRows rows = rows_of<Tile>(args, tile, 0);
  rows.kv_head = work.kv_head;
  uint32_t q[kDimSteps][4];
  load_queries<Kv>(args, tile, rows, q);
  // Pages [seen, seen_end) are seen by all rows: no look at positions, and no branch, before which ptxas waits for
  // every wgmma.
  const int seen_by_all = visible_keys(tile.first_position + tile.tokens - 1, args.window).first;
  const int seen = max(1, (seen_by_all + kPageTokens - 1) / kPageTokens - first_page);
  const int seen_end = max(seen, (tile.first_position + 1) / kPageTokens - first_page);
  TileSums<Tile> sums;
  float shrink[2];
  const auto give_back = [&](int i) {
    if (threadIdx.x % kAttendLanes == 0) ptx::mbarrier_arrive(ring.empty(first + i));
  };
  ring.wait_full(first);
  ptx::wgmma_fence();
  start_scores(ring, first, q, sums.score);
  sums.wait_scores();
  hide<Tile>(args, tile, 0, first_page * kPageTokens, sums.score);
  raise_tops(sums.score, sums.state, shrink);
  soften(sums.score, sums.state, shrink);
  sums.wait_values();
  sums.weigh(shrink);
  ring.wait_full(first + min(1, last));
  const auto add_page = [&](int i, auto hidden) {
    ptx::wgmma_fence();
    start_scores(ring, first + i, q, sums.score);
    sums.wait_scores();
    if constexpr (hidden) hide<Tile>(args, tile, 0, (first_page + i) * kPageTokens, sums.score);
    raise_tops(sums.score, sums.state, shrink);
    ptx::wgmma_fence();
    start_values(ring, first + i - 1, sums.p, sums.state);
    soften(sums.score, sums.state, shrink);
    sums.keep_scores();
    ring.wait_full(first + min(i + 1, last));  // here: its branch keeps all of soften before the wait for the values
    sums.wait_values();
    give_back(i - 1);
    sums.weigh(shrink);
  };
  int i = 1;
#pragma unroll 1
  for (; i < min(seen, last + 1); ++i) add_page(i, std::true_type());
#pragma unroll 1
  for (; i < seen_end; ++i) add_page(i, std::false_type());
#pragma unroll 1
  for (; i <= last; ++i) add_page(i, std::true_type());
  ptx::wgmma_fence();
  start_values(ring, first + last, sums.p, sums.state);
  sums.wait_values();
  give_back(last);
  store_rows<Kv>(args, tile, rows, sums.state);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) sm90_attend_prefill(const __grid_constant__ FlashArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const PageRing<Tile> ring(smem);
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  if (threadIdx.x >= Tile::kWarps * kAttendLanes) {
    ptx::give_registers_but<Tile::kProducerRegisters>();
    if (threadIdx.x / kAttendLanes == Tile::kWarps) copy_pages<Tile>(args, ring);
  } else {
    ptx::take_registers_up_to<Tile::kConsumerRegisters>();
    int first = 0;
    AttendWorkTiles work_tiles{args};
    for (AttendWorkTiles::Work work = work_tiles.next(); work.kv_head >= 0; work = work_tiles.next()) {
      attend_tile<Tile>(args, work, ring, first);
      first += work.visible.pages();
    }
  }
}

}  // namespace nibble::backend::cuda

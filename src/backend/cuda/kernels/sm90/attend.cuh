#pragma once
// attend_prefill on wgmma: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tiles of tokens of a row, whose keys
// may have come in earlier steps                                                           source: torch/model.py sdpa
// args: attend_plan.h FlashArgs     keys, values bf16     q f32, out f32 or rounded
// grid one CTA per (tile, kv head), the longest tiles first: 4 warpgroups of 64 rows = 8 tokens x 8 query heads; a ring
//      of pages by cp.async, swizzled, shared by all; pages behind every window are skipped
// mma  wgmma m64n64k16, q and p as register operands (bf16): a page's scores and the page before's values run together
//      under the copies; softmax of one warpgroup under the wgmmas of the others
// bytes keys * kv_heads * 256 per tile, from L2 for all but the first     flops 4 * heads * 64 * keys per token
// measured (H200): 8192 tokens, full layer 1.18 ms, 464 TFLOP/s, 48 % of the peak; window layer 0.16 ms; 2048 tokens
// 0.11
//      and 0.046 ms; 512 tokens 18 and 13 µs. Neither turns of the warpgroups at the tensor cores, nor softmax held
//      under the wgmma of the values, nor a share of the exponentials on the multipliers made it faster
// rounding: f32 sums, order fixed by the tile's positions: bitwise repeatable

#include "backend/cuda/kernels/any/attend_prefill.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

namespace nibble::backend::cuda {

struct WgmmaAttend {
  using Kv = KvBf16;
  static constexpr int kWarps = 16;
  static constexpr int kThreads = kWarps * kAttendLanes;
  static constexpr int kTokens = 2 * kWarps;
  static_assert(kTokens == kWgmmaPrefillTokens);
  static constexpr int kRowTiles = 1;
  static constexpr int kKeyTiles = kPageTokens / 8;
  static constexpr int kStages = 8;
  // Pages under way behind the next one. Who has waited for page i knows that all warps have begun page i - 1, so are
  // done with the values of page i - 3: its stage is the first that may take page i + 1 + kAhead.
  static constexpr int kAhead = 2;
  static_assert(kAhead <= kStages - 4);
  static constexpr int kHalfBytes = kPageTokens * Kv::kRowBytes;  // keys or values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + 8) + layout::kAtomBytes;  // to align the ring
};

template <class Tile>
struct PageRing {
  uint32_t base;
  __device__ explicit PageRing(const uint8_t* memory)
      : base((ptx::shared_address(memory) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes) {}
  __device__ uint32_t stage(int i) const { return base + static_cast<uint32_t>(i % Tile::kStages * Tile::kStageBytes); }
  __device__ uint32_t full(int i) const {
    return base + static_cast<uint32_t>(Tile::kStages * Tile::kStageBytes + i % Tile::kStages * 8);
  }
  __device__ void wait_full(int i) const { ptx::mbarrier_wait(full(i), static_cast<uint32_t>(i / Tile::kStages % 2)); }
};

// A thread's share of the copies of pages: one chunk of every kStep-th key, and of its value. No branch: ptxas waits
// for every wgmma before one.
template <class Tile>
struct PageCopies {
  using Kv = typename Tile::Kv;
  static constexpr int kStep = Tile::kThreads / Kv::kChunks;  // a multiple of 8: a chunk's place only moves on
  static constexpr int kRows = kPageTokens / kStep;
  static_assert(kRows * kStep == kPageTokens);
  const PageRing<Tile>& ring;
  KeyRange visible;
  const int32_t* pages;  // of the tile's keys
  const uint8_t *keys, *values;
  int64_t page_bytes;
  int last_page, key, page;
  uint32_t place;

  __device__ PageCopies(const FlashArgs& args, const AttendTile& tile, const KeyRange& range, const PageRing<Tile>& to)
      : ring(to),
        visible(range),
        pages(args.pages + int64_t{tile.row} * args.pages_per_row + range.first_page()),
        page_bytes(int64_t{Tile::kHalfBytes} * args.kv_heads),
        last_page(range.pages() - 1) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t own = int64_t{blockIdx.y} * Tile::kHalfBytes + thread * 16;
    keys = static_cast<const uint8_t*>(args.keys) + own;
    values = static_cast<const uint8_t*>(args.values) + own;
    key = range.first_page() * kPageTokens + thread / Kv::kChunks;
    place = Kv::chunk_at(thread / Kv::kChunks, thread % Kv::kChunks);
    page = pages[0];
  }
  // Page i, each in turn; what lies outside `visible` becomes zero: perhaps nobody has written it.
  __device__ __forceinline__ void issue(int i) {
    const int64_t from = page * page_bytes;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int own = key + r * kStep;
      const auto fill = own >= visible.first && own <= visible.last ? ptx::Fill::kCopy : ptx::Fill::kZero;
      const uint32_t to = ring.stage(i) + place + static_cast<uint32_t>(r * kStep * Kv::kRowBytes);
      ptx::async_copy16(to, keys + from + r * kStep * Kv::kRowBytes, fill);
      ptx::async_copy16(to + Tile::kHalfBytes, values + from + r * kStep * Kv::kRowBytes, fill);
    }
    ptx::async_commit();
    key += kPageTokens;
    page = pages[min(i + 1, last_page)];
  }
  // Says that this warp's share of page i has landed; kAhead pages have been issued behind it.
  __device__ __forceinline__ void landed(int i) const {
    ptx::async_wait<Tile::kAhead>();
    ptx::fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % kAttendLanes == 0) ptx::mbarrier_arrive(ring.full(i));
  }
};

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
  constexpr uint32_t kSliceBytes = 16 * Tile::Kv::kRowBytes;  // 16 keys
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

  // Waits for all wgmmas; no use of their registers moves above.
  __device__ __forceinline__ void wait() {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (auto& tile : score) {
#pragma unroll
      for (float& x : tile) ptx::keep(x);
    }
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
  __device__ __forceinline__ void weigh() {
    float shrink[2];
    soften(score, state, shrink);
    rescale(state, shrink);
#pragma unroll
    for (int s = 0; s < Tile::kKeyTiles / 2; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        p[s][r] = Tile::Kv::pack(score[2 * s + r / 2][r % 2 * 2], score[2 * s + r / 2][r % 2 * 2 + 1]);
    }
  }
};

template <class Tile>
__device__ void attend_tile(const FlashArgs& args, const AttendTile& tile, const PageRing<Tile>& ring) {
  using Kv = typename Tile::Kv;
  const KeyRange visible{visible_keys(tile.first_position, args.window).first, tile.first_position + tile.tokens - 1};
  const int first_page = visible.first_page(), count = visible.pages();
  PageCopies<Tile> copies(args, tile, visible, ring);
  for (int i = 0; i <= Tile::kAhead; ++i) copies.issue(i);
  uint32_t q[kDimSteps][4];
  load_queries<Kv>(args, tile, rows_of<Tile>(args, tile, 0), q);
  const int seen_by_all = visible_keys(tile.first_position + tile.tokens - 1, args.window).first;
  TileSums<Tile> sums;
  const auto finish_scores = [&](int i) {
    copies.issue(i + 1 + Tile::kAhead);
    copies.landed(i + 1);
    sums.wait();
    const int first_key = (first_page + i) * kPageTokens;
    if (first_key < seen_by_all || first_key + kPageTokens - 1 > tile.first_position)  // not all rows see all of it
      hide<Tile>(args, tile, 0, first_key, sums.score);
    sums.weigh();
  };
  copies.landed(0);
  ring.wait_full(0);
  ptx::wgmma_fence();
  start_scores(ring, 0, q, sums.score);
  finish_scores(0);
#pragma unroll 1
  for (int i = 1; i < count; ++i) {
    ring.wait_full(i);
    ptx::wgmma_fence();
    start_scores(ring, i, q, sums.score);
    start_values(ring, i - 1, sums.p, sums.state);
    finish_scores(i);
  }
  ptx::wgmma_fence();
  start_values(ring, count - 1, sums.p, sums.state);
  sums.wait();
  store_rows<Kv>(args, tile, rows_of<Tile>(args, tile, 0), sums.state);
  ptx::async_wait<0>();
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) sm90_attend_prefill(const __grid_constant__ FlashArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const PageRing<Tile> ring(smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) ptx::mbarrier_init(ring.full(i), Tile::kWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  attend_tile<Tile>(args, args.tiles[gridDim.x - 1 - blockIdx.x], ring);
}

}  // namespace nibble::backend::cuda

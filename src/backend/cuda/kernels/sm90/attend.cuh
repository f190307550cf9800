#pragma once
// attend_prefill on wgmma: out = Σ_j p_j v_j, p = softmax([q · k_j / 8, sink]) for tiles of tokens of a row, whose keys
// may have come in earlier steps                                                           source: torch/model.py sdpa
// args: attend_plan.h FlashArgs     keys, values bf16     q, out f32
// grid one CTA per (tile, kv head), the longest tiles first: warpgroups of 64 rows = 8 tokens x 8 query heads, and a
//      warp that fills a ring of pages by cp.async, swizzled; pages behind every window are skipped
// mma  wgmma m64n64k16, q and p as register operands (bf16): a page's scores and the page before's values run together,
//      the values under the softmax of the scores
// bytes keys * kv_heads * 256 per tile, from L2 for all but the first     flops 4 * heads * 64 * keys per token
// rounding: f32 sums, order fixed by the tile's positions: bitwise repeatable

#include "backend/cuda/kernels/any/attend_prefill.cuh"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/ptx/keep.cuh"
#include "backend/cuda/ptx/mbarrier.cuh"
#include "backend/cuda/ptx/wgmma.cuh"

#include <type_traits>

namespace nibble::backend::cuda {

template <int kTheGroups, int kTheCtas, bool kTheProducer = true, int kTheStages = 4, bool kTheTurns = false, int kThePoly = 0>
struct WgmmaAttend {
  static constexpr bool kProducer = kTheProducer, kTurns = kTheTurns;
  static constexpr int kPoly = kThePoly;
  using Kv = KvBf16;
  static constexpr int kGroups = kTheGroups;  // warpgroups
  static constexpr int kCtas = kTheCtas;      // of an SM
  static constexpr int kWarps = 4 * kGroups;  // without the producer
  static constexpr int kThreads = (kWarps + (kProducer ? 1 : 0)) * kAttendLanes;
  static constexpr int kTokens = 2 * kWarps;
  static constexpr int kRowTiles = 1;
  static constexpr int kKeyTiles = kPageTokens / 8;
  static constexpr int kStages = kTheStages;
  static constexpr int kHalfBytes = kPageTokens * Kv::kRowBytes;  // keys or values
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + kGroups * 8 + layout::kAtomBytes;  // to align the ring
};

template <class Tile>
struct PageRing {
  uint32_t base;
  __device__ explicit PageRing(const uint8_t* memory)
      : base((ptx::shared_address(memory) + layout::kAtomBytes - 1) / layout::kAtomBytes * layout::kAtomBytes) {}
  __device__ uint32_t stage(int i) const { return base + static_cast<uint32_t>(i % Tile::kStages * Tile::kStageBytes); }
  __device__ uint32_t full(int i) const {
    return base + static_cast<uint32_t>(Tile::kStages * Tile::kStageBytes + i % Tile::kStages * 16);
  }
  __device__ uint32_t empty(int i) const { return full(i) + 8; }
  __device__ uint32_t turn(int group) const { return full(0) + static_cast<uint32_t>(Tile::kStages * 16 + group * 8); }
  __device__ static uint32_t parity(int i) { return static_cast<uint32_t>(i / Tile::kStages % 2); }
};

// The producer warp: pages `visible` through the ring.
template <class Tile>
__device__ void produce_pages(const FlashArgs& args, const AttendTile& tile, const KeyRange& visible,
                              const PageRing<Tile>& ring) {
  using Kv = typename Tile::Kv;
  constexpr int kUnderWay = Tile::kStages - 2;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int32_t* pages = args.pages + int64_t{tile.row} * args.pages_per_row;
  const int first_page = visible.first_page(), count = visible.pages();
  int ids = 0;  // of the next 32 pages, one per lane
  for (int i = 0; i < count + kUnderWay; ++i) {
    if (i < count) {
      if (i % kAttendLanes == 0) ids = i + lane < count ? pages[first_page + i + lane] : 0;
      const int64_t page = __shfl_sync(kWholeWarp, ids, i % kAttendLanes);
      ptx::mbarrier_wait(ring.empty(i), PageRing<Tile>::parity(i) ^ 1);  // a fresh barrier's last round is complete
      copy_keys<Kv, kPageTokens>(args, (page * args.kv_heads + blockIdx.y) * kPageTokens, visible,
                                 {ring.stage(i), (first_page + i) * kPageTokens, lane, kAttendLanes});
    }
    ptx::async_commit();
    if (i < kUnderWay) continue;
    ptx::async_wait<kUnderWay>();
    ptx::fence_async_proxy();
    ptx::mbarrier_arrive(ring.full(i - kUnderWay));
  }
}

// Without a producer: every warp copies its share of a page, so many pages ahead.
template <class Tile>
struct PageCopies {
  static constexpr int kAhead = Tile::kStages - 2;
  const FlashArgs& args;
  const PageRing<Tile>& ring;
  const KeyRange visible;
  const int32_t* pages;
  int first_page, count, lane, ids = 0;
  __device__ PageCopies(const FlashArgs& a, const AttendTile& tile, const KeyRange& range, const PageRing<Tile>& r)
      : args(a),
        ring(r),
        visible(range),
        pages(a.pages + int64_t{tile.row} * a.pages_per_row),
        first_page(range.first_page()),
        count(range.pages()),
        lane(static_cast<int>(threadIdx.x) % kAttendLanes) {}
  __device__ void issue(int i) {
    if constexpr (Tile::kProducer) return;
    if (i < count) {
      if (i % kAttendLanes == 0) ids = i + lane < count ? pages[first_page + i + lane] : 0;
      const int64_t page = __shfl_sync(kWholeWarp, ids, i % kAttendLanes);
      ptx::mbarrier_wait(ring.empty(i), PageRing<Tile>::parity(i) ^ 1);
      copy_keys<typename Tile::Kv, kPageTokens>(
          args, (page * args.kv_heads + blockIdx.y) * kPageTokens, visible,
          {ring.stage(i), (first_page + i) * kPageTokens, static_cast<int>(threadIdx.x), Tile::kThreads});
    }
    ptx::async_commit();
  }
  template <int kPending>
  __device__ void landed(int i) const {
    if constexpr (Tile::kProducer) return;
    ptx::async_wait<kPending>();
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0 && i < count) ptx::mbarrier_arrive(ring.full(i));
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

template <class Tile>
__device__ void consume_pages(const FlashArgs& args, const AttendTile& tile, const KeyRange& visible,
                              const PageRing<Tile>& ring) {
  using Kv = typename Tile::Kv;
  const int lane = static_cast<int>(threadIdx.x) % kAttendLanes;
  const int first_page = visible.first_page(), count = visible.pages();
  const int group = static_cast<int>(threadIdx.x) / (4 * kAttendLanes);
  PageCopies<Tile> copies(args, tile, visible, ring);
  for (int i = 0; i <= copies.kAhead; ++i) copies.issue(i);
  uint32_t q[kDimSteps][4];
  load_queries<Kv>(args, tile, rows_of<Tile>(args, tile, 0), q);
  copies.template landed<copies.kAhead>(0);
  PrefillState state;
  float score[Tile::kKeyTiles][4], shrink[2];
  uint32_t p[Tile::kKeyTiles / 2][4];
  const int seen_by_all = visible_keys(tile.first_position + tile.tokens - 1, args.window).first;
  const auto is_edge = [&](int i) {  // not all rows see all of page i
    const int first_key = (first_page + i) * kPageTokens;
    return first_key < seen_by_all || first_key + kPageTokens - 1 > tile.first_position;
  };
  const auto weigh = [&](int i, auto edge) {  // scores of page i to weights
#pragma unroll
    for (auto& tile_scores : score) {
#pragma unroll
      for (float& x : tile_scores) ptx::keep(x);  // no use of them above the wait
    }
    if constexpr (edge()) hide<Tile>(args, tile, 0, (first_page + i) * kPageTokens, score);
    soften<Tile::kKeyTiles, Tile::kPoly>(score, state, shrink);
    ptx::finish_before(state.sum[0] + state.sum[1], ring.base);
  };
  const auto pack = [&] {
#pragma unroll
    for (int s = 0; s < Tile::kKeyTiles / 2; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r) p[s][r] = Kv::pack(score[2 * s + r / 2][r % 2 * 2], score[2 * s + r / 2][r % 2 * 2 + 1]);
    }
  };
  const auto values_done = [&](int i) {  // of page i; its stage is free
    ptx::wgmma_wait<0>();
#pragma unroll
    for (auto& dims : state.out) {
#pragma unroll
      for (float& x : dims) ptx::keep(x);
    }
#pragma unroll
    for (auto& step : p) {
#pragma unroll
      for (uint32_t& x : step) ptx::keep(x);
    }
    if (lane == 0) ptx::mbarrier_arrive(ring.empty(i));
  };
  ptx::mbarrier_wait(ring.full(0), PageRing<Tile>::parity(0));
  ptx::wgmma_fence();
  start_scores(ring, 0, q, score);
  ptx::wgmma_wait<0>();
  copies.template landed<copies.kAhead - 1>(1);
  if (is_edge(0)) {
    weigh(0, std::true_type{});
  } else {
    weigh(0, std::false_type{});
  }
  pack();
  // No branch while a wgmma runs: ptxas would wait for it.
  const auto add_page = [&](int i, auto edge) {
    ptx::wgmma_fence();
    start_scores(ring, i, q, score);
    start_values(ring, i - 1, p, state);
    if constexpr (Tile::kTurns) {
      if (lane == 0) ptx::mbarrier_arrive(ring.turn((group + 1) % Tile::kGroups));
    }
    ptx::wgmma_wait<1>();
    weigh(i, edge);
    values_done(i - 1);
    rescale(state, shrink);
    pack();
  };
#pragma unroll 1
  for (int i = 1; i < count; ++i) {
    copies.issue(i + copies.kAhead);
    copies.template landed<copies.kAhead - 1>(i + 1);
    ptx::mbarrier_wait(ring.full(i), PageRing<Tile>::parity(i));
    if constexpr (Tile::kTurns) ptx::mbarrier_wait(ring.turn(group), static_cast<uint32_t>(i - 1 + (group == 0 ? 1 : 0)) & 1u);
    if (is_edge(i)) {
      add_page(i, std::true_type{});
    } else {
      add_page(i, std::false_type{});
    }
  }
  ptx::wgmma_fence();
  start_values(ring, count - 1, p, state);
  values_done(count - 1);
  store_rows<Kv>(args, tile, rows_of<Tile>(args, tile, 0), state);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtas)
    sm90_attend_prefill(const __grid_constant__ FlashArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  const PageRing<Tile> ring(smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::mbarrier_init(ring.full(i), Tile::kProducer ? kAttendLanes : Tile::kWarps);
      ptx::mbarrier_init(ring.empty(i), Tile::kWarps);
    }
    for (int g = 0; g < Tile::kGroups; ++g) ptx::mbarrier_init(ring.turn(g), 4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const AttendTile tile = args.tiles[gridDim.x - 1 - blockIdx.x];
  const KeyRange visible{visible_keys(tile.first_position, args.window).first, tile.first_position + tile.tokens - 1};
  if (static_cast<int>(threadIdx.x) / kAttendLanes == Tile::kWarps) {
    produce_pages<Tile>(args, tile, visible, ring);
  } else {
    consume_pages<Tile>(args, tile, visible, ring);
  }
}

}  // namespace nibble::backend::cuda

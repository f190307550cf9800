#include "backend/cuda/dense/gemm_plan.h"

#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/layout/packed.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace nibble::backend::cuda {
namespace {

void require(bool holds, const char* want, const GemmArgs& a) {
  if (holds) return;
  throw Error(Code::kUnsupported, "cuda: gemm: want {}, found {} x {}, {} tokens, {} experts, x_share {}", want, a.rows,
              a.cols, a.tokens, a.experts, a.x_share);
}

constexpr int64_t kFixed = 64;          // of a tile's work, what a row or token costs that is read for it, in products
constexpr int64_t kCtaOwnBytes = 1024;  // of shared memory, that a CTA takes itself

int64_t row_blocks(int64_t rows) { return ceil_div(rows / layout::kTileRows, kSplitRowTiles); }

void require(bool holds, const char* want, const GemmShape& s) {
  if (!holds)
    throw Error(Code::kUnsupported, "cuda: split gemm: want {}, found {} x {}, {} tokens", want, s.rows, s.cols,
                s.tokens);
}

void require_shape(const GemmShape& s) {
  require(s.rows > 0 && s.rows % layout::kTileRows == 0, "rows in tiles of 16", s);
  require(layout::slice_blocks(s.cols) != 0, "cols in slices (layout/mx_a_m16k32.h)", s);
  require(s.tokens > 0 && s.tokens <= kSplitMaxTokens, "1 to 256 tokens", s);
}

}  // namespace

GemmPlan plan_tiles(const Plan& launch, int rows, int tokens, int splits) {
  GemmPlan plan{launch, rows, tokens};
  plan.splits = splits;
  plan.tile = fmt::format("{} rows x {} tokens{}, grid {} x {}, {} B shared", rows, tokens,
                          splits > 1 ? fmt::format(", K in {}", splits) : "", plan.grid, plan.grid_y, plan.smem_bytes);
  return plan;
}

void require_tiles(const GemmShape& s) {
  if (s.rows <= 0 || s.rows % layout::kTileRows != 0 || layout::geometry(s.packing, s.cols).slices == 0 ||
      s.tokens <= 0)
    throw Error(Code::kUnsupported,
                "cuda: gemm: want rows in tiles of 16, cols in slices and a token, found {} x {}, {} tokens", s.rows,
                s.cols, s.tokens);
}

GemmPlan plan_gemm_tile(const GemmShape& s, GemmTileSize tile) {
  require_tiles(s);
  const int64_t tiles =
      s.experts > 1 ? max_expert_tiles(s.tokens, s.experts, tile.tokens) : ceil_div(s.tokens, tile.tokens);
  return plan_tiles({.kernel = by_packing(AnyGemm::kNames, s.packing),
                     .grid = ceil_div(s.rows, tile.rows),
                     .grid_y = tiles,
                     .smem_bytes = gemm_stages(s.packing, tile) * gemm_stage_bytes(s.packing, tile)},
                    tile.rows, tile.tokens);
}

GemmPlan plan_gemm(const GemmShape& s, const PlanDevice& device) {
  require_tiles(s);
  const bool tall = 2 * (plan_gemm_tile(s, kGemmExpertsTall).smem_bytes + kCtaOwnBytes) <= device.sm_smem_bytes;
  if (s.experts > 1) return plan_gemm_tile(s, tall ? kGemmExpertsTall : kGemmExperts);
  GemmTileSize best = kGemmFew;
  int64_t best_work = 0;
  for (const GemmTileSize tile : kGemmTiles) {
    if (!gemm_has_tile(s.packing, layout::RowOrder::kPlain, tile) || (tile == kGemmExpertsTall && !tall)) continue;
    const int64_t tiles = ceil_div(s.rows, tile.rows) * ceil_div(s.tokens, tile.tokens);
    const int64_t work = ceil_div(tiles, device.sms) * (tile.rows * tile.tokens + kFixed * (tile.rows + tile.tokens));
    if (best_work != 0 && work > best_work) continue;  // of equals the largest, which reads least
    best = tile;
    best_work = work;
  }
  return plan_gemm_tile(s, best);
}

GemmArgs down_alone(const GemmArgs& args) {
  GemmArgs own = args;
  own.order = layout::RowOrder::kPlain;
  own.weights = args.down.weights;
  own.bias = args.down.bias;
  own.x = args.u;
  own.rows = args.cols;
  own.cols = layout::block_pair_width(args.rows / 2);
  own.x_share = 1;
  own.y16 = args.down.y16;
  own.u = nullptr;
  own.down = {};
  return own;
}

void check_args(const GemmArgs& a) {
  require(a.tokens > 0, "at least one token", a);
  require(a.rows > 0 && a.rows % layout::kTileRows == 0, "rows in tiles of 16", a);
  require(layout::geometry(a.packing, a.cols).slices != 0, "cols in slices (layout/packed.h)", a);
  require(aligned(a.weights) && aligned(a.x), "weights and x, 16-byte aligned", a);
  require(a.x_share > 0 && a.experts > 0, "x_share and experts of at least one", a);
  require(int64_t{a.tokens} / a.x_share * a.cols < int64_t{1} << 31, "x of less than 2^31 elements", a);
  const bool grouped = a.tiles != nullptr;
  require(grouped == (a.pairs != nullptr) && grouped == (a.tile_count != nullptr), "tiles, tile_count and pairs", a);
  require(grouped || (a.experts == 1 && a.x_share == 1), "one matrix where nothing is grouped", a);
  require(a.x_rows == 0 || (a.x_rows % kGroupAlign == 0 && a.x_share == 1 &&
                            a.x_rows >= (grouped ? max_places(a.tokens, a.experts) : a.tokens)),
          "x_rows in atoms of 8 that hold every row", a);
  const bool gate_up = a.order == layout::RowOrder::kGateUp;
  require(gate_up == (a.u != nullptr), "u for gate and up rows, and for nothing else", a);
  require(!gate_up || (a.packing == layout::Packing::kMxfp4 && a.bias != nullptr && aligned(a.u)),
          "MXFP4 and a bias for gate and up rows", a);
  require(a.order != layout::RowOrder::kHeads64 || a.rows % 64 == 0, "heads of 64 rows", a);
  const GemmDown& down = a.down;
  require(down.weights == nullptr || (gate_up && grouped && a.x_rows > 0 &&
                                      layout::geometry(a.packing, layout::block_pair_width(a.rows / 2)).slices != 0 &&
                                      aligned(down.weights) && down.bias != nullptr && aligned(down.y16)),
          "down behind experts' gate and up rows of sm90_gemm, half of these in slices, 16-byte aligned", a);
  require(a.x_scales == nullptr || (grouped && a.x_rows > 0 && aligned(a.x_scales) && down.weights == nullptr &&
                                    (gate_up || a.y16 != nullptr)),
          "codes of rows for one product of experts by sm90_gemm, their scales 16-byte aligned", a);
  require(a.x_scales == nullptr || (a.scale_top >= 0 && a.scale_top <= layout::kMaxNarrowScaleCode),
          "scales up to 2^4 for codes of rows", a);
  if (gate_up) return;
  if (a.y16 != nullptr)
    return require(a.packing == layout::Packing::kMxfp4 && a.order == layout::RowOrder::kPlain && aligned(a.y16),
                   "y16, 16-byte aligned, of plain MXFP4 rows", a);
  const bool panels = a.x_rows > 0, bf16 = a.packing == layout::Packing::kBf16,
             mxfp4 = a.packing == layout::Packing::kMxfp4;
  if (a.sums != nullptr)
    return require(!grouped && (panels ? bf16 || mxfp4 : !bf16) && aligned(a.sums) &&
                       (a.bias == nullptr || (bf16 && a.order == layout::RowOrder::kPlain)) && a.splits > 0 &&
                       (a.splits == 1 || (panels && mxfp4 && a.x_scales == nullptr && a.splits <= kMaxSplits &&
                                          layout::slices_of(a.cols).missing == 0)),
                   "sums, 16-byte aligned, of bf16 in panels, perhaps with a bias of plain rows, of MXFP4 in panels, "
                   "perhaps of parts of K, or of codes",
                   a);
  int row = 0;
  const int step = a.order == layout::RowOrder::kHeads64 ? 64 : layout::kTileRows;
  for (const GemmPart& part : a.parts) {
    require(part.rows == 0 || (part.first_row == row && part.rows % step == 0 && part.to != nullptr),
            "parts one after the other, in tiles of 16 rows or heads of 64", a);
    row += part.rows;
  }
  require(row == a.rows, "parts that hold all rows", a);
}

void check_args(const GroupTiles::Args& a) {
  const bool tiles = a.tile_tokens >= 8 && a.tile_tokens <= 256 && a.tile_tokens % 8 == 0;
  if (a.tokens > 0 && a.topk > 0 && a.experts > 0 && a.experts <= kGroupMaxExperts && tiles) return;
  throw Error(Code::kUnsupported,
              "cuda: moe grouping: want up to {} experts and tiles of 8 to 256 by 8, "
              "found {} tokens, topk {}, {} experts, tiles of {}",
              kGroupMaxExperts, a.tokens, a.topk, a.experts, a.tile_tokens);
}

int split_count(int64_t rows, int64_t cols, int sms) {
  const int64_t pairs = cols / (2 * layout::kBlockK);
  return static_cast<int>(std::clamp<int64_t>(sms / row_blocks(rows), 1, std::min<int64_t>(kMaxSplits, pairs)));
}

SplitGemmPlan plan_split_gemm(const GemmShape& s, int sms) {
  require_shape(s);
  const int* const tile = std::find_if(std::begin(kSplitTokens), std::end(kSplitTokens) - 1,
                                       [&](int tokens) { return s.tokens <= tokens; });
  const SplitCut cut{.tokens = *tile,
                     .token_tiles = static_cast<int>(ceil_div(s.tokens, *tile)),
                     .row_blocks = static_cast<int>(row_blocks(s.rows)),
                     .splits = split_count(s.rows, s.cols, sms),
                     .smem_bytes = split_shared_bytes(*tile)};
  return {{.tile = fmt::format("{} rows x {} tokens, K in {}, grid {} x {} x {}, {} B shared",
                               kSplitRowTiles * layout::kTileRows, cut.tokens, cut.splits, cut.token_tiles,
                               cut.row_blocks, cut.splits, cut.smem_bytes),
           .grid = int64_t{cut.token_tiles} * cut.row_blocks * cut.splits,
           .smem_bytes = cut.smem_bytes},
          cut};
}

void check_args(const SplitGemmArgs& a) {
  const GemmShape shape{a.rows, a.cols, a.tokens};
  require_shape(shape);
  require(aligned(a.weights) && aligned(a.x) && a.sums != nullptr, "weights and x, 16-byte aligned, and sums", shape);
  require(a.x_rows >= a.tokens && a.x_rows % kGroupAlign == 0, "x_rows in atoms of 8 that hold every token", shape);
}

}  // namespace nibble::backend::cuda

// What Hopper has of its own: wgmma.

#include "backend/cuda/arch/arch.h"

#include "backend/cuda/arch/sm90/kernels.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/layout/packed.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend::cuda {

Kernel Sm90Gemm::name(const GemmArgs& args, const GemmPlan& plan) {
  if (args.packing == layout::Packing::kBf16) return Sm90DenseGemm::kName;
  if (plan.rows == kSm90GroupedRows) return Sm90Grouped::kName;
  const bool gate_up = args.order == layout::RowOrder::kGateUp;
  if (args.x_scales != nullptr) return gate_up ? kGateUpCodes : kCodes;
  return args.down.weights != nullptr ? kExperts : gate_up ? kGateUp : kPlain;
}

namespace {

// Pairs of an expert, in the mean, up to which narrow tiles are faster: with more, the few experts that have most of
// the pairs of an uneven router would be cut into too many.
constexpr int kNarrowPairs = 24;
// Most pairs per expert for sm90_grouped: hardly any expert has more than a tile.
constexpr int kGroupedPairs = 16;
constexpr int kWiden = 32;  // of a tile's work, in tokens: weights are widened once per tile

// Cycles of a tile of sm90_dense_gemm: of each 64 k wgmma's, or those in which an SM gets its weights and x from L2, 36
// bytes a cycle; then those in which its sums leave (measured 2026-11-22, H100). A last wave of few CTAs gets its
// operands in as little as half the time.
double dense_cycles(int64_t cols, int tokens, double of_copies) {
  constexpr double kMultiply = 1.0 / 32, kCopy = 128 / 36.0, kStore = 0.2;
  const int rows = dense_row_tiles(tokens) * layout::kTileRows;
  const double of_pair = std::max(rows * tokens * kMultiply, (rows + tokens) * kCopy * of_copies);
  return static_cast<double>(cols / layout::kPanelK) * of_pair + kStore * rows * tokens;
}

// The width whose waves should take the fewest cycles; of nearly equals the widest.
int dense_tile(const GemmShape& s, int sms) {
  constexpr double kNearly = 1.01;
  int best = 0;
  double best_cycles = 0;
  const auto consider = [&](int tokens) {
    const int64_t work_tiles = dense_blocks(s.rows, tokens) * ceil_div(s.tokens, tokens);
    const int64_t waves = ceil_div(work_tiles, sms), last = work_tiles - (waves - 1) * sms;
    const double of_last = waves == 1 ? 1 : 0.5 + 0.5 * static_cast<double>(last) / sms;
    const double cycles =
        static_cast<double>(waves - 1) * dense_cycles(s.cols, tokens, 1) + dense_cycles(s.cols, tokens, of_last);
    if (best != 0 && cycles > kNearly * best_cycles) return;
    best = tokens;
    best_cycles = cycles;
  };
  for (const int tokens : kDenseTokens) consider(tokens);
  if (s.tokens <= kDenseWide) consider(kDenseWide);
  return best;
}

GemmPlan dense_plan(const GemmShape& s, int sms, int tokens) {
  const int64_t work_tiles = dense_blocks(s.rows, tokens) * ceil_div(s.tokens, tokens);
  return plan_tiles({.kernel = Sm90DenseGemm::kName,
                     .grid = std::min<int64_t>(sms, work_tiles),
                     .smem_bytes = dense_shared_bytes(tokens)},
                    dense_row_tiles(tokens) * layout::kTileRows, tokens);
}

int64_t mxfp4_blocks(const GemmShape& s, int row_tiles) { return ceil_div(s.rows / layout::kTileRows, row_tiles); }

// Parts of K of a dense product of few tokens, which whoever reads it adds up: as many as give each SM a CTA.
int mxfp4_splits(const GemmShape& s, int64_t sms) {
  const layout::Slices slices = layout::slices_of(s.cols);
  if (s.experts > 1 || s.row_codes || s.tokens > kSplitMaxTokens || slices.missing > 0) return 1;
  return static_cast<int>(
      std::clamp<int64_t>(sms / mxfp4_blocks(s, kMxfp4RowTiles), 1, std::min(kMaxSplits, slices.count)));
}

GemmPlan mxfp4_plan(const GemmShape& s, int sms, int tokens) {
  if (tokens > kMxfp4Tokens)
    throw Error(Code::kUnsupported, "cuda: gemm: want tiles of up to {} tokens, found {}", kMxfp4Tokens, tokens);
  const int splits = mxfp4_splits(s, sms);
  const int64_t tiles =
      s.experts > 1 ? max_expert_tiles(s.tokens, s.experts, tokens) : ceil_div(s.tokens, tokens) * splits;
  return plan_tiles({.kernel = s.row_codes ? Sm90Gemm::kCodes : Sm90Gemm::kPlain,
                     .grid = std::min<int64_t>(sms, tiles * mxfp4_blocks(s, kMxfp4WarpgroupTiles)),
                     .smem_bytes = mxfp4_shared_bytes(layout::slices_of(s.cols).blocks / 2,
                                                      s.row_codes ? Mxfp4Input::kRowCodes : Mxfp4Input::kF16)},
                    kMxfp4RowTiles * layout::kTileRows, tokens, splits);
}

// The width whose waves do least; of equals the widest, which reads x and weights least.
int mxfp4_tile(const GemmShape& s, int sms) {
  if (s.experts > 1) return s.tokens > kNarrowPairs * s.experts ? kMxfp4Tokens : kMxfp4Narrow;
  int best = 0;
  int64_t best_work = 0;
  for (const int tile : kMxfp4Widths) {
    const int64_t work_tiles = ceil_div(s.tokens, tile) * mxfp4_blocks(s, kMxfp4RowTiles) * mxfp4_splits(s, sms);
    const int64_t work = ceil_div(work_tiles, sms) * (tile + kWiden);
    if (best != 0 && work > best_work) continue;
    best = tile;
    best_work = work;
  }
  return best;
}

using layout::Packing;

std::optional<GemmPlan> serve_sm90_gemm(const GemmShape& s, const DeviceFacts& card) {
  if (s.packing == Packing::kMxfp8 || s.packing == Packing::kQ8 || (s.packing == Packing::kMxfp4 && s.wide_scales))
    return std::nullopt;
  return plan_sm90_gemm(s, card.multiprocessors);
}

std::optional<SplitGemmPlan> serve_sm90_split_gemm(const GemmShape& s, const DeviceFacts& card) {
  if (s.packing != Packing::kBf16 || s.tokens > kSplitMaxTokens) return std::nullopt;
  SplitGemmPlan plan = plan_split_gemm(s, card.multiprocessors);
  plan.kernel = Sm90SplitGemm::kName;
  return plan;
}

std::optional<Plan> serve_sm90_norm_route(const RouteShape& s, const DeviceFacts& /*card*/) {
  if (!norm_route_serves(s)) return std::nullopt;
  Plan plan = plan_norm_route(s);
  plan.kernel = Sm90NormRoute::kName;
  return plan;
}

int64_t most_split_values(int64_t rows, int64_t cols, int64_t tokens, const DeviceFacts& card) {
  const int64_t few = std::min<int64_t>(tokens, kSplitMaxTokens);
  const int splits = std::max(split_count(rows, cols, card.multiprocessors),
                              mxfp4_splits({.rows = rows, .cols = cols, .tokens = few}, card.multiprocessors));
  return splits * split_pitch(few, rows);
}

bool fast_memory(const DeviceFacts& card) {
  constexpr double kFast = 28e9;  // bytes a second and multiprocessor, of memory_bytes_per_s
  return card.memory_bytes_per_s > kFast * card.multiprocessors;
}

std::optional<ExpertsPlan> serve_sm90_experts(const ExpertsShape& s, const DeviceFacts& card) {
  if (s.wide_scales) return std::nullopt;
  const bool codes = s.activations == Activations::kMxfp8 && s.byte_scales;
  GemmShape gate_up{2 * s.inter, s.hidden, s.pairs, s.experts},
      down{s.hidden, layout::block_pair_width(s.inter), s.pairs, s.experts};
  gate_up.row_codes = down.row_codes = codes;
  const bool at_once = !rounds(s.activations) && !s.shares_card && sm90_experts_at_once(s.hidden, s.inter);
  if (at_once && fast_memory(card))
    if (const std::optional<GemmPlan> plan = plan_sm90_grouped(gate_up, card.multiprocessors))
      return ExpertsPlan{.first = *plan, .second = {}, .at_once = true};
  GemmPlan first = plan_sm90_gemm(gate_up, card.multiprocessors);
  first.kernel = at_once ? Sm90Gemm::kExperts : codes ? Sm90Gemm::kGateUpCodes : Sm90Gemm::kGateUp;
  return ExpertsPlan{.first = first,
                     .second = plan_sm90_gemm(down, card.multiprocessors, first.tokens),
                     .at_once = at_once,
                     .row_codes = codes};
}

std::optional<Kernel> serve_sm90_prefill(const PrefillShape& s) {
  if (s.pages == kSm90PrefillPages) return Sm90AttendPrefill::kName;
  return std::nullopt;
}

Plan plan_sm90_prefill(int64_t tiles, int64_t kv_heads, const DeviceFacts& card) {
  const int64_t ctas = std::min<int64_t>(tiles * kv_heads, card.multiprocessors);
  return {.tile = fmt::format("{} x {} tiles of {} tokens, {} CTAs", tiles, kv_heads, kSm90PrefillTokens, ctas),
          .grid = ctas};
}

// Measured with 120b and 20b. An SM of an H100 reads 24 GB/s, of an H200 35 GB/s: there the card is at its power limit
// (docs/decisions/0047). `grouped` takes what an H100's sm90_mxfp4_gemm takes, up to where sm90_grouped is as fast: it
// is slower by 2.7 % of a step of 4 pairs and faster by 1.3 % of 8. A rank with some columns of every expert has no
// sm90_grouped: two H200 were measured with `grouped` up to 8 pairs. exact_pairs: docs/decisions/0079.
Tuned tuned_sm90(const DeviceFacts& card) {
  if (!fast_memory(card)) return {.gemm_at_once_pairs = 64, .grouped_pairs = 3, .exact_pairs = 16, .route_tokens = 512};
  return {
      .gemm_at_once_pairs = 64, .grouped_pairs = 6, .grouped_pairs_apart = 8, .exact_pairs = 16, .route_tokens = 512};
}

}  // namespace

GemmPlan plan_sm90_gemm(const GemmShape& s, int sms, int tile_tokens) {
  require_tiles(s);
  return s.packing == layout::Packing::kBf16 ? dense_plan(s, sms, tile_tokens) : mxfp4_plan(s, sms, tile_tokens);
}

std::optional<GemmPlan> plan_sm90_grouped(const GemmShape& s, int sms) {
  require_tiles(s);
  const layout::Slices slices = layout::slices_of(s.cols);
  const int64_t bytes = sm90_grouped_bytes(s.cols);
  if (s.tokens > kGroupedPairs * s.experts || s.rows != 2 * s.cols || s.cols % kSm90GroupedRows != 0 ||
      slices.missing > 0 || slices.count < kSm90GroupedStages - 1 || bytes > kSm90SharedBytes)
    return std::nullopt;
  const int64_t groups = max_expert_tiles(s.tokens, s.experts, kSm90GroupedTokens) * (s.rows / kSm90GroupedRows);
  return plan_tiles({.kernel = Sm90Grouped::kName, .grid = std::min<int64_t>(sms, groups), .smem_bytes = bytes},
                    kSm90GroupedRows, kSm90GroupedTokens);
}

bool sm90_experts_at_once(int64_t hidden, int64_t inter) {
  const layout::Slices up = layout::slices_of(hidden), down = layout::slices_of(layout::block_pair_width(inter));
  return hidden == inter || (up.missing == 0 && up.blocks == layout::kShortSliceBlocks && down.blocks == up.blocks);
}

GemmPlan plan_sm90_gemm(const GemmShape& s, int sms) {
  require_tiles(s);
  return plan_sm90_gemm(s, sms, s.packing == layout::Packing::kBf16 ? dense_tile(s, sms) : mxfp4_tile(s, sms));
}

Arch sm90() {
  constexpr int kMajor = 9, kCode = 90;  // code for older cards comes without wgmma
  return {
      .name = "sm90",
      .runs_on = [](const DeviceFacts& card) { return card.major == kMajor && (card.code == 0 || card.code >= kCode); },
      .gemm = {.serve = serve_sm90_gemm, .launch = Sm90Gemm::launch, .panels = true, .sums = true},
      .split_gemm = {.serve = serve_sm90_split_gemm, .launch = Sm90SplitGemm::launch, .most_values = most_split_values},
      .norm_route = {.serve = serve_sm90_norm_route, .launch = Sm90NormRoute::launch},
      .experts_gemm = {.serve = serve_sm90_experts, .launch = Sm90Gemm::launch, .by_place = true},
      .prefill = {.serve = serve_sm90_prefill,
                  .plan = plan_sm90_prefill,
                  .launch = Sm90AttendPrefill::launch,
                  .tile_tokens = kSm90PrefillTokens},
      .peak = {.of = "bf16 (wgmma)", .launch = sm90_peak_wgmma},
      .tuned = tuned_sm90};
}

}  // namespace nibble::backend::cuda

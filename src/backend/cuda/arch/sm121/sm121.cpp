// What GB10 (DGX Spark) and other cards of compute capability 12 have of their own: block-scaled products.

#include "backend/cuda/arch/arch.h"

#include "backend/cuda/arch/sm121/kernels.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/layout/packed.h"
#include "base/error.h"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

// Pairs of an expert, in the mean, from which tiles of 128 tokens are the better ones: below, an uneven router fills
// few of them, and weights come from memory no faster. Predicted, not measured.
constexpr int kManyPairs = 48;
// Tokens from which tiles are large for a matrix that is not an expert's: all its tiles but the last are full.
constexpr int kManyTokens = 64;

void require_mx(bool holds, const char* want, const GemmArgs& a) {
  if (holds) return;
  throw Error(Code::kUnsupported, "cuda: sm121_mx_gemm: want {}, found {} x {}, {} tokens, {} experts, x_share {}",
              want, a.rows, a.cols, a.tokens, a.experts, a.x_share);
}

std::optional<ExpertsPlan> serve_sm121_experts(const ExpertsShape& s, const DeviceFacts& card) {
  if (!in_mx_blocks(s.activations) || s.inter % layout::kBlockK != 0 || s.hidden % layout::kBlockPairK != 0)
    return std::nullopt;
  const InputType codes = codes_of(s.activations);
  GemmShape gate_up{.rows = 2 * s.inter, .cols = s.hidden, .tokens = s.pairs, .experts = s.experts};
  gate_up.activations = s.activations;
  GemmShape down = gate_up;
  down.rows = s.hidden;
  down.cols = layout::block_pair_width(s.inter);
  ExpertsPlan plan{.first = plan_mx_gemm(gate_up, card, s.tile_tokens), .second = {}, .input = codes};
  plan.second = plan_mx_gemm(down, card, plan.first.tokens);
  plan.first.kernel = Sm121MxGemm::by_codes(Sm121MxGemm::kGateUp, codes);
  plan.second.kernel = Sm121MxGemm::by_codes(Sm121MxGemm::kDown, codes);
  return plan;
}

std::optional<GemmPlan> serve_sm121_dense(const GemmShape& s, const DeviceFacts& card) {
  if (s.activations != Activations::kMxfp8 || s.packing == layout::Packing::kBf16 || s.experts > 1 ||
      s.cols % layout::kBlockPairK != 0)
    return std::nullopt;
  return plan_mx_gemm(s, card);
}

std::optional<Kernel> serve_sm121_prefill(const PrefillShape& s) {
  if (s.fp8) return Sm121AttendPrefill::kName;
  return std::nullopt;
}

}  // namespace

GemmPlan plan_mx_gemm(const GemmShape& s, const DeviceFacts& card, int tile_tokens) {
  require_tiles(s);
  const bool many = s.tokens > (s.experts > 1 ? kManyPairs * s.experts : kManyTokens);
  const int wanted = many ? 128 : 64, tokens = tile_tokens == 0 ? wanted : tile_tokens;
  check(in_mx_blocks(s.activations), "the GEMMs of block-scaled products multiply codes");
  const int bytes = mx_shared_bytes(codes_of(s.activations), tokens, static_cast<int>(s.cols));
  const int64_t tiles = s.experts > 1 ? max_expert_tiles(s.tokens, s.experts, tokens) : ceil_div(s.tokens, tokens);
  const int64_t works = tiles * ceil_div(s.rows / layout::kTileRows, kMxRowTiles);
  constexpr int kReserved = 1024;  // of each CTA's shared memory
  const int64_t fit = std::max<int64_t>(1, card.sm_smem_bytes / (bytes + kReserved));
  const int64_t ctas = card.multiprocessors * std::min<int64_t>(mx_ctas(tokens), fit);
  return plan_tiles({.kernel = s.packing == layout::Packing::kMxfp8 ? Sm121MxGemm::kMxfp8 : Sm121MxGemm::kMxfp4,
                     .grid = std::min(ctas, works),
                     .smem_bytes = bytes},
                    kMxRowTiles * layout::kTileRows, tokens);
}

void Sm121MxGemm::check(const GemmArgs& a) {
  check_args(a);
  require_mx(in_codes(a.codes), "codes", a);
  require_mx(a.cols % layout::kBlockPairK == 0, "cols in pairs of blocks of 32", a);
  require_mx(a.x_rows == 0 && a.down.weights == nullptr, "rows of codes, a launch per product", a);
  const bool grouped = a.tiles != nullptr;
  require_mx(grouped ? a.u != nullptr || a.y16 != nullptr
                     : (a.sums != nullptr || a.parts[0].rows == a.rows) && a.order == layout::RowOrder::kPlain,
             "u or y16 of experts, else sums or one part of rows as they are packed", a);
  require_mx(a.packing == layout::Packing::kMxfp4 || (!grouped && a.packing == layout::Packing::kMxfp8),
             "MXFP4 weights, or MXFP8 of no experts", a);
  require_mx(grouped || a.codes == InputType::kMxfp8, "MXFP8 codes, or experts", a);
  require_mx(a.u == nullptr || a.rows / 2 % layout::kBlockK == 0, "inter in blocks of 32", a);
  require_mx(int64_t{a.tokens} *
                     layout::mx_row_bytes(element_of(a.codes), std::max(a.cols, layout::block_pair_width(a.rows / 2))) <
                 int64_t{1} << 32,
             "x and u of less than 2^32 bytes", a);
}

Arch sm121() {
  constexpr int kMajor = 12, kCode = 120;
  return {
      .name = "sm121",
      .runs_on = [](const DeviceFacts& card) { return card.major == kMajor && (card.code == 0 || card.code >= kCode); },
      .gemm = {.serve = serve_sm121_dense, .launch = Sm121MxGemm::launch, .codes = true, .sums = true},
      .experts_gemm = {.serve = serve_sm121_experts, .launch = Sm121MxGemm::launch},
      .prefill = {.serve = serve_sm121_prefill,
                  .plan = plan_prefill,
                  .launch = Sm121AttendPrefill::launch,
                  .tile_tokens = kPrefillTokens},
      .peak = {.of = "mxfp8 x mxfp4 (block-scaled mma.sync)", .launch = sm121_peak_mx, .exact16 = false},
  };  // not tuned: nobody has measured
}

}  // namespace nibble::backend::cuda

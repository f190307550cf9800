#include "backend/cuda/norm_rope/around_gemm.h"

#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/layout/wgmma_b.h"

namespace nibble::backend::cuda {
namespace {

void require_sums(Kernel kernel, const SplitSums& sums, const Bf16* bias, int rows) {
  require_shape(sums.splits >= 0 && (sums.of_experts() || sums.splits <= kMaxSplits), kernel, "up to 8 splits",
                sums.splits);
  require_shape(sums.splits == 0 || aligned(sums.at), kernel, "sums, 16-byte aligned", sums.splits);
  require_shape(sums.of_experts() || rows % layout::kTileRows == 0, kernel, "rows in tiles of 16 without experts",
                rows);
  require_shape(sums.of_experts() == (sums.weights != nullptr), kernel, "weights of experts, and of these only",
                sums.splits);
  require_shape(bias == nullptr || (aligned(bias) && sums.splits > 0 && !sums.of_experts()), kernel,
                "a bias, 16-byte aligned, with splits only", sums.splits);
}

}  // namespace

void check_args(const NormSums::Args& a) {
  constexpr Kernel kName = NormSums::kName;
  const bool rounds = a.rounded.at != nullptr;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 8 == 0 && a.hidden <= kNormHidden, kName,
                "hidden a multiple of 8, up to 4096", a.hidden);
  require_sums(kName, a.sums, a.bias, a.hidden);
  require_shape(aligned(a.x) && (a.norm == nullptr || aligned(a.norm)) && (a.normed == nullptr || aligned(a.normed)) &&
                    (!rounds || aligned(a.rounded.at)),
                kName, "x, norm and results, 16-byte aligned", a.hidden);
  require_shape((a.norm != nullptr) == (a.normed != nullptr || rounds), kName,
                "a norm for its results, and for these only", a.hidden);
  require_shape(
      !rounds || a.rounded.rows == 0 ||
          (a.hidden % layout::kPanelK == 0 && a.rounded.rows % kGroupAlign == 0 && a.rounded.rows >= a.tokens),
      kName, "panels of 64 columns whose rows hold the tokens", a.rounded.rows);
  require_shape(!in_codes(a.rounded.type) || (a.rounded.rows == 0 && a.hidden % layout::kBlockPairK == 0), kName,
                "MX blocks in rows of pairs of them", a.hidden);
}

void check_args(const Combine::Args& a) {
  constexpr Kernel kName = Combine::kName;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % layout::kTileRows == 0 && a.hidden <= kNormHidden, kName,
                "hidden in tiles of 16, up to 4096", a.hidden);
  require_sums(kName, a.sums, a.bias, a.hidden);
  require_shape(a.sums.splits > 0 && a.sums.order != SplitSums::Order::kRows, kName, "sums by tiles, or of experts",
                a.sums.splits);
  require_shape(!a.sums.of_experts() || a.ids != nullptr, kName, "experts with ids", a.sums.splits);
  require_shape(aligned(a.tiles), kName, "tiles, 16-byte aligned", a.hidden);
}

void check_args(const RopeSums::Args& a) {
  constexpr Kernel kName = RopeSums::kName;
  require_shape(a.tokens > 0, kName, "at least one token", a.tokens);
  require_shape(a.heads > 0 && a.kv_heads > 0, kName, "heads", a.heads);
  require_sums(kName, a.sums, a.bias, a.rows());
  require_shape(a.sums.splits > 0 && a.bias != nullptr, kName, "splits and a bias", a.sums.splits);
  require_shape(aligned(a.q) && aligned(a.cosine) && aligned(a.sine) && a.kv_slots != nullptr && aligned(a.kv.keys) &&
                    aligned(a.kv.values),
                kName, "q, rope table and pages, 16-byte aligned, and slots", a.tokens);
  require_pages(a.kv.type);
}

void check_args(const Tap::Args& a) {
  const auto in_quads = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  require_shape(a.tokens > 0, Tap::kName, "at least one token", a.tokens);
  require_shape(a.hidden > 0 && a.hidden % 4 == 0, Tap::kName, "hidden a multiple of 4", a.hidden);
  require_shape(a.pitch >= a.hidden && a.pitch % 4 == 0, Tap::kName, "a pitch of whole rows", a.pitch);
  require_shape(a.x != nullptr && a.out != nullptr && in_quads(a.x) && in_quads(a.out) && in_quads(a.sums.at),
                Tap::kName, "x, sums and out, 16-byte aligned", a.hidden);
  require_shape(a.sums.splits == 0 || (a.sums.at != nullptr && a.sums.order == SplitSums::Order::kRows), Tap::kName,
                "sums in rows", a.sums.splits);
}

}  // namespace nibble::backend::cuda

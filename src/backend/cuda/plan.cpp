#include "backend/cuda/plan.h"

#include "backend/cuda/choices.h"
#include "backend/cuda/kernels/any/linear_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::backend {
namespace {

using namespace cuda;  // NOLINT: this file is the room's own
using layout::Packing;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Kernel by_packing(Packing packing, Kernel bf16) {
  return static_cast<Kernel>(static_cast<int>(bf16) + static_cast<int>(packing));
}

class Planner {
 public:
  explicit Planner(const CudaPlanArgs& args)
      : args_(args),
        d_(args.config.dims),
        moe_(choose_moe(args.config, args.options)),
        flash_(choose_flash(args.config, args.options)) {
    for (const Row& row : args.step.rows) tokens_ += row.tokens;
    fused_ = moe_ != MoeKernel::kReference && fused_step(d_, tokens_);
    gemms_ = moe_ == MoeKernel::kGemm && !fused_;
  }

  CudaPlan plan() && {
    per_token(Stage::kEmbed, Kernel::kEmbed, tokens_);
    attn_in();
    for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) attend(kind);
    attn_out();
    route();
    moe();
    if (args_.step.logit_rows > 0) logits();
    return {.moe = moe_, .flash = flash_, .stages = std::move(stages_)};
  }

 private:
  [[nodiscard]] bool plain() const { return moe_ == MoeKernel::kReference; }
  [[nodiscard]] Packing packing(WeightRole role) const { return packing_of(role, args_.config.dense); }

  PlannedStage& add(Stage stage, Kernel kernel, std::string tile) {
    return stages_.emplace_back(
        PlannedStage{.stage = stage, .kernel = std::string(cuda::name_of(kernel)), .tile = std::move(tile)});
  }
  void per_token(Stage stage, Kernel kernel, int64_t tokens) {
    add(stage, kernel, fmt::format("a CTA per token, {} CTAs", tokens));
  }

  void attn_in() {
    if (plain() || gemms_) {
      per_token(Stage::kAttnIn, Kernel::kRmsnorm, tokens_);
      if (plain()) {
        for (const auto& [what, rows] : {std::pair{"q", d_.q_width()}, {"k", d_.kv_width()}, {"v", d_.kv_width()}})
          linear(Stage::kAttnIn, what, tokens_, rows);
      } else {
        dense_gemm(Stage::kAttnIn, WeightRole::kQ, {d_.q_width() + 2 * d_.kv_width(), d_.hidden, tokens_});
      }
      constexpr Kernel kRopeKv[] = {Kernel::kRopeKvBf16, Kernel::kRopeKvF32, Kernel::kRopeKvE4m3};
      return per_token(Stage::kAttnIn, kRopeKv[static_cast<size_t>(page_type(args_.options.kv))], tokens_);
    }
    add(Stage::kAttnIn, Kernel::kRopeTable, fmt::format("a CTA per token, {} CTAs", tokens_)).once = true;
    const Packing packed = packing(WeightRole::kQ);
    gemv(Stage::kAttnIn, by_packing(packed, Kernel::kQkvBf16), {d_.q_width() + 2 * d_.kv_width(), d_.hidden, 1, packed},
         tokens_);
  }

  void attend(LayerKind kind) {
    const KvPages::Type type = page_type(args_.options.kv);
    const bool e4m3 = type == KvPages::Type::kE4m3;
    if (!flash_) {
      add(Stage::kAttend, type == KvPages::Type::kF32 ? Kernel::kAttendF32 : Kernel::kAttendBf16,
          fmt::format("a CTA per head and token, {} x {} CTAs", d_.heads, tokens_))
          .kind = kind;
      return;
    }
    AttendShares shares;
    share_tokens(args_.step.rows, shares);
    if (const auto count = static_cast<int>(shares.decode.size()); count > 0) {
      const DecodePlan plan =
          plan_decode({count, static_cast<int>(d_.kv_heads), e4m3 ? 1 : 2}, attend_device(args_.card));
      PlannedStage& own = add(Stage::kAttend, e4m3 ? Kernel::kAttendDecodeE4m3 : Kernel::kAttendDecodeBf16,
                              fmt::format("{} tokens, keys in at most {} chunks, grid {} x {}, {} B shared", count,
                                          plan.target, plan.grid, d_.kv_heads, plan.smem_bytes));
      own.kind = kind;
      own.shared_bytes = plan.smem_bytes;
    }
    if (!shares.prefill.empty()) {
      add(Stage::kAttend, e4m3 ? Kernel::kAttendPrefillE4m3 : Kernel::kAttendPrefillBf16,
          fmt::format("{} tokens per CTA, grid {} x {}", kPrefillTokens, shares.prefill.size(), d_.kv_heads))
          .kind = kind;
    }
  }

  void attn_out() {
    if (plain()) return linear(Stage::kAttnOut, "o", tokens_, d_.hidden);
    if (gemms_) return dense_gemm(Stage::kAttnOut, WeightRole::kO, {d_.hidden, d_.q_width(), tokens_});
    const Packing packed = packing(WeightRole::kO);
    gemv(Stage::kAttnOut, by_packing(packed, Kernel::kDenseBf16), {d_.hidden, d_.q_width(), 1, packed}, tokens_);
  }

  void route() {
    if (fused_) {
      add(Stage::kRoute, Kernel::kRouter,
          fmt::format("grid {} x {} threads, a CTA per expert", d_.experts, kRouterThreads));
      return;
    }
    per_token(Stage::kRoute, Kernel::kRmsnorm, tokens_);
    linear(Stage::kRoute, "router", tokens_, d_.experts);
    add(Stage::kRoute, Kernel::kTopExperts, "a warp per token");
  }

  void moe() {
    if (plain()) return plain_moe();
    if (gemms_) return gemm_moe();
    const auto matrices = [&](int64_t fused) { return fused_ ? static_cast<int>(fused) : kManyMatrices; };
    constexpr int kDownParts = 2;  // decode_path.cpp
    if (!fused_) add(Stage::kMoe, Kernel::kMoeGroup, "1 CTA");
    gemv(Stage::kMoe, fused_ ? Kernel::kMarlinUp : Kernel::kMarlinGroupedUp,
         {2 * d_.inter, d_.hidden, matrices(tokens_ * d_.topk)});
    gemv(Stage::kMoe, fused_ ? Kernel::kMarlinDown : Kernel::kMarlinGroupedDown,
         {d_.hidden, d_.inter, matrices(kDownParts)});
    if (!fused_) per_token(Stage::kMoe, Kernel::kMoeCombine, tokens_);
  }

  void plain_moe() {
    constexpr int kWarps = 4;  // moe.cu
    const int64_t tiles = max_moe_tiles(tokens_ * d_.topk, d_.experts);
    const auto grid = [&](int64_t units) {
      return fmt::format("2 rows x up to {} tokens of an expert per warp, {} x at most {} CTAs", kMoeTileTokens,
                         ceil_div(units, kWarps), tiles);
    };
    add(Stage::kMoe, Kernel::kMoeGroup, "1 CTA");
    add(Stage::kMoe, Kernel::kMoeGateUp, grid(d_.inter));
    add(Stage::kMoe, Kernel::kMoeDown, grid(d_.hidden / 2));
    per_token(Stage::kMoe, Kernel::kMoeCombine, tokens_);
  }

  void gemm_moe() {
    const GemmDevice device = gemm_device(args_.card, Packing::kMxfp4);
    const int64_t pairs = tokens_ * d_.topk;
    const GemmPlan up = plan_gemm({2 * d_.inter, d_.hidden, pairs, d_.experts}, device);
    const GemmPlan down = plan_gemm({d_.hidden, d_.inter, pairs, d_.experts}, device, up.tokens);
    add(Stage::kMoe, Kernel::kMoeGroupTiles, "1 CTA");
    add(Stage::kMoe, Kernel::kRound, "4 values per thread");
    gemm(Stage::kMoe, device.wgmma ? Kernel::kSm90GemmGateUp : Kernel::kGemmGateUp, up);
    gemm(Stage::kMoe, device.wgmma ? Kernel::kSm90GemmMxfp4 : Kernel::kGemmMxfp4, down);
    per_token(Stage::kMoe, Kernel::kMoeSum, tokens_);
  }

  void logits() {
    const int64_t rows = args_.step.logit_rows;
    if (plain()) {
      per_token(Stage::kLogits, Kernel::kRmsnorm, rows);
      return linear(Stage::kLogits, "lm_head", rows, d_.vocab);
    }
    const Packing packed = packing(WeightRole::kUnembedding);
    gemv(Stage::kLogits, by_packing(packed, Kernel::kDenseBf16), {d_.vocab, d_.hidden, 1, packed}, rows);
  }

  void linear(Stage stage, std::string_view what, int64_t tokens, int64_t rows) {
    const LinearTile tile = linear_tile(tokens);
    add(stage, Kernel::kLinear,
        fmt::format("{}: {} rows x {} tokens per warp, {} x {} CTAs", what, tile.rows, tile.tokens,
                    ceil_div(rows, int64_t{kLinearWarps} * tile.rows), ceil_div(tokens, tile.tokens)));
  }

  // In launches of up to kGemvTokens; tokens 1: one launch, whatever it takes.
  void gemv(Stage stage, Kernel kernel, const GemvShape& shape, int64_t tokens = 1) {
    const GemvPlan plan = plan_gemv(shape, gemv_device(args_.card));
    PlannedStage& own = add(stage, kernel, plan.to_string());
    own.launches = ceil_div(tokens, kGemvTokens);
    own.shared_bytes = plan.smem_bytes;
  }

  void gemm(Stage stage, Kernel kernel, const GemmPlan& plan) {
    add(stage, kernel, plan.to_string()).shared_bytes = plan.smem_bytes;
  }
  void dense_gemm(Stage stage, WeightRole role, const GemmShape& shape) {
    const Packing packed = packing(role);
    const GemmDevice device = gemm_device(args_.card, packed);
    const Kernel wgmma = packed == Packing::kBf16 ? Kernel::kSm90GemmBf16 : Kernel::kSm90GemmMxfp4;
    add(stage, Kernel::kRound, "4 values per thread");
    gemm(stage, device.wgmma ? wgmma : by_packing(packed, Kernel::kGemmBf16), plan_gemm(shape, device));
  }

  static constexpr int kManyMatrices = 1 << 16;  // gemv.cu: tiles are counted on the device

  const CudaPlanArgs& args_;
  const Dims& d_;
  const MoeKernel moe_;
  const bool flash_;
  bool fused_ = false;  // the decode kernels in their fused form
  bool gemms_ = false;  // GEMMs instead of them
  int64_t tokens_ = 0;
  std::vector<PlannedStage> stages_;
};

}  // namespace

CudaPlan cuda_plan(const CudaPlanArgs& args) { return Planner(args).plan(); }

}  // namespace nibble::backend

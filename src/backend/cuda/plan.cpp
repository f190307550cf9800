#include "backend/cuda/plan.h"

#include "backend/cuda/kernels/any/linear_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace nibble::backend {
namespace {

using namespace cuda;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Planner {
 public:
  explicit Planner(const CudaPlanArgs& args) : args_(args) {
    for (const Row& row : args.step.rows) tokens_ += row.tokens;
  }

  std::vector<PlannedStage> plan() && {
    const Dims& d = args_.dims;
    add(Stage::kEmbed, "any_embed_f32_bf16", fmt::format("a CTA per token, {} CTAs", tokens_));
    norm(Stage::kAttnIn, tokens_);
    for (const auto& [what, rows] : {std::pair{"q", d.q_width()}, {"k", d.kv_width()}, {"v", d.kv_width()}})
      linear(Stage::kAttnIn, what, tokens_, rows);
    add(Stage::kAttnIn,
        args_.kv_value_bytes == 4   ? "any_rope_kv_f32"
        : args_.kv_value_bytes == 1 ? "any_rope_kv_e4m3"
                                    : "any_rope_kv_bf16",
        fmt::format("a CTA per token, {} CTAs", tokens_));
    for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) attend(kind);
    linear(Stage::kAttnOut, "o", tokens_, d.hidden);
    norm(Stage::kRoute, tokens_);
    linear(Stage::kRoute, "router", tokens_, d.experts);
    add(Stage::kRoute, "any_top_experts_f32", "a warp per token");
    moe();
    if (args_.step.logit_rows > 0) {
      norm(Stage::kLogits, args_.step.logit_rows);
      linear(Stage::kLogits, "lm_head", args_.step.logit_rows, d.vocab);
    }
    return std::move(stages_);
  }

 private:
  void add(Stage stage, std::string_view kernel, std::string tile, std::optional<LayerKind> kind = {}) {
    stages_.push_back({.stage = stage, .kind = kind, .kernel = std::string(kernel), .tile = std::move(tile)});
  }

  void norm(Stage stage, int64_t rows) {
    add(stage, "any_rmsnorm_f32_bf16", fmt::format("a CTA per token, {} CTAs", rows));
  }

  void linear(Stage stage, std::string_view what, int64_t tokens, int64_t rows) {
    const LinearTile tile = linear_tile(tokens);
    add(stage, "any_linear_f32_bf16",
        fmt::format("{}: {} rows x {} tokens per warp, {} x {} CTAs", what, tile.rows, tile.tokens,
                    ceil_div(rows, int64_t{kLinearWarps} * tile.rows), ceil_div(tokens, tile.tokens)));
  }

  void attend(LayerKind kind) {
    const Dims& d = args_.dims;
    const bool serves =
        args_.flash && args_.kv_value_bytes != 4 && d.head_dim == kHeadDim && d.heads / d.kv_heads <= kGroupHeads;
    const std::string_view type = args_.kv_value_bytes == 1 ? "e4m3" : args_.kv_value_bytes == 4 ? "f32" : "bf16";
    if (!serves) {
      return add(Stage::kAttend, fmt::format("any_attend_f32_{}", type),
                 fmt::format("a CTA per head and token, {} x {} CTAs", d.heads, tokens_), kind);
    }
    AttendShares shares;
    const bool wgmma = args_.device.wgmma && type == "bf16";
    const int each = wgmma ? kWgmmaPrefillTokens : kPrefillTokens;
    share_tokens(args_.step.rows, shares, each);
    if (const auto count = static_cast<int>(shares.decode.size()); count > 0) {
      const DecodePlan plan =
          plan_decode({.tokens = count,
                       .kv_heads = static_cast<int>(d.kv_heads),
                       .kv_bytes = static_cast<int>(args_.kv_value_bytes),
                       .window = kind == LayerKind::kSliding ? static_cast<int>(d.sliding_window) : 0},
                      args_.device);
      add(Stage::kAttend, fmt::format("any_attend_decode_{}_d64_g8", type),
          fmt::format("{} tokens, keys in at most {} chunks, {} x {} CTAs of {} KB", count, plan.target, plan.grid,
                      d.kv_heads, plan.smem_bytes / 1024),
          kind);
    }
    if (!shares.prefill.empty()) {
      add(Stage::kAttend, fmt::format("{}_attend_prefill_{}_d64_g8", wgmma ? "sm90" : "any", type),
          fmt::format("{} tokens per CTA, {} x {} CTAs", each, shares.prefill.size(), d.kv_heads), kind);
    }
  }

  void moe() {
    const Dims& d = args_.dims;
    constexpr int kTileTokens = 8, kWarps = 4;  // kernel_table.h, moe.cu
    const int64_t pairs = tokens_ * d.topk, tiles = pairs / kTileTokens + std::min(pairs, d.experts);
    const auto grid = [&](int64_t units) {
      return fmt::format("2 rows x up to {} tokens of an expert per warp, {} x at most {} CTAs", kTileTokens,
                         ceil_div(units, kWarps), tiles);
    };
    add(Stage::kMoe, "any_moe_group", "1 CTA");
    add(Stage::kMoe, "any_moe_gate_up_f32_mxfp4", grid(d.inter));
    add(Stage::kMoe, "any_moe_down_f32_mxfp4", grid(d.hidden / 2));
    add(Stage::kMoe, "any_moe_combine_f32", fmt::format("a CTA per token, {} CTAs", tokens_));
  }

  const CudaPlanArgs& args_;
  int64_t tokens_ = 0;
  std::vector<PlannedStage> stages_;
};

}  // namespace

std::vector<PlannedStage> cuda_plan(const CudaPlanArgs& args) { return Planner(args).plan(); }

}  // namespace nibble::backend

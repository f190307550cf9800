#include "backend/cuda/plan.h"

#include "backend/cuda/kernels/any/rounding.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/gemv_int8.h"
#include "backend/cuda/kernels/any/grouped_plan.h"
#include "backend/cuda/kernels/any/linear_plan.h"
#include "backend/cuda/kernels/any/split_gemm_plan.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::backend {
namespace {

using namespace cuda;  // NOLINT: this file is the room's own
using layout::Packing;
using enum WeightRole;
using Roles = std::vector<WeightRole>;

Kernel by_packing(Packing packing, Kernel bf16) {
  return static_cast<Kernel>(static_cast<int>(bf16) + static_cast<int>(packing));
}

class Planner {
 public:
  explicit Planner(const CudaPlanArgs& args)
      : args_(args),
        d_(args.config.dims),
        moe_(choose_moe(args.config, args.options)),
        flash_(choose_flash(args.config, args.options)),
        activations_(choose_activations(moe_, args.options)),
        tuned_(args.options.tuned.value_or(tuned(args.card.major))),
        cost_{d_, StoredFormats::of({}, args.config.dense)} {
    cost_.formats.kv_value_bytes = static_cast<double>(value_bytes(page_type(args.options.kv)));
    for (const Row& row : args.step.rows) tokens_ += row.tokens;
    fused_ = moe_ != MoeKernel::kReference && fused_step(d_, tokens_);
    dense_gemms_ = dense_by_gemm(moe_, d_, tokens_);
  }

  CudaPlan plan() && {
    stage_ = Stage::kEmbed;
    per_token(Kernel::kEmbed, tokens_, {kEmbedding});
    attn_in();
    for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) attend(kind);
    attn_out();
    route();
    moe();
    if (args_.step.logit_rows > 0) logits();
    return {.moe = moe_, .flash = flash_, .activations = activations_, .stages = std::move(stages_)};
  }

 private:
  [[nodiscard]] bool plain() const { return moe_ == MoeKernel::kReference; }
  [[nodiscard]] Packing packing(WeightRole role) const { return packing_of(role, args_.config.dense); }
  [[nodiscard]] size_t kv_type() const { return static_cast<size_t>(page_type(args_.options.kv)); }  // bf16, f32, e4m3

  PlannedStage& add(Kernel kernel, std::string tile, Roles reads = {}) {
    PlannedStage own{.stage = stage_, .kernel = std::string(cuda::name_of(kernel)), .tile = std::move(tile)};
    for (const WeightRole role : reads) own.cost += cost_.of(role, args_.step);
    return stages_.emplace_back(std::move(own));
  }
  PlannedStage& per_token(Kernel kernel, int64_t tokens, Roles reads = {}) {
    return add(kernel, fmt::format("a CTA per token, {} CTAs", tokens), reads);
  }

  void attn_in() {
    stage_ = Stage::kAttnIn;
    const int64_t q = d_.q_width(), kv = d_.kv_width();
    if (!plain()) per_token(Kernel::kRopeTable, tokens_).once = true;
    if (!plain() && !dense_gemms_) {
      const Packing packed = packing(kQ);
      return gemv(by_packing(packed, Kernel::kQkvBf16), {q + 2 * kv, d_.hidden, 1, packed}, tokens_,
                  {kAttnNorm, kQ, kK, kV, kQBias, kKBias, kVBias});
    }
    if (dense_gemms_) {
      per_token(Kernel::kNormSums, tokens_, {kAttnNorm});
      const GemmShape qkv{q + 2 * kv, d_.hidden, tokens_, 1, packing(kQ)};
      const GemmDevice device = gemm_device(args_.card, qkv.packing);
      if (gemm_turns(qkv.packing, device.wgmma, tokens_))
        return planned_gemm(Kernel::kSm90GemmQkv, plan_gemm(qkv, device), {kQ, kK, kV, kQBias, kKBias, kVBias});
      sums(qkv.packing, qkv, {kQ, kK, kV});
      attend_turns_ = flash_ && split_gemm_serves(qkv.packing, device.wgmma, tokens_) && lone_tokens(args_.step.rows);
      if (!attend_turns_) add(Kernel::kRopeSums, "8 rows of a token per thread", {kQBias, kKBias, kVBias});
      return;
    }
    per_token(Kernel::kRmsnorm, tokens_, {kAttnNorm});
    linear("q", tokens_, q, {kQ, kQBias});
    linear("k", tokens_, kv, {kK, kKBias});
    linear("v", tokens_, kv, {kV, kVBias});
    constexpr Kernel kRopeKv[] = {Kernel::kRopeKvBf16, Kernel::kRopeKvF32, Kernel::kRopeKvE4m3};
    per_token(kRopeKv[kv_type()], tokens_);
  }

  void attend(LayerKind kind) {
    stage_ = Stage::kAttend;
    const auto place = [&](PlannedStage& own, const std::vector<Row>& rows) {
      own.kind = kind;
      own.cost += cost_.of(stage_, kind, {.rows = rows});
    };
    if (!flash_) {
      return place(add(kv_type() == 1 ? Kernel::kAttendF32 : Kernel::kAttendBf16,
                       fmt::format("a CTA per head and token, {} x {} CTAs", d_.heads, tokens_)),
                   {args_.step.rows.begin(), args_.step.rows.end()});
    }
    const bool e4m3 = kv_type() == 2;
    std::vector<Row> decodes, prefills;
    for (const Row& row : args_.step.rows) (row.tokens <= kMaxDecodeTokens ? decodes : prefills).push_back(row);
    AttendShares shares;
    const AttendDevice device = attend_device(args_.card, e4m3 ? 1 : 2);
    share_tokens(args_.step.rows, shares, tile_tokens(device));
    if (const auto count = static_cast<int>(shares.decode.size()); count > 0) {
      const DecodePlan plan =
          plan_decode({.tokens = count,
                       .kv_heads = static_cast<int>(d_.kv_heads),
                       .kv_bytes = e4m3 ? 1 : 2,
                       .window = kind == LayerKind::kSliding ? static_cast<int>(d_.sliding_window) : 0},
                      device);
      PlannedStage& own = add(e4m3 ? Kernel::kAttendDecodeE4m3 : Kernel::kAttendDecodeBf16,
                              decode_tile(plan, count, static_cast<int>(d_.kv_heads), attend_turns_),
                              attend_turns_ ? Roles{kQBias, kKBias, kVBias} : Roles{});
      own.shared_bytes = plan.smem_bytes;
      place(own, decodes);
    }
    if (!shares.prefill.empty()) {
      const Kernel kernel = device.wgmma ? Kernel::kSm90AttendPrefill
                            : e4m3       ? Kernel::kAttendPrefillE4m3
                                         : Kernel::kAttendPrefillBf16;
      const auto tiles = static_cast<int64_t>(shares.prefill.size());
      place(add(kernel, prefill_tile(tiles, d_.kv_heads, device)), prefills);
    }
  }

  void attn_out() {
    stage_ = Stage::kAttnOut;
    const Roles reads = {kO, kOBias};
    if (plain()) return linear("o", tokens_, d_.hidden, reads);
    const Packing packed = packing(kO);
    if (dense_gemms_) {
      if (!flash_) add(Kernel::kRound, "8 values per thread");
      return sums(packed, {d_.hidden, d_.q_width(), tokens_}, reads);
    }
    gemv(by_packing(packed, Kernel::kDenseBf16), {d_.hidden, d_.q_width(), 1, packed}, tokens_, reads);
  }

  void route() {
    stage_ = Stage::kRoute;
    if (fused_) {
      add(Kernel::kRouter, fmt::format("grid {} x {} threads, a CTA per expert", d_.experts, kRouterThreads),
          {kMlpNorm, kRouter, kRouterBias});
      return;
    }
    if (plain()) {
      per_token(Kernel::kRmsnorm, tokens_, {kMlpNorm});
      linear("router", tokens_, d_.experts, {kRouter, kRouterBias});
      add(Kernel::kTopExperts, "a warp per token");
      return;
    }
    if (router_by_sums(moe_, d_, tuned_, tokens_)) {
      if (!norm_while_rounding(activations_, experts_by_gemm(moe_, activations_, d_, tuned_, tokens_)))
        per_token(Kernel::kNormSums, tokens_, {kMlpNorm});
      add(Kernel::kRouteSums, "16 or 32 tokens per CTA", {kMlpNorm, kRouter, kRouterBias});
      return;
    }
    per_token(Kernel::kNormSums, tokens_, {kMlpNorm});
    if (!router_by_tiles(tuned_, tokens_)) {
      linear("router", tokens_, d_.experts, {kRouter, kRouterBias});
      add(Kernel::kTopExperts, "a warp per token");
      return;
    }
    const RoutePlan plan = plan_route({tokens_, d_.hidden, d_.experts}, args_.card.multiprocessors);
    add(Kernel::kRouteTokens, plan.to_string(), {kRouter, kRouterBias}).shared_bytes = plan.smem_bytes;
  }

  void moe() {
    stage_ = Stage::kMoe;
    const Roles up = {kGateUp, kGateUpBias}, down = {kDown, kDownBias};
    if (plain()) return plain_moe(up, down);
    round_blocks();
    if (moe_ == MoeKernel::kGemv) return int8_moe(up, down);
    if (experts_by_gemm(moe_, activations_, d_, tuned_, tokens_)) return gemm_moe(up, down);
    if (fused_) {
      constexpr int kParts = 2;  // decode_path.cpp
      row_warps(Kernel::kMarlinUp, d_.hidden, {.rows = kGemvTokens}, up);
      round_blocks();
      return gemv(Kernel::kMarlinDown, {d_.hidden, d_.inter, kParts}, 1, down);
    }
    add(Kernel::kMoeGroupTiles, "a CTA per expert");
    row_warps(Kernel::kMarlinGroupedUp, d_.hidden, kGrouped, up);
    round_blocks();
    row_warps(Kernel::kMarlinGroupedDown, d_.inter, kGrouped, down);
    sum_experts();
  }

  void round_blocks() {
    if (activations_ == ExpertActivations::kExact) return;
    add(activations_ == ExpertActivations::kInt8 ? Kernel::kRoundInt8 : Kernel::kRoundMxfp8,
        "a block of 32 per 4 threads");
  }

  void int8_moe(const Roles& up, const Roles& down) {
    const int64_t pairs = tokens_ * d_.topk;
    if (fused_) add(Kernel::kTopExperts, "a warp per token");
    add(Kernel::kMoeGroupTiles, "a CTA per expert");
    add(Kernel::kGemvUp, plan_gemv_int8(2 * d_.inter, pairs, d_.experts).to_string(), up);
    round_blocks();
    add(Kernel::kGemvDown, plan_gemv_int8(d_.hidden, pairs, d_.experts).to_string(), down);
    sum_experts();
  }

  // decode_path.cpp moe: where GEMMs take the dense layers, the next norm does it.
  void sum_experts() {
    if (!dense_gemms_) per_token(Kernel::kNormSums, tokens_);
  }

  void plain_moe(const Roles& up, const Roles& down) {
    constexpr int kWarps = 4;  // moe.cu
    const int64_t tiles = max_moe_tiles(tokens_ * d_.topk, d_.experts);
    const auto grid = [&](int64_t units) {
      return fmt::format("2 rows x up to {} tokens of an expert per warp, {} x at most {} CTAs", kMoeTileTokens,
                         ceil_div(units, kWarps), tiles);
    };
    add(Kernel::kMoeGroup, "1 CTA");
    add(Kernel::kMoeGateUp, grid(d_.inter), up);
    add(Kernel::kMoeDown, grid(d_.hidden / 2), down);
    per_token(Kernel::kMoeCombine, tokens_);
  }

  void gemm_moe(const Roles& up, const Roles& down) {
    const GemmDevice device = gemm_device(args_.card, Packing::kMxfp4);
    const int64_t pairs = tokens_ * d_.topk;
    const GemmPlan first = plan_gemm({2 * d_.inter, d_.hidden, pairs, d_.experts}, device);
    const GemmPlan second = plan_gemm({d_.hidden, d_.inter, pairs, d_.experts}, device, first.tokens);
    if (group_while_rounding(device.wgmma, pairs)) {
      add(Kernel::kGroupRound, "8 values per thread");
    } else {
      add(Kernel::kMoeGroupTiles, "a CTA per expert");
      add(Kernel::kRound, "8 values per thread");
    }
    if (device.wgmma && experts_at_once(activations_, d_))
      return planned_gemm(Kernel::kSm90GemmExperts, first, {kGateUp, kGateUpBias, kDown, kDownBias});
    planned_gemm(device.wgmma ? Kernel::kSm90GemmGateUp : Kernel::kGemmGateUp, first, up);
    round_blocks();
    planned_gemm(device.wgmma ? Kernel::kSm90GemmMxfp4 : Kernel::kGemmMxfp4, second, down);
  }

  void logits() {
    stage_ = Stage::kLogits;
    const int64_t rows = args_.step.logit_rows;
    if (plain()) {
      per_token(Kernel::kRmsnorm, rows, {kFinalNorm});
      return linear("lm_head", rows, d_.vocab, {kUnembedding});
    }
    const Packing packed = packing(kUnembedding);
    if (dense_gemms_) per_token(Kernel::kNormSums, tokens_);  // the last experts' sums
    if (logits_by_gemm(moe_, rows)) {
      per_token(Kernel::kRmsnorm, rows, {kFinalNorm});
      add(Kernel::kRound, "8 values per thread");
      return gemm(packed, {d_.vocab, d_.hidden, rows}, {kUnembedding});
    }
    gemv(by_packing(packed, Kernel::kDenseBf16), {d_.vocab, d_.hidden, 1, packed}, rows, {kFinalNorm, kUnembedding});
  }

  void linear(std::string_view what, int64_t tokens, int64_t rows, const Roles& reads) {
    const LinearTile tile = linear_tile(tokens);
    add(Kernel::kLinear,
        fmt::format("{}: {} rows x {} tokens per warp, {} x {} CTAs", what, tile.rows, tile.tokens,
                    ceil_div(rows, int64_t{kLinearWarps} * tile.rows), ceil_div(tokens, tile.tokens)),
        reads);
  }

  // In launches of up to kGemvTokens; tokens 1: in one, whatever it takes.
  void gemv(Kernel kernel, const GemvShape& shape, int64_t tokens, const Roles& reads) {
    const GemvPlan plan = plan_gemv(shape, gemv_device(args_.card));
    PlannedStage& own = add(kernel, plan.to_string(), reads);
    own.launches = ceil_div(tokens, kGemvTokens);
    own.shared_bytes = plan.smem_bytes;
  }

  void row_warps(Kernel kernel, int64_t cols, const RowWarpsWish& wish, const Roles& reads) {
    const RowWarpsPlan plan = plan_row_warps(cols, wish, gemv_device(args_.card));
    add(kernel, plan.to_string(), reads).shared_bytes = plan.smem_bytes;
  }

  void gemm(Packing packed, GemmShape shape, const Roles& reads) {
    shape.packing = packed;
    const GemmDevice device = gemm_device(args_.card, packed);
    const Kernel wgmma = packed == Packing::kBf16 ? Kernel::kSm90GemmBf16 : Kernel::kSm90GemmMxfp4;
    planned_gemm(device.wgmma ? wgmma : by_packing(packed, Kernel::kGemmBf16), plan_gemm(shape, device), reads);
  }
  // gemm_path.h sums; its o's bias is read by the next norm.
  void sums(Packing packed, const GemmShape& shape, const Roles& reads) {
    if (!split_gemm_serves(packed, gemm_device(args_.card, packed).wgmma, tokens_)) return gemm(packed, shape, reads);
    const SplitGemmPlan plan = plan_split_gemm(shape, args_.card.multiprocessors);
    add(Kernel::kSm90SplitGemmBf16, plan.to_string(), reads).shared_bytes = plan.smem_bytes;
  }
  void planned_gemm(Kernel kernel, const GemmPlan& plan, const Roles& reads) {
    add(kernel, plan.to_string(), reads).shared_bytes = plan.smem_bytes;
  }

  const CudaPlanArgs& args_;
  const Dims& d_;
  const MoeKernel moe_;
  const bool flash_;
  const ExpertActivations activations_;
  const Tuned tuned_;
  CostModel cost_;
  bool fused_ = false;         // the decode kernels in their fused form
  bool dense_gemms_ = false;   // GEMMs instead of them
  bool attend_turns_ = false;  // decode attention makes q, k and v of qkv's sums
  int64_t tokens_ = 0;
  Stage stage_ = Stage::kEmbed;  // being planned
  std::vector<PlannedStage> stages_;
};

}  // namespace

CudaPlan cuda_plan(const CudaPlanArgs& args) { return Planner(args).plan(); }

}  // namespace nibble::backend

#include "backend/cuda/decode_path.h"

#include "backend/cuda/kernels/any/attend_plan.h"
#include "backend/cuda/kernels/any/gemv_int8.h"
#include "backend/cuda/kernels/any/round_blocks.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;

int to_int(int64_t value) { return static_cast<int>(value); }

Kernel by_packing(Packing packing, Kernel bf16) {
  static_assert(static_cast<int>(Kernel::kQkvMxfp4) == static_cast<int>(Kernel::kQkvBf16) + 2);
  static_assert(static_cast<int>(Kernel::kDenseMxfp4) == static_cast<int>(Kernel::kDenseBf16) + 2);
  return static_cast<Kernel>(static_cast<int>(bf16) + static_cast<int>(packing));
}

}  // namespace

bool DecodePath::fused() const { return fused_step(d_, tokens_); }

GemvLaunch DecodePath::chained(const Launch& on) const {
  return {.device = device_, .stream = on.stream, .chain = Chain::kChained};
}

RowsIn DecodePath::residual(int64_t first) const {
  return {.x = at_.residual + first * d_.hidden, .pending = pending_ ? at_.pending : nullptr, .eps = config_.rms_eps};
}

void DecodePath::attn_in(const AttnInWeights& w, int layer, const int32_t* positions, const int32_t* kv_slots,
                         const Launch& on) {
  const int64_t half = d_.head_dim / 2;
  if (layer == 0) {
    kernels_.rope_table({.positions = positions,
                         .inv_freq = at_.rope_inv_freq,
                         .cosine = at_.rope_cosine,
                         .sine = at_.rope_sine,
                         .tokens = to_int(tokens_),
                         .half = to_int(half),
                         .concentration = config_.rope_concentration},
                        on);
  }
  const KvPages& kv = at_.kv[static_cast<size_t>(layer)];
  if (dense_by_gemm(kernel_, d_, tokens_)) return many_attn_in(w, kv, kv_slots, on);
  for (int64_t t = 0; t < tokens_; t += kGemvTokens) {
    RowsIn in = residual(t);
    in.norm = w.norm;
    in.normed = at_.normed + t * d_.hidden;
    gemv_qkv({.packing = w.qkv.packing,
              .weights = w.qkv.data,
              .bias = w.bias,
              .in = in,
              .q = at_.q + t * d_.q_width(),
              .cosine = at_.rope_cosine + t * half,
              .sine = at_.rope_sine + t * half,
              .kv_slots = kv_slots + t,
              .keys = kv.keys,
              .values = kv.values,
              .kv_bytes = to_int(value_bytes(kv.type)),
              .heads = to_int(d_.heads),
              .kv_heads = to_int(d_.kv_heads),
              .cols = to_int(d_.hidden),
              .tokens = to_int(std::min<int64_t>(kGemvTokens, tokens_ - t))},
             chained(on));
    launched(by_packing(w.qkv.packing, Kernel::kQkvBf16), on);
  }
}

// The residual with all that it has still to get from attn_out.
NormSumsArgs DecodePath::settled_residual() const {
  return {.x = at_.residual,
          .sums = owed_.sums,
          .bias = owed_.bias,
          .experts = owed_.experts,
          .tokens = to_int(tokens_),
          .hidden = to_int(d_.hidden),
          .eps = config_.rms_eps};
}

void DecodePath::many_attn_in(const AttnInWeights& w, const KvPages& kv, const int32_t* kv_slots, const Launch& on) {
  NormSumsArgs norm = settled_residual();
  norm.norm = unwritten_norm_ = w.norm;
  norm.rounded = gemms_->input(w.qkv.packing, tokens_);
  any_norm_sums(norm, on);
  owed_ = {};
  unturned_ = gemms_->qkv({.packing = w.qkv.packing,
                           .weights = w.qkv.data,
                           .rows = to_int(d_.q_width() + 2 * d_.kv_width()),
                           .cols = to_int(d_.hidden),
                           .tokens = to_int(tokens_)},
                          {.bias = w.bias,
                           .q = at_.q,
                           .cosine = at_.rope_cosine,
                           .sine = at_.rope_sine,
                           .kv_slots = kv_slots,
                           .kv = kv,
                           .tokens = to_int(tokens_),
                           .heads = to_int(d_.heads),
                           .kv_heads = to_int(d_.kv_heads)},
                          on);
}

void DecodePath::turn(Launch on) {
  on.stage = Stage::kAttnIn;  // whoever asks
  if (unturned_.sums.splits > 0) any_rope_sums(unturned_, on);
  unturned_ = {};
}

RopeSumsArgs DecodePath::attend_input(std::span<const Row> rows, const Launch& on) {
  if (!flash_ || unturned_.sums.order != SplitSums::Order::kTiles || !lone_tokens(rows)) turn(on);
  return std::exchange(unturned_, {});
}

// In launches of eight rows; in, pending, y and which advance by them.
void DecodePath::run_dense(DenseArgs args, int64_t rows, const Launch& on) const {
  for (int64_t t = 0; t < rows; t += kGemvTokens) {
    DenseArgs own = args;
    if (own.in.which != nullptr) {
      own.in.which += t;
    } else {
      own.in.x += t * args.cols;
    }
    if (own.in.normed != nullptr) own.in.normed += t * args.cols;
    own.y += t * args.rows;
    own.tokens = to_int(std::min<int64_t>(kGemvTokens, rows - t));
    gemv_dense(own, chained(on));
    launched(by_packing(args.packing, Kernel::kDenseBf16), on);
  }
}

void DecodePath::attn_out(const LinearWeights& w, const Launch& on) {
  if (dense_by_gemm(kernel_, d_, tokens_)) {
    const GemmArgs args{.packing = w.matrix.packing,
                        .weights = w.matrix.data,
                        .rows = to_int(d_.hidden),
                        .cols = to_int(d_.q_width()),
                        .tokens = to_int(tokens_)};
    if (!flash_) gemms_->round(at_.attn, args, on);
    owed_ = {.sums = gemms_->sums(args, on), .bias = w.bias, .experts = {}};
    unwritten_norm_ = nullptr;
    return;
  }
  run_dense({.packing = w.matrix.packing,
             .weights = w.matrix.data,
             .bias = w.bias,
             .in = {.x = at_.attn},
             .y = at_.residual,
             .pending = pending_ ? at_.pending : nullptr,
             .rows = to_int(d_.hidden),
             .cols = to_int(d_.q_width()),
             .into = Into::kAdd},
            tokens_, on);
  pending_ = false;
}

GemmInput DecodePath::attn_input() const {
  return flash_ && dense_by_gemm(kernel_, d_, tokens_)
             ? gemms_->input(packing_of(WeightRole::kO, config_.dense), tokens_)
             : GemmInput{};
}

void DecodePath::route(const RouteWeights& w, const Launch& on) {
  if (fused()) {
    route_logits({.x = at_.residual,
                  .norm = w.norm,
                  .weight = w.router,
                  .bias = w.bias,
                  .normed = at_.normed,
                  .rounded = at_.normed_f16,
                  .logits = at_.router_logits,
                  .hidden = to_int(d_.hidden),
                  .experts = to_int(d_.experts),
                  .tokens = to_int(tokens_),
                  .eps = config_.rms_eps},
                 chained(on));
    launched(Kernel::kRouter, on);
    chosen_ = false;
    return;
  }
  if (router_by_sums(kernel_, d_, tuned_, tokens_)) return many_route(w, on);
  NormSumsArgs norm = settled_residual();
  norm.norm = w.norm;
  norm.normed = at_.normed;
  if (!experts_on_gemms()) norm.rounded = {.at = &at_.normed_f16->bits, .type = InputType::kF16};
  any_norm_sums(norm, on);
  owed_ = {};
  if (!router_by_tiles(tuned_, tokens_)) {
    kernels_.linear({.weight = w.router,
                     .bias = w.bias,
                     .x = at_.normed,
                     .out = at_.router_logits,
                     .tokens = to_int(tokens_),
                     .rows = to_int(d_.experts),
                     .cols = to_int(d_.hidden)},
                    on);
    chosen_ = false;
    return settle(on);
  }
  any_route_tokens({.x = at_.normed,
                    .weight = w.router,
                    .bias = w.bias,
                    .logits = at_.router_logits,
                    .ids = at_.expert_ids,
                    .weights = at_.expert_weights,
                    .finished = at_.route_finished,
                    .tokens = to_int(tokens_),
                    .hidden = to_int(d_.hidden),
                    .experts = to_int(d_.experts),
                    .topk = to_int(d_.topk)},
                   plan_route({tokens_, d_.hidden, d_.experts}, device_.sms), on);
}

// The GEMMs' rounding takes the residual and its inverses; whoever else multiplies gets the norm.
void DecodePath::many_route(const RouteWeights& w, const Launch& on) {
  unwritten_norm_ = w.norm;
  if (!norm_while_rounding(activations_, experts_on_gemms())) {
    NormSumsArgs norm = settled_residual();
    norm.norm = w.norm;
    if (activations_ == ExpertActivations::kExact) {
      norm.rounded = {.at = &at_.normed_f16->bits, .type = InputType::kF16};
    } else {
      norm.normed = at_.normed;
      unwritten_norm_ = nullptr;
    }
    any_norm_sums(norm, on);
    owed_ = {};
  }
  any_route_sums({.x = at_.residual,
                  .sums = owed_.sums,
                  .bias = owed_.bias,
                  .norm = w.norm,
                  .weight = w.router,
                  .router_bias = w.bias,
                  .inverse = at_.inverse,
                  .logits = at_.router_logits,
                  .ids = at_.expert_ids,
                  .weights = at_.expert_weights,
                  .tokens = to_int(tokens_),
                  .hidden = to_int(d_.hidden),
                  .experts = to_int(d_.experts),
                  .topk = to_int(d_.topk),
                  .eps = config_.rms_eps},
                 on);
  owed_ = {};
}

ExpertChoice DecodePath::choice() const {
  return {.logits = at_.router_logits,
          .expert_ids = at_.expert_ids,
          .expert_weights = at_.expert_weights,
          .experts = to_int(d_.experts),
          .topk = to_int(d_.topk)};
}

void DecodePath::round_blocks(float* from, F16* to, int64_t values, const Launch& on) const {
  if (activations_ != ExpertActivations::kExact)
    any_round_blocks({.form = activations_, .from = from, .to = to, .values = values}, on);
}

void DecodePath::moe(const MoeWeights& w, const Launch& on) {
  round_blocks(at_.normed, at_.normed_f16, tokens_ * d_.hidden, on);
  if (kernel_ == MoeKernel::kGemv) settle(on);  // the experts, which its kernels do not choose
  if (fused() && kernel_ != MoeKernel::kGemv) return fused_moe(w, on);
  owed_.experts = experts_on_gemms() ? gemm_moe(w, on) : grouped_moe(w, on);
  unwritten_norm_ = nullptr;
  if (!dense_by_gemm(kernel_, d_, tokens_)) settle_residual(on);  // else the next norm adds them
}

ExpertSums DecodePath::gemm_moe(const MoeWeights& w, const Launch& on) const {
  const bool norms = unwritten_norm_ != nullptr;  // while it rounds
  return gemms_->moe({.up = w.up,
                      .down = w.down,
                      .up_bias = w.up_bias,
                      .down_bias = w.down_bias,
                      .x = norms ? at_.residual : at_.normed,
                      .inverse = norms ? at_.inverse : nullptr,
                      .norm = unwritten_norm_,
                      .expert_ids = at_.expert_ids,
                      .expert_weights = at_.expert_weights,
                      .tokens = to_int(tokens_),
                      .activations = activations_},
                     on);
}

void DecodePath::fused_moe(const MoeWeights& w, const Launch& on) {
  gemv_moe_up({.weights = w.up,
               .bias = w.up_bias,
               .x = at_.normed_f16,
               .choice = choice(),
               .u = at_.expert_hidden_f16,
               .hidden = to_int(d_.hidden),
               .inter = to_int(d_.inter),
               .tokens = to_int(tokens_),
               .swiglu_limit = config_.swiglu_limit},
              chained(on));
  launched(Kernel::kMarlinUp, on);
  round_blocks(nullptr, at_.expert_hidden_f16, tokens_ * d_.topk * d_.inter, on);
  chosen_ = true;
  ExpertChoice again = choice();
  again.expert_ids = nullptr;
  again.expert_weights = nullptr;
  gemv_moe_down({.weights = w.down,
                 .bias = w.down_bias,
                 .u = at_.expert_hidden_f16,
                 .choice = again,
                 .y = at_.residual,
                 .pending = at_.pending,
                 .hidden = to_int(d_.hidden),
                 .inter = to_int(d_.inter),
                 .tokens = to_int(tokens_),
                 .parts = 2},
                chained(on));
  launched(Kernel::kMarlinDown, on);
  pending_ = true;
}

ExpertSums DecodePath::grouped_moe(const MoeWeights& w, const Launch& on) {
  const bool int8 = kernel_ == MoeKernel::kGemv;
  const int64_t pairs = tokens_ * d_.topk;
  any_moe_group_tiles({.expert_ids = at_.expert_ids,
                       .pairs = at_.moe_pairs,
                       .tiles = at_.moe_tiles,
                       .tile_counts = at_.moe_tile_counts,
                       .tokens = to_int(tokens_),
                       .topk = to_int(d_.topk),
                       .experts = to_int(d_.experts),
                       .tile_tokens = int8 ? kMoeTileTokens : grouped_tokens(d_.hidden, d_.inter, device_)},
                      on);
  const MoeGroups groups{at_.moe_pairs, at_.moe_tiles, at_.moe_tile_counts, to_int(d_.topk)};
  const GroupedUpArgs up{.weights = w.up,
                         .bias = w.up_bias,
                         .x = at_.normed_f16,
                         .groups = groups,
                         .u = at_.expert_hidden_f16,
                         .hidden = to_int(d_.hidden),
                         .inter = to_int(d_.inter),
                         .swiglu_limit = config_.swiglu_limit};
  const GroupedDownArgs down{.weights = w.down,
                             .bias = w.down_bias,
                             .u = at_.expert_hidden_f16,
                             .groups = groups,
                             .y = at_.expert_out,
                             .hidden = to_int(d_.hidden),
                             .inter = to_int(d_.inter)};
  if (int8) {
    any_gemv_int8_up(up, plan_gemv_int8(2 * d_.inter, pairs, d_.experts), on);
  } else {
    grouped_up(up, chained(on));
    launched(Kernel::kMarlinGroupedUp, on);
  }
  round_blocks(nullptr, at_.expert_hidden_f16, pairs * d_.inter, on);
  if (int8) {
    any_gemv_int8_down(down, plan_gemv_int8(d_.hidden, pairs, d_.experts), on);
  } else {
    grouped_down(down, chained(on));
    launched(Kernel::kMarlinGroupedDown, on);
  }
  return {.at = at_.expert_out, .weights = at_.expert_weights, .topk = to_int(d_.topk)};
}

void DecodePath::logits(const LinearWeights& w, const LogitRows& rows, const Launch& on) {
  settle_residual(on);
  if (logits_by_gemm(kernel_, rows.rows) && !pending_) return many_logits(w, rows, on);
  RowsIn in = residual(0);
  in.which = rows.tokens;
  in.norm = rows.norm;
  run_dense({.packing = w.matrix.packing,
             .weights = w.matrix.data,
             .in = in,
             .y = at_.logits,
             .rows = to_int(d_.vocab),
             .cols = to_int(d_.hidden)},
            rows.rows, on);
}

void DecodePath::many_logits(const LinearWeights& w, const LogitRows& rows, const Launch& on) {
  kernels_.rmsnorm({.x = at_.residual,
                    .which = rows.tokens,
                    .scale = rows.norm,
                    .out = at_.normed,
                    .rows = to_int(rows.rows),
                    .hidden = to_int(d_.hidden),
                    .eps = config_.rms_eps},
                   on);
  GemmArgs args{.packing = w.matrix.packing,
                .weights = w.matrix.data,
                .rows = to_int(d_.vocab),
                .cols = to_int(d_.hidden),
                .tokens = to_int(rows.rows)};
  args.parts[0] = {at_.logits, 0, args.rows};
  gemms_->dense(args, at_.normed, on);
}

void DecodePath::replayed(int64_t tokens) {
  begin(tokens);
  pending_ = fused() && kernel_ != MoeKernel::kGemv;
}

void DecodePath::settle_residual(const Launch& on) {
  if (owed_.any()) any_norm_sums(settled_residual(), on);
  owed_ = {};
}

void DecodePath::settle(const Launch& on) {
  if (!chosen_) {
    kernels_.top_experts({.logits = at_.router_logits,
                          .ids = at_.expert_ids,
                          .weights = at_.expert_weights,
                          .tokens = to_int(tokens_),
                          .experts = to_int(d_.experts),
                          .topk = to_int(d_.topk)},
                         on);
    chosen_ = true;
  }
  turn(on);
  settle_residual(on);
  if (unwritten_norm_ != nullptr) {
    NormSumsArgs norm = settled_residual();
    norm.norm = unwritten_norm_;
    norm.normed = at_.normed;
    any_norm_sums(norm, on);
    unwritten_norm_ = nullptr;
  }
  if (pending_) {
    kernels_.add_pending({.pending = at_.pending, .to = at_.residual, .count = to_int(tokens_ * d_.hidden)}, on);
    pending_ = false;
  }
}

}  // namespace nibble::backend::cuda

// The launches of the experts: who goes where, and both products.

#include "backend/cuda/program/maker.h"

#include "backend/cuda/quantise/round_blocks.h"
#include "base/error.h"

namespace nibble::backend::cuda {
namespace {

ExpertChoice choice(const Binding& b, const OwnExperts& own) {
  return {.logits = b.at.router_logits,
          .expert_ids = b.at.expert_ids,
          .expert_weights = b.at.expert_weights,
          .experts = to_int(b.config.dims.experts),
          .topk = to_int(b.config.dims.topk),
          .own = own};
}

// The columns of down.
int down_cols(const Binding& b) { return to_int(layout::block_pair_width(b.config.dims.inter)); }

// For who does not tell others.
ExpertChoice choice_again(const Binding& b, const OwnExperts& own) {
  ExpertChoice again = choice(b, own);
  again.expert_ids = nullptr;
  again.expert_weights = nullptr;
  return again;
}

}  // namespace

void Maker::choose_experts() {
  const ExpertsShape shape{.hidden = d_.hidden,
                           .inter = d_.inter,
                           .pairs = tokens_ * d_.topk,
                           .experts = d_.experts,
                           .activations = activations_,
                           .wide_scales = args_.scales.wide(),
                           .byte_scales = args_.scales.experts.fits_bytes(),
                           .tile_tokens = tokens_of(args_.run.moe_tile),
                           .shares_card = args_.reduce != nullptr && args_.reduce->ranks_on_card > 1};
  const auto chosen = first_serving<ExpertsPlan>(args_.card, &Arch::experts_gemm, shape);
  check(chosen.has_value(), "the last architecture's experts serve every shape");
  experts_ = chosen->op;
  experts_plan_ = chosen->plan;
}

void Maker::route() {
  stage_ = Stage::kRoute;
  const int n = tokens();
  hold(Slot::kResidual, SlotForm::kFloats);
  if (fused_) {
    hold(Slot::kNormed, SlotForm::kF16);
    add<Router>(
        fmt::format("grid {} x {} threads, a CTA per expert", d_.experts, kRouterThreads),
        {kMlpNorm, kRouter, kRouterBias},
        [n, parts = delta_.form == Delta::Form::kParts, added = delta_.form == Delta::Form::kAdded](const Binding& b) {
          return Router::Args{.x = added ? b.at.residual : b.at.residual_sum,
                              .delta = added ? nullptr : b.at.delta,
                              .rest = parts ? b.rest(n) : nullptr,
                              .sum = added ? nullptr : b.at.residual,
                              .norm = b.w.mlp_norm,
                              .weight = b.w.router,
                              .bias = b.w.router_bias,
                              .normed = b.at.normed_f16,
                              .logits = b.at.router_logits,
                              .hidden = to_int(b.config.dims.hidden),
                              .experts = to_int(b.config.dims.experts),
                              .tokens = n,
                              .eps = b.config.rms_eps};
        });
    for (const Slot slot : {Slot::kExpertIds, Slot::kExpertWeights}) hold(slot, SlotForm::kNothing);  // moe_up chooses
    return;
  }
  if (plain()) {
    rmsnorm(kMlpNorm, tokens_, [](const Binding& b) {
      return Rmsnorm::Args{.x = b.at.residual, .delta = b.at.delta, .sum = b.at.residual, .scale = b.w.mlp_norm};
    });
    return route_plainly();
  }
  const bool few = route_few(tuned_, tokens_);
  const bool whole = delta_.form == Delta::Form::kSums || delta_.form == Delta::Form::kCombined ||
                     delta_.form == Delta::Form::kBoth || (delta_.form == Delta::Form::kTiles && delta_.splits == 1);
  if (whole && !few && d_.experts <= kRouteSumsExperts) return route_sums();
  const PutNorm put = [to_f16 = !experts_gemms_, to_codes = experts_take_codes(), codes = experts_plan_.input](
                          const Binding& b, NormSums::Args& args) {
    args.norm = b.w.mlp_norm;
    args.normed = b.at.normed;
    if (to_f16) args.rounded = {.at = &b.at.normed_f16->bits, .type = InputType::kF16};
    if (to_codes) args.rounded = {.at = b.at.gemm_x, .type = codes};
  };
  hold(Slot::kNormed, SlotForm::kFloats);
  if (few && !experts_take_codes() && norm_route(put)) return;
  norm_sums({kMlpNorm}, delta_, put);
  route_plainly();
}

bool Maker::norm_route(const PutNorm& put) {
  const auto chosen = first_serving<Plan>(args_.card, &Arch::norm_route, RouteShape{tokens_, d_.hidden, d_.experts});
  if (!chosen) return false;
  Node& own = planned(chosen->plan.kernel, chosen->plan, {kMlpNorm, kRouter, kRouterBias}, chosen->op.launch,
                      [put, delta = delta_, n = tokens()](const Binding& b) {
                        NormRouteArgs args{.norm = delta.sums(b, n),
                                           .weight = b.w.router,
                                           .bias = b.w.router_bias,
                                           .logits = b.at.router_logits,
                                           .ids = b.at.expert_ids,
                                           .weights = b.at.expert_weights,
                                           .experts = to_int(b.config.dims.experts),
                                           .topk = to_int(b.config.dims.topk)};
                        put(b, args.norm);
                        return args;
                      });
  own.moved = moves(delta_.bytes(d_) + kResidualBytes * d_.hidden + kInputBytes * d_.hidden);
  return true;
}

void Maker::route_plainly() {
  linear("router", tokens_, {d_.experts, d_.hidden}, {kRouter, kRouterBias}, [](const Binding& b) {
    return Linear::Args{.weight = b.w.router, .bias = b.w.router_bias, .x = b.at.normed, .out = b.at.router_logits};
  });
  add<TopExperts>({}, [n = tokens()](const Binding& b) {
    return TopExperts::Args{.logits = b.at.router_logits,
                            .ids = b.at.expert_ids,
                            .weights = b.at.expert_weights,
                            .tokens = n,
                            .experts = to_int(b.config.dims.experts),
                            .topk = to_int(b.config.dims.topk)};
  });
}

void Maker::route_sums() {
  norms_while_rounding_ = experts_gemms_ && !experts_take_codes();
  if (!norms_while_rounding_) {
    norm_sums({kMlpNorm}, delta_,
              [to_codes = experts_take_codes(), codes = experts_plan_.input](const Binding& b, NormSums::Args& args) {
                args.norm = b.w.mlp_norm;
                if (to_codes) {
                  args.rounded = {.at = b.at.gemm_x, .type = codes};
                } else {
                  args.rounded = {.at = &b.at.normed_f16->bits, .type = InputType::kF16};
                }
              });
  }
  hold(Slot::kNormed, SlotForm::kNothing);
  leaves_ranges_ = experts_gemms_ && experts_.by_place && !row_codes() && own_.all();
  add<RouteSums>({kMlpNorm, kRouter, kRouterBias}, [n = tokens(), adds = norms_while_rounding_, delta = delta_,
                                                    ranges = leaves_ranges_](const Binding& b) {
    const NormSums::Args left = adds ? delta.sums(b, n) : NormSums::Args{};
    return RouteSums::Args{.x = b.at.residual,
                           .sums = left.sums,
                           .bias = left.bias,
                           .norm = b.w.mlp_norm,
                           .weight = b.w.router,
                           .router_bias = b.w.router_bias,
                           .inverse = b.at.inverse,
                           .logits = b.at.router_logits,
                           .ids = b.at.expert_ids,
                           .weights = b.at.expert_weights,
                           .ranges = ranges ? b.at.gemm_ranges : ExpertRanges{},
                           .tokens = n,
                           .hidden = to_int(b.config.dims.hidden),
                           .experts = to_int(b.config.dims.experts),
                           .topk = to_int(b.config.dims.topk),
                           .eps = b.config.rms_eps};
  });
  program_.nodes.back().moved =
      moves(norms_while_rounding_ ? delta_.bytes(d_) + kResidualBytes * d_.hidden : 4 * d_.hidden);
}

void Maker::moe() {
  stage_ = Stage::kMoe;
  const Roles up = {kGateUp, kGateUpBias}, down = {kDown, kDownBias};
  delta_ = experts_delta();
  if (plain()) return plain_moe(up, down);
  for (const Slot slot : {Slot::kExpertIds, Slot::kExpertWeights}) hold(slot, SlotForm::kFloats);
  if (experts_gemms_) {
    gemm_moe(up, down);
  } else if (fused_) {
    fused_moe(up, down);
  } else {
    grouped_moe(up, down);
  }
  combine();
  hold(Slot::kDelta, delta_.form == Delta::Form::kParts  ? SlotForm::kParts
                     : delta_.form == Delta::Form::kRows ? SlotForm::kFloats
                                                         : SlotForm::kNothing);
}

Delta Maker::experts_delta() const {
  if (plain()) return {};
  if (experts_gemms_) return {Delta::Form::kExpertsBf16};
  if (!fused_) return {Delta::Form::kExpertsF32};
  return {few_pairs() ? Delta::Form::kParts : Delta::Form::kRows};
}

Node& Maker::add_experts() {
  return norm_sums({}, left_by_experts(), [](const Binding&, NormSums::Args&) {});
}

void Maker::fused_moe(const Roles& up, const Roles& down) {
  const int n = tokens();
  add<MoeUp>(plan_row_warps(d_.hidden, MoeUp::kWish, device_), up, [n, own = own_](const Binding& b) {
    return MoeUp::Args{.weights = b.w.gate_up.data,
                       .bias = b.w.gate_up_bias,
                       .x = b.at.normed_f16,
                       .choice = choice(b, own),
                       .u = b.at.expert_hidden_f16,
                       .hidden = to_int(b.config.dims.hidden),
                       .inter = to_int(b.config.dims.inter),
                       .tokens = n,
                       .swiglu_limit = b.config.swiglu_limit};
  });
  hold(Slot::kExpertHidden, SlotForm::kF16);
  if (few_pairs()) {
    constexpr int kParts = 2;
    add<GemvMoeDown>(plan_gemv({d_.hidden, hidden_width_, kParts}, device_), down, [n, own = own_](const Binding& b) {
      return GemvMoeDown::Args{.weights = b.w.down.data,
                               .bias = b.w.down_bias,
                               .u = b.at.expert_hidden_f16,
                               .choice = choice_again(b, own),
                               .y = {b.at.delta, b.rest(n)},
                               .hidden = to_int(b.config.dims.hidden),
                               .inter = down_cols(b),
                               .tokens = n,
                               .parts = kParts};
    });
    return;
  }
  add<MoeDown>(plan_row_warps(hidden_width_, MoeDown::kWish, device_), down, [n, own = own_](const Binding& b) {
    return MoeDown::Args{.weights = b.w.down.data,
                         .bias = b.w.down_bias,
                         .u = b.at.expert_hidden_f16,
                         .choice = choice_again(b, own),
                         .y = b.at.delta,
                         .sums = b.at.expert_out,
                         .finished = b.at.down_finished,
                         .hidden = to_int(b.config.dims.hidden),
                         .inter = down_cols(b),
                         .tokens = n};
  });
}

void Maker::group_tiles(int tile_tokens) {
  add<GroupTiles>({}, [n = tokens(), tile_tokens, own = own_](const Binding& b) {
    return GroupTiles::Args{.expert_ids = b.at.expert_ids,
                            .pairs = b.at.moe_pairs,
                            .tiles = b.at.moe_tiles,
                            .tile_counts = b.at.moe_tile_counts,
                            .tokens = n,
                            .topk = to_int(b.config.dims.topk),
                            .experts = own.of(to_int(b.config.dims.experts)),
                            .tile_tokens = tile_tokens,
                            .own = own};
  });
}

void Maker::grouped_moe(const Roles& up, const Roles& down) {
  round_blocks(activations_, tokens_ * d_.hidden, [](const Binding& b) { return b.at.normed_f16; });
  group_tiles(grouped_tokens(d_.hidden, hidden_width_, device_));
  const auto groups = [](const Binding& b) {
    return MoeGroups{b.at.moe_pairs, b.at.moe_tiles, b.at.moe_tile_counts, to_int(b.config.dims.topk)};
  };
  const auto up_args = [groups](const Binding& b) {
    return GroupedUp::Args{.weights = b.w.gate_up.data,
                           .bias = b.w.gate_up_bias,
                           .x = b.at.normed_f16,
                           .groups = groups(b),
                           .u = b.at.expert_hidden_f16,
                           .hidden = to_int(b.config.dims.hidden),
                           .inter = to_int(b.config.dims.inter),
                           .swiglu_limit = b.config.swiglu_limit};
  };
  const auto down_args = [groups](const Binding& b) {
    return GroupedDown::Args{.weights = b.w.down.data,
                             .bias = b.w.down_bias,
                             .u = b.at.expert_hidden_f16,
                             .groups = groups(b),
                             .y = b.at.expert_out,
                             .hidden = to_int(b.config.dims.hidden),
                             .inter = down_cols(b)};
  };
  hold(Slot::kExpertHidden, SlotForm::kF16);
  add<GroupedUp>(plan_row_warps(d_.hidden, kGrouped, device_), up, up_args);
  round_blocks(activations_, tokens_ * d_.topk * hidden_width_,
               [](const Binding& b) { return b.at.expert_hidden_f16; });
  add<GroupedDown>(plan_row_warps(hidden_width_, kGrouped, device_), down, down_args);
}

void Maker::gemm_moe(const Roles& up, const Roles& down) {
  const bool by_place = experts_.by_place;
  const int64_t pairs = tokens_ * d_.topk;
  const GemmPlan first = experts_plan_.first, second = experts_plan_.second;
  group_and_round(by_place, first.tokens);
  const int places = to_int(max_places(pairs, d_.experts));
  const auto x_of = [by_place](const Binding& b) { return by_place ? b.at.gemm_placed_x : b.at.gemm_x; };
  const bool as_values = !row_codes() && !experts_take_codes();
  if (as_values)
    round_blocks(activations_, (by_place ? places : tokens_) * d_.hidden,
                 [=](const Binding& b) { return reinterpret_cast<F16*>(x_of(b)); });
  const InputType codes = experts_take_codes() ? experts_plan_.input : InputType::kMxfp8;
  // Both products; the second one reads what it is told of `down`.
  const auto args_of = [=, row_codes = row_codes(), top = args_.scales.experts.largest](const Binding& b) {
    return GemmArgs{.packing = Packing::kMxfp4,
                    .order = layout::RowOrder::kGateUp,
                    .weights = b.w.gate_up.data,
                    .bias = b.w.gate_up_bias,
                    .x = x_of(b),
                    .rows = to_int(2 * b.config.dims.inter),
                    .cols = to_int(b.config.dims.hidden),
                    .tokens = to_int(pairs),
                    .tiles = b.at.gemm_tiles,
                    .tile_count = b.at.gemm_tile_counts,
                    .pairs = b.at.gemm_pairs,
                    .x_share = by_place ? 1 : to_int(b.config.dims.topk),
                    .experts = to_int(b.config.dims.experts),
                    .x_rows = by_place ? places : 0,
                    .x_scales = row_codes ? b.at.gemm_row_scales : nullptr,
                    .scale_top = top,
                    .u = b.at.gemm_u,
                    .swiglu_limit = b.config.swiglu_limit,
                    .codes = codes};
  };
  const auto down_of = [](const Binding& b) {
    return GemmDown{b.w.down.data, b.w.down_bias, reinterpret_cast<uint16_t*>(b.at.gemm_y)};
  };
  hold(Slot::kExpertHidden, experts_take_codes() ? SlotForm::kCodes : by_place ? SlotForm::kPlaces : SlotForm::kF16);
  program_.hidden_codes = codes;
  program_.hidden_in_gemm = true;
  if (experts_plan_.at_once) {
    planned(first.kernel, first, {kGateUp, kGateUpBias, kDown, kDownBias}, experts_.launch, [=](const Binding& b) {
      GemmArgs args = args_of(b);
      args.down = down_of(b);
      return args;
    });
    return;
  }
  planned(first.kernel, first, up, experts_.launch, args_of);
  if (row_codes()) {
    round_u();
  } else if (as_values) {
    round_blocks(activations_, (by_place ? places : pairs) * hidden_width_,
                 [](const Binding& b) { return reinterpret_cast<F16*>(b.at.gemm_u); });
  }
  planned(second.kernel, second, down, experts_.launch, [=, rounded = row_codes()](const Binding& b) {
    GemmArgs args = args_of(b);
    args.down = down_of(b);
    args = down_alone(args);
    if (rounded) args.x = b.at.gemm_placed_x;
    return args;
  });
}

void Maker::round_u() {
  program_.hidden_to_round = true;
  const int64_t pairs = tokens_ * d_.topk;
  add<RoundRows>({}, [pairs, places = to_int(max_places(pairs, d_.experts))](const Binding& b) {
    return RoundRows::Args{.panels = b.at.gemm_u,
                           .places = b.at.gemm_places,
                           .codes = reinterpret_cast<uint8_t*>(b.at.gemm_placed_x),
                           .scales = b.at.gemm_row_scales,
                           .tokens = to_int(pairs),
                           .cols = down_cols(b),
                           .rows = places};
  });
}

void Maker::group_and_round(bool by_place, int tile_tokens) {
  const auto group_of = [=, n = tokens(), own = own_, ranges = leaves_ranges_](const Binding& b) {
    return GroupTiles::Args{.expert_ids = b.at.expert_ids,
                            .pairs = b.at.gemm_pairs,
                            .places = b.at.gemm_places,
                            .tiles = b.at.gemm_tiles,
                            .tile_counts = b.at.gemm_tile_counts,
                            .tokens = n,
                            .topk = to_int(b.config.dims.topk),
                            .experts = own.of(to_int(b.config.dims.experts)),
                            .tile_tokens = tile_tokens,
                            .own = own,
                            .ranges = ranges ? b.at.gemm_ranges : ExpertRanges{}};
  };
  const int places = to_int(max_places(tokens_ * d_.topk, d_.experts));
  const auto round_of = [=, n = tokens(), norms = norms_while_rounding_](const Binding& b) {
    Round::Args args{.from = norms ? b.at.residual : b.at.normed,
                     .to = {.at = b.at.gemm_x, .type = input_type(Packing::kMxfp4)},
                     .tokens = n,
                     .cols = to_int(b.config.dims.hidden),
                     .inverse = norms ? b.at.inverse : nullptr,
                     .norm = norms ? b.w.mlp_norm : nullptr};
    if (by_place) {
      args.to = {b.at.gemm_placed_x, args.to.type, places};
      args.places = b.at.gemm_places;
      args.copies = to_int(b.config.dims.topk);
    }
    return args;
  };
  if (leaves_ranges_ || (!row_codes() && group_while_rounding(by_place, tokens_ * d_.topk))) {
    add<GroupRound>({}, [=](const Binding& b) { return GroupRound::Args{group_of(b), round_of(b)}; });
    return;
  }
  add<GroupTiles>({}, group_of);
  if (experts_take_codes()) return;
  if (row_codes()) {
    add<RoundRows>({}, [=](const Binding& b) {
      const Round::Args of = round_of(b);
      return RoundRows::Args{.from = of.from,
                             .inverse = of.inverse,
                             .norm = of.norm,
                             .places = of.places,
                             .codes = reinterpret_cast<uint8_t*>(of.to.at),
                             .scales = b.at.gemm_row_scales,
                             .tokens = of.tokens,
                             .cols = of.cols,
                             .copies = of.copies,
                             .rows = of.to.rows};
    });
    return;
  }
  add<Round>({}, round_of);
}

void Maker::plain_moe(const Roles& up, const Roles& down) {
  constexpr int kWarps = 4;  // plain_moe.cu
  const int64_t tiles = max_expert_tiles(tokens_ * d_.topk, d_.experts, kMoeTileTokens);
  const auto grid = [&](int64_t units) {
    return fmt::format("2 rows x up to {} tokens of an expert per warp, {} x at most {} CTAs", kMoeTileTokens,
                       (units + kWarps - 1) / kWarps, tiles);
  };
  const auto args_of = [n = tokens(), own = own_](const Binding& b) {
    const Dims& d = b.config.dims;
    return PlainMoeArgs{.x = b.at.normed,
                        .expert_ids = b.at.expert_ids,
                        .expert_weights = b.at.expert_weights,
                        .gate_up = b.w.gate_up_rows,
                        .down = b.w.down_rows,
                        .gate_up_bias = b.w.gate_up_bias,
                        .down_bias = b.w.down_bias,
                        .hidden_out = b.at.expert_hidden,
                        .delta = b.at.delta,
                        .pairs = b.at.moe_pairs,
                        .tiles = b.at.moe_tiles,
                        .tile_count = b.at.moe_tile_counts,
                        .down_out = b.at.expert_out,
                        .tokens = n,
                        .topk = to_int(d.topk),
                        .experts = own.of(to_int(d.experts)),
                        .hidden = to_int(d.hidden),
                        .inter = to_int(d.inter),
                        .swiglu_limit = b.config.swiglu_limit,
                        .own = own};
  };
  group_tiles(kMoeTileTokens);
  add<PlainGateUp>(grid(d_.inter), up, args_of);
  add<PlainDown>(grid(d_.hidden / 2), down, args_of);
  add<PlainCombine>(per_token(tokens_), {}, args_of);
}

}  // namespace nibble::backend::cuda

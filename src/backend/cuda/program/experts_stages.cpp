// The launches of the experts: who goes where, and both products.

#include "backend/cuda/program/maker.h"

#include "backend/cuda/quantise/round_blocks.h"
#include "base/error.h"

#include <algorithm>
#include <numeric>
#include <span>

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

// Sorts the pairs of own experts.
GroupTiles::Args group_args(const Binding& b, const PairLists& lists, int tokens, int tile_tokens,
                            const OwnExperts& own) {
  return {.expert_ids = b.at.expert_ids,
          .pairs = lists.pairs,
          .tiles = lists.tiles,
          .tile_counts = lists.tile_counts,
          .tokens = tokens,
          .topk = to_int(b.config.dims.topk),
          .experts = own.of(to_int(b.config.dims.experts)),
          .tile_tokens = tile_tokens,
          .own = own};
}

// For who does not tell others.
ExpertChoice choice_again(const Binding& b, const OwnExperts& own) {
  ExpertChoice again = choice(b, own);
  again.expert_ids = nullptr;
  again.expert_weights = nullptr;
  return again;
}

}  // namespace

void Maker::choose_experts() {
  ExpertsShape shape{.hidden = d_.hidden,
                     .inter = d_.inter,
                     .pairs = tokens_ * d_.topk,
                     .experts = d_.experts,
                     .activations = rounded_,
                     // The scales of experts that are copied were never looked at.
                     .wide_scales = args_.scales.wide() || copied_layers_ > 0,
                     .byte_scales = args_.scales.experts.fits_bytes() && copied_layers_ == 0,
                     .tile_tokens = tokens_of(args_.run.moe_tile),
                     .shares_card = args_.reduce != nullptr && args_.reduce->ranks_on_card > 1};
  auto chosen = first_serving<ExpertsPlan>(args_.card, &Arch::experts_gemm, shape);
  check(chosen.has_value(), "the last architecture's experts serve every shape");
  // Few pairs are multiplied as they are: products of codes gain nothing there. Nor do values, which --fast did not
  // mean.
  const bool few = chosen->plan.row_codes && shape.pairs <= tuned_.exact_pairs * d_.experts,
             values = args_.run.fast && !chosen->plan.row_codes && !in_codes(chosen->plan.input);
  if (family_ == KernelFamily::kAuto && (few || values)) {
    shape.activations = rounded_ = Activations::kBf16;
    chosen = first_serving<ExpertsPlan>(args_.card, &Arch::experts_gemm, shape);
  }
  experts_ = chosen->op;
  experts_plan_ = chosen->plan;
}

void Maker::route() {
  stage_ = Stage::kRoute;
  const int n = tokens();
  hold(Slot::kResidual, floats(in<&Arena::residual>, d_.hidden));
  if (fused_) {
    Held normed = floats(in<&Arena::packed, &PackedArena::normed>, d_.hidden);
    normed.type = Held::Type::kF16;
    hold(Slot::kNormed, normed);
    add<Router>(fmt::format("grid {} x {} threads, a CTA per expert", d_.experts, kRouterThreads),
                {kMlpNorm, kRouter, kRouterBias}, [n, delta = delta_](const Binding& b) {
                  return Router::Args{.x = delta.added() ? b.at.residual : b.at.packed->residual_sum,
                                      .delta = delta.rows(b, 0, n),
                                      .rest = delta.rows(b, 1, n),
                                      .sum = delta.added() ? nullptr : b.at.residual,
                                      .norm = b.w.mlp_norm,
                                      .weight = b.w.router.rows,
                                      .bias = b.w.router.bias,
                                      .normed = b.at.packed->normed,
                                      .logits = b.at.router_logits,
                                      .hidden = to_int(b.config.dims.hidden),
                                      .experts = to_int(b.config.dims.experts),
                                      .tokens = n,
                                      .eps = b.config.rms_eps};
                });
    hold_nothing({Slot::kExpertIds, Slot::kExpertWeights});  // moe_up chooses
    return;
  }
  if (plain()) {
    rmsnorm(kMlpNorm, tokens_, [](const Binding& b) {
      return Rmsnorm::Args{.x = b.at.residual, .delta = b.at.delta, .sum = b.at.residual, .scale = b.w.mlp_norm};
    });
    return route_plainly();
  }
  const bool few = tokens_ <= tuned_.route_tokens;
  const bool whole = dense_gemms_ && (delta_.sums.splits == 1 || delta_.sent == DeltaValues::Sending::kToAll);
  if (whole && !few && d_.experts <= kRouteSumsExperts) return route_sums();
  const PutNorm put = [to_f16 = !experts_gemms_, to_codes = experts_take_codes(), codes = experts_plan_.input](
                          const Binding& b, NormSums::Args& args) {
    args.norm = b.w.mlp_norm;
    args.normed = b.at.normed;
    if (to_f16) args.rounded = {.at = &b.at.packed->normed->bits, .type = InputType::kF16};
    if (to_codes) args.rounded = {.at = b.at.gemm->x, .type = codes};
  };
  hold(Slot::kNormed, floats(in<&Arena::normed>, d_.hidden));
  if (few && !experts_take_codes() && norm_route(put)) return;
  norm_sums({kMlpNorm}, delta_, put);
  route_plainly();
}

bool Maker::norm_route(const PutNorm& put) {
  const auto chosen = first_serving<Plan>(args_.card, &Arch::norm_route, RouteShape{tokens_, d_.hidden, d_.experts});
  if (!chosen) return false;
  Node& own = planned(chosen->plan.kernel, chosen->plan, {kMlpNorm, kRouter, kRouterBias}, chosen->op.launch,
                      [put, delta = delta_, n = tokens()](const Binding& b) {
                        NormRouteArgs args{.norm = delta.norm(b, n),
                                           .weight = b.w.router.rows,
                                           .bias = b.w.router.bias,
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
  linear("router", tokens_, {kRouter, kRouterBias},
         {&LayerPointers::router, d_.experts, d_.hidden, in<&Arena::normed>, in<&Arena::router_logits>});
  choose_plainly();
}

void Maker::choose_plainly() {
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
  route_sums_ = true;
  norms_while_rounding_ = experts_gemms_ && !experts_take_codes();
  if (!norms_while_rounding_) {
    norm_sums({kMlpNorm}, delta_,
              [to_codes = experts_take_codes(), codes = experts_plan_.input](const Binding& b, NormSums::Args& args) {
                args.norm = b.w.mlp_norm;
                if (to_codes)
                  args.rounded = {.at = b.at.gemm->x, .type = codes};
                else
                  args.rounded = {.at = &b.at.packed->normed->bits, .type = InputType::kF16};
              });
  }
  hold_nothing({Slot::kNormed});
  add<RouteSums>({kMlpNorm, kRouter, kRouterBias},
                 [n = tokens(), adds = norms_while_rounding_, delta = delta_](const Binding& b) {
                   const NormSums::Args left = adds ? delta.norm(b, n) : NormSums::Args{};
                   return RouteSums::Args{.x = b.at.residual,
                                          .sums = left.sums,
                                          .bias = left.bias,
                                          .norm = b.w.mlp_norm,
                                          .weight = b.w.router.rows,
                                          .router_bias = b.w.router.bias,
                                          .inverse = b.at.packed->inverse,
                                          .logits = b.at.router_logits,
                                          .ids = b.at.expert_ids,
                                          .weights = b.at.expert_weights,
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
  hold_choice();
  if (host_layers_ > 0) host_moe();
  if (all_on_host()) {
    delta_ = left_by_host();
  } else if (copied_layers_ == d_.layers) {
    delta_ = experts_delta();
  } else {
    const size_t first = program_.nodes.size();
    card_moe();
    if (host_layers_ > 0 || copied_layers_ > 0)
      for (Node& own : std::span(program_.nodes).subspan(first))
        own.only = layers(host_layers_ + copied_layers_, to_int(d_.layers));
  }
  if (copied_layers_ > 0) copied_moe();
  if (!plain()) hold_delta();
  if (host_layers_ == 0) return;
  hold_nothing({Slot::kExpertHidden});
  if (!all_on_host() && !plain() && !fused_) hold_nothing({Slot::kDelta});  // in two forms
}

void Maker::card_moe() {
  const Roles up = {kGateUp, kGateUpBias}, down = {kDown, kDownBias};
  delta_ = experts_delta();
  if (plain()) return plain_moe(up, down);
  if (experts_gemms_)
    gemm_moe(up, down);
  else if (fused_)
    fused_moe(up, down);
  else
    grouped_moe(up, down);
  combine();
}

void Maker::copied_moe() {
  const size_t first = program_.nodes.size();
  const ExpertParts parts = expert_parts(d_);
  const OwnExperts all = own_;
  for (int part = 0; part < parts.count; ++part) {
    own_ = {.first = parts.first(part), .count = parts.each};
    const int64_t bytes = (packed_expert_bytes(kGateUp, d_) + packed_expert_bytes(kDown, d_)) *
                          std::clamp(to_int(d_.experts) - own_.first, 0, own_.count);
    Node& copied =
        add(expert_copy_kernel(), fmt::format("experts {} to {}", own_.first, own_.first + own_.count - 1), {},
            [part, copy = args_.expert_copy](const Binding& b, const Launch& on) { copy({b.layer, part}, on); });
    copied.moved = static_cast<double>(bytes);
    gemm_moe({kGateUp, kGateUpBias}, {kDown, kDownBias}, part);
  }
  own_ = all;
  for (Node& own : std::span(program_.nodes).subspan(first)) {
    own.cost = own.cost / parts.count;
    own.only = layers(0, copied_layers_);
  }
  hold_nothing({Slot::kExpertHidden});
}

std::vector<int> Maker::layers(int first, int end) {
  std::vector<int> all(static_cast<size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
}

Delta Maker::left_by_host() const {
  if (plain() || fused_) return experts_delta();
  return {.sums = {nullptr, 1}, .at = in<&Arena::expert_out>};
}

void Maker::host_moe() {
  const size_t first = program_.nodes.size();
  if (fused_) choose_plainly();
  add<HostRows>({}, [from_sums = route_sums_, fused = fused_, n = tokens()](const Binding& b) {
    return HostRows::Args{.x = from_sums ? b.at.residual : b.at.normed,
                          .rounded = fused ? b.at.packed->normed : nullptr,
                          .inverse = from_sums ? b.at.packed->inverse : nullptr,
                          .norm = from_sums ? b.w.mlp_norm : nullptr,
                          .ids = b.at.expert_ids,
                          .weights = b.at.expert_weights,
                          .to = b.at.host,
                          .tokens = n,
                          .hidden = to_int(b.config.dims.hidden),
                          .topk = to_int(b.config.dims.topk)};
  });
  const Delta left = left_by_host();
  const int64_t values = left.sums.splits * tokens_ * d_.hidden,
                there = tokens_ * (d_.hidden + 2 * d_.topk) * int64_t{sizeof(float)};
  add(HostTurn::kName,
      fmt::format("the host's threads; {:.1f} KB there, {:.1f} KB back", static_cast<double>(there) / 1e3,
                  static_cast<double>(values) * sizeof(float) / 1e3),
      {kGateUp, kGateUpBias, kDown, kDownBias}, [=, call = args_.host_call](const Binding& b, const Launch& on) {
        call({b.layer, static_cast<float*>(left.at(b.at)), values}, on);
      });
  if (!all_on_host())
    for (Node& own : std::span(program_.nodes).subspan(first)) own.only = layers(0, host_layers_);
}

Delta Maker::experts_delta() const {
  using enum SplitSums::Order;
  const int topk = to_int(d_.topk);
  if (plain()) return {};
  if (experts_gemms_) return {.sums = {nullptr, topk, kExpertsBf16}, .at = in<&Arena::gemm, &GemmArena::y>};
  if (!fused_) return {.sums = {nullptr, topk, kExpertsF32}, .at = in<&Arena::expert_out>};
  return {.sums = {nullptr, few_pairs() ? 2 : 1}};
}

Node& Maker::add_experts() {
  return norm_sums({}, delta_, [](const Binding&, NormSums::Args&) {});
}

void Maker::fused_moe(const Roles& up, const Roles& down) {
  const int n = tokens();
  add<MoeUp>(plan_row_warps(d_.hidden, MoeUp::kWish, device_), up, [n, own = own_](const Binding& b) {
    return MoeUp::Args{.weights = b.w.gate_up.packed,
                       .bias = b.w.gate_up.bias,
                       .x = b.at.packed->normed,
                       .choice = choice(b, own),
                       .u = b.at.packed->expert_hidden,
                       .hidden = to_int(b.config.dims.hidden),
                       .inter = to_int(b.config.dims.inter),
                       .tokens = n,
                       .swiglu_limit = b.config.swiglu_limit};
  });
  hold(Slot::kExpertHidden, hidden(in<&Arena::packed, &PackedArena::expert_hidden>));
  if (few_pairs()) {
    constexpr int kParts = 2;
    add<GemvMoeDown>(plan_gemv({d_.hidden, hidden_width_, kParts}, device_), down, [n, own = own_](const Binding& b) {
      return GemvMoeDown::Args{.weights = b.w.down.packed,
                               .bias = b.w.down.bias,
                               .u = b.at.packed->expert_hidden,
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
    return MoeDown::Args{.weights = b.w.down.packed,
                         .bias = b.w.down.bias,
                         .u = b.at.packed->expert_hidden,
                         .choice = choice_again(b, own),
                         .y = b.at.delta,
                         .sums = b.at.expert_out,
                         .finished = b.at.packed->down_finished,
                         .hidden = to_int(b.config.dims.hidden),
                         .inter = down_cols(b),
                         .tokens = n};
  });
}

void Maker::group_tiles(int tile_tokens) {
  add<GroupTiles>({}, [n = tokens(), tile_tokens, own = own_](const Binding& b) {
    return group_args(b, b.at.lists, n, tile_tokens, own);
  });
}

void Maker::grouped_moe(const Roles& up, const Roles& down) {
  round_blocks(rounded_, tokens_ * d_.hidden, in<&Arena::packed, &PackedArena::normed>);
  group_tiles(grouped_tokens(d_.hidden, hidden_width_, device_));
  const auto groups = [](const Binding& b) {
    return MoeGroups{b.at.lists.pairs, b.at.lists.tiles, b.at.lists.tile_counts, to_int(b.config.dims.topk)};
  };
  const auto up_args = [groups](const Binding& b) {
    return GroupedUp::Args{.weights = b.w.gate_up.packed,
                           .bias = b.w.gate_up.bias,
                           .x = b.at.packed->normed,
                           .groups = groups(b),
                           .u = b.at.packed->expert_hidden,
                           .hidden = to_int(b.config.dims.hidden),
                           .inter = to_int(b.config.dims.inter),
                           .swiglu_limit = b.config.swiglu_limit};
  };
  const auto down_args = [groups](const Binding& b) {
    return GroupedDown::Args{.weights = b.w.down.packed,
                             .bias = b.w.down.bias,
                             .u = b.at.packed->expert_hidden,
                             .groups = groups(b),
                             .y = b.at.expert_out,
                             .hidden = to_int(b.config.dims.hidden),
                             .inter = down_cols(b)};
  };
  constexpr Place kHidden = in<&Arena::packed, &PackedArena::expert_hidden>;
  hold(Slot::kExpertHidden, hidden(kHidden));
  add<GroupedUp>(plan_row_warps(d_.hidden, kGrouped, device_), up, up_args);
  round_blocks(rounded_, tokens_ * d_.topk * hidden_width_, kHidden);
  add<GroupedDown>(plan_row_warps(hidden_width_, kGrouped, device_), down, down_args);
}

void Maker::gemm_moe(const Roles& up, const Roles& down, std::optional<int> part) {
  // W and b of gate_up, and of down.
  const auto experts_of = [part, first = own_.first](const Binding& b) -> std::pair<ExpertsPointers, ExpertsPointers> {
    if (!part) return {b.w.gate_up, b.w.down};
    const ExpertSlots::Slot& slot = b.at.expert_slots->of(*part);
    const Dims& d = b.config.dims;
    return {{.packed = slot.gate_up, .bias = b.w.gate_up.bias + first * 2 * d.inter},
            {.packed = slot.down, .bias = b.w.down.bias + first * d.hidden}};
  };
  const bool by_place = experts_.by_place;
  const int64_t pairs = tokens_ * d_.topk;
  const GemmPlan first = experts_plan_.first, second = experts_plan_.second;
  group_and_round(by_place, first.tokens);
  const int places = to_int(max_places(pairs, d_.experts));
  const bool as_values = !row_codes() && !experts_take_codes();
  if (as_values)
    round_blocks(rounded_, (by_place ? places : tokens_) * d_.hidden,
                 by_place ? in<&Arena::gemm, &GemmArena::placed_x> : in<&Arena::gemm, &GemmArena::x>);
  const InputType codes = experts_take_codes() ? experts_plan_.input : InputType::kMxfp8;
  // Both products; the second one reads what it is told of `down`.
  const auto args_of = [=, row_codes = row_codes(), top = args_.scales.experts.largest](const Binding& b) {
    const ExpertsPointers gate_up = experts_of(b).first;
    return GemmArgs{.packing = Packing::kMxfp4,
                    .order = layout::RowOrder::kGateUp,
                    .weights = gate_up.packed,
                    .bias = gate_up.bias,
                    .x = by_place ? b.at.gemm->placed_x : b.at.gemm->x,
                    .rows = to_int(2 * b.config.dims.inter),
                    .cols = to_int(b.config.dims.hidden),
                    .tokens = to_int(pairs),
                    .tiles = b.at.gemm->lists.tiles,
                    .tile_count = b.at.gemm->lists.tile_counts,
                    .pairs = b.at.gemm->lists.pairs,
                    .x_share = by_place ? 1 : to_int(b.config.dims.topk),
                    .experts = to_int(b.config.dims.experts),
                    .x_rows = by_place ? places : 0,
                    .x_scales = row_codes ? b.at.gemm->row_scales : nullptr,
                    .scale_top = top,
                    .u = b.at.gemm->u,
                    .swiglu_limit = b.config.swiglu_limit,
                    .codes = codes};
  };
  const auto down_of = [=](const Binding& b) {
    const ExpertsPointers own = experts_of(b).second;
    return GemmDown{own.packed, own.bias, reinterpret_cast<uint16_t*>(b.at.gemm->y)};
  };
  Held u = hidden(in<&Arena::gemm, &GemmArena::u>, experts_take_codes() ? Held::Type::kCodes : Held::Type::kF16);
  u.codes = codes;
  if (by_place) {
    u.panel_rows = places;
    u.places = in<&Arena::gemm, &GemmArena::places>;
  }
  if (row_codes()) u.rounded_to = rounded_;
  hold(Slot::kExpertHidden, u);
  if (experts_plan_.at_once) {
    planned(first.kernel, first, {kGateUp, kGateUpBias, kDown, kDownBias}, experts_.launch, [=](const Binding& b) {
      GemmArgs args = args_of(b);
      args.down = down_of(b);
      return args;
    });
    return;
  }
  planned(first.kernel, first, up, experts_.launch, args_of);
  if (row_codes())
    round_u();
  else if (as_values)
    round_blocks(rounded_, (by_place ? places : pairs) * hidden_width_, in<&Arena::gemm, &GemmArena::u>);
  planned(second.kernel, second, down, experts_.launch, [=, rounded = row_codes()](const Binding& b) {
    GemmArgs args = args_of(b);
    args.down = down_of(b);
    args = down_alone(args);
    if (rounded) args.x = b.at.gemm->placed_x;
    return args;
  });
}

void Maker::round_u() {
  add<RoundRows>({}, [places = to_int(max_places(tokens_ * d_.topk, d_.experts))](const Binding& b) {
    return RoundRows::Args{.panels = b.at.gemm->u,
                           .codes = reinterpret_cast<uint8_t*>(b.at.gemm->placed_x),
                           .scales = b.at.gemm->row_scales,
                           .tokens = places,
                           .cols = down_cols(b),
                           .rows = places};
  });
}

void Maker::group_and_round(bool by_place, int tile_tokens) {
  const auto group_of = [=, n = tokens(), own = own_](const Binding& b) {
    GroupTiles::Args args = group_args(b, b.at.gemm->lists, n, tile_tokens, own);
    args.places = b.at.gemm->places;
    return args;
  };
  const int places = to_int(max_places(tokens_ * d_.topk, d_.experts));
  const auto round_of = [=, n = tokens(), norms = norms_while_rounding_](const Binding& b) {
    Round::Args args{.from = norms ? b.at.residual : b.at.normed,
                     .to = {.at = b.at.gemm->x, .type = input_type(Packing::kMxfp4)},
                     .tokens = n,
                     .cols = to_int(b.config.dims.hidden),
                     .inverse = norms ? b.at.packed->inverse : nullptr,
                     .norm = norms ? b.w.mlp_norm : nullptr};
    if (by_place) {
      args.to = {b.at.gemm->placed_x, args.to.type, places};
      args.places = b.at.gemm->places;
      args.copies = to_int(b.config.dims.topk);
    }
    return args;
  };
  if (!row_codes() && group_while_rounding(by_place, tokens_ * d_.topk)) {
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
                             .scales = b.at.gemm->row_scales,
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
                        .gate_up = b.w.gate_up.rows,
                        .down = b.w.down.rows,
                        .gate_up_bias = b.w.gate_up.bias,
                        .down_bias = b.w.down.bias,
                        .hidden_out = b.at.row_order->expert_hidden,
                        .delta = b.at.delta,
                        .pairs = b.at.lists.pairs,
                        .tiles = b.at.lists.tiles,
                        .tile_count = b.at.lists.tile_counts,
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

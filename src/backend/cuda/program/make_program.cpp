// A step as a program: its stages in their order, and what they have in common.

#include "backend/cuda/program/maker.h"

#include "backend/cuda/comm/sums.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "base/error.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace nibble::backend::cuda {
namespace {

OwnExperts own_of(const BackendConfig& config) {
  if (!config.own_experts || config.own_experts->count == config.dims.experts) return {};
  return {to_int(config.own_experts->first), to_int(config.own_experts->count)};
}

// What a rank reads, in its own dimensions.
std::optional<Shard> cost_shard(const BackendConfig& config) {
  const Dims& d = config.dims;
  if (!config.own_experts) return std::nullopt;
  return Shard{.heads = {0, d.heads},
               .kv_heads = {0, d.kv_heads},
               .experts = *config.own_experts,
               .inter = {0, d.inter},
               .vocab = {0, d.vocab},
               .whole_experts = config.own_experts->count < d.experts};
}

int in_atoms(int64_t rows) { return to_int((rows + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomRows); }

}  // namespace

SplitSums Delta::bound(const Binding& b) const {
  SplitSums all = sums;
  all.at = at(b.at);
  if (sums.of_experts()) all.weights = b.at.expert_weights;
  return all;
}

const float* Delta::rows(const Binding& b, int split, int64_t tokens) const {
  if (!in_rows() || split >= sums.splits) return nullptr;
  return static_cast<const float*>(at(b.at)) + split * tokens * b.config.dims.hidden;
}

NormSums::Args Delta::norm(const Binding& b, int tokens) const {
  return {.x = b.at.residual,
          .sums = bound(b),
          .bias = wants_bias ? b.w.o.bias : nullptr,
          .tokens = tokens,
          .hidden = static_cast<int>(b.config.dims.hidden),
          .eps = b.config.rms_eps};
}

Combine::Args Delta::combine(const Binding& b, int tokens) const {
  return {.sums = bound(b),
          .bias = wants_bias ? b.w.o.bias : nullptr,
          .ids = sums.of_experts() ? b.at.expert_ids : nullptr,
          .tokens = tokens,
          .hidden = static_cast<int>(b.config.dims.hidden)};
}

DeltaValues Delta::values(const Binding& b, int64_t tokens) const {
  DeltaValues all = extent(b.config.dims, tokens);
  all.at = at(b.at);
  return all;
}

DeltaValues Delta::extent(const Dims& dims, int64_t tokens) const {
  check(!wants_combine(), "ranks add up a row per token");
  if (sums.order == SplitSums::Order::kRows)
    return {nullptr, sums.splits * tokens * dims.hidden, DeltaValues::Type::kF32};
  return {.count = split_pitch(tokens, dims.hidden), .type = DeltaValues::Type::kBf16, .sent = sent};
}

Maker::Maker(const ProgramArgs& args)
    : args_(args),
      d_(args.config.dims),
      own_(own_of(args.config)),
      family_(choose_family(args.config, args.run)),
      flash_(choose_flash(args.config, args.run)),
      pages_(args.run.kv_type()),
      activations_(choose_activations(family_, args.run)),
      tuned_(args.tuned.value_or(args.card.tuned())),
      device_(plan_device(args.card.facts)),
      cost_{d_, StoredFormats::of({}, args.config.dense), cost_shard(args.config), 0, args.config.layer_experts} {
  if (!plain()) cost_.down_cols = hidden_width_;
  cost_.formats.kv_row_bytes = page_row_bytes(pages_, d_.head_dim);
  check(args.reduce == nullptr || is_rank(), "ranks are told which experts are theirs");
  for (const Row& row : args.step.rows) tokens_ += row.tokens;
  require_moe_tile(args.config, args.run, args.card);
  (args.may_copy && copies_experts(args.config, args.run, tokens_) ? copied_layers_ : host_layers_) =
      host_layers(args.run, d_.layers);
  fused_ = family_ != KernelFamily::kReference && fused_step(d_, tokens_);
  dense_gemms_ = dense_by_gemm(family_, d_, tokens_);
  if (plain()) return;
  choose_experts();
  experts_gemms_ = copied_layers_ > 0 || experts_by_gemm(family_, experts_plan_, d_, tuned_, tokens_);
}

// As the plain kernels leave them.
void Maker::hold_floats() {
  const int64_t pairs = tokens_ * d_.topk;
  using enum Slot;
  for (const auto& [slot, at, cols] : {std::tuple<Slot, Place, int64_t>{kResidual, in<&Arena::residual>, d_.hidden},
                                       {kDelta, in<&Arena::delta>, d_.hidden},
                                       {kNormed, in<&Arena::normed>, d_.hidden},
                                       {kQkv, in<&Arena::q>, d_.q_width()},
                                       {kQ, in<&Arena::q>, d_.q_width()},
                                       {kAttn, in<&Arena::attn>, d_.q_width()},
                                       {kRouterLogits, in<&Arena::router_logits>, d_.experts}})
    hold(slot, floats(at, cols));
  hold(kExpertHidden, {.at = in<&Arena::row_order, &RowOrderArena::expert_hidden>, .rows = pairs, .cols = d_.inter});
  hold(kLogits, {.at = in<&Arena::logits>, .rows = args_.step.logit_rows, .cols = d_.vocab});
  hold_choice();
}

void Maker::hold_choice() {
  Held ids = floats(in<&Arena::expert_ids>, d_.topk);
  ids.type = Held::Type::kI32;
  hold(Slot::kExpertIds, ids);
  hold(Slot::kExpertWeights, floats(in<&Arena::expert_weights>, d_.topk));
}

Program Maker::make() && {
  program_.family = family_;
  program_.flash = flash_;
  program_.activations = rounded_;
  program_.dense_activations = rounds(args_.run.dense_activations) ? args_.run.dense_activations : Activations::kBf16;
  program_.tokens = tokens_;
  program_.logit_rows = args_.step.logit_rows;
  hold_floats();
  if (flash_) choose_prefill();
  if (args_.config.head) {
    head();
    return std::move(program_);
  }
  embed();
  attn_in();
  tap_layers();
  attend();
  attn_out();
  reduce_delta();
  route();
  moe();
  reduce_delta();
  tap_last();
  if (args_.step.logit_rows > 0) logits();
  return std::move(program_);
}

GemmShape Maker::shape_of(WeightRole role, int64_t tokens) const {
  GemmShape shape{.rows = d_.vocab,
                  .cols = d_.hidden,
                  .tokens = tokens,
                  .packing = packing(role),
                  .wide_scales = args_.scales.wide(),
                  .activations = rounds_dense(role) ? args_.run.dense_activations : Activations::kBf16};
  const bool by_gemm = role == kUnembedding ? logits_by_gemm(family_, tokens) : dense_gemms_;
  if (by_gemm && shape.packing == Packing::kQ8 && args_.config.dense.q8_copies) shape.packing = Packing::kBf16;
  if (role == kUnembedding) return shape;
  shape.rows = role == kQ ? d_.q_width() + 2 * d_.kv_width() : d_.hidden;
  if (role == kQ) return shape;
  check(role == kO, "a dense product");
  shape.cols = d_.q_width();
  return shape;
}

Maker::Gemm Maker::gemm_for(const GemmShape& shape) const {
  const auto chosen = first_serving<GemmPlan>(args_.card, &Arch::gemm, shape);
  check(chosen.has_value(), "the last architecture's GEMM serves every shape");
  return *chosen;
}

std::optional<Maker::SplitGemm> Maker::split_gemm_for(const GemmShape& shape) const {
  return first_serving<SplitGemmPlan>(args_.card, &Arch::split_gemm, shape);
}

GemmInput Maker::input_of(const GemmShape& shape, bool sums) const {
  const GemmKernel& own = gemm_for(shape).op;
  if (own.codes) return {nullptr, codes_of(shape.activations)};
  const bool panels = (sums && split_gemm_for(shape)) || own.panels;
  return {nullptr, input_type(shape.packing), panels ? in_atoms(shape.tokens) : 0};
}

void Maker::embed() {
  stage_ = Stage::kEmbed;
  add<Embed>(per_token(tokens_), {kEmbedding}, [n = tokens()](const Binding& b) {
    return Embed::Args{.table = b.w.embedding,
                       .ids = b.step.ids,
                       .sampled = b.at.sample.tokens,
                       .out = b.at.residual,
                       .tokens = n,
                       .hidden = to_int(b.config.dims.hidden)};
  });
}

Delta Maker::combined(const Delta& delta) const {
  if (!is_rank() || !delta.wants_combine()) return delta;
  return row_per_token();
}

Delta Maker::row_per_token() const {
  const DeltaValues::Sending sent = sent_as_made();
  const bool both = sent == DeltaValues::Sending::kToAll;
  return {.sums = {nullptr, both ? 2 : 1, SplitSums::Order::kTiles},
          .at = !both             ? in<&Arena::packed, &PackedArena::combined>
                : next_sum() == 0 ? in<&Arena::both_of_o>
                                  : in<&Arena::both_of_experts>,
          .sent = sent};
}

DeltaValues::Sending Maker::sent_as_made() const {
  if (args_.reduce == nullptr || args_.reduce->by_nccl || fused_) return DeltaValues::Sending::kNot;
  return cuda::sent_as_made(args_.reduce->ranks, 2 * split_pitch(tokens_, d_.hidden));
}

PartPlaces Maker::places_of(const Delta& delta) const {
  using enum DeltaValues::Sending;
  if (delta.sent == kToAll)
    return PartPlaces::exchanged(args_.reduce->exchange, next_sum(), delta.extent(d_, tokens_).words());
  return delta.sent == kToOwners ? args_.reduce->places : PartPlaces{};
}

void Maker::combine() {
  const Delta made = delta_;
  if (!is_rank() || !made.wants_combine()) return;
  delta_ = combined(made);
  const bool unsent = delta_.sent == DeltaValues::Sending::kNot;
  if (args_.reduce != nullptr && !args_.reduce->by_nccl && unsent &&
      sum_way(args_.reduce->ranks, delta_.extent(d_, tokens_).bytes()) == SumWay::kPush) {
    parts_ = made;
    return;
  }
  add<Combine>({}, [n = tokens(), made, own = own_, places = places_of(delta_)](const Binding& b) {
    Combine::Args args = made.combine(b, n);
    args.own = own;
    args.places = places;
    args.tiles = b.at.packed->combined;
    return args;
  });
}

void Maker::add_sum(std::function<void(const Binding&, const Launch&)> launch) {
  const Reduce& reduce = *args_.reduce;
  SumShape shape{.values = delta_.extent(d_, tokens_),
                 .ranks = reduce.ranks,
                 .ranks_on_card = reduce.ranks_on_card,
                 .sms = device_.sms,
                 .by_nccl = reduce.by_nccl};
  if (parts_) shape.combines = parts_->sums.order;
  const SumPlan plan = plan_sum(shape);
  Node& own = add(plan.kernel, plan.tile, {}, std::move(launch));
  own.launches = plan.launches;
  own.cost += {static_cast<double>(plan.cost.bytes), static_cast<double>(plan.cost.flops)};
}

bool Maker::adds_to_residual() const {
  if (args_.reduce == nullptr || args_.reduce->by_nccl || !fused_) return false;
  const DeltaValues values{.count = tokens_ * d_.hidden};
  return sum_way(args_.reduce->ranks, values.bytes()) == SumWay::kPush;
}

void Maker::add_to_residual() {
  const Delta parts = std::exchange(delta_, {});  // those of a rank are one message
  add_sum([n = tokens_, parts, launch = args_.reduce->launch](const Binding& b, const Launch& on) {
    DeltaValues values = Delta().values(b, n);
    values.rest = parts.rows(b, 1, n);
    values.into = b.at.residual;
    launch(values, on);
  });
  delta_.sums = {};
  hold_nothing({Slot::kDelta, Slot::kResidual});  // the residual is one verb ahead
}

void Maker::reduce_delta() {
  if (args_.reduce == nullptr) return;
  if (adds_to_residual()) return add_to_residual();
  add_sum([n = tokens(), delta = delta_, parts = parts_, ours = own_, launch = args_.reduce->launch](const Binding& b,
                                                                                                     const Launch& on) {
    DeltaValues values = delta.values(b, n);
    if (!parts) return launch(values, on);
    Combine::Args args = parts->combine(b, n);
    args.own = ours;
    args.tiles = b.at.packed->combined;
    values.parts = &args;
    launch(values, on);
  });
  parts_.reset();
}

// Where attn_in has left the sum of residual and delta.
void Maker::tap_layers() {
  const std::vector<int>& taps = args_.config.taps;
  std::vector<int> layers;
  std::copy_if(taps.begin(), taps.end(), std::back_inserter(layers), [&](int at) { return at < d_.layers; });
  if (layers.empty()) return;
  tap([sums = fused_ && !adds_to_residual()](const Binding& b) {
    return Tap::Args{.x = sums ? b.at.packed->residual_sum : b.at.residual, .out = b.tap(b.layer)};
  }).only = std::move(layers);
}

// Nobody else wants the sum of all tokens there. What a reader cannot add by itself is added to the residual.
void Maker::tap_last() {
  const int last = to_int(d_.layers) - 1;
  if (args_.config.taps.empty() || args_.config.taps.back() != d_.layers) return;
  if (!delta_.in_rows() && !delta_.added()) {
    add_experts().only = {last};
    experts_added_ = true;
  }
  tap([delta = delta_](const Binding& b) {
    return Tap::Args{.x = b.at.residual,
                     .sums = delta.in_rows() ? delta.bound(b) : SplitSums{},
                     .out = b.tap(to_int(b.config.dims.layers))};
  }).only = {last};
}

void Maker::logits() {
  stage_ = Stage::kLogits;
  const int64_t rows = args_.step.logit_rows;
  const auto normed_rows = [](const Binding& b) {
    return Rmsnorm::Args{.x = b.at.residual, .which = b.step.logit_tokens, .scale = b.w.final_norm};
  };
  if (plain()) {
    // The residual of rows that get logits is in normed.
    hold_nothing({Slot::kResidual});
    rmsnorm(kFinalNorm, rows, [normed_rows](const Binding& b) {
      Rmsnorm::Args args = normed_rows(b);
      args.delta = b.at.delta;
      return args;
    });
    return linear("lm_head", rows, {kUnembedding},
                  {&LayerPointers::unembedding, d_.vocab, d_.hidden, in<&Arena::normed>, in<&Arena::logits>});
  }
  const bool whole = fused_ && delta_.in_rows(), added = delta_.added();
  if (!whole && !added && !experts_added_) add_experts();
  if (whole) hold_nothing({Slot::kResidual});
  if (added) hold(Slot::kResidual, floats(in<&Arena::residual>, d_.hidden));
  const GemmShape shape = shape_of(kUnembedding, rows);
  const InOf in_of = [delta = whole ? delta_ : Delta{.sums = {}}, n = tokens_](const Binding& b) {
    return RowsIn{.x = b.at.residual,
                  .delta = {delta.rows(b, 0, n), delta.rows(b, 1, n)},
                  .which = b.step.logit_tokens,
                  .norm = b.w.final_norm,
                  .eps = b.config.rms_eps};
  };
  if (args_.screened && rows <= kGemvTokens && screens_logits(args_.config, args_.run, args_.card.facts))
    return screened_logits(shape, rows, in_of);
  if (!logits_by_gemm(family_, rows)) {
    return dense(shape, rows, {kFinalNorm, kUnembedding}, [in_of](const Binding& b) {
      return GemvDense::Args{.weights = b.w.unembedding.packed, .in = in_of(b), .y = b.at.logits};
    });
  }
  rmsnorm(kFinalNorm, rows, normed_rows);
  round(shape, false, in<&Arena::normed>);
  gemm(shape, {kUnembedding}, &LayerPointers::unembedding,
       [](const Binding& b, GemmArgs& args) { args.parts[0] = {b.at.logits, 0, args.rows}; });
}

void Maker::screened_logits(const GemmShape& shape, int64_t rows, const InOf& in_of) {
  hold_nothing({Slot::kLogits});
  const Plan plan = Screen::plan(shape.rows, shape.cols, to_int(rows), device_);
  const auto args_of = [=, n = to_int(rows)](const Binding& b) {
    return Screen::Args{.copy = b.w.screen,
                        .at = *b.at.screen,
                        .in = in_of(b),
                        .params = b.at.sample.params,
                        .y = b.at.logits,
                        .tokens = n};
  };
  Node& own = add(Screen::kName, plan.tile, {kFinalNorm},
                  [=](const Binding& b, const Launch& on) { Screen::launch(args_of(b), plan, on); });
  own.shared_bytes = plan.smem_bytes;
  const double values = static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
  own.cost += {static_cast<double>(screen_copy_bytes(shape.rows, shape.cols)), 2 * values * static_cast<double>(rows)};
  add<ScreenPick>(ScreenPick::kTile, {},
                  [=](const Binding& b) { return ScreenPick::Args{args_of(b), to_int(plan.grid)}; });
  // How many tiles it reads is the step's.
  const GemvPlan listed = plan_gemv({shape.rows, shape.cols, 1, shape.packing}, device_);
  add(GemvDense::kListed, listed.tile, {}, [=](const Binding& b, const Launch& on) {
    GemvDense::launch({.packing = shape.packing,
                       .weights = b.w.unembedding.packed,
                       .in = in_of(b),
                       .y = b.at.logits,
                       .rows = to_int(shape.rows),
                       .cols = to_int(shape.cols),
                       .tokens = to_int(rows),
                       .tiles = b.at.screen->tiles,
                       .listed = b.at.screen->state},
                      listed, on);
  }).shared_bytes = listed.smem_bytes;
}

int64_t screened_bytes(const BackendConfig& config, const RunConfig& run, const DeviceFacts& card) {
  return screens_logits(config, run, card) ? screen_copy_bytes(config.dims.vocab, config.dims.hidden) : 0;
}

Program make_program(const ProgramArgs& args) { return Maker(args).make(); }

void Program::execute(Stage stage, const Binding& b, Launch on) const {
  on.stage = stage;
  for (const Node& node : nodes)
    if (node.stage == stage && runs_in(node, b.layer, b.kind)) node.launch(b, on);
}

}  // namespace nibble::backend::cuda

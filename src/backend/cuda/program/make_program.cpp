// A step as a program: its stages in their order, and what they have in common.

#include "backend/cuda/program/maker.h"

#include "backend/cuda/comm/sum_way.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "base/error.h"

#include <algorithm>
#include <iterator>

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

Maker::Maker(const ProgramArgs& args)
    : args_(args),
      d_(args.config.dims),
      own_(own_of(args.config)),
      family_(choose_family(args.config, args.run)),
      flash_(choose_flash(args.config, args.run)),
      pages_(args.pages.value_or(page_type(args.run.kv_type()))),
      activations_(choose_activations(family_, args.run)),
      tuned_(args.tuned.value_or(args.card.tuned())),
      device_(plan_device(args.card.facts)),
      cost_{d_, StoredFormats::of({}, args.config.dense), cost_shard(args.config), 0, args.config.layer_experts} {
  if (!plain()) cost_.down_cols = hidden_width_;
  cost_.formats.kv_row_bytes = page_row_bytes(pages_.dtype, d_.head_dim);
  check(args.reduce == nullptr || is_rank(), "ranks are told which experts are theirs");
  for (const Row& row : args.step.rows) tokens_ += row.tokens;
  require_moe_tile(args.config, args.run, args.card);
  fused_ = family_ != KernelFamily::kReference && fused_step(d_, tokens_);
  dense_gemms_ = dense_by_gemm(family_, d_, tokens_);
  if (plain()) return;
  choose_experts();
  experts_gemms_ = experts_by_gemm(family_, experts_plan_, d_, tuned_, tokens_);
}

Program Maker::make() && {
  program_.family = family_;
  program_.flash = flash_;
  program_.activations = activations_;
  program_.dense_activations = rounds(args_.run.dense_activations) ? args_.run.dense_activations : Activations::kBf16;
  program_.tokens = tokens_;
  program_.logit_rows = args_.step.logit_rows;
  for (auto& slots : program_.held) slots.fill(SlotForm::kFloats);
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
                       .sampled = b.at.sampled,
                       .out = b.at.residual,
                       .tokens = n,
                       .hidden = to_int(b.config.dims.hidden)};
  });
}

Delta Maker::combined(const Delta& delta) const {
  if (!is_rank() || !delta.wants_combine()) return delta;
  if (sent_as_made() == DeltaValues::Sending::kToAll) return both(delta.form == Delta::Form::kTiles ? 0 : 1);
  return {Delta::Form::kCombined};
}

Delta Maker::both(int sum) const {
  const Exchange& exchange = args_.reduce->exchange;
  return {.form = Delta::Form::kBoth, .sum = sum, .both = exchange.both(exchange.rank, sum)};
}

bool Maker::combines_in_sum() const {
  if (args_.reduce == nullptr || !args_.reduce->fused || delta_.form != Delta::Form::kCombined) return false;
  const int64_t bytes = delta_.extent(d_, tokens_).bytes();
  return sum_way(args_.reduce->ranks, bytes) == SumWay::kPush;
}

DeltaValues::Sending Maker::sent_as_made() const {
  if (args_.reduce == nullptr || !args_.reduce->fused || fused_) return DeltaValues::Sending::kNot;
  const int64_t bytes = Delta{Delta::Form::kCombined}.extent(d_, tokens_).bytes();
  return cuda::sent_as_made(args_.reduce->ranks, bytes);
}

PartPlaces Maker::places_of(const Delta& delta) const {
  if (delta.form == Delta::Form::kBoth)
    return PartPlaces::exchanged(args_.reduce->exchange, delta.sum, delta.extent(d_, tokens_).words());
  return delta.sent ? args_.reduce->places : PartPlaces{};
}

void Maker::combine() {
  const Delta made = delta_;
  delta_ = combined(made);
  if (delta_.form == made.form) return;
  if (combines_in_sum()) {
    parts_ = made;
    return;
  }
  delta_.sent = delta_.form == Delta::Form::kCombined && sent_as_made() == DeltaValues::Sending::kToOwners;
  add<Combine>({}, [n = tokens(), made, own = own_, places = places_of(delta_)](const Binding& b) {
    Combine::Args args = made.combine(b, n);
    args.own = own;
    args.places = places;
    args.tiles = b.at.combined;
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
  if (parts_) shape.combines = parts_->combines();
  const SumPlan plan = plan_sum(shape);
  Node& own = add(plan.kernel, plan.tile, {}, std::move(launch));
  own.launches = plan.launches;
  own.cost += {static_cast<double>(plan.cost.bytes), static_cast<double>(plan.cost.flops)};
}

bool Maker::adds_to_residual() const {
  if (args_.reduce == nullptr || !args_.reduce->fused || !fused_) return false;
  const DeltaValues values{.count = tokens_ * d_.hidden};
  return sum_way(args_.reduce->ranks, values.bytes()) == SumWay::kPush;
}

void Maker::add_to_residual() {
  const bool parts = delta_.form == Delta::Form::kParts;
  delta_ = {Delta::Form::kRows};  // the parts of a rank are one message
  add_sum([n = tokens_, delta = delta_, parts, launch = args_.reduce->launch](const Binding& b, const Launch& on) {
    DeltaValues values = delta.values(b, n);
    values.rest = parts ? b.rest(n) : nullptr;
    values.into = b.at.residual;
    launch(values, nullptr, on);
  });
  delta_ = {Delta::Form::kAdded};
  hold(Slot::kDelta, SlotForm::kNothing);
  hold(Slot::kResidual, SlotForm::kNothing);  // it is one verb ahead
}

void Maker::reduce_delta() {
  if (args_.reduce == nullptr) return;
  if (adds_to_residual()) return add_to_residual();
  add_sum([n = tokens(), delta = delta_, parts = parts_, ours = own_, launch = args_.reduce->launch](const Binding& b,
                                                                                                     const Launch& on) {
    if (!parts) return launch(delta.values(b, n), nullptr, on);
    Combine::Args args = parts->combine(b, n);
    args.own = ours;
    args.tiles = b.at.combined;
    launch(delta.values(b, n), &args, on);
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
    return Tap::Args{.x = sums ? b.at.residual_sum : b.at.residual, .out = b.tap(b.layer)};
  }).only = std::move(layers);
}

// Nobody else wants the sum of all tokens there. What a reader cannot add by itself is added to the residual.
void Maker::tap_last() {
  const int last = to_int(d_.layers) - 1;
  if (args_.config.taps.empty() || args_.config.taps.back() != d_.layers) return;
  const bool parts = delta_.form == Delta::Form::kParts, whole = parts || delta_.form == Delta::Form::kRows;
  if (!whole && delta_.form != Delta::Form::kAdded) {
    add_experts().only = {last};
    experts_added_ = true;
  }
  tap([parts, whole, n = tokens_](const Binding& b) {
    return Tap::Args{.x = b.at.residual,
                     .delta = whole ? b.at.delta : nullptr,
                     .rest = parts ? b.rest(n) : nullptr,
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
    hold(Slot::kResidual, SlotForm::kNothing);
    rmsnorm(kFinalNorm, rows, [normed_rows](const Binding& b) {
      Rmsnorm::Args args = normed_rows(b);
      args.delta = b.at.delta;
      return args;
    });
    return linear("lm_head", rows, {d_.vocab, d_.hidden}, {kUnembedding}, [](const Binding& b) {
      return Linear::Args{.weight = b.w.unembedding_rows, .x = b.at.normed, .out = b.at.logits};
    });
  }
  const bool parts = delta_.form == Delta::Form::kParts, whole = parts || delta_.form == Delta::Form::kRows;
  const bool added = delta_.form == Delta::Form::kAdded;
  if (!whole && !added && !experts_added_) add_experts();
  if (whole || added) hold(Slot::kResidual, added ? SlotForm::kFloats : SlotForm::kNothing);
  const GemmShape shape = shape_of(kUnembedding, rows);
  if (!logits_by_gemm(family_, rows)) {
    return dense(shape, rows, {kFinalNorm, kUnembedding}, [parts, whole, n = tokens_](const Binding& b) {
      return GemvDense::Args{.weights = b.w.unembedding.data,
                             .in = {.x = b.at.residual,
                                    .delta = {whole ? b.at.delta : nullptr, parts ? b.rest(n) : nullptr},
                                    .which = b.step.logit_tokens,
                                    .norm = b.w.final_norm,
                                    .eps = b.config.rms_eps},
                             .y = b.at.logits};
    });
  }
  rmsnorm(kFinalNorm, rows, normed_rows);
  round(shape, false, [](const Binding& b) { return b.at.normed; });
  gemm(
      shape, {kUnembedding}, [](const Binding& b) { return b.w.unembedding.data; },
      [](const Binding& b, GemmArgs& args) { args.parts[0] = {b.at.logits, 0, args.rows}; });
}

Program make_program(const ProgramArgs& args) { return Maker(args).make(); }

void Program::execute(Stage stage, const Binding& b, Launch on) const {
  on.stage = stage;
  for (const Node& node : nodes)
    if (node.stage == stage && runs_in(node, b.layer, b.kind)) node.launch(b, on);
}

}  // namespace nibble::backend::cuda

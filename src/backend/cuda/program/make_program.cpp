#include "backend/cuda/program/program.h"

#include "backend/cuda/program/choices.h"
#include "backend/cuda/experts/gemv_int8.h"
#include "backend/cuda/experts/grouped_plan.h"
#include "backend/cuda/dense/linear_plan.h"
#include "backend/cuda/dense/split_gemm_plan.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/quantise/round_blocks.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;
using enum WeightRole;
using Roles = std::vector<WeightRole>;

int to_int(int64_t value) { return static_cast<int>(value); }
int in_atoms(int64_t rows) { return to_int((rows + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomRows); }

// The first of a card's architectures whose kernel of an operation serves a shape: the kernel, and what it is asked to
// do; or none.
template <class Op, class Plan>
struct Chosen {
  Op op{};
  Kernel kernel;
  Plan plan;
};
template <class Op, class Plan>
std::optional<Chosen<Op, Plan>> first_serving(const Card& card, Op Arch::* op, const GemmShape& shape) {
  for (const Arch& arch : card.arches)
    if ((arch.*op).serve != nullptr)
      if (const std::optional<Served<Plan>> served = (arch.*op).serve(shape, card.facts))
        return Chosen<Op, Plan>{arch.*op, served->kernel, served->plan};
  return std::nullopt;
}

// How a stage left its delta, for the next one, which adds it to the residual.
struct Delta {
  enum class Form : uint8_t {
    kRows,        // f32 [tokens, hidden]: Arena::delta[0]
    kParts,       // the same twice, to be added: Arena::delta
    kSums,        // of a GEMM, without o's bias: Arena::gemm_y
    kTiles,       // the same in splits, bf16 (split_gemm_plan.h)
    kExpertsF32,  // [tokens, topk, hidden], without the experts' weights: Arena::expert_out
    kExpertsBf16  // the same: Arena::gemm_y
  } form = Form::kRows;
  int splits = 1;

  // norm_sums that add it.
  [[nodiscard]] NormSumsArgs sums(const Binding& b, int tokens) const {
    NormSumsArgs args{
        .x = b.at.residual, .tokens = tokens, .hidden = to_int(b.config.dims.hidden), .eps = b.config.rms_eps};
    const int topk = to_int(b.config.dims.topk);
    switch (form) {
      case Form::kRows: args.sums = {b.at.delta[0], 1}; break;
      case Form::kParts: check(false, "norm_sums adds a delta of one part"); break;
      case Form::kSums: args.sums = {b.at.gemm_y, 1}, args.bias = b.w.o_bias; break;
      case Form::kTiles: args.sums = {b.at.gemm_y, splits, SplitSums::Order::kTiles}, args.bias = b.w.o_bias; break;
      case Form::kExpertsF32:
        args.experts = {.at = b.at.expert_out, .weights = b.at.expert_weights, .topk = topk};
        break;
      case Form::kExpertsBf16:
        args.experts = {
            .at = b.at.gemm_y, .type = ExpertSums::Type::kBf16, .weights = b.at.expert_weights, .topk = topk};
        break;
    }
    return args;
  }

  // All of it, for who adds up the ranks'. Biases and experts' weights are not in it: its reader has them.
  [[nodiscard]] std::vector<DeltaValues> values(const Binding& b, int64_t tokens) const {
    using enum DeltaValues::Type;
    const int64_t hidden = b.config.dims.hidden, rows = tokens * hidden, pairs = rows * b.config.dims.topk;
    switch (form) {
      case Form::kRows: return {{b.at.delta[0], rows, kF32}};
      case Form::kParts: return {{b.at.delta[0], rows, kF32}, {b.at.delta[1], rows, kF32}};
      case Form::kSums: return {{b.at.gemm_y, rows, kF32}};
      case Form::kTiles: return {{b.at.gemm_y, splits * split_pitch(tokens, hidden), kBf16}};
      case Form::kExpertsF32: return {{b.at.expert_out, pairs, kF32}};
      case Form::kExpertsBf16: return {{b.at.gemm_y, pairs, kBf16}};
    }
    return {};
  }
};

class Maker {
 public:
  explicit Maker(const ProgramArgs& args)
      : args_(args),
        d_(args.config.dims),
        moe_(choose_moe(args.config, args.run)),
        flash_(choose_flash(args.config, args.run)),
        pages_(args.pages.value_or(page_type(args.run.kv_type()))),
        activations_(choose_activations(moe_, args.run)),
        tuned_(args.tuned.value_or(args.card.tuned())),
        gemv_(gemv_device(args.card.facts)),
        cost_{d_, StoredFormats::of({}, args.config.dense)} {
    cost_.formats.kv_row_bytes = page_row_bytes(pages_.dtype, d_.head_dim);
    for (const Row& row : args.step.rows) tokens_ += row.tokens;
    require_moe_tile(args.config, args.run, args.card);
    fused_ = moe_ != MoeKernel::kReference && fused_step(d_, tokens_);
    dense_gemms_ = dense_by_gemm(moe_, d_, tokens_);
    if (plain()) return;
    choose_experts();
    experts_gemms_ = experts_by_gemm(moe_, experts_plan_.at_once, d_, tuned_, tokens_);
  }

  Program make() && {
    program_.moe = moe_;
    program_.flash = flash_;
    program_.activations = activations_;
    program_.dense_activations = rounds(args_.run.dense_activations) ? args_.run.dense_activations : Activations::kBf16;
    program_.tokens = tokens_;
    program_.logit_rows = args_.step.logit_rows;
    for (auto& slots : program_.held) slots.fill(Held::kFloats);
    if (flash_) choose_prefill();
    embed();
    attn_in();
    attend();
    attn_out();
    reduce_delta();
    route();
    moe();
    reduce_delta();
    if (args_.step.logit_rows > 0) logits();
    return std::move(program_);
  }

 private:
  [[nodiscard]] bool plain() const { return moe_ == MoeKernel::kReference; }
  [[nodiscard]] Packing packing(WeightRole role) const { return packing_of(role, args_.config.dense); }

  // Which kernels of the card's architectures take the step's work.
  using Gemm = Chosen<GemmKernel, GemmPlan>;
  using SplitGemm = Chosen<SplitGemmKernel, SplitGemmPlan>;
  [[nodiscard]] GemmShape shape_of(WeightRole role, int64_t tokens) const {
    GemmShape shape{.rows = d_.vocab,
                    .cols = d_.hidden,
                    .tokens = tokens,
                    .packing = packing(role),
                    .wide_scales = args_.wide_scales,
                    .activations = rounds_dense(role) ? args_.run.dense_activations : Activations::kBf16};
    if (role == kUnembedding) return shape;
    shape.rows = role == kQ ? d_.q_width() + 2 * d_.kv_width() : d_.hidden;
    if (role == kQ) return shape;
    check(role == kO, "a dense product");
    shape.cols = d_.q_width();
    return shape;
  }
  [[nodiscard]] bool rounds_dense(WeightRole role) const {
    return rounds(args_.run.dense_activations) && args_.config.dense.of(role).has_value();
  }
  [[nodiscard]] Gemm gemm_for(const GemmShape& shape) const {
    const auto chosen = first_serving<GemmKernel, GemmPlan>(args_.card, &Arch::gemm, shape);
    check(chosen.has_value(), "the last architecture's GEMM serves every shape");
    return *chosen;
  }
  [[nodiscard]] std::optional<SplitGemm> split_gemm_for(const GemmShape& shape) const {
    return first_serving<SplitGemmKernel, SplitGemmPlan>(args_.card, &Arch::split_gemm, shape);
  }
  // Where the kernel that takes this shape finds its input. sums: split, where some kernel does.
  [[nodiscard]] GemmInput input_of(const GemmShape& shape, bool sums) const {
    const GemmKernel& own = gemm_for(shape).op;
    if (own.codes) return {nullptr, codes_of(shape.activations)};
    const bool panels = (sums && split_gemm_for(shape)) || own.panels;
    return {nullptr, input_type(shape.packing), panels ? in_atoms(shape.tokens) : 0, rounds(shape.activations)};
  }
  void choose_experts() {
    const ExpertsShape shape{.hidden = d_.hidden,
                             .inter = d_.inter,
                             .pairs = tokens_ * d_.topk,
                             .experts = d_.experts,
                             .activations = activations_,
                             .wide_scales = args_.wide_scales,
                             .tile_tokens = tokens_of(args_.run.moe_tile)};
    for (const Arch& arch : args_.card.arches) {
      if (arch.experts.serve == nullptr) continue;
      const std::optional<ExpertsPlan> plan = arch.experts.serve(shape, args_.card.facts);
      if (!plan) continue;
      experts_ = arch.experts;
      experts_plan_ = *plan;
      return;
    }
    check(false, "the last architecture's experts serve every shape");
  }
  // Where none takes long rows of such pages, the general kernel has the whole step.
  void choose_prefill() {
    share_tokens(args_.step.rows, program_.shares);
    if (program_.shares.prefill.empty()) return;
    for (const Arch& arch : args_.card.arches) {
      if (arch.prefill.serve == nullptr) continue;
      const std::optional<Kernel> own = arch.prefill.serve(pages_);
      if (!own) continue;
      prefill_ = arch.prefill;
      prefill_kernel_ = *own;
      return share_tokens(args_.step.rows, program_.shares, prefill_.tile_tokens);
    }
    program_.shares = {};
    flash_ = false;
  }

  [[nodiscard]] int tokens() const { return to_int(tokens_); }
  // Whether the step's experts multiply codes, which the norm and gate_up's launch make (ExpertsPlan::input).
  [[nodiscard]] bool experts_take_codes() const { return experts_gemms_ && in_codes(experts_plan_.input); }
  // From this stage on.
  void hold(Slot slot, Held as) {
    for (int stage = static_cast<int>(stage_); stage < kStages; ++stage)
      program_.held[static_cast<size_t>(stage)][static_cast<size_t>(slot)] = as;
  }

  template <class Do>
  Node& add(Kernel kernel, std::string tile, const Roles& reads, Do launch) {
    Node& own = program_.nodes.emplace_back();
    own.stage = stage_;
    own.kernel = std::string(kernel.name);
    own.tile = std::move(tile);
    for (const WeightRole role : reads) own.cost += cost_.of(role, args_.step);
    own.launch = std::move(launch);
    return own;
  }
  [[nodiscard]] static std::string per_token(int64_t tokens) { return fmt::format("a CTA per token, {} CTAs", tokens); }

  void embed() {
    stage_ = Stage::kEmbed;
    add(kernel::kEmbed, per_token(tokens_), {kEmbedding}, [n = tokens()](const Binding& b, const Launch& on) {
      b.kernels.embed({.table = b.w.embedding,
                       .ids = b.step.ids,
                       .sampled = b.at.sampled,
                       .out = b.at.residual,
                       .tokens = n,
                       .hidden = to_int(b.config.dims.hidden)},
                      on);
    });
  }

  void attn_in() {
    stage_ = Stage::kAttnIn;
    if (plain()) return plain_attn_in();
    add(kernel::kRopeTable, per_token(tokens_), {}, [n = tokens()](const Binding& b, const Launch& on) {
      b.kernels.rope_table({.positions = b.step.positions,
                            .inv_freq = b.at.rope_inv_freq,
                            .cosine = b.at.rope_cosine,
                            .sine = b.at.rope_sine,
                            .tokens = n,
                            .half = to_int(b.config.dims.head_dim / 2),
                            .concentration = b.config.rope_concentration},
                           on);
    }).layers = InLayers::kFirst;
    if (dense_gemms_) return gemm_attn_in();
    const Packing packed = packing(kQ);
    const Delta::Form left = experts_delta().form;
    const bool parts = left == Delta::Form::kParts, rows = parts || left == Delta::Form::kRows;
    if (!rows) add_experts().layers = InLayers::kAfterFirst;
    if (fused_) hold(Slot::kResidual, Held::kSum);
    for (const Slot slot : {Slot::kNormed, Slot::kQkv}) hold(slot, Held::kNothing);
    const auto input = [parts, rows, fused = fused_, in_mxfp8 = rounds_dense(kQ)](const Binding& b) {
      const bool adds = rows && b.layer > 0;
      return RowsIn{.x = b.at.residual,
                    .delta = {adds ? b.at.delta[0] : nullptr, adds && parts ? b.at.delta[1] : nullptr},
                    .sum = fused ? b.at.residual_sum : nullptr,
                    .norm = b.w.attn_norm,
                    .eps = b.config.rms_eps,
                    .in_mxfp8 = in_mxfp8};
    };
    if (!pages_.alone) {  // whole rows: rope_sums has them
      dense(shape_of(kQ, tokens_), tokens_, {kAttnNorm, kQ, kK, kV},
            [input](const Binding& b) { return DenseArgs{.weights = b.w.qkv.data, .in = input(b), .y = b.at.qkv}; });
      qkv_sums_ = {nullptr, 1};
      return;
    }
    gemv(by_packing(kernel::kGemvQkv, packed), {d_.q_width() + 2 * d_.kv_width(), d_.hidden, 1, packed}, tokens_,
         {kAttnNorm, kQ, kK, kV, kQBias, kKBias, kVBias},
         [input, n = tokens_](const Binding& b, const GemvPlan& plan, const Launch& on) {
           const Dims& d = b.config.dims;
           const int64_t rope = d.head_dim / 2;
           for (int64_t t = 0; t < n; t += kGemvTokens) {
             RowsIn in = input(b);
             in.x += t * d.hidden;
             b.kernels.qkv({.packing = b.w.qkv.packing,
                            .weights = b.w.qkv.data,
                            .bias = b.w.q_bias,
                            .in = in,
                            .q = b.at.q + t * d.q_width(),
                            .cosine = b.at.rope_cosine + t * rope,
                            .sine = b.at.rope_sine + t * rope,
                            .kv_slots = b.step.kv_slots[static_cast<size_t>(b.kind)] + t,
                            .kv = b.kv(),
                            .heads = to_int(d.heads),
                            .kv_heads = to_int(d.kv_heads),
                            .cols = to_int(d.hidden),
                            .tokens = to_int(std::min<int64_t>(kGemvTokens, n - t))},
                           plan, on);
           }
         });
  }

  void plain_attn_in() {
    rmsnorm(kAttnNorm, tokens_, [](const Binding& b) {
      const bool adds = b.layer > 0;
      return RmsnormLaunch{.x = b.at.residual,
                           .delta = adds ? b.at.delta[0] : nullptr,
                           .sum = adds ? b.at.residual : nullptr,
                           .scale = b.w.attn_norm};
    });
    linear("q", tokens_, {d_.q_width(), d_.hidden}, {kQ, kQBias}, [](const Binding& b) {
      return LinearLaunch{.weight = b.w.q, .bias = b.w.q_bias, .x = b.at.normed, .out = b.at.q};
    });
    linear("k", tokens_, {d_.kv_width(), d_.hidden}, {kK, kKBias}, [](const Binding& b) {
      return LinearLaunch{.weight = b.w.k, .bias = b.w.k_bias, .x = b.at.normed, .out = b.at.k};
    });
    linear("v", tokens_, {d_.kv_width(), d_.hidden}, {kV, kVBias}, [](const Binding& b) {
      return LinearLaunch{.weight = b.w.v, .bias = b.w.v_bias, .x = b.at.normed, .out = b.at.v};
    });
  }

  void plain_rope_kv() {
    add(kernel::kRopeKv.of(pages_.dtype), per_token(tokens_), {}, [n = tokens()](const Binding& b, const Launch& on) {
      const Dims& d = b.config.dims;
      b.kernels.rope_kv({.q = b.at.q,
                         .k = b.at.k,
                         .v = b.at.v,
                         .positions = b.step.positions,
                         .kv_slots = b.step.kv_slots[static_cast<size_t>(b.kind)],
                         .rope_inv_freq = b.at.rope_inv_freq,
                         .kv = b.kv(),
                         .tokens = n,
                         .heads = to_int(d.heads),
                         .kv_heads = to_int(d.kv_heads),
                         .head_dim = to_int(d.head_dim),
                         .rope_concentration = b.config.rope_concentration},
                        on);
    });
  }

  static RopeSumsArgs rope_of(const Binding& b, int tokens) {
    return {.bias = b.w.q_bias,
            .q = b.at.q,
            .cosine = b.at.rope_cosine,
            .sine = b.at.rope_sine,
            .kv_slots = b.step.kv_slots[static_cast<size_t>(b.kind)],
            .kv = b.kv(),
            .tokens = tokens,
            .heads = to_int(b.config.dims.heads),
            .kv_heads = to_int(b.config.dims.kv_heads)};
  }

  void gemm_attn_in() {
    const GemmShape shape = shape_of(kQ, tokens_);
    const GemmInput in = input_of(shape, true);
    norm_sums({kAttnNorm}, experts_delta(), [in](const Binding& b, NormSumsArgs& args) {
      if (b.layer == 0) args.experts = {};
      args.norm = b.w.attn_norm;
      args.rounded = in;
      args.rounded.at = b.at.gemm_x;
    });
    for (const Slot slot : {Slot::kNormed, Slot::kQkv}) hold(slot, Held::kNothing);
    qkv_sums_ = sums(shape, {kQ, kK, kV}, [](const Binding& b) { return b.w.qkv.data; });
  }

  // Of the sums that attn_in left.
  void rope_sums() {
    add(kernel::kRopeSums, "8 rows of a token per thread", {kQBias, kKBias, kVBias},
        [n = tokens(), sums = qkv_sums_, gemms = dense_gemms_](const Binding& b, const Launch& on) {
          RopeSumsArgs rope = rope_of(b, n);
          rope.sums = sums;
          rope.sums.at = gemms ? b.at.gemm_y : b.at.qkv;
          b.kernels.rope_sums(rope, on);
        });
  }

  void attend() {
    stage_ = Stage::kAttend;
    if (plain()) {
      plain_rope_kv();
    } else if (qkv_sums_.splits > 0) {
      rope_sums();
    }
    for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) attend(kind);
  }

  void attend(LayerKind kind) {
    const auto place = [&](Node& own, const std::vector<Row>& rows) {
      own.kind = kind;
      own.cost += cost_.of(stage_, kind, {.rows = rows});
    };
    const int n = tokens(), window = kind == LayerKind::kSliding ? to_int(d_.sliding_window) : 0;
    const auto of_kind = static_cast<size_t>(kind);
    if (!flash_) {
      return place(add(kernel::kAttend.of(pages_.dtype),
                       fmt::format("a CTA per head and token, {} x {} CTAs", d_.heads, tokens_), {},
                       [=](const Binding& b, const Launch& on) {
                         b.kernels.attend({.q = b.at.q,
                                           .out = b.at.attn,
                                           .sinks = b.step.sinks ? b.w.sinks : nullptr,
                                           .token_row = b.step.token_row,
                                           .positions = b.step.last_key,
                                           .pages = b.step.pages[of_kind],
                                           .kv = b.kv(),
                                           .pages_per_row = b.step.pages_per_row[of_kind],
                                           .tokens = n,
                                           .heads = to_int(b.config.dims.heads),
                                           .kv_heads = to_int(b.config.dims.kv_heads),
                                           .head_dim = to_int(b.config.dims.head_dim),
                                           .window = window},
                                          on);
                       }),
                   {args_.step.rows.begin(), args_.step.rows.end()});
    }
    if (attend_stores_input()) {
      program_.attn_input = input_of(shape_of(kO, tokens_), true);
      hold(Slot::kAttn, in_codes(program_.attn_input.type) ? Held::kNothing : Held::kInput);  // others are not rounded
    }
    const auto args_of = [=, in = program_.attn_input, to_input = attend_stores_input()](const Binding& b) {
      FlashArgs args{.q = b.at.q,
                     .out = b.at.attn,
                     .sinks = b.step.sinks ? b.w.sinks : nullptr,
                     .token_row = b.step.token_row,
                     .positions = b.step.last_key,
                     .pages = b.step.pages[of_kind],
                     .keys = b.kv().keys,
                     .values = b.kv().values,
                     .pages_per_row = b.step.pages_per_row[of_kind],
                     .heads = to_int(b.config.dims.heads),
                     .kv_heads = to_int(b.config.dims.kv_heads),
                     .window = window,
                     .partials = b.at.attend_partials,
                     .finished = b.at.attend_finished};
      if (to_input) args.rounded = {b.at.gemm_x, in.type, in.rows};
      return args;
    };
    std::vector<Row> decodes, prefills;
    for (const Row& row : args_.step.rows) (row.tokens <= kMaxDecodeTokens ? decodes : prefills).push_back(row);
    if (const auto count = to_int(std::ssize(program_.shares.decode)); count > 0) {
      const DecodePlan plan = plan_decode({.tokens = count,
                                           .kv_heads = to_int(d_.kv_heads),
                                           .row_bytes = to_int(page_row_bytes(pages_.dtype, d_.head_dim)),
                                           .window = window},
                                          attend_device(args_.card.facts));
      Node& own = add(kernel::kAttendDecode.of(pages_.dtype), decode_tile(plan, count, to_int(d_.kv_heads)), {},
                      [=](const Binding& b, const Launch& on) {
                        FlashArgs args = args_of(b);
                        args.decode_tokens = b.step.decode_tokens;
                        args.decode_count = count;
                        args.target = plan.target;
                        b.kernels.attend_decode(args, b.kv().type, plan, on);
                      });
      own.shared_bytes = plan.smem_bytes;
      place(own, decodes);
    }
    if (program_.shares.prefill.empty()) return;
    const auto tiles = std::ssize(program_.shares.prefill);
    const PrefillPlan plan = prefill_.plan(tiles, d_.kv_heads, args_.card.facts);
    place(add(prefill_kernel_, plan.tile, {},
              [=, launch = prefill_.launch, ctas = plan.ctas](const Binding& b, const Launch& on) {
                FlashArgs args = args_of(b);
                args.tiles = b.step.attend_tiles;
                args.tile_count = to_int(tiles);
                args.ctas = ctas;
                launch(args, b.kv().type, on);
              }),
          prefills);
  }

  // Whether attention leaves its result as o's GEMM takes it; else a pass does. What is rounded to values is left to a
  // pass: only cards that have no GEMM for codes round so.
  [[nodiscard]] bool attend_stores_input() const {
    if (!flash_ || !dense_gemms_) return false;
    const GemmInput in = input_of(shape_of(kO, tokens_), true);
    if (!in_codes(in.type)) return !in.in_mxfp8;
    return program_.shares.prefill.empty() || prefill_.codes;
  }

  void attn_out() {
    stage_ = Stage::kAttnOut;
    const Roles reads = {kO, kOBias};
    delta_ = {};
    if (plain()) {
      return linear("o", tokens_, {d_.hidden, d_.q_width()}, reads, [](const Binding& b) {
        return LinearLaunch{.weight = b.w.o_rows, .bias = b.w.o_bias, .x = b.at.attn, .out = b.at.delta[0]};
      });
    }
    const GemmShape shape = shape_of(kO, tokens_);
    if (dense_gemms_) {
      if (!attend_stores_input()) round(shape, true, [](const Binding& b) { return b.at.attn; });
      const SplitSums left = sums(shape, reads, [](const Binding& b) { return b.w.o.data; });
      delta_ = {left.order == SplitSums::Order::kTiles ? Delta::Form::kTiles : Delta::Form::kSums, left.splits};
      hold(Slot::kDelta, Held::kNothing);
      return;
    }
    dense(shape, tokens_, reads, [](const Binding& b) {
      return DenseArgs{.weights = b.w.o.data, .bias = b.w.o_bias, .in = {.x = b.at.attn}, .y = b.at.delta[0]};
    });
  }

  void route() {
    stage_ = Stage::kRoute;
    const int n = tokens();
    hold(Slot::kResidual, Held::kFloats);
    if (fused_) {
      const bool exact = !rounds(activations_);
      hold(Slot::kNormed, exact ? Held::kF16 : Held::kFloats);
      add(kernel::kRouter, fmt::format("grid {} x {} threads, a CTA per expert", d_.experts, kRouterThreads),
          {kMlpNorm, kRouter, kRouterBias}, [n, exact](const Binding& b, const Launch& on) {
            b.kernels.router({.x = b.at.residual_sum,
                              .delta = b.at.delta[0],
                              .sum = b.at.residual,
                              .norm = b.w.mlp_norm,
                              .weight = b.w.router,
                              .bias = b.w.router_bias,
                              .normed = exact ? nullptr : b.at.normed,
                              .rounded = b.at.normed_f16,
                              .logits = b.at.router_logits,
                              .hidden = to_int(b.config.dims.hidden),
                              .experts = to_int(b.config.dims.experts),
                              .tokens = n,
                              .eps = b.config.rms_eps},
                             on);
          });
      for (const Slot slot : {Slot::kExpertIds, Slot::kExpertWeights}) hold(slot, Held::kNothing);  // moe_up chooses
      return;
    }
    if (plain()) {
      rmsnorm(kMlpNorm, tokens_, [](const Binding& b) {
        return RmsnormLaunch{.x = b.at.residual, .delta = b.at.delta[0], .sum = b.at.residual, .scale = b.w.mlp_norm};
      });
      return route_plainly();
    }
    const bool by_tiles = router_by_tiles(tuned_, tokens_);
    if (delta_.form == Delta::Form::kSums && !by_tiles && d_.experts <= kRouteSumsExperts) return route_sums();
    norm_sums({kMlpNorm}, delta_,
              [to_f16 = !experts_gemms_, to_codes = experts_take_codes(), codes = experts_plan_.input](
                  const Binding& b, NormSumsArgs& args) {
                args.norm = b.w.mlp_norm;
                args.normed = b.at.normed;
                if (to_f16) args.rounded = {.at = &b.at.normed_f16->bits, .type = InputType::kF16};
                if (to_codes) args.rounded = {.at = b.at.gemm_x, .type = codes};
              });
    hold(Slot::kNormed, Held::kFloats);
    if (!by_tiles) return route_plainly();
    const RoutePlan plan = plan_route({tokens_, d_.hidden, d_.experts}, args_.card.facts.multiprocessors);
    add(kernel::kRouteTokens, plan.to_string(), {kRouter, kRouterBias}, [n, plan](const Binding& b, const Launch& on) {
      b.kernels.route_tokens({.x = b.at.normed,
                              .weight = b.w.router,
                              .bias = b.w.router_bias,
                              .logits = b.at.router_logits,
                              .ids = b.at.expert_ids,
                              .weights = b.at.expert_weights,
                              .finished = b.at.route_finished,
                              .tokens = n,
                              .hidden = to_int(b.config.dims.hidden),
                              .experts = to_int(b.config.dims.experts),
                              .topk = to_int(b.config.dims.topk)},
                             plan, on);
    }).shared_bytes = plan.smem_bytes;
  }

  void route_plainly() {
    linear("router", tokens_, {d_.experts, d_.hidden}, {kRouter, kRouterBias}, [](const Binding& b) {
      return LinearLaunch{.weight = b.w.router, .bias = b.w.router_bias, .x = b.at.normed, .out = b.at.router_logits};
    });
    top_experts();
  }

  void top_experts() {
    add(kernel::kTopExperts, "a warp per token", {}, [n = tokens()](const Binding& b, const Launch& on) {
      b.kernels.top_experts({.logits = b.at.router_logits,
                             .ids = b.at.expert_ids,
                             .weights = b.at.expert_weights,
                             .tokens = n,
                             .experts = to_int(b.config.dims.experts),
                             .topk = to_int(b.config.dims.topk)},
                            on);
    });
  }

  // The GEMMs' rounding takes the residual and its inverses; whoever else multiplies gets the norm.
  void route_sums() {
    norms_while_rounding_ = norm_while_rounding(activations_, experts_gemms_);
    if (!norms_while_rounding_) {
      norm_sums({kMlpNorm}, delta_,
                [exact = !rounds(activations_), to_codes = experts_take_codes(), codes = experts_plan_.input](
                    const Binding& b, NormSumsArgs& args) {
                  args.norm = b.w.mlp_norm;
                  if (to_codes) {
                    args.rounded = {.at = b.at.gemm_x, .type = codes};
                  } else if (exact) {
                    args.rounded = {.at = &b.at.normed_f16->bits, .type = InputType::kF16};
                  } else {
                    args.normed = b.at.normed;
                  }
                });
    }
    const bool floats = !norms_while_rounding_ && rounds(activations_) && !experts_take_codes();
    hold(Slot::kNormed, floats ? Held::kFloats : Held::kNothing);
    add(kernel::kRouteSums, "16 or 32 tokens per CTA", {kMlpNorm, kRouter, kRouterBias},
        [n = tokens(), adds = norms_while_rounding_, delta = delta_](const Binding& b, const Launch& on) {
          const NormSumsArgs left = adds ? delta.sums(b, n) : NormSumsArgs{};
          b.kernels.route_sums({.x = b.at.residual,
                                .sums = left.sums,
                                .bias = left.bias,
                                .norm = b.w.mlp_norm,
                                .weight = b.w.router,
                                .router_bias = b.w.router_bias,
                                .inverse = b.at.inverse,
                                .logits = b.at.router_logits,
                                .ids = b.at.expert_ids,
                                .weights = b.at.expert_weights,
                                .tokens = n,
                                .hidden = to_int(b.config.dims.hidden),
                                .experts = to_int(b.config.dims.experts),
                                .topk = to_int(b.config.dims.topk),
                                .eps = b.config.rms_eps},
                               on);
        });
  }

  void moe() {
    stage_ = Stage::kMoe;
    const Roles up = {kGateUp, kGateUpBias}, down = {kDown, kDownBias};
    delta_ = experts_delta();
    if (plain()) return plain_moe(up, down);
    for (const Slot slot : {Slot::kExpertIds, Slot::kExpertWeights}) hold(slot, Held::kFloats);
    if (!experts_take_codes())
      round_blocks([](const Binding& b) { return b.at.normed; }, [](const Binding& b) { return b.at.normed_f16; },
                   tokens_ * d_.hidden);
    if (experts_gemms_) {
      gemm_moe(up, down);
    } else if (fused_ && moe_ != MoeKernel::kGemv) {
      fused_moe(up, down);
    } else {
      grouped_moe(up, down);
    }
    hold(Slot::kDelta, delta_.form == Delta::Form::kParts  ? Held::kParts
                       : delta_.form == Delta::Form::kRows ? Held::kFloats
                                                           : Held::kNothing);
  }

  // Of what attn_out or moe left.
  void reduce_delta() {
    if (args_.reduce == nullptr) return;
    add(args_.reduce->kernel, "all ranks", {},
        [n = tokens_, delta = delta_, reduce = args_.reduce->launch](const Binding& b, const Launch& on) {
          for (const DeltaValues& values : delta.values(b, n)) reduce(values, on);
        });
  }

  [[nodiscard]] Delta experts_delta() const {
    if (plain()) return {};
    if (experts_gemms_) return {Delta::Form::kExpertsBf16};
    if (!fused_ || moe_ == MoeKernel::kGemv) return {Delta::Form::kExpertsF32};
    return {few_pairs() ? Delta::Form::kParts : Delta::Form::kRows};
  }
  // Before a kernel that does not add them itself.
  Node& add_experts() {
    return norm_sums({}, experts_delta(), [](const Binding&, NormSumsArgs&) {});
  }

  static ExpertChoice choice(const Binding& b) {
    return {.logits = b.at.router_logits,
            .expert_ids = b.at.expert_ids,
            .expert_weights = b.at.expert_weights,
            .experts = to_int(b.config.dims.experts),
            .topk = to_int(b.config.dims.topk)};
  }

  // For who does not tell others.
  static ExpertChoice choice_again(const Binding& b) {
    ExpertChoice again = choice(b);
    again.expert_ids = nullptr;
    again.expert_weights = nullptr;
    return again;
  }
  // Of a fused step: down is a gemv, whose columns are the pairs.
  [[nodiscard]] bool few_pairs() const { return tokens_ * d_.topk <= kGemvTokens; }

  void fused_moe(const Roles& up, const Roles& down) {
    const int n = tokens();
    row_warps(kernel::kMoeUp, d_.hidden, kMoeUpWish, up,
              [n](const Binding& b, const RowWarpsPlan& plan, const Launch& on) {
                b.kernels.moe_up({.weights = b.w.gate_up.data,
                                  .bias = b.w.gate_up_bias,
                                  .x = b.at.normed_f16,
                                  .choice = choice(b),
                                  .u = b.at.expert_hidden_f16,
                                  .hidden = to_int(b.config.dims.hidden),
                                  .inter = to_int(b.config.dims.inter),
                                  .tokens = n,
                                  .swiglu_limit = b.config.swiglu_limit},
                                 plan, on);
              });
    hold(Slot::kExpertHidden, Held::kF16);
    round_hidden(tokens_ * d_.topk);
    if (few_pairs()) {
      constexpr int kParts = 2;
      return gemv(kernel::kGemvMoeDown, {d_.hidden, d_.inter, kParts}, 1, down,
                  [n](const Binding& b, const GemvPlan& plan, const Launch& on) {
                    b.kernels.gemv_moe_down({.weights = b.w.down.data,
                                             .bias = b.w.down_bias,
                                             .u = b.at.expert_hidden_f16,
                                             .choice = choice_again(b),
                                             .y = {b.at.delta[0], b.at.delta[1]},
                                             .hidden = to_int(b.config.dims.hidden),
                                             .inter = to_int(b.config.dims.inter),
                                             .tokens = n,
                                             .parts = kParts},
                                            plan, on);
                  });
    }
    row_warps(kernel::kMoeDown, d_.inter, kMoeDownWish, down,
              [n](const Binding& b, const RowWarpsPlan& plan, const Launch& on) {
                b.kernels.moe_down({.weights = b.w.down.data,
                                    .bias = b.w.down_bias,
                                    .u = b.at.expert_hidden_f16,
                                    .choice = choice_again(b),
                                    .y = b.at.delta[0],
                                    .sums = b.at.expert_out,
                                    .finished = b.at.down_finished,
                                    .hidden = to_int(b.config.dims.hidden),
                                    .inter = to_int(b.config.dims.inter),
                                    .tokens = n},
                                   plan, on);
              });
  }

  void grouped_moe(const Roles& up, const Roles& down) {
    const bool int8 = moe_ == MoeKernel::kGemv;
    const int n = tokens();
    const int64_t pairs = tokens_ * d_.topk;
    if (int8 && fused_) top_experts();
    const int tile = int8 ? kMoeTileTokens : grouped_tokens(d_.hidden, d_.inter, gemv_);
    add(kernel::kGroupTiles, "a CTA per expert", {}, [n, tile](const Binding& b, const Launch& on) {
      b.kernels.group_tiles({.expert_ids = b.at.expert_ids,
                             .pairs = b.at.moe_pairs,
                             .tiles = b.at.moe_tiles,
                             .tile_counts = b.at.moe_tile_counts,
                             .tokens = n,
                             .topk = to_int(b.config.dims.topk),
                             .experts = to_int(b.config.dims.experts),
                             .tile_tokens = tile},
                            on);
    });
    const auto groups = [](const Binding& b) {
      return MoeGroups{b.at.moe_pairs, b.at.moe_tiles, b.at.moe_tile_counts, to_int(b.config.dims.topk)};
    };
    const auto up_args = [groups](const Binding& b) {
      return GroupedUpArgs{.weights = b.w.gate_up.data,
                           .bias = b.w.gate_up_bias,
                           .x = b.at.normed_f16,
                           .groups = groups(b),
                           .u = b.at.expert_hidden_f16,
                           .hidden = to_int(b.config.dims.hidden),
                           .inter = to_int(b.config.dims.inter),
                           .swiglu_limit = b.config.swiglu_limit};
    };
    const auto down_args = [groups](const Binding& b) {
      return GroupedDownArgs{.weights = b.w.down.data,
                             .bias = b.w.down_bias,
                             .u = b.at.expert_hidden_f16,
                             .groups = groups(b),
                             .y = b.at.expert_out,
                             .hidden = to_int(b.config.dims.hidden),
                             .inter = to_int(b.config.dims.inter)};
    };
    hold(Slot::kExpertHidden, int8 ? Held::kInt8 : Held::kF16);
    if (int8) {
      const GemvInt8Plan first = plan_gemv_int8(2 * d_.inter, pairs, d_.experts),
                         second = plan_gemv_int8(d_.hidden, pairs, d_.experts);
      add(kernel::kInt8Up, first.to_string(), up,
          [=](const Binding& b, const Launch& on) { b.kernels.int8_up(up_args(b), first, on); });
      round_hidden(pairs);
      add(kernel::kInt8Down, second.to_string(), down,
          [=](const Binding& b, const Launch& on) { b.kernels.int8_down(down_args(b), second, on); });
      return;
    }
    row_warps(kernel::kGroupedUp, d_.hidden, kGrouped, up,
              [=](const Binding& b, const RowWarpsPlan& plan, const Launch& on) {
                b.kernels.grouped_up(up_args(b), plan, on);
              });
    round_hidden(pairs);
    row_warps(kernel::kGroupedDown, d_.inter, kGrouped, down,
              [=](const Binding& b, const RowWarpsPlan& plan, const Launch& on) {
                b.kernels.grouped_down(down_args(b), plan, on);
              });
  }

  void gemm_moe(const Roles& up, const Roles& down) {
    const bool by_place = experts_.by_place;
    const int64_t pairs = tokens_ * d_.topk;
    const GemmPlan first = experts_plan_.first, second = experts_plan_.second;
    group_and_round(by_place, first.tokens);
    const int places = to_int(max_places(pairs, d_.experts));
    const InputType codes = experts_take_codes() ? experts_plan_.input : InputType::kMxfp8;
    // Both products; the second one reads what it is told of `down`.
    const auto args_of = [=](const Binding& b) {
      return GemmArgs{.packing = Packing::kMxfp4,
                      .order = layout::RowOrder::kGateUp,
                      .weights = b.w.gate_up.data,
                      .bias = b.w.gate_up_bias,
                      .x = by_place ? b.at.gemm_placed_x : b.at.gemm_x,
                      .rows = to_int(2 * b.config.dims.inter),
                      .cols = to_int(b.config.dims.hidden),
                      .tokens = to_int(pairs),
                      .tiles = b.at.gemm_tiles,
                      .tile_count = b.at.gemm_tile_counts,
                      .pairs = b.at.gemm_pairs,
                      .x_share = by_place ? 1 : to_int(b.config.dims.topk),
                      .experts = to_int(b.config.dims.experts),
                      .x_rows = by_place ? places : 0,
                      .u = b.at.gemm_u,
                      .swiglu_limit = b.config.swiglu_limit,
                      .codes = codes};
    };
    const auto down_of = [](const Binding& b) {
      return GemmDown{b.w.down.data, b.w.down_bias, reinterpret_cast<uint16_t*>(b.at.gemm_y)};
    };
    hold(Slot::kExpertHidden, experts_take_codes() ? Held::kCodes : by_place ? Held::kPlaces : Held::kF16);
    program_.hidden_codes = codes;
    program_.hidden_in_gemm = true;
    const auto launch = experts_.launch;
    if (experts_plan_.at_once) {
      return planned(experts_plan_.gate_up, first, {kGateUp, kGateUpBias, kDown, kDownBias},
                     [=](const Binding& b, const Launch& on) {
                       GemmArgs args = args_of(b);
                       args.down = down_of(b);
                       launch(args, first, on);
                     });
    }
    planned(experts_plan_.gate_up, first, up,
            [=](const Binding& b, const Launch& on) { launch(args_of(b), first, on); });
    if (!experts_take_codes())
      round_blocks([](const Binding&) -> float* { return nullptr; },
                   [](const Binding& b) { return reinterpret_cast<F16*>(b.at.gemm_u); },
                   (by_place ? places : pairs) * d_.inter);
    planned(experts_plan_.down, second, down, [=](const Binding& b, const Launch& on) {
      GemmArgs args = args_of(b);
      args.down = down_of(b);
      launch(down_alone(args), second, on);
    });
  }

  // The pairs by expert, and x as gate_up wants it, where it is not there yet: a row per token, or a row per place.
  void group_and_round(bool by_place, int tile_tokens) {
    const auto group_of = [=, n = tokens()](const Binding& b) {
      return GroupArgs{.expert_ids = b.at.expert_ids,
                       .pairs = b.at.gemm_pairs,
                       .places = b.at.gemm_places,
                       .tiles = b.at.gemm_tiles,
                       .tile_counts = b.at.gemm_tile_counts,
                       .tokens = n,
                       .topk = to_int(b.config.dims.topk),
                       .experts = to_int(b.config.dims.experts),
                       .tile_tokens = tile_tokens};
    };
    const int places = to_int(max_places(tokens_ * d_.topk, d_.experts));
    const auto round_of = [=, n = tokens(), norms = norms_while_rounding_](const Binding& b) {
      RoundArgs args{.from = norms ? b.at.residual : b.at.normed,
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
    if (group_while_rounding(by_place, tokens_ * d_.topk)) {
      add(kernel::kGroupRound, "8 values per thread", {},
          [=](const Binding& b, const Launch& on) { b.kernels.group_round(group_of(b), round_of(b), on); });
      return;
    }
    add(kernel::kGroupTiles, "a CTA per expert", {},
        [=](const Binding& b, const Launch& on) { b.kernels.group_tiles(group_of(b), on); });
    if (experts_take_codes()) return;
    add(kernel::kRound, "8 values per thread", {},
        [=](const Binding& b, const Launch& on) { b.kernels.round(round_of(b), on); });
  }

  void plain_moe(const Roles& up, const Roles& down) {
    constexpr int kWarps = 4;  // moe.cu
    const int64_t tiles = max_moe_tiles(tokens_ * d_.topk, d_.experts);
    const auto grid = [&](int64_t units) {
      return fmt::format("2 rows x up to {} tokens of an expert per warp, {} x at most {} CTAs", kMoeTileTokens,
                         (units + kWarps - 1) / kWarps, tiles);
    };
    const auto args_of = [n = tokens()](const Binding& b) {
      const Dims& d = b.config.dims;
      return MoeLaunch{.x = b.at.normed,
                       .expert_ids = b.at.expert_ids,
                       .expert_weights = b.at.expert_weights,
                       .gate_up = b.w.gate_up_rows,
                       .down = b.w.down_rows,
                       .gate_up_bias = b.w.gate_up_bias,
                       .down_bias = b.w.down_bias,
                       .hidden_out = b.at.expert_hidden,
                       .delta = b.at.delta[0],
                       .pairs = b.at.moe_pairs,
                       .tiles = b.at.moe_tiles,
                       .tile_count = b.at.moe_tile_counts,
                       .down_out = b.at.expert_out,
                       .tokens = n,
                       .topk = to_int(d.topk),
                       .experts = to_int(d.experts),
                       .hidden = to_int(d.hidden),
                       .inter = to_int(d.inter),
                       .swiglu_limit = b.config.swiglu_limit};
    };
    add(kernel::kPlainGroup, "1 CTA", {},
        [=](const Binding& b, const Launch& on) { b.kernels.plain_group(args_of(b), on); });
    add(kernel::kPlainGateUp, grid(d_.inter), up,
        [=](const Binding& b, const Launch& on) { b.kernels.plain_gate_up(args_of(b), on); });
    add(kernel::kPlainDown, grid(d_.hidden / 2), down,
        [=](const Binding& b, const Launch& on) { b.kernels.plain_down(args_of(b), on); });
    add(kernel::kPlainCombine, per_token(tokens_), {},
        [=](const Binding& b, const Launch& on) { b.kernels.plain_combine(args_of(b), on); });
  }

  void logits() {
    stage_ = Stage::kLogits;
    const int64_t rows = args_.step.logit_rows;
    const auto normed_rows = [](const Binding& b) {
      return RmsnormLaunch{.x = b.at.residual, .which = b.step.logit_tokens, .scale = b.w.final_norm};
    };
    if (plain()) {
      // Of the rows that get logits; those have it in normed.
      hold(Slot::kResidual, Held::kNothing);
      rmsnorm(kFinalNorm, rows, [normed_rows](const Binding& b) {
        RmsnormLaunch args = normed_rows(b);
        args.delta = b.at.delta[0];
        return args;
      });
      return linear("lm_head", rows, {d_.vocab, d_.hidden}, {kUnembedding}, [](const Binding& b) {
        return LinearLaunch{.weight = b.w.unembedding_rows, .x = b.at.normed, .out = b.at.logits};
      });
    }
    const bool parts = delta_.form == Delta::Form::kParts, whole = parts || delta_.form == Delta::Form::kRows;
    if (!whole) add_experts();
    if (whole) hold(Slot::kResidual, Held::kNothing);
    const GemmShape shape = shape_of(kUnembedding, rows);
    if (!logits_by_gemm(moe_, rows)) {
      return dense(shape, rows, {kFinalNorm, kUnembedding}, [parts, whole](const Binding& b) {
        return DenseArgs{.weights = b.w.unembedding.data,
                         .in = {.x = b.at.residual,
                                .delta = {whole ? b.at.delta[0] : nullptr, parts ? b.at.delta[1] : nullptr},
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
        [](const Binding& b) { return b.at.logits; });
  }

  // Launches that several stages have.

  template <class Args>
  void rmsnorm(WeightRole norm, int64_t rows, Args args_of) {
    add(kernel::kRmsnorm, per_token(rows), {norm}, [=](const Binding& b, const Launch& on) {
      RmsnormLaunch args = args_of(b);
      args.out = b.at.normed;
      args.rows = to_int(rows);
      args.hidden = to_int(b.config.dims.hidden);
      args.eps = b.config.rms_eps;
      b.kernels.rmsnorm(args, on);
    });
  }

  struct LinearShape {
    int64_t rows, cols;
  };
  template <class Args>
  void linear(std::string_view what, int64_t tokens, const LinearShape& shape, const Roles& reads, Args args_of) {
    const LinearTile tile = linear_tile(tokens);
    const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    add(kernel::kLinear,
        fmt::format("{}: {} rows x {} tokens per warp, {} x {} CTAs", what, tile.rows, tile.tokens,
                    ceil_div(shape.rows, int64_t{kLinearWarps} * tile.rows), ceil_div(tokens, tile.tokens)),
        reads, [=](const Binding& b, const Launch& on) {
          LinearLaunch args = args_of(b);
          args.tokens = to_int(tokens);
          args.rows = to_int(shape.rows);
          args.cols = to_int(shape.cols);
          b.kernels.linear(args, on);
        });
  }

  // residual += delta, and what `more` asks for.
  template <class More>
  Node& norm_sums(const Roles& reads, const Delta& delta, More more) {
    return add(kernel::kNormSums, per_token(tokens_), reads, [=, n = tokens()](const Binding& b, const Launch& on) {
      NormSumsArgs args = delta.sums(b, n);
      more(b, args);
      b.kernels.norm_sums(args, on);
    });
  }

  template <class From, class To>
  void round_blocks(From from, To to, int64_t values) {
    if (!rounds(activations_)) return;
    add(round_kernel(activations_), "a block of 32 per 4 threads", {},
        [=, form = activations_](const Binding& b, const Launch& on) {
          b.kernels.round_blocks({.form = form, .from = from(b), .to = to(b), .values = values}, on);
        });
  }
  void round_hidden(int64_t pairs) {
    round_blocks([](const Binding&) -> float* { return nullptr; },
                 [](const Binding& b) { return b.at.expert_hidden_f16; }, pairs* d_.inter);
  }

  // One launch for up to kGemvTokens; tokens 1: one, whatever it takes.
  template <class Do>
  void gemv(Kernel kernel, const GemvShape& shape, int64_t tokens, const Roles& reads, Do launch) {
    const GemvPlan plan = plan_gemv(shape, gemv_);
    Node& own = add(kernel, plan.to_string(), reads, [=](const Binding& b, const Launch& on) { launch(b, plan, on); });
    own.launches = (tokens + kGemvTokens - 1) / kGemvTokens;
    own.shared_bytes = plan.smem_bytes;
  }
  // In launches of eight rows; in, y and which advance by them.
  template <class Args>
  void dense(const GemmShape& shape, int64_t tokens, const Roles& reads, Args args_of) {
    gemv(by_packing(kernel::kGemvDense, shape.packing), {shape.rows, shape.cols, 1, shape.packing}, tokens, reads,
         [=](const Binding& b, const GemvPlan& plan, const Launch& on) {
           for (int64_t t = 0; t < tokens; t += kGemvTokens) {
             DenseArgs args = args_of(b);
             args.packing = shape.packing;
             args.in.in_mxfp8 = rounds(shape.activations);
             args.rows = to_int(shape.rows);
             args.cols = to_int(shape.cols);
             args.tokens = to_int(std::min<int64_t>(kGemvTokens, tokens - t));
             args.y += t * shape.rows;
             if (args.in.which != nullptr) {
               args.in.which += t;
             } else {
               args.in.x += t * shape.cols;
             }
             b.kernels.dense(args, plan, on);
           }
         });
  }
  template <class Do>
  void row_warps(Kernel kernel, int64_t cols, const RowWarpsWish& wish, const Roles& reads, Do launch) {
    const RowWarpsPlan plan = plan_row_warps(cols, wish, gemv_);
    add(kernel, plan.to_string(), reads, [=](const Binding& b, const Launch& on) {
      launch(b, plan, on);
    }).shared_bytes = plan.smem_bytes;
  }
  template <class Do>
  void planned(Kernel kernel, const GemmPlan& plan, const Roles& reads, Do launch) {
    add(kernel, plan.to_string(), reads, launch).shared_bytes = plan.smem_bytes;
  }
  // The input of a product of this shape.
  template <class From>
  void round(const GemmShape& shape, bool for_sums, From from) {
    add(kernel::kRound, "8 values per thread", {},
        [=, in = input_of(shape, for_sums)](const Binding& b, const Launch& on) {
          b.kernels.round({.from = from(b),
                           .to = {b.at.gemm_x, in.type, in.rows, in.in_mxfp8},
                           .tokens = to_int(shape.tokens),
                           .cols = to_int(shape.cols)},
                          on);
        });
  }
  // to = W · Arena::gemm_x, without bias, rows as they are packed.
  template <class Weights, class To>
  void gemm(const GemmShape& shape, const Roles& reads, Weights weights, To to) {
    const Gemm chosen = gemm_for(shape);
    planned(chosen.kernel, chosen.plan, reads, [=, in = input_of(shape, false)](const Binding& b, const Launch& on) {
      GemmArgs args{.packing = shape.packing,
                    .weights = weights(b),
                    .x = b.at.gemm_x,
                    .rows = to_int(shape.rows),
                    .cols = to_int(shape.cols),
                    .tokens = to_int(shape.tokens),
                    .x_rows = in.rows};
      args.parts[0] = {to(b), 0, args.rows};
      chosen.op.launch(args, chosen.plan, on);
    });
  }
  // W · Arena::gemm_x in Arena::gemm_y, for a reader that adds it up. Says in which form, with no place.
  template <class Weights>
  SplitSums sums(const GemmShape& shape, const Roles& reads, Weights weights) {
    const std::optional<SplitGemm> split = split_gemm_for(shape);
    if (!split) {
      gemm(shape, reads, weights, [](const Binding& b) { return b.at.gemm_y; });
      return {nullptr, 1};
    }
    const SplitGemmPlan& plan = split->plan;
    add(split->kernel, plan.to_string(), reads,
        [=, plan = split->plan, launch = split->op.launch, in = input_of(shape, true)](const Binding& b,
                                                                                       const Launch& on) {
          launch({.weights = weights(b),
                  .x = b.at.gemm_x,
                  .sums = reinterpret_cast<uint16_t*>(b.at.gemm_y),
                  .rows = to_int(shape.rows),
                  .cols = to_int(shape.cols),
                  .tokens = to_int(shape.tokens),
                  .x_rows = in.rows},
                 plan, on);
        })
        .shared_bytes = plan.smem_bytes;
    return {nullptr, plan.splits, SplitSums::Order::kTiles};
  }

  const ProgramArgs& args_;
  const Dims& d_;
  const MoeKernel moe_;
  bool flash_;  // the step's attention is on tensor cores
  const PageType pages_;
  const Activations activations_;
  const Tuned tuned_;
  const GemvDevice gemv_;
  CostModel cost_;
  ExpertsKernel experts_{};  // on GEMMs
  ExpertsPlan experts_plan_;
  PrefillKernel prefill_{};
  Kernel prefill_kernel_;
  bool fused_ = false;                 // the decode kernels in their fused form
  bool dense_gemms_ = false;           // GEMMs instead of them
  bool experts_gemms_ = false;         // likewise for the experts
  bool norms_while_rounding_ = false;  // the experts' input is made of the residual where it is rounded
  SplitSums qkv_sums_;
  Delta delta_;
  int64_t tokens_ = 0;
  Stage stage_ = Stage::kEmbed;  // being made
  Program program_;
};

}  // namespace

Program make_program(const ProgramArgs& args) { return Maker(args).make(); }

void Program::execute(Stage stage, const Binding& b, Launch on) const {
  on.stage = stage;
  for (const Node& node : nodes)
    if (node.stage == stage && (!node.kind || *node.kind == b.kind) && is_in(node.layers, b.layer)) node.launch(b, on);
}

}  // namespace nibble::backend::cuda

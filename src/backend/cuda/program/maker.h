#pragma once
// Makes a program, stage by stage: what make_program.cpp, attention_stages.cpp and experts_stages.cpp share. Nobody
// else includes it.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/dense/linear.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/norm_rope/embed_norm_rope.h"
#include "backend/cuda/program/choices.h"
#include "backend/cuda/program/program.h"
#include "backend/cuda/quantise/round_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

[[nodiscard]] constexpr int to_int(int64_t value) { return static_cast<int>(value); }

// The sums in which a stage leaves its delta: the next stage adds them to the residual.
struct Delta {
  SplitSums sums{nullptr, 1};    // without pointers; no splits: they are in the residual already
  Place at = in<&Arena::delta>;  // where they lie
  bool wants_bias = false;       // o's is still to be added
  // On a rank it is the rank's part. Of two that send all, it has both ranks' parts.
  DeltaValues::Sending sent = DeltaValues::Sending::kNot;

  [[nodiscard]] bool added() const { return sums.splits == 0; }
  // Floats, which a kernel of few tokens adds by itself.
  [[nodiscard]] bool in_rows() const { return !added() && sums.order == SplitSums::Order::kRows; }
  // The split-th of them, a step's tokens one after the other; null: it has no such rows.
  [[nodiscard]] const float* rows(const Binding& b, int split, int64_t tokens) const;
  // Bytes of a token.
  [[nodiscard]] int64_t bytes(const Dims& dims) const { return sums.bytes() * dims.hidden; }

  [[nodiscard]] SplitSums bound(const Binding& b) const;
  // The arguments of a norm_sums that adds it.
  [[nodiscard]] NormSums::Args norm(const Binding& b, int tokens) const;

  // The sum over ranks wants a row per token, with its bias.
  [[nodiscard]] bool wants_combine() const { return sums.of_experts() || wants_bias; }
  [[nodiscard]] Combine::Args combine(const Binding& b, int tokens) const;
  // What the sum over ranks adds up. REQUIRES !wants_combine().
  [[nodiscard]] DeltaValues values(const Binding& b, int64_t tokens) const;
  // The values without a pointer.
  [[nodiscard]] DeltaValues extent(const Dims& dims, int64_t tokens) const;
};

// The kernel of an operation that serves a shape, of the first of a card's architectures that has one, and its plan.
// Empty where none has.
template <class Op, class Plan>
struct OpChoice {
  Op op{};
  Plan plan;
};
template <class Plan, class Op, class Shape>
std::optional<OpChoice<Op, Plan>> first_serving(const Card& card, Op Arch::* op, const Shape& shape) {
  for (const Arch& arch : card.arches)
    if ((arch.*op).serve != nullptr)
      if (const std::optional<Plan> served = (arch.*op).serve(shape, card.facts))
        return OpChoice<Op, Plan>{arch.*op, *served};
  return std::nullopt;
}

class Maker {
 public:
  explicit Maker(const ProgramArgs& args);
  Program make() &&;

 private:
  using Packing = layout::Packing;
  using enum WeightRole;
  using Roles = std::vector<WeightRole>;
  using Product = ProductPointers LayerPointers::*;
  struct LinearOf {
    Product product;
    int64_t rows, cols;
    Place x, out;
  };

  void hold_floats();
  void hold_choice();
  // The stages, in make_program.cpp, attention_stages.cpp and experts_stages.cpp.
  void embed();
  void attn_in();
  void attend();
  void attn_out();
  // On a rank: makes a row per token of what attn_out or moe left, then adds up the ranks' rows.
  void combine();
  // Whether the kernel that makes a rank's values also sends them, and where a delta's lie then.
  [[nodiscard]] DeltaValues::Sending sent_as_made() const;
  [[nodiscard]] PartPlaces places_of(const Delta& delta) const;
  // Which of the layer's sums over ranks is next: o's, or the experts'.
  [[nodiscard]] int next_sum() const { return stage_ == Stage::kAttnOut ? 0 : 1; }
  // In bf16: the rank's own, or those of both ranks, which have sent them to each other.
  [[nodiscard]] Delta row_per_token() const;
  void reduce_delta();
  void add_to_residual();
  // The launch that adds up the ranks' deltas, or what they are made of.
  void add_sum(std::function<void(const Binding&, const Launch&)> launch);
  // Whether the launch that adds up the ranks' deltas also adds them to the residual: in a fused step.
  [[nodiscard]] bool adds_to_residual() const;
  // The residual stream before the layers of BackendConfig::taps, and after the last.
  void tap_layers();
  void tap_last();
  void route();
  void moe();
  void logits();
  // Logits of those rows of the unembedding alone that may win a draw; all others get -infinity. in_of makes the
  // activations.
  using InOf = std::function<RowsIn(const Binding&)>;
  void screened_logits(const GemmShape& shape, int64_t rows, const InOf& in_of);

  // All stages of a head, in head_stages.cpp.
  void head();
  void enter_head();
  void head_layers();
  void head_logits();
  struct HeadLinear {
    HeadProduct HeadPointers::* product;
    int64_t rows, cols;
  };
  template <class Args>
  Node& head_linear(int64_t tokens, const HeadLinear& of, Args args_of);
  template <class Args>
  Node& head_norm(int64_t rows, Args args_of);

  // Attention.
  void choose_prefill();
  Node& rope_table();
  void plain_attn_in();
  void plain_rope_kv();
  void gemm_attn_in();
  // Rope and the KV write, from the sums that attn_in left.
  void rope_sums();
  void attend(LayerKind kind);
  // Whether attention leaves its result as o's GEMM takes it; else any_round does it.
  [[nodiscard]] bool attend_stores_input() const { return flash_ && (dense_gemms_ || args_.config.head); }

  // The experts.
  void choose_experts();
  void route_plainly();
  void choose_plainly();
  // Norm and router in one launch, where the card has such a kernel for the step.
  using PutNorm = std::function<void(const Binding&, NormSums::Args&)>;
  bool norm_route(const PutNorm& put);
  // GEMMs get the residual and the inverse of each row's norm, which rounding applies; all others get normed rows.
  void route_sums();
  [[nodiscard]] Delta experts_delta() const;
  // As its reader finds it: on a rank it is combined.
  [[nodiscard]] Delta left_by_experts() const {
    return adds_to_residual() ? Delta{.sums = {}} : combined(experts_delta());
  }
  [[nodiscard]] Delta combined(const Delta& delta) const;
  // Adds what the last layer's experts left to the residual, for a kernel that does not do it itself.
  Node& add_experts();
  // Experts on the host, those of the first layers: the rows there, the call, the delta back.
  void host_moe();
  // What they leave: of a few tokens as the card's experts do, else a row per token.
  [[nodiscard]] Delta left_by_host() const;
  [[nodiscard]] bool all_on_host() const { return host_layers_ == d_.layers; }
  // Those from `first` to before `end` alone.
  [[nodiscard]] static std::vector<int> layers(int first, int end);
  // Nodes that add what a layer's experts left, in the layers behind it: make(delta) for each form that there is.
  template <class Make>
  void behind_experts(Make make) {
    const int all = to_int(d_.layers);
    if (host_layers_ == 0) return static_cast<void>(make(left_by_experts()));
    Node& behind_host = make(left_by_host());
    if (all_on_host()) return;
    behind_host.only = layers(0, host_layers_ + 1);
    if (host_layers_ + 1 < all) make(left_by_experts()).only = layers(host_layers_ + 1, all);
  }
  void card_moe();
  // The host's experts on the card, part after part as they are copied.
  void copied_moe();
  void fused_moe(const Roles& up, const Roles& down);
  // Sorts the pairs by expert, for kernels that take tiles of up to so many of an expert's.
  void group_tiles(int tile_tokens);
  void grouped_moe(const Roles& up, const Roles& down);
  // Both products, of all experts that lie on the card, or of a part that was copied there: then own_ is that part.
  void gemm_moe(const Roles& up, const Roles& down, std::optional<int> part = {});
  // Sorts the pairs by expert and rounds x for gate_up, unless that is done: a row per token, or a row per place.
  void group_and_round(bool by_place, int tile_tokens);
  // Rounds u for down, into the memory of gate_up's x.
  void round_u();
  void plain_moe(const Roles& up, const Roles& down);

  [[nodiscard]] bool plain() const { return family_ == KernelFamily::kReference; }
  [[nodiscard]] bool is_rank() const { return args_.config.own_experts.has_value(); }
  [[nodiscard]] Packing packing(WeightRole role) const { return packing_of(role, args_.config.dense); }

  // The kernels of the card's architectures that take the step's work.
  using Gemm = OpChoice<GemmKernel, GemmPlan>;
  using SplitGemm = OpChoice<SplitGemmKernel, SplitGemmPlan>;
  // For the kernel that the step has for it: GEMMs read the copy of what is in Q8_0, where there is one.
  [[nodiscard]] GemmShape shape_of(WeightRole role, int64_t tokens) const;
  [[nodiscard]] Gemm gemm_for(const GemmShape& shape) const;
  [[nodiscard]] std::optional<SplitGemm> split_gemm_for(const GemmShape& shape) const;
  // The form of the input of the kernel that takes this shape. sums: of a split GEMM, where one serves.
  [[nodiscard]] GemmInput input_of(const GemmShape& shape, bool sums) const;
  [[nodiscard]] bool rounds_dense(WeightRole role) const {
    return rounds(args_.run.dense_activations) && args_.config.dense.in_mx(role).has_value();
  }

  [[nodiscard]] int tokens() const { return to_int(tokens_); }
  // Whether the step's experts multiply codes, which the norm and gate_up's launch make (ExpertsPlan::input).
  [[nodiscard]] bool experts_take_codes() const { return experts_gemms_ && in_codes(experts_plan_.input); }
  // Whether the step's experts multiply codes of rows.
  [[nodiscard]] bool row_codes() const { return experts_gemms_ && experts_plan_.row_codes; }
  // Says how a slot is held from this stage on.
  void hold(Slot slot, const Held& as) {
    for (int stage = static_cast<int>(stage_); stage < kStages; ++stage)
      program_.slots[static_cast<size_t>(stage)][static_cast<size_t>(slot)] = as;
  }
  void hold_nothing(std::initializer_list<Slot> slots) {
    for (const Slot slot : slots) hold(slot, {});
  }
  [[nodiscard]] Held floats(Place at, int64_t cols) const { return {.at = at, .rows = tokens_, .cols = cols}; }
  void hold_delta() {
    Held rows = floats(delta_.at, d_.hidden);
    rows.splits = delta_.sums.splits;
    hold(Slot::kDelta, delta_.in_rows() ? rows : Held{});
  }
  // In rows of 16 bits, as down reads them.
  [[nodiscard]] Held hidden(Place at, Held::Type type = Held::Type::kF16) const {
    return {.at = at, .rows = tokens_ * d_.topk, .cols = d_.inter, .type = type, .width = hidden_width_};
  }

  // A launch that reads matrices. `launch` gets what is bound and where to enqueue.
  template <class Do>
  Node& add(Kernel kernel, std::string_view tile, const Roles& reads, Do launch) {
    Node& own = program_.nodes.emplace_back();
    own.stage = stage_;
    own.kernel = std::string(kernel.name);
    own.tile = std::string(tile);
    for (const WeightRole role : reads) own.cost += cost_.of(role, args_.step);
    own.launch = std::move(launch);
    return own;
  }
  // A launch of X; args_of makes its arguments of what is bound.
  template <class X, class ArgsOf>
  Node& add(Kernel kernel, std::string_view tile, const Roles& reads, ArgsOf args_of) {
    return add(kernel, tile, reads, [=](const Binding& b, const Launch& on) { X::launch(args_of(b), on); });
  }
  template <class X, class ArgsOf>
  Node& add(std::string_view tile, const Roles& reads, ArgsOf args_of) {
    return add<X>(X::kName, tile, reads, args_of);
  }
  template <class X, class ArgsOf>
  Node& add(const Roles& reads, ArgsOf args_of) {
    return add<X>(X::kName, X::kTile, reads, args_of);
  }
  // A launch that is cut as planned: of X, or by a launcher of an architecture, which has named its kernel.
  template <class Cut, class Launcher, class ArgsOf>
  Node& planned(Kernel kernel, const Cut& plan, const Roles& reads, Launcher launch, ArgsOf args_of) {
    Node& own =
        add(kernel, plan.tile, reads, [=](const Binding& b, const Launch& on) { launch(args_of(b), plan, on); });
    own.shared_bytes = plan.smem_bytes;
    return own;
  }
  template <class X, std::derived_from<Plan> Cut, class ArgsOf>
  Node& add(const Cut& plan, const Roles& reads, ArgsOf args_of) {
    return planned(X::kName, plan, reads, X::launch, args_of);
  }
  [[nodiscard]] static std::string per_token(int64_t tokens) { return fmt::format("a CTA per token, {} CTAs", tokens); }

  // In a fused step: down is gemv<moe_down>, whose columns are the pairs.
  [[nodiscard]] bool few_pairs() const { return tokens_ * d_.topk <= kGemvTokens && own_.all(); }

  // Bytes that a launch moves, from those of a token.
  [[nodiscard]] double moves(int64_t bytes) const { return static_cast<double>(tokens_ * bytes); }
  static constexpr int64_t kResidualBytes = 8, kInputBytes = 2;  // read and written; 16 bits: codes are fewer

  // Launches that several stages have.

  template <class Args>
  void rmsnorm(WeightRole norm, int64_t rows, Args args_of) {
    add<Rmsnorm>(per_token(rows), {norm}, [=](const Binding& b) {
      Rmsnorm::Args args = args_of(b);
      args.out = b.at.normed;
      args.rows = to_int(rows);
      args.hidden = to_int(b.config.dims.hidden);
      args.eps = b.config.rms_eps;
      return args;
    });
  }

  template <class Args>
  Node& tap(Args args_of) {
    return add<Tap>(per_token(tokens_), {}, [=, n = tokens()](const Binding& b) {
      Tap::Args args = args_of(b);
      args.pitch = std::ssize(b.config.taps) * b.config.dims.hidden;
      args.tokens = n;
      args.hidden = to_int(b.config.dims.hidden);
      return args;
    });
  }

  // A product of a matrix in row order.
  void linear(std::string_view what, int64_t tokens, const Roles& reads, const LinearOf& of) {
    const LinearTile tile = linear_tile(tokens);
    add<Linear>(fmt::format("{}: {} rows x {} tokens per warp, {} x {} CTAs", what, tile.rows, tile.tokens,
                            ceil_div(of.rows, int64_t{kLinearWarps} * tile.rows), ceil_div(tokens, tile.tokens)),
                reads, [=](const Binding& b) {
                  return Linear::Args{.weight = (b.w.*of.product).rows,
                                      .bias = (b.w.*of.product).bias,
                                      .x = static_cast<const float*>(of.x(b.at)),
                                      .out = static_cast<float*>(of.out(b.at)),
                                      .tokens = to_int(tokens),
                                      .rows = to_int(of.rows),
                                      .cols = to_int(of.cols)};
                });
  }

  // residual += delta; `more` sets the other arguments.
  template <class More>
  Node& norm_sums(const Roles& reads, const Delta& delta, More more) {
    Node& own = add<NormSums>(per_token(tokens_), reads, [=, n = tokens()](const Binding& b) {
      NormSums::Args args = delta.norm(b, n);
      more(b, args);
      return args;
    });
    own.moved = moves(delta.bytes(d_) + kResidualBytes * d_.hidden + kInputBytes * d_.hidden);
    return own;
  }

  // In their place, before who multiplies them as if they were exact.
  void round_blocks(Activations form, int64_t values, Place at) {
    if (!rounds(form)) return;
    add<RoundBlocks>(RoundBlocks::name(form), RoundBlocks::kTile, {}, [=](const Binding& b) {
      return RoundBlocks::Args{.form = form, .at = static_cast<F16*>(at(b.at)), .values = values};
    });
  }

  // A launch per kGemvTokens tokens, of the arguments from token t on.
  template <class X, class ArgsOf>
  void gemv(const GemvShape& shape, int64_t tokens, const Roles& reads, ArgsOf args_of) {
    const GemvPlan plan = plan_gemv(shape, device_);
    Node& own = add(by_packing(X::kNames, shape.packing), plan.tile, reads, [=](const Binding& b, const Launch& on) {
      for (int64_t t = 0; t < tokens; t += kGemvTokens) {
        typename X::Args args = args_of(b, t);
        args.packing = shape.packing;
        args.cols = to_int(shape.cols);
        args.tokens = to_int(std::min<int64_t>(kGemvTokens, tokens - t));
        X::launch(args, plan, on);
      }
    });
    own.launches = (tokens + kGemvTokens - 1) / kGemvTokens;
    own.shared_bytes = plan.smem_bytes;
  }
  // `in`, y and `which` advance with the tokens.
  template <class Args>
  void dense(const GemmShape& shape, int64_t tokens, const Roles& reads, Args args_of) {
    gemv<GemvDense>({shape.rows, shape.cols, 1, shape.packing}, tokens, reads, [=](const Binding& b, int64_t t) {
      GemvDense::Args args = args_of(b);
      args.rows = to_int(shape.rows);
      args.y += t * shape.rows;
      if (args.rest != nullptr) args.rest += t * shape.rows;
      if (args.in.which != nullptr)
        args.in.which += t;
      else
        args.in.x += t * shape.cols;
      return args;
    });
  }
  // The input of a product of this shape.
  void round(const GemmShape& shape, bool for_sums, Place from) {
    const GemmInput in = input_of(shape, for_sums);
    add<Round>({}, [=](const Binding& b) {
      return Round::Args{.from = static_cast<const float*>(from(b.at)),
                         .to = {b.at.gemm->x, in.type, in.rows},
                         .tokens = to_int(shape.tokens),
                         .cols = to_int(shape.cols)};
    });
    round_input(shape, in);
  }
  // What lies in GemmArena::x, where the layer's activations are to be rounded and are not codes.
  void round_input(const GemmShape& shape, const GemmInput& held) {
    if (in_codes(held.type)) return;
    round_blocks(shape.activations, std::max<int64_t>(held.rows, shape.tokens) * shape.cols,
                 in<&Arena::gemm, &GemmArena::x>);
  }
  // W · GemmArena::x without bias, in the order of the packed rows. `put` says where it goes.
  template <class Put>
  void gemm(const GemmShape& shape, const Roles& reads, Product product, Put put) {
    const Gemm chosen = gemm_for(shape);
    planned(chosen.plan.kernel, chosen.plan, reads, chosen.op.launch,
            [=, in = input_of(shape, false)](const Binding& b) {
              GemmArgs args{.packing = shape.packing,
                            .weights = (b.w.*product).wide,
                            .x = b.at.gemm->x,
                            .rows = to_int(shape.rows),
                            .cols = to_int(shape.cols),
                            .tokens = to_int(shape.tokens),
                            .x_rows = in.rows};
              put(b, args);
              return args;
            });
  }
  // W · GemmArena::x into GemmArena::y, for a reader that adds it up. biased: results in rows have the bias. Returns
  // the form, without a pointer.
  SplitSums sums(const GemmShape& shape, const Roles& reads, Product product, bool biased) {
    const std::optional<SplitGemm> split = split_gemm_for(shape);
    if (!split) {
      const Gemm chosen = gemm_for(shape);
      const bool tiles = chosen.op.sums;
      const int splits = tiles ? chosen.plan.splits : 1;
      gemm(shape, reads, product, [=](const Binding& b, GemmArgs& args) {
        if (tiles) {
          args.sums = reinterpret_cast<uint16_t*>(b.at.gemm->y);
          args.splits = splits;
        } else {
          args.parts[0] = {b.at.gemm->y, 0, args.rows};
          args.bias = biased ? (b.w.*product).bias : nullptr;
        }
      });
      return {nullptr, splits, tiles ? SplitSums::Order::kTiles : SplitSums::Order::kRows};
    }
    planned(split->plan.kernel, split->plan, reads, split->op.launch,
            [=, in = input_of(shape, true)](const Binding& b) {
              return SplitGemmArgs{.weights = (b.w.*product).wide,
                                   .x = b.at.gemm->x,
                                   .sums = reinterpret_cast<uint16_t*>(b.at.gemm->y),
                                   .rows = to_int(shape.rows),
                                   .cols = to_int(shape.cols),
                                   .tokens = to_int(shape.tokens),
                                   .x_rows = in.rows};
            });
    return {nullptr, split->plan.cut.splits, SplitSums::Order::kTiles};
  }

  const ProgramArgs& args_;
  const Dims& d_;
  const int64_t hidden_width_ = layout::block_pair_width(d_.inter);  // of the experts' hidden: columns of down
  OwnExperts own_;
  int host_layers_ = 0;    // the first layers, whose experts the host computes
  int copied_layers_ = 0;  // instead of them: the first layers, whose experts are copied to the card
  const KernelFamily family_;
  const bool flash_;  // the step's attention is on tensor cores
  const KvDtype pages_;
  const Activations activations_;
  Activations rounded_ = activations_;  // what this step's experts are rounded to: choose_experts()
  const Tuned tuned_;
  const PlanDevice device_;
  CostModel cost_;
  ExpertsGemm experts_{};
  ExpertsPlan experts_plan_;
  PrefillKernel prefill_{};
  Kernel prefill_kernel_;
  bool fused_ = false;                 // the decode kernels in their fused form
  bool dense_gemms_ = false;           // GEMMs instead of them
  bool experts_gemms_ = false;         // GEMMs for the experts
  bool norms_while_rounding_ = false;  // the experts' input is made of the residual where it is rounded
  bool route_sums_ = false;            // the router has left the residual and the inverse of its norm
  bool experts_added_ = false;         // what the last experts left, to the residual
  SplitSums qkv_sums_;
  Delta delta_;
  std::optional<Delta> parts_;  // of delta_, which the sum over ranks combines
  int64_t tokens_ = 0;
  Stage stage_ = Stage::kEmbed;  // being made
  Program program_;
};

}  // namespace nibble::backend::cuda

// The launches of attention: norm, q, k and v, rope, the attention itself, o.

#include "backend/cuda/program/maker.h"

#include "base/error.h"

namespace nibble::backend::cuda {

void Maker::choose_prefill() {
  share_tokens(args_.step.rows, program_.shares);
  if (program_.shares.prefill.empty()) return;
  for (const Arch& arch : args_.card.arches) {
    if (arch.prefill.serve == nullptr) continue;
    const std::optional<Kernel> own = arch.prefill.serve({pages_, args_.run.fp8_attention()});
    if (!own) continue;
    prefill_ = arch.prefill;
    prefill_kernel_ = *own;
    return share_tokens(args_.step.rows, program_.shares, prefill_.tile_tokens);
  }
  check(false, "the last architecture's attention serves every step");
}

Node& Maker::rope_table() {
  return add<RopeTable>(per_token(tokens_), {}, [n = tokens()](const Binding& b) {
    return RopeTable::Args{.positions = b.step.positions,
                           .inv_freq = b.at.rope.inv_freq,
                           .cosine = b.at.rope.cosine,
                           .sine = b.at.rope.sine,
                           .tokens = n,
                           .half = to_int(b.config.dims.head_dim / 2),
                           .concentration = b.config.rope_concentration};
  });
}

void Maker::attn_in() {
  stage_ = Stage::kAttnIn;
  if (plain()) return plain_attn_in();
  rope_table().layers = InLayers::kFirst;
  if (dense_gemms_) return gemm_attn_in();
  const Packing packed = packing(kQ);
  const Delta left = left_by_experts();
  if (!fused_) {
    behind_experts([this](const Delta& of) -> Node& {
      Node& own = norm_sums({}, of, [](const Binding&, NormSums::Args&) {});
      own.layers = InLayers::kAfterFirst;
      return own;
    });
  }
  const bool sums = fused_ && !left.added();
  if (sums) hold(Slot::kResidual, floats(in<&Arena::packed, &PackedArena::residual_sum>, d_.hidden));
  hold_nothing({Slot::kNormed, Slot::kQkv});
  const auto input = [left, sums, fused = fused_, n = tokens_](const Binding& b) {
    const bool adds = fused && b.layer > 0;
    return RowsIn{.x = b.at.residual,
                  .delta = {adds ? left.rows(b, 0, n) : nullptr, adds ? left.rows(b, 1, n) : nullptr},
                  .sum = sums ? b.at.packed->residual_sum : nullptr,
                  .norm = b.w.attn_norm,
                  .eps = b.config.rms_eps};
  };
  gemv<GemvQkv>({d_.q_width() + 2 * d_.kv_width(), d_.hidden, 1, packed}, tokens_,
                {kAttnNorm, kQ, kK, kV, kQBias, kKBias, kVBias}, [input](const Binding& b, int64_t t) {
                  const Dims& d = b.config.dims;
                  const int64_t rope = d.head_dim / 2;
                  RowsIn in = input(b);
                  in.x += t * d.hidden;
                  return GemvQkv::Args{.weights = b.w.qkv.packed,
                                       .bias = b.w.qkv.bias,
                                       .in = in,
                                       .q = b.at.q + t * d.q_width(),
                                       .cosine = b.at.rope.cosine + t * rope,
                                       .sine = b.at.rope.sine + t * rope,
                                       .kv_slots = b.step.kv_slots[static_cast<size_t>(b.kind)] + t,
                                       .kv = b.kv(),
                                       .heads = to_int(d.heads),
                                       .kv_heads = to_int(d.kv_heads)};
                });
}

void Maker::plain_attn_in() {
  rmsnorm(kAttnNorm, tokens_, [](const Binding& b) {
    const bool adds = b.layer > 0;
    return Rmsnorm::Args{.x = b.at.residual,
                         .delta = adds ? b.at.delta : nullptr,
                         .sum = adds ? b.at.residual : nullptr,
                         .scale = b.w.attn_norm};
  });
  constexpr Place kNormed = in<&Arena::normed>;
  const int64_t kv = d_.kv_width();
  linear("q", tokens_, {kQ, kQBias}, {&LayerPointers::q, d_.q_width(), d_.hidden, kNormed, in<&Arena::q>});
  linear("k", tokens_, {kK, kKBias},
         {&LayerPointers::k, kv, d_.hidden, kNormed, in<&Arena::row_order, &RowOrderArena::k>});
  linear("v", tokens_, {kV, kVBias},
         {&LayerPointers::v, kv, d_.hidden, kNormed, in<&Arena::row_order, &RowOrderArena::v>});
}

void Maker::plain_rope_kv() {
  add<RopeKv>(RopeKv::kNames.of(pages_), per_token(tokens_), {}, [n = tokens()](const Binding& b) {
    const Dims& d = b.config.dims;
    return RopeKv::Args{.q = b.at.q,
                        .k = b.at.row_order->k,
                        .v = b.at.row_order->v,
                        .positions = b.step.positions,
                        .kv_slots = b.step.kv_slots[static_cast<size_t>(b.kind)],
                        .rope_inv_freq = b.at.rope.inv_freq,
                        .kv = b.kv(),
                        .tokens = n,
                        .heads = to_int(d.heads),
                        .kv_heads = to_int(d.kv_heads),
                        .head_dim = to_int(d.head_dim),
                        .rope_concentration = b.config.rope_concentration};
  });
}

void Maker::gemm_attn_in() {
  const GemmShape shape = shape_of(kQ, tokens_);
  const GemmInput in = input_of(shape, true);
  behind_experts([&](const Delta& left) -> Node& {
    return norm_sums({kAttnNorm}, left, [in](const Binding& b, NormSums::Args& args) {
      if (b.layer == 0) args.sums = {};
      args.norm = b.w.attn_norm;
      args.rounded = in;
      args.rounded.at = b.at.gemm->x;
    });
  });
  hold_nothing({Slot::kNormed, Slot::kQkv});
  round_input(shape, in);
  qkv_sums_ = sums(shape, {kQ, kK, kV}, &LayerPointers::qkv, false);
}

void Maker::rope_sums() {
  const int64_t kv = 2 * d_.kv_width(), kv_bytes = 2 * d_.kv_heads * page_row_bytes(pages_, d_.head_dim);
  add<RopeSums>({kQBias, kKBias, kVBias}, [n = tokens(), sums = qkv_sums_](const Binding& b) {
    return RopeSums::Args{.sums = {b.at.gemm->y, sums.splits, sums.order},
                          .bias = b.w.qkv.bias,
                          .q = b.at.q,
                          .cosine = b.at.rope.cosine,
                          .sine = b.at.rope.sine,
                          .kv_slots = b.step.kv_slots[static_cast<size_t>(b.kind)],
                          .kv = b.kv(),
                          .tokens = n,
                          .heads = to_int(b.config.dims.heads),
                          .kv_heads = to_int(b.config.dims.kv_heads)};
  }).moved = moves(qkv_sums_.bytes() * (d_.q_width() + kv) + 4 * d_.q_width() + kv_bytes);
}

void Maker::attend() {
  stage_ = Stage::kAttend;
  if (plain())
    plain_rope_kv();
  else if (qkv_sums_.splits > 0)
    rope_sums();
  for (const LayerKind kind : kinds_of(d_)) attend(kind);
}

void Maker::attend(LayerKind kind) {
  const auto place = [&](Node& own, const std::vector<Row>& rows) {
    own.kind = kind;
    own.cost += cost_.of(stage_, kind, {.rows = rows});
  };
  const int window = to_int(d_.window_of(kind));
  const auto of_kind = static_cast<size_t>(kind);
  const bool fp8 = args_.run.fp8_attention(), to_input = attend_stores_input();
  GemmInput input;  // without a pointer
  if (to_input) {
    const bool head = args_.config.head.has_value();
    if (!head) input = input_of(shape_of(kO, tokens_), true);
    Held held = floats(in<&Arena::gemm, &GemmArena::x>, d_.q_width());
    held.type = input.type == InputType::kF16 ? Held::Type::kF16 : Held::Type::kBf16;
    held.panel_rows = input.rows;
    hold(Slot::kAttn, head || in_codes(input.type) ? Held{} : held);  // others are rounded by attn_out
  }
  const auto args_of = [=](const Binding& b) {
    AttentionArgs args{.q = b.at.q,
                       .out = b.at.attn,
                       .sinks = b.step.sinks ? b.w.sinks : nullptr,
                       .token_row = b.step.token_row,
                       .positions = b.step.last_key,
                       .pages = b.step.pages[of_kind],
                       .kv = b.kv(),
                       .pages_per_row = b.step.pages_per_row[of_kind],
                       .heads = to_int(b.config.dims.heads),
                       .kv_heads = to_int(b.config.dims.kv_heads),
                       .window = window,
                       .fp8 = fp8,
                       .head_dim = to_int(b.config.dims.head_dim)};
    if (to_input)
      args.rounded = {b.config.head ? reinterpret_cast<uint16_t*>(b.at.head->attended) : b.at.gemm->x, input.type,
                      input.rows};
    return args;
  };
  if (!flash_) {
    return place(
        add(Attend::kNames.of(pages_), fmt::format("a CTA per head and token, {} x {} CTAs", d_.heads, tokens_), {},
            [=, n = tokens()](const Binding& b, const Launch& on) {
              AttentionArgs args = args_of(b);
              args.decode_count = n;
              Attend::launch(args, on);
            }),
        {args_.step.rows.begin(), args_.step.rows.end()});
  }
  std::vector<Row> decodes, prefills;
  for (const Row& row : args_.step.rows) (row.tokens <= kMaxDecodeTokens ? decodes : prefills).push_back(row);
  if (const auto count = to_int(std::ssize(program_.shares.decode)); count > 0) {
    const DecodePlan plan = plan_decode({.tokens = count,
                                         .kv_heads = to_int(d_.kv_heads),
                                         .row_bytes = to_int(page_row_bytes(pages_, d_.head_dim)),
                                         .window = window},
                                        device_);
    Node& own = add(AttendDecode::name(pages_, fp8), plan.tile, {}, [=](const Binding& b, const Launch& on) {
      AttentionArgs args = args_of(b);
      args.decode_tokens = b.step.decode_tokens;
      args.decode_count = count;
      args.target = plan.target;
      args.partials = b.at.attend->partials;
      args.finished = b.at.attend->finished;
      AttendDecode::launch(args, plan, on);
    });
    own.shared_bytes = plan.smem_bytes;
    place(own, decodes);
  }
  if (program_.shares.prefill.empty()) return;
  const auto tiles = std::ssize(program_.shares.prefill);
  const Plan plan = prefill_.plan(tiles, d_.kv_heads, args_.card.facts);
  place(add(prefill_kernel_, plan.tile, {},
            [=, launch = prefill_.launch, ctas = to_int(plan.grid)](const Binding& b, const Launch& on) {
              AttentionArgs args = args_of(b);
              args.tiles = b.step.attend_tiles;
              args.tile_count = to_int(tiles);
              args.ctas = ctas;
              launch(args, on);
            }),
        prefills);
  int64_t read = 0;
  for (const Row& row : prefills) read += row.tokens;
  program_.nodes.back().moved = static_cast<double>(read * d_.q_width() * (4 + (to_input ? kInputBytes : 4)));
}

void Maker::attn_out() {
  stage_ = Stage::kAttnOut;
  const Roles reads = {kO, kOBias};
  delta_ = {};
  if (plain()) {
    return linear("o", tokens_, reads,
                  {&LayerPointers::o, d_.hidden, d_.q_width(), in<&Arena::attn>, in<&Arena::delta>});
  }
  const GemmShape shape = shape_of(kO, tokens_);
  if (dense_gemms_) {
    if (attend_stores_input())
      round_input(shape, input_of(shape, true));
    else
      round(shape, true, in<&Arena::attn>);
    hold_nothing({Slot::kDelta});
    // Only bf16's tiles are sent as they are made.
    if (sent_as_made() != DeltaValues::Sending::kNot && !split_gemm_for(shape) && gemm_for(shape).op.sums &&
        shape.packing == Packing::kBf16) {
      delta_ = row_per_token();
      return gemm(shape, reads, &LayerPointers::o, [places = places_of(delta_)](const Binding& b, GemmArgs& args) {
        args.bias = b.w.o.bias;
        args.sums = b.at.packed->combined;
        args.places = places;
      });
    }
    const SplitSums left = sums(shape, reads, &LayerPointers::o, is_rank());
    delta_ = {.sums = left,
              .at = in<&Arena::gemm, &GemmArena::y>,
              .wants_bias = left.order == SplitSums::Order::kTiles || !is_rank()};
    return combine();
  }
  const bool halves = fused_ && o_in_halves(tuned_, {shape.rows, shape.cols, 1, shape.packing}, device_);
  if (halves) delta_.sums.splits = 2;
  hold_delta();
  dense(shape, tokens_, reads, [halves, n = tokens_](const Binding& b) {
    return GemvDense::Args{.weights = b.w.o.packed,
                           .bias = b.w.o.bias,
                           .in = {.x = b.at.attn},
                           .y = b.at.delta,
                           .rest = halves ? b.rest(n) : nullptr};
  });
}

}  // namespace nibble::backend::cuda

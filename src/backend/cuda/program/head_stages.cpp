// The launches of a head (backend.h HeadConfig): few tokens of a model of a layer or few, in bf16.

#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/program/maker.h"

namespace nibble::backend::cuda {

using Then = Eagle3Linear::Args::Then;

template <class Args>
Node& Maker::head_linear(int64_t tokens, const HeadLinear& of, Args args_of) {
  return add(Eagle3Linear::name(to_int(tokens)), Eagle3Linear::kTile, {},
             [=, n = to_int(tokens), sms = args_.card.facts.multiprocessors](const Binding& b, const Launch& on) {
               Eagle3Linear::Args args = args_of(b);
               args.weight = (b.w.head.*of.product).rows;
               args.bias = (b.w.head.*of.product).bias;
               args.tokens = n;
               args.rows = to_int(of.rows);
               if (args.cols == 0) args.cols = to_int(of.cols);
               Eagle3Linear::launch(args, Eagle3Linear::plan(args, sms), on);
             });
}

template <class Args>
Node& Maker::head_norm(int64_t rows, Args args_of) {
  return add<Eagle3Norm>(per_token(rows), {}, [=, n = to_int(rows)](const Binding& b) {
    Eagle3Norm::Args args = args_of(b);
    args.rows = n;
    if (args.width == 0) args.width = to_int(b.config.dims.hidden);
    if (args.eps == 0) args.eps = b.config.rms_eps;
    return args;
  });
}

void Maker::head() {
  stage_ = Stage::kEmbed;
  using enum Slot;
  hold_nothing({kDelta, kNormed, kQkv, kAttn, kRouterLogits, kExpertIds, kExpertWeights, kExpertHidden});
  enter_head();
  head_layers();
  if (args_.step.logit_rows > 0) head_logits();
}

// The residual becomes the feature: of taps, or what the step before has left.
void Maker::enter_head() {
  rope_table();
  const HeadConfig& head = *args_.config.head;
  const int width = to_int(head.taps * head.target_hidden);
  if (!args_.fed_back) {
    head_norm(tokens_, [=, fc = head.fc, segments = to_int(std::max<int64_t>(head.tap_norms, 1)),
                        eps = head.tap_eps](const Binding& b) {
      Eagle3Norm::Args args{.x = b.at.head->taps,
                            .scale = b.w.head.tap_norm,
                            .segments = segments,
                            .width = width / segments,
                            .eps = eps};
      if (fc)
        args.rounded = b.at.head->rounded_taps;
      else
        args.normed = b.at.residual;
      return args;
    });
    if (head.fc)
      head_linear(tokens_, {&HeadPointers::tap_fc, d_.hidden, width}, [](const Binding& b) {
        return Eagle3Linear::Args{.x = b.at.head->rounded_taps, .out = b.at.residual};
      });
  }
  add<Eagle3Enter>(per_token(tokens_), {}, [n = tokens()](const Binding& b) {
    return Eagle3Enter::Args{.ids = b.step.ids,
                             .sampled = b.at.sample.tokens,
                             .target_ids = b.at.head->target_ids,
                             .features = b.at.head->features,
                             .embedding = b.w.embedding,
                             .input_norm = b.w.head.attn_norm,
                             .hidden_norm = b.w.head.hidden_norm,
                             .x = b.at.head->x,
                             .residual = b.at.residual,
                             .tokens = n,
                             .hidden = to_int(b.config.dims.hidden),
                             .eps = b.config.rms_eps,
                             .norm_before_residual = b.config.head->norm_before_residual};
  });
}

void Maker::head_layers() {
  stage_ = Stage::kAttnIn;
  head_norm(tokens_, [](const Binding& b) {
    return Eagle3Norm::Args{.x = b.at.residual, .scale = b.w.head.attn_norm, .rounded = b.at.head->x};
  }).layers = InLayers::kAfterFirst;
  const HeadLinear qkv{&HeadPointers::qkv, d_.q_width() + 2 * d_.kv_width(), d_.hidden};
  head_linear(tokens_, qkv, [](const Binding& b) {
    const Dims& d = b.config.dims;
    return Eagle3Linear::Args{.then = Then::kRope,
                              .x = b.at.head->x,
                              .out = b.at.q,
                              .cosine = b.at.rope.cosine,
                              .sine = b.at.rope.sine,
                              .slots = b.step.kv_slots[static_cast<size_t>(b.kind)],
                              .keys = static_cast<Bf16*>(b.kv().keys),
                              .values = static_cast<Bf16*>(b.kv().values),
                              .heads = to_int(d.heads),
                              .kv_heads = to_int(d.kv_heads),
                              .head_dim = to_int(d.head_dim),
                              .cols = to_int((b.layer == 0 ? 2 : 1) * d.hidden)};
  });

  stage_ = Stage::kAttend;
  for (const LayerKind kind : kinds_of(d_)) attend(kind);
  if (!flash_)
    head_norm(tokens_, [](const Binding& b) {
      return Eagle3Norm::Args{.x = b.at.attn, .rounded = b.at.head->attended, .width = to_int(b.config.dims.q_width())};
    });

  stage_ = Stage::kAttnOut;
  head_linear(tokens_, {&HeadPointers::o, d_.hidden, d_.q_width()}, [](const Binding& b) {
    return Eagle3Linear::Args{.x = b.at.head->attended, .out = b.at.residual, .residual = b.at.residual};
  });

  stage_ = Stage::kRoute;
  head_norm(tokens_, [](const Binding& b) {
    return Eagle3Norm::Args{.x = b.at.residual, .scale = b.w.head.mlp_norm, .rounded = b.at.head->x};
  });

  stage_ = Stage::kMoe;
  head_linear(tokens_, {&HeadPointers::gate_up, 2 * d_.inter, d_.hidden}, [](const Binding& b) {
    return Eagle3Linear::Args{.then = Then::kGate, .x = b.at.head->x, .gated = b.at.head->gated};
  });
  head_linear(tokens_, {&HeadPointers::down, d_.hidden, d_.inter}, [](const Binding& b) {
    return Eagle3Linear::Args{.x = b.at.head->gated, .out = b.at.residual, .residual = b.at.residual};
  });
}

void Maker::head_logits() {
  stage_ = Stage::kLogits;
  head_norm(args_.step.logit_rows, [](const Binding& b) {
    Eagle3Norm::Args args{
        .x = b.at.residual, .which = b.step.logit_tokens, .scale = b.w.head.final_norm, .rounded = b.at.head->x};
    (b.config.head->norm_output ? args.normed : args.plain) = b.at.head->features;
    return args;
  });
  head_linear(args_.step.logit_rows, {&HeadPointers::unembedding, d_.vocab, d_.hidden},
              [](const Binding& b) { return Eagle3Linear::Args{.x = b.at.head->x, .out = b.at.logits}; });
}

}  // namespace nibble::backend::cuda

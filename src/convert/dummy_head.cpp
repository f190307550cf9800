#include "convert/dummy_head.h"

#include "convert/synth.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace nibble::convert {
namespace {

using backend::WeightRole;
using model::eagle3::Head;

// About as wide as a trained one, which the head keeps.
RawTensor random_matrix(Head& head, Shape shape, const DummyHeadOptions& options) {
  const model::ManifestItem item{
      .role = WeightRole::kQ, .name = fmt::format("head.{}", head.made_up.size()), .shape = std::move(shape)};
  std::vector<std::byte>& bytes = head.made_up.emplace_back(static_cast<size_t>(item.bytes()));
  fill_synthetic(item, options.seed, {.offset_bytes = 0, .bytes = bytes}, options.pool);
  return {.dtype = item.dtype, .shape = item.shape, .bytes = bytes};
}

}  // namespace

std::vector<int> dummy_head_boundaries(const model::ModelConfig& target) {
  Head usual;
  usual.where = "a dummy head";
  return model::eagle3::boundaries_of(usual, target.dims.layers, model::eagle3::TapReading::kAuto);
}

Head dummy_head(const model::eagle3::Target& target, const DummyHeadOptions& options) {
  using enum WeightRole;
  const backend::Dims& of = target.config.dims;
  Head head;
  head.config.dims = {.layers = 1,
                      .hidden = of.hidden,
                      .heads = of.heads,
                      .kv_heads = of.kv_heads,
                      .head_dim = of.head_dim,
                      .inter = 6 * of.hidden,
                      .experts = 1,
                      .topk = 1,
                      .vocab = std::min<int64_t>(options.draft_vocab, of.vocab),
                      .sliding_window = backend::kPageTokens,
                      .max_context = of.max_context};
  head.config.layer_kinds = {model::LayerKind::kFull};
  head.rope = model::plain_rope(10000, of.head_dim);
  head.reads = {.taps = 3, .target_hidden = of.hidden, .target_vocab = of.vocab, .tap_eps = head.config.rms_eps};
  head.boundaries = dummy_head_boundaries(target.config);
  const auto make = [&](Shape shape) { return random_matrix(head, std::move(shape), options); };
  const backend::Dims& d = head.config.dims;
  const int64_t h = d.hidden, q = d.q_width(), kv = d.kv_width();
  const auto put = [&](WeightRole role, int layer, RawTensor values, RawTensor odd = {}) {
    head.weights.push_back(
        {.role = role, .layer = layer, .values = std::move(values), .scales = {}, .odd = std::move(odd)});
  };
  put(kTapFc, -1, make({h, head.reads.taps * h}));
  for (const auto& [role, rows, cols] : {std::tuple{kQ, q, 2 * h}, {kK, kv, 2 * h}, {kV, kv, 2 * h}, {kO, h, q}})
    put(role, 0, make({rows, cols}));
  RawTensor gate = make({1, d.inter, h});
  put(kGateUp, 0, std::move(gate), make({1, d.inter, h}));
  put(kDown, 0, make({1, h, d.inter}));
  put(kUnembedding, -1, make({d.vocab, h}));
  put(kFinalNorm, -1, model::eagle3::filled(head, h, 1));
  for (const WeightRole role : {kAttnNorm, kHiddenNorm, kMlpNorm}) put(role, 0, model::eagle3::filled(head, h, 1));
  for (int64_t i = 0; i < d.vocab; ++i) head.reads.target_ids.push_back(static_cast<int32_t>(i * of.vocab / d.vocab));
  head.weights.push_back(model::eagle3::shared(target, kEmbedding, "a dummy head"));
  model::eagle3::fill_up(head);
  return head;
}

}  // namespace nibble::convert

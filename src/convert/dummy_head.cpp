#include "convert/dummy_head.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>

namespace nibble::convert {
namespace {

using backend::WeightRole;
using model::eagle3::Head;

// Makes weights one after the other, whose bytes the head keeps.
class HeadMaker {
 public:
  HeadMaker(Head& head, const DummyHeadOptions& options) : head_(head), options_(options) {}

  // About as wide as a trained one: uniform, of the standard deviation 1 / sqrt(cols).
  RawTensor matrix(Shape shape) {
    const int64_t cols = shape.back(), rows = shape[shape.size() - 2];
    constexpr int64_t kAtOnce = 8;  // values of a draw
    const int64_t count = rows * cols;
    std::vector<std::byte>& bytes = head_.made_up.emplace_back(static_cast<size_t>(count) * sizeof(uint16_t));
    const auto tensor = static_cast<uint64_t>(head_.made_up.size());
    const float scale = std::sqrt(3.0f / static_cast<float>(cols)) / 32768.0f;
    const auto fill = [&](IndexRange range) {
      for (int64_t block = range.begin; block < range.end; ++block) {
        const Philox4 draw = philox(options_.seed, static_cast<uint64_t>(block), tensor);
        for (int64_t i = 0; i < std::min(kAtOnce, count - block * kAtOnce); ++i) {
          const auto half = static_cast<int16_t>(draw[static_cast<size_t>(i / 2)] >> (16 * (i % 2)));
          const Bf16 value = Bf16::from_float(static_cast<float>(half) * scale);
          std::memcpy(bytes.data() + 2 * (block * kAtOnce + i), &value, sizeof(value));
        }
      }
    };
    const int64_t blocks = (count + kAtOnce - 1) / kAtOnce;
    if (options_.pool != nullptr)
      options_.pool->parallel_for(blocks, fill);
    else
      fill({.begin = 0, .end = blocks, .thread_idx = 0});
    return {.dtype = DType::kBf16, .shape = std::move(shape), .bytes = bytes};
  }
  RawTensor ones(int64_t count) {
    const std::vector<Bf16> values(static_cast<size_t>(count), Bf16::from_float(1));
    const auto bytes = std::as_bytes(std::span(values));
    const std::vector<std::byte>& kept = head_.made_up.emplace_back(bytes.begin(), bytes.end());
    return {.dtype = DType::kBf16, .shape = {count}, .bytes = kept};
  }

 private:
  Head& head_;
  const DummyHeadOptions& options_;
};

}  // namespace

std::vector<int> dummy_head_boundaries(const model::ModelConfig& target) {
  checkpoint::Eagle3Config usual;
  usual.where = "a dummy head";
  return model::eagle3::boundaries_of(usual, target.dims.layers, model::eagle3::TapReading::kAuto);
}

Head dummy_head(const model::eagle3::Target& target, const DummyHeadOptions& options) {
  using enum WeightRole;
  const backend::Dims& of = target.config.dims;
  const checkpoint::Eagle3Config usual{.where = "a dummy head",
                                       .num_hidden_layers = 1,
                                       .hidden_size = of.hidden,
                                       .intermediate_size = 6 * of.hidden,
                                       .num_attention_heads = of.heads,
                                       .num_key_value_heads = of.kv_heads,
                                       .head_dim = of.head_dim,
                                       .vocab_size = of.vocab,
                                       .draft_vocab_size = std::min<int64_t>(options.draft_vocab, of.vocab),
                                       .target_hidden_size = of.hidden,
                                       .rms_norm_eps = 1e-5,
                                       .rope_theta = 10000,
                                       .num_aux_hidden_states = 3};
  Head head = model::eagle3::described(usual, of);
  head.boundaries = dummy_head_boundaries(target.config);
  HeadMaker make(head, options);
  const backend::Dims& d = head.config.dims;
  const int64_t h = d.hidden, q = d.q_width(), kv = d.kv_width();
  const auto put = [&](WeightRole role, int layer, RawTensor values, RawTensor odd = {}) {
    head.weights.push_back(
        {.role = role, .layer = layer, .values = std::move(values), .scales = {}, .odd = std::move(odd)});
  };
  put(kTapFc, -1, make.matrix({h, head.reads.taps * h}));
  for (const auto& [role, rows, cols] : {std::tuple{kQ, q, 2 * h}, {kK, kv, 2 * h}, {kV, kv, 2 * h}, {kO, h, q}})
    put(role, 0, make.matrix({rows, cols}));
  RawTensor gate = make.matrix({1, d.inter, h});
  put(kGateUp, 0, std::move(gate), make.matrix({1, d.inter, h}));
  put(kDown, 0, make.matrix({1, h, d.inter}));
  put(kUnembedding, -1, make.matrix({d.vocab, h}));
  put(kFinalNorm, -1, make.ones(h));
  for (const WeightRole role : {kAttnNorm, kHiddenNorm, kMlpNorm}) put(role, 0, make.ones(h));
  for (int64_t i = 0; i < d.vocab; ++i) head.reads.target_ids.push_back(static_cast<int32_t>(i * of.vocab / d.vocab));
  head.weights.push_back(model::eagle3::shared(target, kEmbedding, "a dummy head"));
  model::eagle3::fill_up(head);
  return head;
}

}  // namespace nibble::convert

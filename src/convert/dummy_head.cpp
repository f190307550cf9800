#include "convert/dummy_head.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"
#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace nibble::convert {
namespace {

using model::eagle3::Matrix;
using model::eagle3::Weights;

// Makes matrices one after the other, whose bytes the weights keep.
class HeadMaker {
 public:
  HeadMaker(Weights& weights, const DummyHeadOptions& options) : weights_(weights), options_(options) {}

  // About as wide as a trained one: uniform, of the standard deviation 1 / sqrt(cols).
  Matrix matrix(int64_t rows, int64_t cols) {
    constexpr int64_t kAtOnce = 8;  // values of a draw
    const int64_t count = rows * cols;
    std::vector<std::byte>& bytes = weights_.made_up.emplace_back(static_cast<size_t>(count) * sizeof(uint16_t));
    const auto tensor = static_cast<uint64_t>(weights_.made_up.size());
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
    return {.values = {.dtype = DType::kBf16, .shape = {rows, cols}, .bytes = bytes}, .bias = {}};
  }

 private:
  Weights& weights_;
  const DummyHeadOptions& options_;
};

}  // namespace

std::vector<int> dummy_head_boundaries(const model::ModelConfig& target) {
  checkpoint::Eagle3Config usual;
  usual.where = "a dummy head";
  return model::eagle3::boundaries_of(usual, target.dims.layers, model::eagle3::TapReading::kAuto);
}

Weights dummy_head(const model::eagle3::Target& target, const DummyHeadOptions& options) {
  const backend::Dims& of = target.config.dims;
  Weights w;
  w.boundaries = dummy_head_boundaries(target.config);
  const auto taps = std::ssize(w.boundaries);
  w.dims = {.hidden = of.hidden,
            .target_hidden = of.hidden,
            .taps = taps,
            .heads = of.heads,
            .kv_heads = of.kv_heads,
            .head_dim = of.head_dim,
            .inter = 6 * of.hidden,
            .vocab = of.vocab,
            .draft_vocab = std::min<int64_t>(options.draft_vocab, of.vocab)};
  w.rms_eps = 1e-5;
  model::RopeTable rope = model::plain_rope(10000, of.head_dim);
  w.rope_inv_freq = std::move(rope.inv_freq);
  w.rope_concentration = rope.concentration;
  HeadMaker make(w, options);
  const int64_t h = of.hidden, q = of.q_width(), kv = of.kv_width();
  const std::vector<float> ones(static_cast<size_t>(h), 1.0f);
  w.fc = make.matrix(h, taps * h);
  model::eagle3::Layer& layer = w.layers.emplace_back();
  layer.input_norm = layer.hidden_norm = layer.post_attention_norm = w.norm = ones;
  layer.q = make.matrix(q, 2 * h);
  layer.k = make.matrix(kv, 2 * h);
  layer.v = make.matrix(kv, 2 * h);
  layer.o = make.matrix(h, q);
  layer.gate = make.matrix(w.dims.inter, h);
  layer.up = make.matrix(w.dims.inter, h);
  layer.down = make.matrix(h, w.dims.inter);
  w.lm_head = make.matrix(w.dims.draft_vocab, h);
  for (int64_t i = 0; i < w.dims.draft_vocab; ++i)
    w.target_ids.push_back(static_cast<int32_t>(i * of.vocab / w.dims.draft_vocab));
  w.embedding = model::eagle3::shared_embedding(target, "a dummy head");
  return w;
}

}  // namespace nibble::convert

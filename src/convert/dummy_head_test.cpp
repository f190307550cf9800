#include "convert/dummy_head.h"

#include "convert/synth.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::convert {
namespace {

// gpt-oss-20b's layers over small widths.
model::ModelConfig many_layers() {
  model::ModelConfig config = model::preset("tiny");
  config.dims.layers = 24;
  config.layer_kinds.assign(24, backend::LayerKind::kFull);
  return config;
}

TEST(dummy_head, is_of_the_usual_shape_and_names_tokens_of_the_model) {
  const model::ModelConfig config = many_layers();
  const DummyWeights weights(config, 1, nullptr);
  const model::eagle3::Head head = dummy_head({config, weights.weights()}, {.draft_vocab = 100, .seed = 3});
  const backend::Dims& dims = head.config.dims;
  EXPECT_EQ(head.boundaries, (std::vector{2, 12, 21}));
  EXPECT_EQ(dims.inter, 6 * config.dims.hidden);
  EXPECT_EQ(dims.vocab, 100);
  EXPECT_EQ(head.reads.target_ids.size(), 100u);
  EXPECT_LT(*std::ranges::max_element(head.reads.target_ids), config.dims.vocab);
}

TEST(dummy_head, is_the_same_for_any_number_of_threads) {
  const model::ModelConfig config = many_layers();
  const DummyWeights weights(config, 1, nullptr);
  ThreadPool pool(3);
  const auto one = dummy_head({config, weights.weights()}, {.draft_vocab = 50});
  const auto more = dummy_head({config, weights.weights()}, {.draft_vocab = 50, .pool = &pool});
  EXPECT_EQ(one.made_up, more.made_up);
  EXPECT_NE(one.made_up, dummy_head({config, weights.weights()}, {.draft_vocab = 50, .seed = 2}).made_up);
}

}  // namespace
}  // namespace nibble::convert

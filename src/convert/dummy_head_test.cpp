#include "convert/dummy_head.h"

#include "convert/synth.h"
#include "model/eagle3/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nibble::convert {
namespace {

// gpt-oss-20b's layers over small widths.
model::ModelConfig many_layers() {
  model::ModelConfig config = model::preset("tiny");
  config.dims.layers = 24;
  config.layer_kinds.assign(24, backend::LayerKind::kFull);
  return config;
}

TEST(dummy_head, is_of_the_usual_shape_and_drafts_tokens_of_the_model) {
  const model::ModelConfig config = many_layers();
  const DummyWeights weights(config, 1, nullptr);
  model::eagle3::Head head(dummy_head({config, weights.weights()}, {.draft_vocab = 100, .seed = 3}));
  const backend::HeadDims& dims = head.weights().dims;
  EXPECT_EQ(head.boundaries(), (std::vector{2, 12, 21}));
  EXPECT_EQ(dims.inter, 6 * config.dims.hidden);
  EXPECT_EQ(head.weights().lm_head.rows(), 100);
  EXPECT_EQ(head.weights().target_ids.size(), 100u);
  EXPECT_LT(*std::ranges::max_element(head.weights().target_ids), config.dims.vocab);

  model::eagle3::HostRunner runner(head, 1);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> residuals(static_cast<size_t>(3 * 3 * config.dims.hidden));
  for (float& value : residuals) value = normal(random);
  const std::vector<int32_t> tokens = {5, 1, 9};
  const backend::HeadRunner::Rows rows{.sequence = 1, .tokens = tokens, .residuals = residuals, .position = 0};
  runner.read({&rows, 1});
  std::vector<int32_t> drafted, again;
  for (std::vector<int32_t>* into : {&drafted, &again}) {
    const backend::HeadRunner::Draft draft{.sequence = 1, .most = 4, .tokens = into};
    runner.draft({&draft, 1});
  }
  ASSERT_EQ(drafted.size(), 4u);
  for (const int32_t token : drafted) EXPECT_TRUE(token >= 0 && token < config.dims.vocab);
  EXPECT_EQ(again, drafted);
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

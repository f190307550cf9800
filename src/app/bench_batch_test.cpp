#include "app/bench_batch.h"

#include "backend/cpu/cpu_backend.h"
#include "model/load.h"
#include "model/synth.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace nibble::app {
namespace {

bool go_on() { return true; }

// The logits of two sequences' next tokens after everything that a benchmark does at two depths.
std::vector<float> logits_after_all(const model::DummyWeights& weights, int chunk_tokens) {
  const model::ModelConfig config = model::truncated(model::tiny(), 2);
  const BenchShape shape{.sequences = 2, .depth = 400, .prompt = 150, .generate = 70, .chunk_tokens = chunk_tokens};
  const auto be =
      backend::make_cpu_backend(model::backend_config(config, step_limits(shape, config.dims)), {.threads = 2});
  const model::GptOss model = model::load(*be, config, weights.weights());
  BenchBatch batch(*be, model, shape);
  for (const int64_t depth : {100, 400}) {
    EXPECT_TRUE(batch.fill(1, depth, go_on));
    EXPECT_TRUE(batch.time_prompt(150, go_on));
    EXPECT_TRUE(batch.time_prompt(150, go_on));
    EXPECT_TRUE(batch.fill(2, depth, go_on));
    EXPECT_TRUE(batch.time_generate(2, 70, go_on));
    EXPECT_TRUE(batch.time_generate(2, 1, go_on));
  }
  return be->peek(backend::Slot::kLogits).values;
}

TEST(bench_batch, rings_of_pages_and_rollbacks_change_no_result) {
  const model::DummyWeights weights(model::truncated(model::tiny(), 2), 1, nullptr);
  const std::vector<float> ring = logits_after_all(weights, 32);
  EXPECT_EQ(ring, logits_after_all(weights, 512));  // as large as the sequences: nothing is used twice
}

TEST(bench_batch, sliding_layers_keep_their_window_only) {
  const model::StepLimits limits = step_limits(
      {.sequences = 4, .depth = 32768, .prompt = 2048, .generate = 128, .chunk_tokens = 512}, model::tiny().dims);
  EXPECT_EQ(limits.kv_pages[static_cast<size_t>(backend::LayerKind::kFull)],
            (32768 + 2048) / 64 + 3 * (32768 + 128) / 64);
  EXPECT_EQ(limits.kv_pages[static_cast<size_t>(backend::LayerKind::kSliding)],
            (128 + 2048) / 64 + 1 + 3 * ((128 + 512) / 64 + 1));
  EXPECT_EQ(limits.max_rows, 4);
  EXPECT_EQ(limits.max_tokens, 512);
}

}  // namespace
}  // namespace nibble::app

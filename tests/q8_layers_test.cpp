// Which of a file's dense layers stay in Q8_0 on a card.

#include "app/options/options.h"
#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "backend/cuda/card/cards.h"
#include "checkpoint/testing/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::app {
namespace {

constexpr auto kQ8 = backend::WeightFormat::kGgmlQ8;

ModelOptions on_card(const ModelOptions& asked, const backend::cuda::DeviceFacts& card) {
  return with_backend(asked, [](const ModelOptions&, const model::ModelConfig&) { return model::StepLimits{}; }, card);
}

TEST(q8_layers, stay_in_q8_0_where_both_copies_have_room) {
  const test::ScratchDir dir;
  ConvertOptions convert;
  convert.model.model = NIBBLE_SOURCE_DIR "/models/nibble-tiny";
  convert.destination = dir / "tiny.gguf";
  convert.output.quiet = true;
  ASSERT_EQ(execute(convert), 0);
  ModelOptions asked;
  asked.model = convert.destination.string();
  asked.run.backend = BackendKind::kCuda;
  backend::cuda::DeviceFacts card = backend::cuda::card_named("h100").facts;

  const ModelOptions both = on_card(asked, card);
  for (const auto& format : {both.run.dense.qkv, both.run.dense.o, both.run.dense.lm_head}) EXPECT_EQ(format, kQ8);
  EXPECT_EQ(both.left_out, "");
  EXPECT_FALSE(both.run.dense.any()) << "nothing is requantised";
  EXPECT_FALSE(draft_options(both).run.dense.qkv.has_value()) << "another file";

  ModelOptions fast = asked;
  fast.run.fast = true;
  EXPECT_EQ(on_card(fast, card).run.dense.o, backend::WeightFormat::kMxfp4);
  ModelOptions none = asked;
  none.run.dense.keeps_q8 = false;
  EXPECT_FALSE(on_card(none, card).run.dense.o.has_value());

  card.memory_bytes = 10'000'000;  // less than both copies take
  const ModelOptions small = on_card(asked, card);
  EXPECT_FALSE(small.run.dense.qkv || small.run.dense.o || small.run.dense.lm_head);
  EXPECT_THAT(small.left_out, testing::StartsWith("Q8_0 layers become bf16: with both, want "));

  card = backend::cuda::card_named("3090").facts;  // whose GEMM of bf16 takes Q8_0, too
  EXPECT_TRUE(on_card(asked, card).run.dense.q8_copies);
  card.memory_bytes = 10'000'000;
  const ModelOptions alone = on_card(asked, card);
  EXPECT_EQ(alone.run.dense.o, kQ8);
  EXPECT_FALSE(alone.run.dense.q8_copies);
  EXPECT_THAT(alone.left_out, testing::StartsWith("Q8_0 layers have no copy in bf16, and any_gemm multiplies them: "));
  EXPECT_LT(model::cost_of(model::preset("tiny"), stored_formats(alone, {})).weight_bytes(),
            model::cost_of(model::preset("tiny"), stored_formats(none, {})).weight_bytes());
}

}  // namespace
}  // namespace nibble::app

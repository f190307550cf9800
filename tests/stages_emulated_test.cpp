// Stage by stage against the reference on a card that is not there: the backend's host code as it is, kernels lane by
// lane, as `nibble verify` compares a real one.

#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"
#include "checkpoint/checkpoint.h"
#include "engine/step_builder.h"
#include "model/compare.h"
#include "model/hf_config.h"
#include "model/manifest.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>  // the emulated one

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble {
namespace {

using backend::KernelFamily;
using backend::Slot;

class EmulatedStages : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path tiny = std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";
    config_ = model::truncated(model::read_hf_config(tiny).config, 2);
    checkpoint_.emplace(checkpoint::Checkpoint::open(tiny));
    weights_ = model::bind_weights(checkpoint_->entries(), model::read_hf_config(tiny).config);
    std::erase_if(weights_, [](const backend::HostWeight& w) { return w.layer >= 2; });
    backend::cuda::emulated_cuda() = backend::cuda::emulated_small_card();
  }
  void TearDown() override { backend::cuda::emulated_cuda() = {}; }

  static std::vector<int32_t> ids(size_t count, int32_t first) {
    std::vector<int32_t> all;
    for (size_t i = 0; i < count; ++i) all.push_back((first + static_cast<int32_t>(i) * 37) % 4000);
    return all;
  }

  // Names the first wrong stage of two steps: two prompts, then a token behind each beside a sequence that is far along
  // and has the first one's pages. `card`: what the card is told of the model.
  std::string wrong(const model::ModelConfig& card, KernelFamily family, double tolerance) {
    constexpr int64_t kFar = 4096;
    std::vector<engine::StepPart> prompts = {{ids(70, 5), 0, {0, 1}}, {ids(9, 11), 0, {2}}};
    std::vector<engine::StepPart> later = {{ids(1, 3), 70, {0, 1}}, {ids(1, 4), 9, {2}}, {ids(2, 8), kFar, {}}};
    later[2].pages.assign(kFar / backend::kPageTokens, 0);
    later[2].pages.push_back(3);
    const auto pages = static_cast<int32_t>(later[2].pages.size());
    const model::StepLimits limits{.max_tokens = 80, .max_rows = 3, .kv_pages = {pages, pages, pages}};
    const backend::RunConfig run{.backend = backend::BackendKind::kCuda,
                                 .attention = backend::AttentionKernel::kReference,
                                 .family = family,
                                 .eager = true};  // a replayed graph does nothing there
    backend::RunConfig plain = run;
    plain.rounds_pages = true;
    const auto a = backend::make_reference_backend(model::backend_config(config_, limits), plain);
    const auto b = backend::make_cuda_backend(model::backend_config(card, limits), run);
    const model::GptOss on_a = model::load(*a, config_, weights_), on_b = model::load(*b, card, weights_);
    for (const auto& parts : {prompts, later}) {
      model::Step step = engine::step_of(parts);
      for (const backend::Row& row : step.rows) step.logit_tokens.push_back(row.first_token + row.tokens - 1);
      const model::Comparison result =
          model::compare_each({*a, on_a}, {*b, on_b}, step, [&](model::Stage, Slot) { return tolerance; });
      EXPECT_GT(result.stages.size(), 20U);
      if (!result.first_bad) continue;
      const model::StageDifference& d = result.stages[*result.first_bad];
      return fmt::format("layer {} {}, {} of {}: {} {}", d.layer, name_of(d.stage), backend::name_of(d.slot),
                         model::place_of(step, d.slot, d.shape, d.element), d.a, d.b);
    }
    return {};
  }

  model::ModelConfig config_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  std::vector<backend::HostWeight> weights_;
};

TEST_F(EmulatedStages, are_the_reference_s) {
  EXPECT_EQ(wrong(config_, KernelFamily::kReference, 0x1p-7), "");  // a page's values fell to the next bf16
  EXPECT_EQ(wrong(config_, KernelFamily::kStreaming, 0x1p-5), "");
}

TEST_F(EmulatedStages, a_window_that_is_one_too_long_is_found_where_it_begins) {
  config_.dims.sliding_window = 64;
  model::ModelConfig card = config_;
  card.dims.sliding_window = 65;
  EXPECT_THAT(wrong(card, KernelFamily::kStreaming, 0x1p-5),
              testing::StartsWith("layer 0 attend, attn of sequence 0, position 64: "));
}

TEST_F(EmulatedStages, other_frequencies_are_found) {
  model::ModelConfig card = config_;
  card.rope.theta *= 1.01;
  EXPECT_THAT(wrong(card, KernelFamily::kStreaming, 0x1p-5),
              testing::StartsWith("layer 0 attend, q of sequence 0, position "));
}

}  // namespace
}  // namespace nibble

// Every published variant against tools/eagle3_model.py (tools/make_eagle_goldens.py), and what is refused.

#include "model/eagle3/head.h"

#include "checkpoint/safetensors.h"
#include "checkpoint/testing/files.h"
#include "model/eagle3/runner.h"
#include "model/eagle3/testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

namespace nibble::model::eagle3 {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;
using test::expect_error;
using test::values;
using TestTarget = test::Eagle3Target;

void expect_near(std::span<const float> got, std::span<const float> want, const std::string& of) {
  ASSERT_EQ(got.size(), want.size()) << of;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << of << ' ' << i;
}

class Variant : public testing::TestWithParam<const char*> {};

TEST_P(Variant, computes_what_the_independent_model_does) {
  const TestTarget target;
  const SafetensorsFile golden(test::kEagle3Data / (std::string(GetParam()) + ".safetensors"));
  const auto tokens64 = values<int64_t>(golden, "tokens"), positions = values<int64_t>(golden, "positions");
  const std::vector<int32_t> tokens(tokens64.begin(), tokens64.end());
  const auto residuals = values<float>(golden, "residuals"), logits = values<float>(golden, "logits");
  const Head head(target.load(test::kEagle3Data / GetParam()));
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    Cache cache;
    const size_t width = residuals.size() / tokens.size(), vocab = logits.size() / tokens.size();
    std::vector<float> last, feature;
    size_t settled = 0;
    for (size_t first = 0, end = 0; first < tokens.size(); first = end) {  // rows whose positions follow each other
      for (end = first + 1; end < tokens.size() && positions[end] == positions[end - 1] + 1;) ++end;
      const std::vector<float> features =
          head.features(std::span(residuals).subspan(first * width, (end - first) * width), pool);
      const Head::Rows rows{.tokens = std::span(tokens).subspan(first, end - first),
                            .features = features,
                            .position = positions[first],
                            .cache = &cache};
      const Head::Read read = head.read({&rows, 1}, pool);
      const size_t hidden = read.normed.size() / (end - first);
      for (size_t r = first; r < end; ++r) {
        last.assign(read.normed.begin() + static_cast<int64_t>((r - first) * hidden),
                    read.normed.begin() + static_cast<int64_t>((r - first + 1) * hidden));
        expect_near(head.logits(last, pool), std::span(logits).subspan(r * vocab, vocab), "row");
      }
      feature.assign(read.next.end() - static_cast<int64_t>(hidden), read.next.end());
      settled = cache.rows();
    }
    const auto drafts = values<int64_t>(golden, "drafts");
    const auto draft_logits = values<float>(golden, "draft_logits");
    if (head.weights().mask_token) {
      EXPECT_EQ(head.draft(last, pool), std::vector{static_cast<int32_t>(drafts[0])});
      const size_t masks = drafts.size() - 1;
      const std::vector<int32_t> masked(masks, *head.weights().mask_token);
      std::vector<float> features;
      for (size_t i = 0; i < masks; ++i) {
        const std::vector<float> one = head.features(head.weights().mask_hidden, pool);
        features.insert(features.end(), one.begin(), one.end());
      }
      for (int round = 0; round < 2; ++round) {
        const Head::Rows rows{
            .tokens = masked, .features = features, .position = positions.back() + 1, .cache = &cache};
        const Head::Read read = head.read({&rows, 1}, pool);
        expect_near(head.logits(read.normed, pool), draft_logits, "mask");
        EXPECT_TRUE(std::ranges::equal(head.draft(read.normed, pool), std::span(drafts).subspan(1)));
        head.keep(cache, settled);
      }
      continue;
    }
    // Twice: what was drafted leaves nothing behind.
    for (int round = 0; round < 2; ++round) {
      std::vector<float> row = last, next = feature;
      for (size_t i = 0; i < drafts.size(); ++i) {
        const std::vector<int32_t> token = head.draft(row, pool);
        EXPECT_EQ(token, std::vector{static_cast<int32_t>(drafts[i])});
        const Head::Rows rows{.tokens = token,
                              .features = next,
                              .position = positions.back() + 1 + static_cast<int64_t>(i),
                              .cache = &cache};
        const Head::Read read = head.read({&rows, 1}, pool);
        row = read.normed;
        next = read.next;
        expect_near(head.logits(row, pool), std::span(draft_logits).subspan(i * vocab, vocab), "draft");
      }
      head.keep(cache, settled);
    }
  }
}

TEST_P(Variant, is_run_to_the_same_drafts_however_its_rows_come) {
  const TestTarget target;
  const SafetensorsFile golden(test::kEagle3Data / (std::string(GetParam()) + ".safetensors"));
  const auto tokens64 = values<int64_t>(golden, "tokens"), positions = values<int64_t>(golden, "positions"),
             drafts = values<int64_t>(golden, "drafts");
  const std::vector<int32_t> tokens(tokens64.begin(), tokens64.end());
  const auto residuals = values<float>(golden, "residuals");
  const size_t width = residuals.size() / tokens.size();
  const auto gap = static_cast<size_t>(
      std::ranges::adjacent_find(positions, [](int64_t a, int64_t b) { return b > a + 1; }) + 1 - positions.begin());
  const auto rows = [&](size_t from, size_t end) {
    return HostRunner::Rows{.sequence = 1,
                            .tokens = std::span(tokens).subspan(from, end - from),
                            .residuals = std::span(residuals).subspan(from * width, (end - from) * width),
                            .position = positions[from]};
  };
  const Head head(target.load(test::kEagle3Data / GetParam()));
  HostRunner runner(head, 2);
  const auto expect_drafts = [&](const HostRunner::Rows* unread) {
    std::vector<int32_t> drafted;
    const HostRunner::Draft draft{
        .sequence = 1, .most = static_cast<int>(drafts.size()), .tokens = &drafted, .unread = unread};
    runner.draft({&draft, 1});
    EXPECT_TRUE(std::ranges::equal(drafted, drafts));
  };
  const HostRunner::Rows before = rows(0, gap), behind = rows(gap, tokens.size());
  runner.read({&before, 1});
  expect_drafts(&behind);
  expect_drafts(nullptr);  // what was drafted leaves nothing behind
  runner.end(1);
  runner.read({&before, 1});
  runner.read({&behind, 1});
  expect_drafts(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Published, Variant,
                         testing::Values("plain", "norm_before_fc", "fc_norm", "final_state", "two_layers", "qkv_bias",
                                         "speculators", "p_eagle", "p_eagle_speculators"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(Eagle3Head, several_sequences_at_once_are_each_as_alone) {
  const TestTarget target;
  const Head head(target.load(test::kEagle3Data / "two_layers"));
  ThreadPool pool(2);
  const std::vector<int32_t> tokens = {3, 9, 27, 33, 5, 15, 45};
  std::vector<float> features(tokens.size() * 32);
  for (size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>(i % 13) - 6;
  struct Part {
    size_t first, count;
    int64_t position;
  };
  const auto rows_of = [&](const Part& part, Cache& cache) {
    return Head::Rows{.tokens = std::span(tokens).subspan(part.first, part.count),
                      .features = std::span(features).subspan(part.first * 32, part.count * 32),
                      .position = part.position,
                      .cache = &cache};
  };
  constexpr Part kParts[] = {{0, 1, 40}, {1, 4, 7}, {5, 2, 0}};
  Head::Read alone;
  std::vector<Cache> together(3), apart(3);
  for (int round = 0; round < 2; ++round) {
    alone = {};
    std::vector<Head::Rows> all;
    for (size_t i = 0; i < 3; ++i) {
      Part part = kParts[i];
      part.position += round * 10;
      all.push_back(rows_of(part, together[i]));
      const Head::Rows rows = rows_of(part, apart[i]);
      const Head::Read read = head.read({&rows, 1}, pool);
      alone.normed.insert(alone.normed.end(), read.normed.begin(), read.normed.end());
      alone.next.insert(alone.next.end(), read.next.begin(), read.next.end());
    }
    const Head::Read read = head.read(all, pool);
    EXPECT_EQ(read.normed, alone.normed);
    EXPECT_EQ(read.next, alone.next);
    const std::vector<int32_t> drafts = head.draft(read.normed, pool);
    for (size_t r = 0; r < tokens.size(); ++r)
      EXPECT_EQ(head.draft(std::span(alone.normed).subspan(r * 32, 32), pool), std::vector{drafts[r]});
  }
}

TEST(Eagle3Taps, a_list_that_ends_with_the_number_of_layers_names_boundaries) {
  checkpoint::Eagle3Config config{.where = "w"};
  const auto of = [&](std::vector<int64_t> ids, TapReading reading) {
    config.layer_ids = std::move(ids);
    return boundaries_of(config, 36, reading);
  };
  using enum TapReading;
  EXPECT_EQ(of({24, 30, 36}, kAuto), (std::vector{24, 30, 36}));
  EXPECT_EQ(of({1, 17, 32}, kAuto), (std::vector{2, 18, 33}));
  EXPECT_EQ(of({1, 17, 32}, kBoundaries), (std::vector{1, 17, 32}));
  EXPECT_EQ(of({1, 17, 35}, kOutputs), (std::vector{2, 18, 36}));
  expect_error([&] { of({24, 30, 36}, kOutputs); }, Code::kCorrupt, "w: want states of 0 to 36");
  expect_error([&] { of({24, 30, 37}, kBoundaries); }, Code::kCorrupt, "found 24, 30, 37");
  config.layer_ids.reset();
  EXPECT_EQ(boundaries_of(config, 36, kAuto), (std::vector{2, 18, 33}));
  config.use_aux_hidden_state = false;
  EXPECT_EQ(boundaries_of(config, 36, kAuto), (std::vector{36}));
}

// A copy of a head with other tensors: `change` may rename or reshape each, or drop it by an empty name.
void copy_head(const std::string& from, const fs::path& to,
               const std::function<void(checkpoint::TensorSpec& spec)>& change) {
  fs::copy_file(test::kEagle3Data / from / "config.json", to / "config.json", fs::copy_options::overwrite_existing);
  const SafetensorsFile file(test::kEagle3Data / from / "model.safetensors");
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<std::span<const std::byte>> bytes;
  for (const checkpoint::TensorEntry& entry : file.entries()) {
    checkpoint::TensorSpec spec{.name = entry.name, .dtype = entry.tensor.dtype, .shape = entry.tensor.shape};
    change(spec);
    if (spec.name.empty()) continue;
    specs.push_back(spec);
    bytes.push_back(entry.tensor.bytes);
  }
  checkpoint::write_safetensors(to / "model.safetensors", {.tensors = specs},
                                [&](const checkpoint::TensorPiece& piece) {
                                  std::memcpy(piece.bytes.data(), bytes[piece.tensor_idx].data(), piece.bytes.size());
                                });
}

TEST(Eagle3Weights, each_tensor_that_is_missing_or_misshapen_or_unknown_is_named) {
  const TestTarget target;
  const test::ScratchDir dir;
  for (const std::string variant : {"plain", "fc_norm", "two_layers", "norm_before_fc", "speculators", "p_eagle"}) {
    const SafetensorsFile file(test::kEagle3Data / variant / "model.safetensors");
    for (const checkpoint::TensorEntry& entry : file.entries()) {
      const std::string& name = entry.name;
      const bool own = name == "lm_head.weight" || name == "d2t";  // p_eagle has the model's vocabulary
      const bool optional = name == "embed_tokens.weight" || name == "t2d" || (own && variant == "p_eagle");
      copy_head(variant, dir.path(), [&](checkpoint::TensorSpec& spec) {
        if (spec.name == name) spec.name.clear();
      });
      if (optional)
        EXPECT_NO_THROW(static_cast<void>(target.load(dir.path()))) << name;
      else
        expect_error([&] { static_cast<void>(target.load(dir.path())); }, Code::kCorrupt, name + ": want ");
      copy_head(variant, dir.path(), [&](checkpoint::TensorSpec& spec) {
        if (spec.name == name) spec.shape.insert(spec.shape.begin(), 1);
      });
      expect_error([&] { static_cast<void>(target.load(dir.path())); }, Code::kCorrupt, name + ": want ");
      copy_head(variant, dir.path(), [&](checkpoint::TensorSpec& spec) {
        if (spec.name == name && spec.dtype == DType::kBf16) spec.dtype = DType::kI16;
      });
      if (entry.tensor.dtype == DType::kBf16)
        expect_error([&] { static_cast<void>(target.load(dir.path())); }, Code::kCorrupt,
                     name + ": want BF16, F16 or F32, found I16");
      copy_head(variant, dir.path(), [&](checkpoint::TensorSpec& spec) {
        if (spec.name == name) spec.name = "mask_shown";
      });
      if (optional)
        expect_error([&] { static_cast<void>(target.load(dir.path())); }, Code::kCorrupt,
                     "mask_shown: want no such tensor");
    }
  }
}

TEST(Eagle3Weights, only_a_head_with_a_mask_token_has_a_mask) {
  const TestTarget target;
  const test::ScratchDir dir;
  copy_head("plain", dir.path(), [](checkpoint::TensorSpec& spec) {
    if (spec.name == "t2d") spec.name = "mask_hidden";
  });
  expect_error([&] { static_cast<void>(target.load(dir.path())); }, Code::kCorrupt, "mask_hidden: want no such tensor");
}

TEST(Eagle3Weights, a_mask_is_one_row_however_its_shape_says_so) {
  const TestTarget target;
  const test::ScratchDir dir;
  for (const Shape& shape : {Shape{96}, Shape{1, 96}, Shape{1, 1, 96}}) {
    copy_head("p_eagle", dir.path(), [&](checkpoint::TensorSpec& spec) {
      if (spec.name == "mask_hidden") spec.shape = shape;
    });
    EXPECT_EQ(target.load(dir.path()).mask_hidden, target.load(test::kEagle3Data / "p_eagle").mask_hidden);
  }
  for (const Shape& shape : {Shape{96, 1}, Shape{2, 48}, Shape{1, 1, 1, 96}}) {
    copy_head("p_eagle", dir.path(), [&](checkpoint::TensorSpec& spec) {
      if (spec.name == "mask_hidden") spec.shape = shape;
    });
    expect_error([&] { static_cast<void>(target.load(dir.path())); }, Code::kCorrupt, "mask_hidden: want BF16 [1,96]");
  }
}

TEST(Eagle3Weights, a_head_of_another_target_is_refused) {
  TestTarget target;
  const auto refused = [&](const char* variant, std::string_view says) {
    expect_error([&] { static_cast<void>(target.load(test::kEagle3Data / variant)); }, Code::kCorrupt, says);
  };
  target.config.dims.vocab = 49;
  refused("plain", "vocab_size: want the model's 49, found 48");
  target.config.dims = {.layers = 8, .hidden = 64, .vocab = 48};
  refused("plain", "hidden_size: want the model's 64, found 32");
  target.config.dims = {.layers = 5, .hidden = 32, .vocab = 48};
  refused("plain", "want states of 0 to 5, the model's layers, rising; found 2, 5, 7");
}

TEST(Eagle3Weights, a_shared_embedding_must_not_be_quantised) {
  TestTarget target;
  target.weights[0].values.dtype = DType::kU8;
  target.weights[0].format = backend::WeightFormat::kGgmlQ8;
  expect_error([&] { static_cast<void>(target.load(test::kEagle3Data / "fc_norm")); }, Code::kUnsupported,
               "has no embedding of its own: want the model's in bf16, f16 or f32, found ggml q8_0");
}

}  // namespace
}  // namespace nibble::model::eagle3

// What is read of a head, and what is refused. What it computes: tests/head_goldens_test.cpp.

#include "model/eagle3/head.h"

#include "checkpoint/safetensors.h"
#include "checkpoint/testing/files.h"
#include "model/testing/eagle3.h"

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

TEST(Eagle3Taps, a_list_that_ends_with_the_number_of_layers_names_boundaries) {
  Head head;
  head.where = "w";
  const auto of = [&](std::vector<int64_t> ids, TapReading reading) {
    head.layer_ids = std::move(ids);
    return boundaries_of(head, 36, reading);
  };
  using enum TapReading;
  EXPECT_EQ(of({24, 30, 36}, kAuto), (std::vector{24, 30, 36}));
  EXPECT_EQ(of({1, 17, 32}, kAuto), (std::vector{2, 18, 33}));
  EXPECT_EQ(of({1, 17, 32}, kBoundaries), (std::vector{1, 17, 32}));
  EXPECT_EQ(of({1, 17, 35}, kOutputs), (std::vector{2, 18, 36}));
  expect_error([&] { of({24, 30, 36}, kOutputs); }, Code::kCorrupt, "w: want states of 0 to 36");
  expect_error([&] { of({24, 30, 37}, kBoundaries); }, Code::kCorrupt, "found 24, 30, 37");
  head.layer_ids.reset();
  EXPECT_EQ(boundaries_of(head, 36, kAuto), (std::vector{2, 18, 33}));
  head.reads.fc = false;
  EXPECT_EQ(boundaries_of(head, 36, kAuto), (std::vector{36}));
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

#include "convert/synth.h"

#include "base/dtype.h"
#include "base/mmap_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/testing/files.h"
#include "model/hf_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble::convert {

using model::bind_weights;
using model::gpt_oss_120b;
using model::gpt_oss_20b;
using model::LayerKind;
using model::manifest;
using model::Naming;
using model::tiny;
using model::truncated;
namespace {

using test::expect_error;
using test::ScratchDir;

// tiny() with a vocabulary that keeps the tests quick.
ModelConfig small_vocab() {
  ModelConfig config = tiny();
  config.dims.vocab = 512;
  config.bos_id = 509;
  config.pad_id = 510;
  config.eos_ids = {511};
  return config;
}

const ManifestItem& item_named(const std::vector<ManifestItem>& items, std::string_view name) {
  return *std::find_if(items.begin(), items.end(), [&](const ManifestItem& i) { return i.name == name; });
}

std::vector<std::byte> whole(const ManifestItem& item, uint64_t seed, ThreadPool* pool) {
  std::vector<std::byte> bytes(static_cast<size_t>(item.bytes()));
  fill_synthetic(item, seed, {.offset_bytes = 0, .bytes = bytes}, pool);
  return bytes;
}

struct Moments {
  double mean, std;
};
Moments moments_of(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, std::sqrt(squares / static_cast<double>(values.size()))};
}

std::vector<double> dense_values(const ManifestItem& item) {
  const std::vector<std::byte> bytes = whole(item, 1, nullptr);
  std::vector<double> values;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    Bf16 value;
    std::memcpy(&value, &bytes[i], 2);
    values.push_back(value.to_float());
  }
  return values;
}

TEST(synth, bytes_do_not_depend_on_threads_or_pieces) {
  ThreadPool three(3);
  for (const ManifestItem& item : manifest(truncated(small_vocab(), 1), Naming::kHuggingFace)) {
    const std::vector<std::byte> want = whole(item, 7, nullptr);
    EXPECT_EQ(whole(item, 7, &three), want) << item.name;
    std::vector<std::byte> pieces(want.size());
    for (size_t at = 0; at < pieces.size(); at += 48) {
      const std::span piece = std::span(pieces).subspan(at, std::min<size_t>(48, pieces.size() - at));
      fill_synthetic(item, 7, {.offset_bytes = static_cast<int64_t>(at), .bytes = piece}, &three);
    }
    EXPECT_EQ(pieces, want) << item.name;
  }
}

TEST(synth, every_tensor_and_seed_has_its_own_stream) {
  const auto items = manifest(small_vocab(), Naming::kHuggingFace);
  const auto& a = item_named(items, "model.layers.0.mlp.experts.down_proj_blocks");
  const auto& b = item_named(items, "model.layers.1.mlp.experts.down_proj_blocks");
  EXPECT_NE(whole(a, 1, nullptr), whole(b, 1, nullptr));
  EXPECT_NE(whole(a, 1, nullptr), whole(a, 2, nullptr));
}

TEST(synth,
     bytes_are_the_same_on_every_machine) {  // FNV-1a over all tensors of small_vocab(), seed 1; computed here first
  uint64_t hash = 0xcbf29ce484222325u;
  for (const ManifestItem& item : manifest(small_vocab(), Naming::kHuggingFace))
    for (const std::byte b : whole(item, 1, nullptr)) hash = (hash ^ static_cast<uint8_t>(b)) * 0x100000001b3u;
  EXPECT_EQ(hash, 1325866146511643631u);
}

TEST(synth, dense_weights_have_the_scale_of_their_fan_in) {
  ModelConfig config = truncated(gpt_oss_20b(), 1);
  config.dims.vocab = 512;
  const auto items = manifest(config, Naming::kHuggingFace);
  const auto expect = [&](const char* name, double mean, double std) {
    const Moments m = moments_of(dense_values(item_named(items, name)));
    EXPECT_NEAR(m.mean, mean, 0.05 * std) << name;
    EXPECT_NEAR(m.std, std, 0.03 * std) << name;
  };
  expect("model.embed_tokens.weight", 0, 4);
  expect("lm_head.weight", 0, 4 / std::sqrt(2880));
  expect("model.norm.weight", 1, 0.1);
  expect("model.layers.0.self_attn.k_proj.weight", 0, 1 / std::sqrt(2880));
  expect("model.layers.0.self_attn.o_proj.weight", 0, 1 / std::sqrt(4096));
  expect("model.layers.0.mlp.router.weight", 0, 1 / std::sqrt(2880));
  expect("model.layers.0.mlp.experts.gate_up_proj_bias", 0, 0.05);
}

TEST(synth, dequantised_experts_have_the_scale_of_their_fan_in) {
  constexpr double kCodes[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
  for (const int64_t hidden : {int64_t{2880}, int64_t{64}, int64_t{4096}}) {
    ModelConfig config = truncated(small_vocab(), 1);
    config.dims.hidden = hidden;
    const auto items = manifest(config, Naming::kHuggingFace);
    const auto blocks = whole(item_named(items, "model.layers.0.mlp.experts.gate_up_proj_blocks"), 1, nullptr);
    const auto scales = whole(item_named(items, "model.layers.0.mlp.experts.gate_up_proj_scales"), 1, nullptr);
    std::vector<double> values;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const double scale = std::ldexp(1.0, static_cast<int>(scales[i / 16]) - 127);
      values.push_back(scale * kCodes[static_cast<int>(blocks[i]) & 15]);
      values.push_back(scale * kCodes[static_cast<int>(blocks[i]) >> 4]);
    }
    const Moments m = moments_of(values);
    const double want = 1 / std::sqrt(static_cast<double>(hidden));
    EXPECT_NEAR(m.mean, 0, 0.02 * want) << hidden;
    EXPECT_NEAR(m.std, want, 0.02 * want) << hidden;
  }
}

TEST(synth, a_written_checkpoint_binds_to_the_dummys_bytes) {
  const ScratchDir dir;
  ThreadPool pool(2);
  int64_t last = 0;
  synth_checkpoint(small_vocab(), dir / "model",
                   {.seed = 5, .shard_bytes = 150'000, .tokenizer_json = "{}", .pool = &pool},
                   [&](const SynthProgress& p) {
                     EXPECT_GT(p.done_bytes, last);
                     last = p.done_bytes;
                     EXPECT_LE(p.done_bytes, p.total_bytes);
                   });
  const auto opened = checkpoint::Checkpoint::open(dir / "model");
  EXPECT_GT(opened.files().size(), 2u);
  EXPECT_EQ(opened.total_bytes(), last);
  EXPECT_EQ(opened.files()[0].path().filename(),
            fmt::format("model-00000-of-{:05}.safetensors", opened.files().size() - 1));
  EXPECT_EQ(read_text_file(dir / "model/tokenizer.json", 100), "{}");
  const ModelConfig config = model::read_hf_config(opened.directory()).config;
  EXPECT_EQ(config, small_vocab());

  const std::vector<backend::HostWeight> from_file = bind_weights(opened.entries(), config);
  DummyWeights made(config, 5, nullptr);
  EXPECT_EQ(made.total_bytes(), last);
  const DummyWeights dummy = std::move(made);
  ASSERT_EQ(dummy.weights().size(), from_file.size());
  for (size_t i = 0; i < from_file.size(); ++i) {
    const backend::HostWeight &a = from_file[i], &b = dummy.weights()[i];
    EXPECT_EQ(a.role, b.role);
    EXPECT_EQ(a.layer, b.layer);
    EXPECT_EQ(a.values.dtype, b.values.dtype);
    EXPECT_EQ(a.values.shape, b.values.shape);
    EXPECT_EQ(a.scales.shape, b.scales.shape);
    EXPECT_TRUE(std::ranges::equal(a.values.bytes, b.values.bytes)) << name_of(a.role) << " " << a.layer;
    EXPECT_TRUE(std::ranges::equal(a.scales.bytes, b.scales.bytes)) << name_of(a.role) << " " << a.layer;
  }
}

TEST(synth, a_small_checkpoint_is_one_file_without_index) {
  const ScratchDir dir;
  synth_checkpoint(small_vocab(), dir.path(), {.layers = 1}, {});
  EXPECT_TRUE(std::filesystem::exists(dir / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(dir / "model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(dir / "tokenizer.json"));
  const auto opened = checkpoint::Checkpoint::open(dir.path());
  const ModelConfig config = model::read_hf_config(dir.path()).config;
  EXPECT_EQ(config.dims.layers, 1);
  EXPECT_EQ(bind_weights(opened.entries(), config).size(), 20u);
}

TEST(synth, refuses_impossible_options_and_used_directories) {
  const ScratchDir dir;
  expect_error([&] { synth_checkpoint(small_vocab(), dir / "a", {.layers = 5}, {}); }, Code::kInvalidRequest,
               "layers: want 1 to 4, found 5");
  expect_error([&] { synth_checkpoint(small_vocab(), dir / "a", {.shard_bytes = 0}, {}); }, Code::kInvalidRequest,
               "shard_bytes: want at least 1, found 0");
  dir.write("f", "x");
  expect_error([&] { synth_checkpoint(small_vocab(), dir.path(), {}, {}); }, Code::kInvalidRequest,
               "want an absent or empty directory");
  expect_error([&] { synth_checkpoint(small_vocab(), dir / "f", {}, {}); }, Code::kIo, "cannot create");
}

// config_json's text with some values changed.
std::string changed_config(const ModelConfig& config, const nlohmann::json& changes) {
  nlohmann::json json = nlohmann::json::parse(config_json(config));
  json.merge_patch(changes);
  return json.dump();
}

TEST(config_json, survives_the_way_through_its_json) {
  for (const ModelConfig& c : {gpt_oss_20b(), gpt_oss_120b(), tiny(), model::gpt_oss_puzzle_88b()}) {
    ModelConfig read = model::parse_hf_config(config_json(c), "f").config;
    model::apply_generation_config(generation_config_json(c), "g", read);
    EXPECT_EQ(read, c);
  }
}

TEST(config_json, derives_layer_kinds_only_when_the_file_lists_none) {
  constexpr const char* kFullAttention = "full_attention";
  constexpr const char* kSlidingAttention = "sliding_attention";
  const auto kinds_of = [](const nlohmann::json& types) {
    return model::parse_hf_config(changed_config(tiny(), {{"layer_types", types}}), "f").config.layer_kinds;
  };
  using enum LayerKind;
  EXPECT_EQ(kinds_of({kFullAttention, kFullAttention, kSlidingAttention, kSlidingAttention}),
            (std::vector{kFull, kFull, kSliding, kSliding}));
  EXPECT_EQ(kinds_of(nullptr), (std::vector{kSliding, kFull, kSliding, kFull}));
}

TEST(config_json, of_a_file_is_refused_by_the_files_name) {
  const auto read = [](const nlohmann::json& changes) {
    static_cast<void>(model::parse_hf_config(changed_config(tiny(), changes), "dir/config.json"));
  };
  expect_error([&] { read({{"hidden_size", 48}}); }, Code::kUnsupported,
               "dir/config.json: hidden_size: want a multiple of 32");
  expect_error([&] { read({{"num_experts_per_tok", 9}, {"experts_per_token", 9}}); }, Code::kCorrupt,
               "num_experts_per_tok: want at most num_local_experts = ");
}

}  // namespace
}  // namespace nibble::convert

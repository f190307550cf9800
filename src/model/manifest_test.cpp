#include "model/manifest.h"

#include "checkpoint/testing/files.h"

#include <algorithm>
#include <map>
#include <set>

namespace nibble::model {
namespace {

using checkpoint::TensorEntry;
using test::expect_error;

// Every tensor of a config in memory: byte i of the n-th stored tensor is n + i, below 251.
struct Stored {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorEntry> entries;

  Stored(const ModelConfig& config, Naming naming) {
    std::set<std::string> seen;
    for (const ManifestItem& item : manifest(config, naming)) {
      if (!seen.insert(item.name).second) continue;
      const auto size = static_cast<size_t>(checkpoint::tensor_bytes(item.dtype, item.stored_shape, "test"));
      std::vector<std::byte>& data = bytes.emplace_back(size);
      for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>((bytes.size() + i) % 251);
      entries.push_back({item.name, {.dtype = item.dtype, .shape = item.stored_shape, .bytes = data}});
    }
  }
  TensorEntry& at(std::string_view name) {
    return *std::find_if(entries.begin(), entries.end(), [&](const TensorEntry& e) { return e.name == name; });
  }
};

ModelConfig small() {
  ModelConfig config = truncated(tiny(), 2);
  config.dims.vocab = 512;
  return config;
}

const backend::HostWeight& find(const std::vector<backend::HostWeight>& bound, WeightRole role, int layer) {
  return *std::find_if(bound.begin(), bound.end(),
                       [&](const backend::HostWeight& w) { return w.role == role && w.layer == layer; });
}

template <class Change>
void expect_refused(const Change& change, Code code, std::string_view message) {
  Stored stored(small(), Naming::kHuggingFace);
  change(stored);
  expect_error([&] { (void)bind_weights(stored.entries, small()); }, code, message);
}

TEST(manifest, a_layer_has_its_own_experts) {
  std::map<std::string, std::string> shapes;
  for (const ManifestItem& i : manifest(gpt_oss_puzzle_88b(), Naming::kHuggingFace))
    shapes[i.name] = checkpoint::describe(i.dtype, i.stored_shape);
  EXPECT_EQ(shapes["model.layers.14.mlp.experts.gate_up_proj_blocks"], "U8 [128,5760,90,16]");
  EXPECT_EQ(shapes["model.layers.15.mlp.experts.gate_up_proj_blocks"], "U8 [64,5760,90,16]");
  EXPECT_EQ(shapes["model.layers.15.mlp.router.bias"], "BF16 [64]");
}

TEST(manifest, kv_scales_are_found_in_each_spelling) {
  const float key = 0.25f, value = 3, query = 7;
  for (const std::string within : {"", "attn.", "_proj."}) {
    Stored stored(small(), Naming::kHuggingFace);
    EXPECT_TRUE(bind_kv_scales(stored.entries, small(), "f").empty());
    const auto add = [&](int layer, char of, const float& scale) {
      const std::string part = within == "_proj." ? of + within : within;
      stored.entries.push_back({fmt::format("model.layers.{}.self_attn.{}{}_scale", layer, part, of),
                                {.dtype = DType::kF32, .shape = {}, .bytes = std::as_bytes(std::span(&scale, 1))}});
    };
    for (int layer = 0; layer < 2; ++layer) add(layer, 'k', key), add(layer, 'v', value), add(layer, 'q', query);
    EXPECT_EQ(bind_kv_scales(stored.entries, small(), "f"), std::vector(2, KvScale{.key = 0.25f, .value = 3}));
    EXPECT_EQ(bind_weights(stored.entries, small()).size(), 2u * 17 + 3);
  }
}

TEST(manifest, refuses_kv_scales_that_are_none) {
  const auto refused = [](const std::vector<std::pair<std::string, float>>& scales, std::string_view message) {
    Stored stored(small(), Naming::kHuggingFace);
    for (const auto& [name, scale] : scales)
      stored.entries.push_back(
          {"model.layers." + name, {.dtype = DType::kF32, .shape = {1}, .bytes = std::as_bytes(std::span(&scale, 1))}});
    const auto bind = [&] {
      static_cast<void>(bind_weights(stored.entries, small()));
      static_cast<void>(bind_kv_scales(stored.entries, small(), "f"));
    };
    expect_error(bind, Code::kCorrupt, message);
  };
  refused({{"0.self_attn.k_scale", 1}, {"0.self_attn.v_scale", 1}, {"1.self_attn.k_scale", 1}},
          "f: want a k_scale and a v_scale in each of 2 layers, found both in 1");
  refused({{"0.self_attn.k_scale", 0}},
          "f: model.layers.0.self_attn.k_scale: want one positive float, got 0 of F32 [1]");
  refused({{"0.self_attn.k_scale", NAN}}, "want one positive float, got ");
  refused({{"2.self_attn.k_scale", 1}}, "has what this model does not: 1 tensor: model.layers.2.self_attn.k_scale");
}

TEST(manifest, has_the_published_number_of_tensors) {
  EXPECT_EQ(manifest(gpt_oss_20b(), Naming::kHuggingFace).size(), 459u);
  EXPECT_EQ(manifest(gpt_oss_120b(), Naming::kHuggingFace).size(), 687u);
  std::set<std::string> original;
  for (const ManifestItem& item : manifest(gpt_oss_120b(), Naming::kOriginal)) original.insert(item.name);
  EXPECT_EQ(original.size(), 36u * 15 + 3);
}

TEST(manifest, names_and_shapes_are_the_published_ones) {
  const ModelConfig config = gpt_oss_20b();
  std::map<std::string, std::string> hf, original;
  for (const ManifestItem& i : manifest(config, Naming::kHuggingFace))
    hf[i.name] = checkpoint::describe(i.dtype, i.stored_shape);
  for (const ManifestItem& i : manifest(config, Naming::kOriginal))
    original[i.name] = checkpoint::describe(i.dtype, i.stored_shape);
  const auto both = [&](const std::string& a, const std::string& b, const std::string& want) {
    EXPECT_EQ(hf[a], want) << a;
    EXPECT_EQ(original[b], want) << b;
  };
  both("model.embed_tokens.weight", "embedding.weight", "BF16 [201088,2880]");
  both("lm_head.weight", "unembedding.weight", "BF16 [201088,2880]");
  both("model.norm.weight", "norm.scale", "BF16 [2880]");
  const std::string h = "model.layers.23.", o = "block.23.";
  both(h + "input_layernorm.weight", o + "attn.norm.scale", "BF16 [2880]");
  EXPECT_EQ(hf[h + "self_attn.q_proj.weight"], "BF16 [4096,2880]");
  EXPECT_EQ(hf[h + "self_attn.k_proj.weight"], "BF16 [512,2880]");
  EXPECT_EQ(hf[h + "self_attn.v_proj.bias"], "BF16 [512]");
  EXPECT_EQ(original[o + "attn.qkv.weight"], "BF16 [5120,2880]");
  EXPECT_EQ(original[o + "attn.qkv.bias"], "BF16 [5120]");
  both(h + "self_attn.o_proj.weight", o + "attn.out.weight", "BF16 [2880,4096]");
  both(h + "self_attn.o_proj.bias", o + "attn.out.bias", "BF16 [2880]");
  both(h + "self_attn.sinks", o + "attn.sinks", "BF16 [64]");
  both(h + "post_attention_layernorm.weight", o + "mlp.norm.scale", "BF16 [2880]");
  both(h + "mlp.router.weight", o + "mlp.gate.weight", "BF16 [32,2880]");
  both(h + "mlp.router.bias", o + "mlp.gate.bias", "BF16 [32]");
  both(h + "mlp.experts.gate_up_proj_blocks", o + "mlp.mlp1_weight.blocks", "U8 [32,5760,90,16]");
  both(h + "mlp.experts.gate_up_proj_scales", o + "mlp.mlp1_weight.scales", "U8 [32,5760,90]");
  both(h + "mlp.experts.gate_up_proj_bias", o + "mlp.mlp1_bias", "BF16 [32,5760]");
  both(h + "mlp.experts.down_proj_blocks", o + "mlp.mlp2_weight.blocks", "U8 [32,2880,90,16]");
  both(h + "mlp.experts.down_proj_scales", o + "mlp.mlp2_weight.scales", "U8 [32,2880,90]");
  both(h + "mlp.experts.down_proj_bias", o + "mlp.mlp2_bias", "BF16 [32,2880]");
}

TEST(bind_weights, gives_every_role_of_every_layer_once_in_order_whatever_the_files_order) {
  Stored stored(small(), Naming::kHuggingFace);
  std::reverse(stored.entries.begin(), stored.entries.end());
  const std::vector<backend::HostWeight> bound = bind_weights(stored.entries, small());
  ASSERT_EQ(bound.size(), 3u + 2 * 17);
  for (size_t i = 0; i < bound.size(); ++i) {
    const int layer = i < 3 ? -1 : static_cast<int>((i - 3) / 17);
    EXPECT_EQ(bound[i].layer, layer);
    EXPECT_EQ(static_cast<size_t>(bound[i].role), i < 3 ? i : 3 + (i - 3) % 17);
    const bool pair = bound[i].role == WeightRole::kGateUp || bound[i].role == WeightRole::kDown;
    EXPECT_EQ(bound[i].scales.bytes.empty(), !pair);
  }
  const backend::HostWeight& down = find(bound, WeightRole::kDown, 1);
  EXPECT_EQ(down.values.bytes.data(), stored.at("model.layers.1.mlp.experts.down_proj_blocks").tensor.bytes.data());
  EXPECT_EQ(down.scales.bytes.data(), stored.at("model.layers.1.mlp.experts.down_proj_scales").tensor.bytes.data());
  EXPECT_EQ(down.values.shape, (Shape{8, 64, 3, 16}));
  EXPECT_EQ(down.scales.shape, (Shape{8, 64, 3}));
}

TEST(bind_weights, splits_fused_qkv_by_rows_without_copying) {
  Stored stored(small(), Naming::kOriginal);
  const std::vector<backend::HostWeight> bound = bind_weights(stored.entries, small());
  const RawTensor& qkv = stored.at("block.1.attn.qkv.weight").tensor;  // 256 q, 128 k, 128 v rows of 64 bf16
  const auto offset = [&](WeightRole role) { return find(bound, role, 1).values.bytes.data() - qkv.bytes.data(); };
  EXPECT_EQ(offset(WeightRole::kQ), 0);
  EXPECT_EQ(offset(WeightRole::kK), 256 * 128);
  EXPECT_EQ(offset(WeightRole::kV), 384 * 128);
  EXPECT_EQ(find(bound, WeightRole::kQ, 1).values.shape, (Shape{256, 64}));
  EXPECT_EQ(find(bound, WeightRole::kV, 1).values.shape, (Shape{128, 64}));
  EXPECT_EQ(find(bound, WeightRole::kV, 1).values.bytes.size(), 128u * 128);
  const RawTensor& bias = stored.at("block.0.attn.qkv.bias").tensor;
  EXPECT_EQ(find(bound, WeightRole::kKBias, 0).values.bytes.data() - bias.bytes.data(), 512);
  EXPECT_EQ(find(bound, WeightRole::kKBias, 0).values.bytes.size(), 256u);
}

TEST(bind_weights, both_spellings_give_the_same_list) {
  Stored a(small(), Naming::kHuggingFace), b(small(), Naming::kOriginal);
  EXPECT_EQ(naming_of(a.entries), Naming::kHuggingFace);
  EXPECT_EQ(naming_of(b.entries), Naming::kOriginal);
  const auto x = bind_weights(a.entries, small()), y = bind_weights(b.entries, small());
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].role, y[i].role);
    EXPECT_EQ(x[i].layer, y[i].layer);
    EXPECT_EQ(x[i].values.shape, y[i].values.shape);
    EXPECT_EQ(x[i].scales.shape, y[i].scales.shape);
    EXPECT_EQ(x[i].values.bytes.size(), y[i].values.bytes.size());
  }
}

TEST(bind_weights, refuses_a_missing_tensor_by_name) {
  expect_refused([](Stored& s) { s.at("model.layers.1.self_attn.sinks").name = s.at("lm_head.weight").name; },
                 Code::kCorrupt, "the checkpoint lacks 1 tensor: model.layers.1.self_attn.sinks");
  Stored fused(small(), Naming::kOriginal);
  std::erase_if(fused.entries, [](const TensorEntry& e) { return e.name == "block.0.attn.qkv.weight"; });
  expect_error([&] { (void)bind_weights(fused.entries, small()); }, Code::kCorrupt,
               "the checkpoint lacks 1 tensor: block.0.attn.qkv.weight");
}

TEST(bind_weights, lists_five_of_many_missing_tensors) {
  expect_refused([](Stored& s) { s.entries.clear(); }, Code::kCorrupt,
                 "the checkpoint lacks 41 tensors: model.embed_tokens.weight, model.norm.weight, "
                 "lm_head.weight, "
                 "model.layers.0.input_layernorm.weight, model.layers.0.self_attn.q_proj.weight, …");
}

TEST(bind_weights, refuses_extra_tensors_by_name_and_count) {
  expect_refused([](Stored& s) { s.entries.push_back({"model.layers.2.self_attn.sinks", {}}); }, Code::kCorrupt,
                 "the checkpoint has what this model does not: 1 tensor: model.layers.2.self_attn.sinks");
  expect_refused(
      [](Stored& s) {
        for (char c = 'a'; c < 'h'; ++c) s.entries.push_back({std::string(1, c), {}});
      },
      Code::kCorrupt, "does not: 7 tensors: a, b, c, d, e, …");
}

TEST(bind_weights, refuses_a_wrong_dtype) {
  expect_refused([](Stored& s) { s.at("model.layers.0.mlp.experts.down_proj_scales").tensor.dtype = DType::kI8; },
                 Code::kCorrupt,
                 "the checkpoint: model.layers.0.mlp.experts.down_proj_scales: want U8 [8,64,3], got I8 [8,64,3]");
}

TEST(bind_weights, dense_weights_may_be_of_any_float) {
  for (const Naming naming : {Naming::kHuggingFace, Naming::kOriginal}) {
    Stored stored(small(), naming);
    size_t nth = 0;
    for (TensorEntry& entry : stored.entries) {
      if (entry.tensor.dtype != DType::kBf16) continue;
      entry.tensor.dtype = std::array{DType::kF32, DType::kBf16, DType::kF16}[nth++ % 3];
      const auto size = static_cast<size_t>(checkpoint::tensor_bytes(entry.tensor.dtype, entry.tensor.shape, "test"));
      entry.tensor.bytes = stored.bytes.emplace_back(size);
    }
    for (const backend::HostWeight& weight : bind_weights(stored.entries, small())) {
      if (weight.role == WeightRole::kGateUp || weight.role == WeightRole::kDown) continue;
      EXPECT_EQ(weight.format, backend::format_of(weight.values.dtype));
      EXPECT_EQ(std::ssize(weight.values.bytes),
                checkpoint::tensor_bytes(weight.values.dtype, weight.values.shape, "test"));
    }
  }
}

TEST(bind_weights, refuses_dense_weights_that_are_no_floats) {
  expect_refused([&](Stored& s) { s.at("model.norm.weight").tensor.dtype = DType::kI8; }, Code::kCorrupt,
                 "the checkpoint: model.norm.weight: want BF16 [64] (or F16, F32), got I8 [64]");
}

TEST(bind_weights, refuses_a_wrong_shape) {
  expect_refused([](Stored& s) { s.at("model.layers.1.mlp.experts.gate_up_proj_scales").tensor.shape = {8, 192, 1}; },
                 Code::kCorrupt,
                 "the checkpoint: model.layers.1.mlp.experts.gate_up_proj_scales: want U8 [8,192,2], got U8 [8,192,1]");
}

// As trainers save them: Hugging Face's [experts, in, out], OpenAI's [experts, out, in].
Stored with_float_experts(Naming naming, DType dtype) {
  Stored stored(small(), naming);
  std::erase_if(stored.entries, [](const TensorEntry& e) { return e.name.ends_with("scales"); });
  for (TensorEntry& e : stored.entries) {
    if (!e.name.ends_with("blocks")) continue;
    e.name.resize(e.name.size() - std::string_view("_blocks").size());
    const bool gate_up = e.tensor.shape[1] == 192;
    e.tensor = {.dtype = dtype, .shape = gate_up ? Shape{8, 192, 64} : Shape{8, 64, 96}, .bytes = {}};
    if (naming == Naming::kHuggingFace) std::swap(e.tensor.shape[1], e.tensor.shape[2]);
    e.tensor.bytes =
        stored.bytes.emplace_back(static_cast<size_t>(checkpoint::tensor_bytes(dtype, e.tensor.shape, "test")));
  }
  return stored;
}

TEST(bind_weights, takes_experts_in_floats_and_makes_of_them_what_is_asked_for) {
  using backend::WeightFormat;
  for (const Naming naming : {Naming::kHuggingFace, Naming::kOriginal}) {
    const Stored stored = with_float_experts(naming, DType::kF16);
    for (const std::optional<WeightFormat> asked :
         {std::optional<WeightFormat>(), std::optional(WeightFormat::kBf16)}) {
      int experts = 0;
      for (const backend::HostWeight& w : bind_weights(stored.entries, small(), {.experts = asked})) {
        if (!backend::is_expert_matrix(w.role)) continue;
        ++experts;
        EXPECT_EQ(w.format, asked.value_or(WeightFormat::kGgmlMxfp4));
        EXPECT_EQ(w.transposed, naming == Naming::kHuggingFace);
        EXPECT_EQ(w.values.shape, shape_of(w.role, small().dims));
        EXPECT_TRUE(backend::is_recoded(w));
      }
      EXPECT_EQ(experts, 2 * small().dims.layers);
    }
  }
  Stored stored = with_float_experts(Naming::kHuggingFace, DType::kBf16);
  stored.at("model.layers.1.mlp.experts.down_proj").tensor.shape = {8, 64, 96};
  expect_error([&] { (void)bind_weights(stored.entries, small()); }, Code::kCorrupt,
               "model.layers.1.mlp.experts.down_proj: want BF16 [8,96,64] (or F16, F32), got BF16 [8,64,96]");
}

TEST(bind_weights, refuses_a_scale_that_is_nan_and_says_where) {
  const auto spoil = [](Stored& s) {
    const auto bytes = s.at("model.layers.1.mlp.experts.down_proj_scales").tensor.bytes;
    const_cast<std::byte&>(bytes[1000]) = std::byte{255};
    const_cast<std::byte&>(bytes[1001]) = std::byte{255};
  };
  const char* message =
      "the checkpoint: model.layers.1.mlp.experts.down_proj_scales: want E8M0 scales 0 to 254, got 255 (NaN) at index 1000 "
      "of "
      "U8 [8,64,3]";
  expect_refused(spoil, Code::kCorrupt, message);
  Stored stored(small(), Naming::kHuggingFace);
  spoil(stored);
  ThreadPool pool(3);
  expect_error([&] { (void)bind_weights(stored.entries, small(), {.pool = &pool}); }, Code::kCorrupt, message);
  EXPECT_NO_THROW((void)bind_weights(stored.entries, small(), {.check_scales = false}));
}

TEST(find_nan_scale, finds_the_first_at_any_place) {
  std::vector<std::byte> scales(300, std::byte{254});
  EXPECT_EQ(find_nan_scale(scales), std::nullopt);
  EXPECT_EQ(find_nan_scale({}), std::nullopt);
  for (size_t i = scales.size(); i-- > 0;) {
    scales[i] = std::byte{255};
    EXPECT_EQ(find_nan_scale(scales), static_cast<int64_t>(i));
  }
}

}  // namespace
}  // namespace nibble::model

// gguf_config, gguf_weights and gguf_export together: a model is written and read back.

#include "base/dtype.h"
#include "base/ggml_blocks.h"
#include "base/mx.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_checkpoint.h"
#include "checkpoint/testing/gguf.h"
#include "checkpoint/testing/files.h"
#include "convert/gguf.h"
#include "convert/inspect.h"
#include "convert/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

namespace nibble::convert {

using model::alternating_layers;
using model::gpt_oss_120b;
using model::gpt_oss_20b;
using model::LayerKind;
using model::ManifestItem;
using model::ModelConfig;
using model::Part;
using model::shape_of;
using model::tiny;
using model::WeightRole;
namespace {

using backend::HostWeight;
using backend::WeightFormat;
using checkpoint::GgufCheckpoint;
using checkpoint::GgufEntry;
using checkpoint::GgufFields;
using test::expect_error;
using test::ScratchDir;

ModelConfig small() {
  ModelConfig config = tiny();
  config.dims.layers = 2;
  config.dims.hidden = 64;
  config.dims.inter = 96;
  config.dims.vocab = 64;
  config.dims.sliding_window = 32;
  config.dims.max_context = 8192;
  config.layer_kinds = alternating_layers(2);
  config.rope = {.theta = 75000, .factor = 16, .beta_fast = 24, .beta_slow = 2, .original_context = 2048};
  config.rms_eps = 3e-5f;
  config.bos_id = 1;
  config.pad_id = 2;
  config.eos_ids = {3};
  return config;
}

const std::vector<GgufEntry> kTokens = {{"tokenizer.ggml.tokens", std::vector<std::string>(64, "x")}};

struct Made {
  explicit Made(const GgufExport& how = {}) : dummy(config, 1, nullptr) {
    for (const HostWeight& w : dummy.weights()) by_role[{w.role, w.layer}] = &w;
    GgufExport with = how;
    with.tokenizer = kTokens;
    files = export_gguf(config, [&](const ManifestItem& item) { return stored(item); }, dir / "m.gguf", with);
    file.emplace(GgufCheckpoint::open(files.front()));
  }
  [[nodiscard]] RawTensor stored(const ManifestItem& item) const {
    const HostWeight& weight = *by_role.at({item.role, item.layer});
    return item.part == Part::kValues ? weight.values : weight.scales;
  }
  [[nodiscard]] float bf16(WeightRole role, int layer, int64_t idx) const {
    return reinterpret_cast<const Bf16*>(by_role.at({role, layer})->values.bytes.data())[idx].to_float();
  }
  [[nodiscard]] GgufFields fields() const { return {file->metadata(), file->where()}; }

  ModelConfig config = small();
  ScratchDir dir;
  DummyWeights dummy;
  std::map<std::tuple<WeightRole, int>, const HostWeight*> by_role;
  std::vector<std::filesystem::path> files;
  std::optional<GgufCheckpoint> file;
};

TEST(GgufConfig, is_the_config_that_was_written) {
  const Made made;
  EXPECT_EQ(config_from_gguf(made.fields()), made.config);
}

TEST(GgufConfig, of_the_large_models_is_theirs) {
  for (const ModelConfig& config : {gpt_oss_20b(), gpt_oss_120b()}) {
    const ScratchDir dir;
    std::vector<GgufEntry> entries = gguf_entries(config);
    entries.push_back({"tokenizer.ggml.tokens", std::vector<std::string>(201088, "x")});
    checkpoint::write_gguf(dir / "m.gguf", {.metadata = entries}, {});
    const GgufCheckpoint file = GgufCheckpoint::open(dir / "m.gguf");
    ModelConfig want = config;
    want.bos_id = want.pad_id = std::nullopt;  // entries of the exporter
    want.eos_ids = {};
    EXPECT_EQ(config_from_gguf({file.metadata(), file.where()}), want);
  }
}

// A written file's metadata, changed: the value of a key replaced, added or, where there is none, taken away.
struct Changed {
  const char* name;
  std::optional<checkpoint::GgufPayload> value;
  Code code;
  const char* says;
};

TEST(GgufConfig, refuses_what_is_missing_wrong_or_unknown) {
  using Written = checkpoint::GgufPayload;
  const auto u32 = [](uint32_t n) { return Written(n); };
  const auto text = [](const char* t) { return Written(std::string(t)); };
  const Changed table[] = {
      {"general.architecture", text("llama"), Code::kUnsupported, "want gpt-oss, found llama"},
      {"general.architecture", std::nullopt, Code::kCorrupt, "general.architecture is missing"},
      {"general.architecture", u32(1), Code::kCorrupt, "want a string, found u32 1"},
      {"gpt-oss.block_count", std::nullopt, Code::kCorrupt, "gpt-oss.block_count is missing"},
      {"gpt-oss.block_count", u32(0), Code::kCorrupt, "want an integer from 1 to 1024, found u32 0"},
      {"gpt-oss.block_count", u32(4000000000u), Code::kCorrupt, "found u32 4000000000"},
      {"gpt-oss.block_count", text("2"), Code::kCorrupt, "found the string \"2\""},
      {"gpt-oss.embedding_length", u32(65), Code::kUnsupported,
       "m.gguf: gpt-oss.embedding_length: want a multiple of 32"},
      {"gpt-oss.expert_used_count", u32(9), Code::kCorrupt,
       "gpt-oss.expert_used_count: want at most gpt-oss.expert_count = 8, found 9"},
      {"gpt-oss.attention.key_length", std::nullopt, Code::kCorrupt, "key_length is missing"},
      {"gpt-oss.attention.value_length", u32(32), Code::kUnsupported, "value_length: want 64, found 32"},
      {"gpt-oss.rope.dimension_count", u32(32), Code::kUnsupported, "dimension_count: want 64, found 32"},
      {"gpt-oss.rope.scaling.type", text("linear"), Code::kUnsupported, "want yarn, found linear"},
      {"gpt-oss.rope.scaling.factor", Written(0.5f), Code::kCorrupt, "want a float from 1 to 1000000, found f32 0.5"},
      {"gpt-oss.rope.freq_base_swa", Written(10000.0f), Code::kUnsupported, "want 75000, found 10000"},
      {"gpt-oss.rope.scaling.yarn_ext_factor", Written(0.0f), Code::kUnsupported, "want 1, found 0"},
      {"gpt-oss.attention.sliding_window_pattern", u32(4), Code::kUnsupported, "want 2, found 4"},
      {"gpt-oss.vocab_size", u32(65), Code::kUnsupported, "want 64, found 65"},
      {"tokenizer.ggml.tokens", std::nullopt, Code::kCorrupt, "tokenizer.ggml.tokens is missing"},
      {"tokenizer.ggml.eos_token_id", u32(64), Code::kCorrupt, "tokenizer.ggml.eos_token_id: want 0 to 63, found 64"},
      {"gpt-oss.logit_scale", Written(0.5f), Code::kUnsupported, "gpt-oss.logit_scale: not known here, found f32 0.5"},
  };
  std::vector<GgufEntry> good = gguf_entries(small());
  good.insert(good.end(), kTokens.begin(), kTokens.end());
  for (const Changed& changed : table) {
    SCOPED_TRACE(changed.says);
    std::vector<GgufEntry> entries;
    for (const GgufEntry& entry : good)
      if (entry.key != changed.name) entries.push_back(entry);
    if (changed.value) entries.push_back({changed.name, *changed.value});
    const ScratchDir dir;
    checkpoint::write_gguf(dir / "m.gguf", {.metadata = entries}, {});
    const GgufCheckpoint file = GgufCheckpoint::open(dir / "m.gguf");
    expect_error([&] { static_cast<void>(config_from_gguf({file.metadata(), file.where()})); }, changed.code,
                 changed.says);
  }
}

TEST(GgufConfig, keys_that_nobody_knows_are_listed) {
  std::vector<GgufEntry> entries = gguf_entries(small());
  for (const char* name : {"general.author", "tokenizer.chat_template", "split.no", "quantize.imatrix.file"})
    entries.push_back({name, std::string("x")});
  entries.push_back({"llama.rope.freq_base", 10000.0f});
  entries.push_back({"odd.key", uint32_t{1}});
  const ScratchDir dir;
  checkpoint::write_gguf(dir / "m.gguf", {.metadata = entries}, {});
  const GgufCheckpoint file = GgufCheckpoint::open(dir / "m.gguf");
  EXPECT_EQ(unknown_keys({file.metadata(), file.where()}),
            (std::vector<std::string>{"llama.rope.freq_base", "odd.key"}));
}

TEST(GgufConfig, that_the_format_cannot_express_is_not_written) {
  ModelConfig config = small();
  config.swiglu_limit = 6;
  expect_error([&] { static_cast<void>(gguf_entries(config)); }, Code::kUnsupported, "swiglu_limit 6");
  config = small();
  config.rope.truncate = true;
  expect_error([&] { static_cast<void>(gguf_entries(config)); }, Code::kUnsupported, "truncate true");
  config = small();
  config.layer_kinds[1] = LayerKind::kSliding;
  expect_error([&] { static_cast<void>(gguf_entries(config)); }, Code::kUnsupported, "2 sliding of 2 layers");
}

// One value of a bound tensor, by its format's own definition.
float value_of(const HostWeight& w, int64_t idx) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(w.values.bytes.data());
  const int64_t block = idx / 32;
  const auto j = static_cast<int>(idx % 32);
  const auto u16 = [&](int64_t at) { return static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8); };
  switch (w.format) {
    case WeightFormat::kF32: return reinterpret_cast<const float*>(bytes)[idx];
    case WeightFormat::kBf16: return Bf16{u16(2 * idx)}.to_float();
    case WeightFormat::kF16: return F16{u16(2 * idx)}.to_float();
    case WeightFormat::kGgmlQ8:
      return F16{u16(block * 34)}.to_float() * static_cast<float>(static_cast<int8_t>(bytes[block * 34 + 2 + j]));
    case WeightFormat::kGgmlMxfp4: {
      const uint8_t codes = bytes[block * 17 + 1 + j % 16];
      const auto code = static_cast<uint8_t>(j < 16 ? codes & 15 : codes >> 4);
      return E2m1{code}.to_float() * E8m0{bytes[block * 17]}.to_float();
    }
    default: return NAN;
  }
}

// One value of the checkpoint's MXFP4 pair.
float stored_value(const HostWeight& w, int64_t idx) {
  const auto* blocks = reinterpret_cast<const uint8_t*>(w.values.bytes.data()) + idx / 32 * 16;
  const auto scale = static_cast<uint8_t>(w.scales.bytes[static_cast<size_t>(idx / 32)]);
  return mx_decode_element(MxFormat::kMxfp4, mx_element_code(MxFormat::kMxfp4, blocks, static_cast<int>(idx % 32))) *
         E8m0{scale}.to_float();
}

// A value of rows of so many values, the odd ones of which may lie apart.
float joined_value(const HostWeight& w, int64_t idx, int64_t cols) {
  if (w.odd.bytes.empty()) return value_of(w, idx);
  const int64_t row = idx / cols;
  return value_of(row % 2 == 1 ? odd_rows(w) : w, row / 2 * cols + idx % cols);
}

TEST(GgufExport, experts_keep_every_value_in_their_halves) {
  const Made made;
  const backend::Dims& d = made.config.dims;
  for (const HostWeight& w : bind_weights(made.file->tensors(), made.config)) {
    const bool gate_up = w.role == WeightRole::kGateUp;
    if (!gate_up && w.role != WeightRole::kDown) continue;
    ASSERT_EQ(w.format, WeightFormat::kGgmlMxfp4);
    ASSERT_NE(gate_up, w.odd.bytes.empty());
    const HostWeight& stored = *made.by_role.at({w.role, w.layer});
    const int64_t rows = d.experts * (gate_up ? 2 * d.inter : d.hidden), cols = gate_up ? d.hidden : d.inter;
    for (int64_t i = 0; i < rows * cols; ++i)
      ASSERT_EQ(joined_value(w, i, cols), stored_value(stored, i)) << name_of(w.role) << " " << i;
  }
}

TEST(GgufExport, vectors_and_the_router_are_exact_in_f32_and_biases_are_halved) {
  const Made made;
  for (const HostWeight& w : bind_weights(made.file->tensors(), made.config)) {
    if (w.format != WeightFormat::kF32) continue;
    ASSERT_NE(w.role == WeightRole::kGateUpBias, w.odd.bytes.empty());
    const auto count = static_cast<int64_t>((w.values.bytes.size() + w.odd.bytes.size()) / 4);
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(joined_value(w, i, 1), made.bf16(w.role, w.layer, i)) << name_of(w.role) << " " << i;
  }
}

TEST(GgufExport, dense_matrices_are_exact_in_bf16_f16_and_f32_and_near_in_q8) {
  for (const auto& [type, bound] : {std::pair(DType::kBf16, 0.0), std::pair(DType::kF32, 0.0),
                                    std::pair(DType::kF16, 0.0), std::pair(DType::kGgmlQ8, 0.08)}) {
    const Made made({.dense = type});
    double worst = 0;
    int seen = 0;
    for (const HostWeight& w : bind_weights(made.file->tensors(), made.config)) {
      const bool dense = w.role == WeightRole::kEmbedding || w.role == WeightRole::kUnembedding ||
                         w.role == WeightRole::kQ || w.role == WeightRole::kK || w.role == WeightRole::kV ||
                         w.role == WeightRole::kO;
      if (!dense) continue;
      ++seen;
      int64_t count = 1;
      for (const int64_t n : shape_of(w.role, made.config.dims)) count *= n;
      for (int64_t i = 0; i < count; ++i)
        worst = std::max(worst, std::fabs(double{value_of(w, i)} - made.bf16(w.role, w.layer, i)));
    }
    EXPECT_EQ(seen, 2 + 4 * 2);
    EXPECT_LE(worst, bound) << name_of(type);
    EXPECT_EQ(worst > 0, bound > 0) << name_of(type);
  }
}

TEST(GgufExport, a_split_model_is_the_same_in_parts) {
  const Made whole, split({.part_bytes = 20'000});
  ASSERT_GT(split.files.size(), 2u);
  EXPECT_EQ(split.files[1].filename(), fmt::format("m-00002-of-{:05}.gguf", split.files.size()));
  const auto a = bind_weights(whole.file->tensors(), whole.config),
             b = bind_weights(split.file->tensors(), split.config);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(a[i].values.bytes, b[i].values.bytes)) << name_of(a[i].role);
  EXPECT_EQ(config_from_gguf(split.fields()), split.config);
}

TEST(GgufExport, q8_is_ggmls) {
  std::vector<float> values(64);
  for (size_t i = 0; i < 32; ++i) values[i] = static_cast<float>(i) - 12.5f;  // largest 18.5
  std::vector<std::byte> blocks(68);
  quantize_ggml_q8(values, blocks);
  const float scale = 18.5f / 127;
  const uint16_t bits = F16::from_float(scale).bits;
  EXPECT_EQ(static_cast<uint8_t>(blocks[0]), bits & 255);
  EXPECT_EQ(static_cast<uint8_t>(blocks[1]), bits >> 8);
  EXPECT_EQ(static_cast<int8_t>(blocks[2]), -86);  // -12.5 / scale = -85.81
  EXPECT_EQ(static_cast<int8_t>(blocks[33]), 127);
  EXPECT_THAT(std::span(blocks).subspan(34), testing::Each(std::byte{0}));
  values.assign(64, 1e-44f);  // too small for a scale
  values[40] = INFINITY;
  quantize_ggml_q8(values, blocks);
  EXPECT_THAT(std::span(blocks).first(34), testing::Each(std::byte{0}));
  EXPECT_EQ(blocks[35], std::byte{0x7c});
}

TEST(GgufExport, rows_that_q8_cannot_hold_are_refused_and_bf16_takes_them) {
  const Made made;
  ModelConfig odd = made.config;
  odd.dims.heads = odd.dims.kv_heads = 3;
  odd.dims.head_dim = 16;  // rows of o: 48
  const DummyWeights dummy(odd, 1, nullptr);
  const TensorSource source = [&](const ManifestItem& item) {
    const auto is_it = [&](const HostWeight& w) { return w.role == item.role && w.layer == item.layer; };
    const auto w = std::find_if(dummy.weights().begin(), dummy.weights().end(), is_it);
    return item.part == Part::kValues ? w->values : w->scales;
  };
  GgufExport how{.dense = DType::kGgmlQ8, .tokenizer = kTokens};
  expect_error([&] { export_gguf(odd, source, made.dir / "x.gguf", how); }, Code::kUnsupported,
               "blk.0.attn_output.weight: want rows of whole blocks of 32 values for Q8_0, found 48");
  how.dense = DType::kBf16;
  EXPECT_EQ(export_gguf(odd, source, made.dir / "x.gguf", how).size(), 1);
}

TEST(GgufExport, values_beyond_f16_are_refused) {
  const Made made;
  const Bf16 large = Bf16::from_float(1e6f);
  std::vector<Bf16> values(static_cast<size_t>(made.config.dims.vocab * made.config.dims.hidden));
  values[77] = large;
  const TensorSource source = [&](const ManifestItem& item) {
    return item.role == WeightRole::kUnembedding
               ? RawTensor{.dtype = DType::kBf16, .shape = item.shape, .bytes = std::as_bytes(std::span(values))}
               : made.stored(item);
  };
  expect_error([&] { export_gguf(made.config, source, made.dir / "x.gguf", {.dense = DType::kF16}); },
               Code::kUnsupported, "output.weight: want values and scales within F16's range for F16");
  EXPECT_FALSE(std::filesystem::exists(made.dir / "x.gguf"));
}

// ---- binding ----

std::vector<checkpoint::TensorEntry> renamed(const Made& made, std::string_view from, const char* to) {
  auto tensors = made.file->tensors();
  for (auto& tensor : tensors)
    if (tensor.name == from) tensor.name = to;
  return tensors;
}

TEST(GgufWeights, missing_unknown_and_misshapen_tensors_are_refused_by_name) {
  const Made made;
  auto tensors = made.file->tensors();
  const auto refused = [&](const auto& list, Code code, const char* says) {
    expect_error([&] { static_cast<void>(bind_weights(list, made.config)); }, code, says);
  };
  refused(renamed(made, "blk.1.attn_sinks.weight", "blk.1.attn_sinks"), Code::kCorrupt,
          "the checkpoint lacks 1 tensor: blk.1.attn_sinks.weight");
  tensors.push_back(tensors.front());
  tensors.back().name = "rope_freqs.weight";
  refused(tensors, Code::kCorrupt, "has what this model does not: 1 tensor: rope_freqs.weight");
  tensors = made.file->tensors();
  tensors.resize(1);
  refused(tensors, Code::kCorrupt, "lacks 40 tensors: output_norm.weight, ");
  tensors = made.file->tensors();
  for (auto& tensor : tensors)
    if (tensor.name == "blk.0.attn_k.weight") std::swap(tensor.tensor.shape[0], tensor.tensor.shape[1]);
  refused(tensors, Code::kCorrupt, "blk.0.attn_k.weight: want the shape [128,64], got Q8_0 [64,128]");
  tensors = made.file->tensors();
  for (auto& tensor : tensors)
    if (tensor.name == "blk.0.attn_norm.weight") tensor.tensor.dtype = DType::kGgmlQ51;
  refused(tensors, Code::kUnsupported, "blk.0.attn_norm.weight: want F32, F16 or BF16, got Q5_1 [64]");
}

TEST(GgufWeights, scales_that_are_no_numbers_are_refused_by_their_block) {
  const Made made;
  ThreadPool pool(2);
  const auto refused = [&](const char* name, size_t at, std::byte value, const char* says) {
    auto tensors = made.file->tensors();
    std::vector<std::byte> copy;
    for (auto& tensor : tensors) {
      if (tensor.name != name) continue;
      copy.assign(tensor.tensor.bytes.begin(), tensor.tensor.bytes.end());
      copy[at] = value;
      tensor.tensor.bytes = copy;
    }
    expect_error([&] { static_cast<void>(bind_weights(tensors, made.config, {.pool = &pool})); }, Code::kCorrupt, says);
    EXPECT_NO_THROW(static_cast<void>(bind_weights(tensors, made.config, {.check_scales = false})));
  };
  refused("blk.1.ffn_gate_exps.weight", 17 * 700, std::byte{255},
          "blk.1.ffn_gate_exps.weight: want a finite scale in every block, found E8M0 255 (NaN) in block 700 of 1536");
  refused("output.weight", 34 * 5 + 1, std::byte{0x7c},
          "output.weight: want a finite scale in every block, found an "
          "infinite or NaN F16 in block 5 of 128");
  refused("output.weight", 34 * 127 + 1, std::byte{0xff}, "in block 127 of 128");
}

TEST(GgufWeights, are_counted_as_they_are_stored) {
  const Made made;
  const ModelNumbers n = numbers_of(made.config, bind_weights(made.file->tensors(), made.config));
  const ModelNumbers hf = numbers_of(made.config);
  EXPECT_EQ(n.total.bytes, made.file->total_bytes());
  EXPECT_EQ(n.total.tensors, 41);
  EXPECT_EQ(n.total.parameters, hf.total.parameters);
  EXPECT_EQ(n.active_parameters, hf.active_parameters);
  EXPECT_EQ(n.of(WeightClass::kExperts).bytes, hf.of(WeightClass::kExperts).bytes);
  EXPECT_EQ(n.of(WeightClass::kEmbedding).bytes * 32 * 2, hf.of(WeightClass::kEmbedding).bytes * 34);
}

}  // namespace
}  // namespace nibble::convert

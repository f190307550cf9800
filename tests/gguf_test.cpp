// llama.cpp's files through all rooms: a file that its own Python package wrote, and nibble-tiny as GGUF against the
// same model in safetensors.

#include "backend/reference/reference_backend.h"
#include "base/dtype.h"
#include "base/mmap_file.h"
#include "base/mx.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_checkpoint.h"
#include "model/hf_config.h"
#include "checkpoint/testing/files.h"
#include "convert/gguf.h"
#include "backend/cpu/cpu_backend.h"
#include "gguf_copy.h"
#include "gguf_rewritten.h"
#include "model/gpt_oss.h"
#include "one_sequence.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using backend::HostWeight;
using backend::WeightFormat;
using checkpoint::GgufCheckpoint;
using checkpoint::GgufFields;

const fs::path kSource = NIBBLE_SOURCE_DIR;
const fs::path kTiny = kSource / "models/nibble-tiny";

text::TokenList tokens_of(const GgufFields& fields) {
  text::TokenList list;
  for (const std::string_view token : fields.strings("tokenizer.ggml.tokens")) list.tokens.emplace_back(token);
  for (const int64_t kind : fields.integers("tokenizer.ggml.token_type"))
    list.kinds.push_back(static_cast<text::TokenKind>(kind));
  for (const std::string_view merge : fields.strings("tokenizer.ggml.merges")) list.merges.emplace_back(merge);
  return list;
}

// ---- a file of llama.cpp's own Python package ----

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
    default: {
      const uint8_t codes = bytes[block * 17 + 1 + j % 16];
      return E2m1{static_cast<uint8_t>(j < 16 ? codes & 15 : codes >> 4)}.to_float() *
             E8m0{bytes[block * 17]}.to_float();
    }
  }
}

// FNV-1a over the bytes of the f32 values, with negative zeros made positive, as in tools/make_gguf_goldens.py.
std::string hash_of(const HostWeight& w, int64_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(value_of(w, i) + 0.0f);
    for (int byte = 0; byte < 4; ++byte) hash = (hash ^ (bits >> (8 * byte) & 255)) * 0x100000001b3u;
  }
  return fmt::format("{:016x}", hash);
}

TEST(PyPiGguf, its_tensors_tokens_and_keys_are_read_as_the_package_reads_them) {
  const auto golden = nlohmann::json::parse(read_text_file(kSource / "tests/data/gguf_goldens.json", 1 << 20));
  const GgufCheckpoint file = GgufCheckpoint::open(kSource / "tests/data/pypi.gguf");
  const GgufFields fields(file.metadata(), file.where());
  const model::ModelConfig config = convert::config_from_gguf(fields);
  EXPECT_EQ(config.dims.vocab, 269);
  EXPECT_EQ(config.dims.sliding_window, 16);
  EXPECT_EQ(config.rope, model::RopeConfig());
  EXPECT_THAT(config.eos_ids, testing::ElementsAre(262));
  const auto weights = model::bind_weights(file.tensors(), config);
  const auto items = model::manifest(config, model::Naming::kGguf);
  ASSERT_EQ(items.size(), golden.at("tensors").size());
  for (const model::ManifestItem& item : items) {
    SCOPED_TRACE(item.name);
    const auto& want = golden.at("tensors").at(item.name);
    EXPECT_EQ(want.at("shape").get<Shape>(), item.shape);
    int64_t count = 1;
    for (const int64_t d : item.shape) count *= d;
    const auto bound = std::find_if(weights.begin(), weights.end(),
                                    [&](const HostWeight& w) { return w.role == item.role && w.layer == item.layer; });
    ASSERT_NE(bound, weights.end());
    const HostWeight own = item.half == model::Half::kOdd ? odd_rows(*bound) : *bound;
    EXPECT_EQ(value_of(own, 0), want.at("first").get<float>());
    EXPECT_EQ(hash_of(own, count), want.at("fnv1a").get<std::string>());
  }
  const auto tokenizer = text::Tokenizer::from_list(tokens_of(fields), "pypi.gguf");
  EXPECT_THAT(tokenizer.encode("hello"), testing::ElementsAre(golden.at("hello").get<int32_t>()));
  EXPECT_EQ(tokenizer.special_id("<|return|>"), 262);
  EXPECT_FALSE(tokenizer.contains(268));
}

// ---- nibble-tiny in both formats, on the reference ----

struct Tiny {
  model::ModelConfig config = model::read_hf_config(kTiny).config;
  checkpoint::Checkpoint files = checkpoint::Checkpoint::open(kTiny);
  std::vector<HostWeight> weights = model::bind_weights(files.entries(), config);
  std::string json = read_text_file(kTiny / "tokenizer.json", 1 << 24);

  [[nodiscard]] GgufCheckpoint as_gguf(const fs::path& path, DType dense) const {
    const text::TokenList list = text::list_from_parts(text::read_tokenizer_json(json, "tiny"), 4096);
    std::vector<int32_t> kinds;
    for (const text::TokenKind kind : list.kinds) kinds.push_back(static_cast<int32_t>(kind));
    const std::vector<checkpoint::GgufEntry> tokenizer = {{"tokenizer.ggml.tokens", list.tokens},
                                                          {"tokenizer.ggml.token_type", kinds},
                                                          {"tokenizer.ggml.merges", list.merges}};
    return test::as_gguf(config, weights, path, {.dense = dense, .tokenizer = tokenizer});
  }
};

// Logits of all tokens.
enum class On { kReference, kCpu };
std::vector<float> logits_of(const model::ModelConfig& config, std::span<const HostWeight> weights,
                             const std::vector<int32_t>& prompt, On on = On::kReference) {
  const auto tokens = static_cast<int>(prompt.size());
  const test::OneSequence limits{.max_context = tokens, .chunk_tokens = tokens, .max_logit_rows = tokens};
  const backend::BackendConfig of = model::backend_config(config, test::step_limits(limits));
  const auto be = on == On::kReference
                      ? backend::make_reference_backend(of)
                      : backend::make_cpu_backend(of, {.threads = 2, .activations = backend::Activations::kF32});
  const model::GptOss gpt = model::load(*be, config, weights);
  return test::all_logits(*be, gpt, prompt, tokens);
}

TEST(TinyGguf, gives_the_logits_of_the_safetensors_model) {
  const Tiny tiny;
  const test::ScratchDir dir;
  const auto tokenizer = text::Tokenizer::from_json(tiny.json, "tiny");
  std::vector<int32_t> prompt = tokenizer.encode("The capital of France is");
  const std::vector<float> want = logits_of(tiny.config, tiny.weights, prompt);
  double squares = 0;
  for (const float logit : want) squares += double{logit} * logit;
  const double rms = std::sqrt(squares / static_cast<double>(want.size()));
  ASSERT_GT(rms, 0.1);
  for (const auto& [type, bound] : {std::pair(DType::kBf16, 0.0), std::pair(DType::kF32, 0.0),
                                    std::pair(DType::kF16, 1e-5), std::pair(DType::kGgmlQ8, 0.05)}) {
    SCOPED_TRACE(name_of(type));
    const GgufCheckpoint file = tiny.as_gguf(dir / "m.gguf", type);
    model::ModelConfig config = convert::config_from_gguf({file.metadata(), file.where()});
    EXPECT_EQ(config.eos_ids.front(), tiny.config.eos_ids.front());
    config.eos_ids = tiny.config.eos_ids;  // the format has room for one
    EXPECT_EQ(config, tiny.config);
    const std::vector<float> found = logits_of(config, model::bind_weights(file.tensors(), config), prompt);
    ASSERT_EQ(found.size(), want.size());
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::fabs(double{found[i]} - want[i]));
    RecordProperty(std::string(name_of(type)), std::to_string(worst / rms));
    EXPECT_LE(worst / rms, bound);
  }
}

// ---- every type of llama.cpp's, in files and in backends ----

double worst_of(std::span<const float> found, std::span<const float> want) {
  double worst = 0, squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::fabs(double{found[i]} - want[i]));
    squares += double{want[i]} * want[i];
  }
  return worst / std::sqrt(squares / static_cast<double>(want.size()));
}

struct Quantised {
  DType type;
  double dense, experts;  // how far the logits may be from those of the model before, by their rms
};
constexpr Quantised kQuantised[] = {
    {DType::kF32, 1e-4, 0.1},    {DType::kF16, 1e-2, 0.1},  {DType::kBf16, 1e-4, 0.1},   {DType::kGgmlQ8, 0.1, 0.1},
    {DType::kGgmlQ40, 1, 1},     {DType::kGgmlQ41, 1, 1},   {DType::kGgmlQ50, 0.5, 0.5}, {DType::kGgmlQ51, 0.5, 0.5},
    {DType::kGgmlQ2K, 4, 4},     {DType::kGgmlQ3K, 2, 2},   {DType::kGgmlQ4K, 1, 1},     {DType::kGgmlQ5K, 0.5, 0.5},
    {DType::kGgmlQ6K, 0.3, 0.3}, {DType::kGgmlIq4Nl, 1, 1}, {DType::kGgmlIq4Xs, 1, 1}};

class EveryType : public testing::TestWithParam<Quantised> {};
INSTANTIATE_TEST_SUITE_P(Gguf, EveryType, testing::ValuesIn(kQuantised),
                         [](const auto& of) { return std::string(name_of(of.param.type)); });

// The CPU computes what the reference does, from the values that the file holds, and these are near the model's.
TEST_P(EveryType, of_dense_tensors_and_of_experts_runs) {
  const auto [type, dense, experts] = GetParam();
  const Tiny tiny;
  const test::ScratchDir dir;
  const GgufCheckpoint file = tiny.as_gguf(dir / "m.gguf", DType::kF32);
  const std::vector<int32_t> prompt =
      text::Tokenizer::from_json(tiny.json, "tiny").encode("Once upon a time there was a");
  const std::vector<float> before = logits_of(tiny.config, tiny.weights, prompt);
  for (const bool of_experts : {false, true}) {
    SCOPED_TRACE(of_experts ? "experts" : "dense");
    const test::Rewritten as(file, type, of_experts);
    const auto weights = model::bind_weights(as.tensors, tiny.config, {.check_scales = true});
    const std::vector<float> want = logits_of(tiny.config, weights, prompt);
    const double far = worst_of(want, before);
    EXPECT_LE(far, of_experts ? experts : dense);
    EXPECT_TRUE(far > 1e-6 || backend::is_float(type));
    EXPECT_LE(worst_of(logits_of(tiny.config, weights, prompt, On::kCpu), want), 5e-3);
  }
}

TEST(GgufExperts, become_what_is_asked_for) {
  const Tiny tiny;
  const test::ScratchDir dir;
  const GgufCheckpoint file = tiny.as_gguf(dir / "m.gguf", DType::kF32);
  const std::vector<int32_t> prompt = text::Tokenizer::from_json(tiny.json, "tiny").encode("Once upon a time");
  const std::vector<float> before = logits_of(tiny.config, tiny.weights, prompt);
  const test::Rewritten as(file, DType::kBf16, true);  // which holds MXFP4's values
  for (const auto& [format, bound] : {std::pair(WeightFormat::kGgmlMxfp4, 1e-6), std::pair(WeightFormat::kBf16, 1e-6),
                                      std::pair(WeightFormat::kGgmlQ8, 0.1)}) {
    const auto weights = model::bind_weights(as.tensors, tiny.config, {.experts = format});
    for (const HostWeight& w : weights) EXPECT_TRUE(!backend::is_expert_matrix(w.role) || w.format == format);
    EXPECT_LE(worst_of(logits_of(tiny.config, weights, prompt), before), bound) << name_of(format);
    EXPECT_LE(worst_of(logits_of(tiny.config, weights, prompt, On::kCpu), before), bound + 5e-3) << name_of(format);
  }
  for (const char* half : {"gate", "up"}) {  // the other is in MXFP4
    std::vector<checkpoint::TensorEntry> mixed = file.tensors();
    for (size_t i = 0; i < mixed.size(); ++i)
      if (mixed[i].name.find(fmt::format("ffn_{}_exps.weight", half)) != std::string::npos) mixed[i] = as.tensors[i];
    const auto weights = model::bind_weights(mixed, tiny.config);
    EXPECT_LE(worst_of(logits_of(tiny.config, weights, prompt), before), 0.1) << half;
    EXPECT_LE(worst_of(logits_of(tiny.config, weights, prompt, On::kCpu), before), 0.1) << half;
  }
  test::expect_error([&] { (void)model::bind_weights(file.tensors(), tiny.config, {.experts = WeightFormat::kBf16}); },
                     Code::kInvalidRequest, "--expert-format: want experts that are not in MXFP4 already, found none");
}

TEST(TinyGguf, gives_the_tokens_of_the_tokenizer_json) {
  const Tiny tiny;
  const test::ScratchDir dir;
  const GgufCheckpoint file = tiny.as_gguf(dir / "m.gguf", DType::kGgmlQ8);
  const auto listed = text::Tokenizer::from_list(tokens_of({file.metadata(), file.where()}), "m.gguf");
  const auto own = text::Tokenizer::from_json(tiny.json, "tiny");
  const std::string heldout = read_text_file(kTiny / "heldout.txt", 1 << 20) + "<|start|>user<|message|>x<|end|>";
  for (const auto mode : {text::SpecialTokens::kAsText, text::SpecialTokens::kAllowed})
    EXPECT_EQ(listed.encode(heldout, mode), own.encode(heldout, mode));
  EXPECT_EQ(listed.vocab_size(), own.vocab_size());
}

}  // namespace
}  // namespace nibble

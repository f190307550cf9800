#include "convert/gguf.h"

#include "base/error.h"
#include "checkpoint/strict_json.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::convert {

using model::alternating_layers;
using model::ConfigKeys;
using model::LayerKind;
using model::RopeConfig;
using model::validate;
namespace {

using checkpoint::GgufEntry;
using checkpoint::GgufFields;

constexpr std::string_view kArchitecture = "gpt-oss";  // llama.cpp src/llama-arch.cpp, LLM_ARCH_OPENAI_MOE
constexpr int64_t kMaxDim = 1 << 20, kMaxContext = 1 << 24;
constexpr int kPattern = 2;  // every second layer is full (llama.cpp src/models/openai-moe.cpp)

// Behind "gpt-oss.": what is read below, and what changes no token.
constexpr std::array<std::string_view, 25> kKnown = {"block_count",
                                                     "context_length",
                                                     "embedding_length",
                                                     "feed_forward_length",
                                                     "expert_feed_forward_length",
                                                     "expert_count",
                                                     "expert_used_count",
                                                     "vocab_size",
                                                     "attention.head_count",
                                                     "attention.head_count_kv",
                                                     "attention.key_length",
                                                     "attention.value_length",
                                                     "attention.layer_norm_rms_epsilon",
                                                     "attention.sliding_window",
                                                     "attention.sliding_window_pattern",
                                                     "rope.dimension_count",
                                                     "rope.freq_base",
                                                     "rope.freq_base_swa",
                                                     "rope.scaling.type",
                                                     "rope.scaling.factor",
                                                     "rope.scaling.original_context_length",
                                                     "rope.scaling.finetuned",
                                                     "rope.scaling.yarn_beta_fast",
                                                     "rope.scaling.yarn_beta_slow",
                                                     "rope.scaling.yarn_ext_factor"};

constexpr ConfigKeys kKeys{.layers = "gpt-oss.block_count",
                           .hidden = "gpt-oss.embedding_length",
                           .heads = "gpt-oss.attention.head_count",
                           .kv_heads = "gpt-oss.attention.head_count_kv",
                           .head_dim = "gpt-oss.attention.key_length",
                           .inter = "gpt-oss.expert_feed_forward_length",
                           .experts = "gpt-oss.expert_count",
                           .topk = "gpt-oss.expert_used_count",
                           .vocab = "tokenizer.ggml.tokens",
                           .sliding_window = "gpt-oss.attention.sliding_window",
                           .max_context = "gpt-oss.context_length",
                           .layer_kinds = "gpt-oss.attention.sliding_window_pattern",
                           .theta = "gpt-oss.rope.freq_base",
                           .factor = "gpt-oss.rope.scaling.factor",
                           .beta_fast = "gpt-oss.rope.scaling.yarn_beta_fast",
                           .beta_slow = "gpt-oss.rope.scaling.yarn_beta_slow",
                           .original_context = "gpt-oss.rope.scaling.original_context_length",
                           .rms_eps = "gpt-oss.attention.layer_norm_rms_epsilon",
                           .bos = "tokenizer.ggml.bos_token_id",
                           .pad = "tokenizer.ggml.padding_token_id",
                           .eos = "tokenizer.ggml.eos_token_id"};

std::string key(std::string_view name) { return fmt::format("{}.{}", kArchitecture, name); }

template <class T>
void require_value(const GgufFields& fields, std::string_view name, const T& want, const T& found) {
  if (found == want) return;
  throw Error(Code::kUnsupported, "{}: metadata key {}: want {}, found {}", fields.where(), name, want, found);
}

void check_architecture(const GgufFields& fields) {
  require_value<std::string>(fields, "general.architecture", std::string(kArchitecture),
                             checkpoint::printable(fields.string("general.architecture")));
  for (const auto& [name, value] : fields.metadata()) {
    if (!name.starts_with(key(""))) continue;
    if (std::ranges::find(kKnown, std::string_view(name).substr(key("").size())) != kKnown.end()) continue;
    throw Error(Code::kUnsupported, "{}: metadata key {}: not known here, found {}", fields.where(), name,
                checkpoint::describe(value));
  }
}

// Where a key is there, it must repeat what another one says.
void check_same(const GgufFields& fields, std::string_view name, int64_t want) {
  if (fields.has(key(name))) require_value(fields, key(name), want, fields.integer(key(name), 0, INT32_MAX));
}

int64_t vocab_of(const GgufFields& fields) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const auto vocab = static_cast<int64_t>(fields.strings(kTokens).size());
  check_same(fields, "vocab_size", vocab);
  return vocab;
}

RopeConfig rope_of(const GgufFields& fields) {
  require_value<std::string>(fields, key("rope.scaling.type"), "yarn",
                             checkpoint::printable(fields.string(key("rope.scaling.type"))));
  RopeConfig rope;
  rope.theta = fields.number(key("rope.freq_base"), 1.5, 1e12);
  rope.factor = fields.number(key("rope.scaling.factor"), 1, 1e6);
  rope.original_context = fields.integer(key("rope.scaling.original_context_length"), 1, kMaxContext);
  if (fields.has(key("rope.scaling.yarn_beta_fast"))) {
    rope.beta_fast = fields.number(key("rope.scaling.yarn_beta_fast"), 1e-3, 1e6);
  }
  if (fields.has(key("rope.scaling.yarn_beta_slow"))) {
    rope.beta_slow = fields.number(key("rope.scaling.yarn_beta_slow"), 1e-3, 1e6);
  }
  if (fields.has(key("rope.freq_base_swa"))) {
    require_value(fields, key("rope.freq_base_swa"), rope.theta, fields.number(key("rope.freq_base_swa"), 0, 1e12));
  }
  if (fields.has(key("rope.scaling.yarn_ext_factor"))) {
    require_value(fields, key("rope.scaling.yarn_ext_factor"), 1.0,
                  fields.number(key("rope.scaling.yarn_ext_factor"), -1e6, 1e6));
  }
  return rope;
}

std::vector<LayerKind> layer_kinds_of(const GgufFields& fields, int64_t layers) {
  const std::string name = key("attention.sliding_window_pattern");
  const auto it = fields.metadata().find(name);
  if (it == fields.metadata().end()) return alternating_layers(layers);
  if (!it->second.is_array) {
    require_value(fields, name, int64_t{kPattern}, fields.integer(name, 0, kMaxDim));
    return alternating_layers(layers);
  }
  std::vector<LayerKind> kinds;
  for (const bool sliding : fields.booleans(name)) kinds.push_back(sliding ? LayerKind::kSliding : LayerKind::kFull);
  return kinds;
}

}  // namespace

ModelConfig config_from_gguf(const GgufFields& fields) {
  check_architecture(fields);
  const auto dim = [&](std::string_view name, int64_t most) { return fields.integer(key(name), 1, most); };
  ModelConfig config;
  config.dims = {.layers = dim("block_count", 1024),
                 .hidden = dim("embedding_length", kMaxDim),
                 .heads = dim("attention.head_count", 4096),
                 .kv_heads = dim("attention.head_count_kv", 4096),
                 .head_dim = dim("attention.key_length", 4096),
                 .inter = dim("expert_feed_forward_length", kMaxDim),
                 .experts = dim("expert_count", 65536),
                 .topk = dim("expert_used_count", 1024),
                 .vocab = vocab_of(fields),
                 .sliding_window = dim("attention.sliding_window", kMaxContext),
                 .max_context = dim("context_length", kMaxContext)};
  check_same(fields, "attention.value_length", config.dims.head_dim);
  check_same(fields, "rope.dimension_count", config.dims.head_dim);
  config.rope = rope_of(fields);
  config.rms_eps = static_cast<float>(fields.number(key("attention.layer_norm_rms_epsilon"), 1e-12, 1e-1));
  config.layer_kinds = layer_kinds_of(fields, config.dims.layers);
  const auto id = [&](std::string_view name) {
    return fields.has(name) ? std::optional(static_cast<int32_t>(fields.integer(name, 0, INT32_MAX))) : std::nullopt;
  };
  config.bos_id = id("tokenizer.ggml.bos_token_id");
  config.pad_id = id("tokenizer.ggml.padding_token_id");
  if (const auto eos = id("tokenizer.ggml.eos_token_id")) config.eos_ids = {*eos};
  validate(config, fields.where(), kKeys);
  return config;
}

std::vector<std::string> unknown_keys(const GgufFields& fields) {
  constexpr std::string_view kOthers[] = {"general.", "tokenizer.", "split.", "quantize.", "imatrix."};
  std::vector<std::string> keys;
  for (const auto& [name, value] : fields.metadata()) {
    const bool known = name.starts_with(key("")) || std::ranges::any_of(kOthers, [&name](std::string_view prefix) {
                         return name.starts_with(prefix);
                       });
    if (!known) keys.push_back(checkpoint::printable(name));
  }
  return keys;
}

std::vector<GgufEntry> gguf_entries(const ModelConfig& config) {
  const backend::Dims& d = config.dims;
  const ModelConfig usual;
  if (config.rope.truncate || config.swiglu_limit != usual.swiglu_limit ||
      config.layer_kinds != alternating_layers(d.layers)) {
    throw Error(Code::kUnsupported,
                "want a model that the format can express: rope without truncate, swiglu_limit {} and "
                "alternating layers, found truncate {}, swiglu_limit {} and {} sliding of {} layers",
                usual.swiglu_limit, config.rope.truncate, config.swiglu_limit, config.layers_of(LayerKind::kSliding),
                d.layers);
  }
  const auto u32 = [](int64_t n) { return static_cast<uint32_t>(n); };
  const auto f32 = [](double n) { return static_cast<float>(n); };
  return {{"general.architecture", std::string(kArchitecture)},
          {"general.type", std::string("model")},
          {"general.file_type", uint32_t{38}},            // MXFP4 experts (gguf-py, LlamaFileType)
          {"general.quantization_version", uint32_t{2}},  // ggml.h, GGML_QNT_VERSION
          {key("block_count"), u32(d.layers)},
          {key("context_length"), u32(d.max_context)},
          {key("embedding_length"), u32(d.hidden)},
          {key("feed_forward_length"), u32(d.inter)},
          {key("expert_feed_forward_length"), u32(d.inter)},
          {key("expert_count"), u32(d.experts)},
          {key("expert_used_count"), u32(d.topk)},
          {key("attention.head_count"), u32(d.heads)},
          {key("attention.head_count_kv"), u32(d.kv_heads)},
          {key("attention.key_length"), u32(d.head_dim)},
          {key("attention.value_length"), u32(d.head_dim)},
          {key("attention.layer_norm_rms_epsilon"), config.rms_eps},
          {key("attention.sliding_window"), u32(d.sliding_window)},
          {key("rope.freq_base"), f32(config.rope.theta)},
          {key("rope.scaling.type"), std::string("yarn")},
          {key("rope.scaling.factor"), f32(config.rope.factor)},
          {key("rope.scaling.original_context_length"), u32(config.rope.original_context)},
          {key("rope.scaling.yarn_beta_fast"), f32(config.rope.beta_fast)},
          {key("rope.scaling.yarn_beta_slow"), f32(config.rope.beta_slow)}};
}

}  // namespace nibble::convert

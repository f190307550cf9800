#include "convert/gguf.h"

#include "base/error.h"
#include "checkpoint/strict_json.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::convert {

using model::alternating_layers;
using model::ConfigField;
using model::kBosNames;
using model::kConfigFields;
using model::kEosNames;
using model::kPadNames;
using model::LayerKind;
using model::Naming;
using model::RopeConfig;
using model::validate;
namespace {

using checkpoint::GgufEntry;
using checkpoint::GgufFields;
using checkpoint::GgufPayload;

constexpr std::string_view kArchitecture = "gpt-oss";          // llama.cpp src/llama-arch.cpp, LLM_ARCH_OPENAI_MOE
constexpr std::string_view kTokens = "tokenizer.ggml.tokens";  // as many as the vocabulary has
constexpr int kPattern = 2;  // every second layer is full (llama.cpp src/models/openai-moe.cpp)

// Keys beside kConfigFields': what is read below, and what changes no token.
constexpr std::string_view kOtherKeys =
    "gpt-oss.feed_forward_length gpt-oss.vocab_size gpt-oss.attention.value_length "
    "gpt-oss.attention.sliding_window_pattern gpt-oss.rope.dimension_count gpt-oss.rope.freq_base_swa "
    "gpt-oss.rope.scaling.type gpt-oss.rope.scaling.finetuned gpt-oss.rope.scaling.yarn_ext_factor";

std::string_view gguf_name(const ConfigField& field) { return field.names[static_cast<size_t>(Naming::kGguf)]; }

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
    if (checkpoint::has_word(kOtherKeys, name) ||
        std::ranges::find(kConfigFields, name, gguf_name) != kConfigFields.end())
      continue;
    throw Error(Code::kUnsupported, "{}: metadata key {}: not known here, found {}", fields.where(), name,
                checkpoint::describe(value));
  }
}

// Where a key is there, it must repeat what another one says.
void check_same(const GgufFields& fields, std::string_view name, int64_t want) {
  if (fields.has(key(name))) require_value(fields, key(name), want, fields.integer(key(name), 0, INT32_MAX));
}

void check_same(const GgufFields& fields, std::string_view name, double want) {
  if (fields.has(key(name))) require_value(fields, key(name), want, fields.number(key(name), -1e12, 1e12));
}

std::vector<LayerKind> layer_kinds_of(const GgufFields& fields, int64_t layers) {
  const std::string name = key("attention.sliding_window_pattern");
  const auto it = fields.metadata().find(name);
  if (it == fields.metadata().end()) return alternating_layers(layers);
  if (!it->second.is_array) {
    require_value(fields, name, int64_t{kPattern}, fields.integer(name, 0, 1 << 20));
    return alternating_layers(layers);
  }
  std::vector<LayerKind> kinds;
  for (const bool sliding : fields.booleans(name)) kinds.push_back(sliding ? LayerKind::kSliding : LayerKind::kFull);
  return kinds;
}

}  // namespace

ModelConfig config_from_gguf(const GgufFields& fields) {
  check_architecture(fields);
  ModelConfig config;
  for (const ConfigField& field : kConfigFields) {
    const std::string_view name = gguf_name(field);
    if (name.empty() || (field.has_usual && !fields.has(name))) continue;
    if (name == kTokens)
      field.set(config, static_cast<double>(fields.strings(name).size()));
    else if (field.is_integer())
      field.set(config, static_cast<double>(
                            fields.integer(name, static_cast<int64_t>(field.least), static_cast<int64_t>(field.most))));
    else
      field.set(config, fields.number(name, field.least, field.most));
  }
  check_same(fields, "vocab_size", config.dims.vocab);
  check_same(fields, "attention.value_length", config.dims.head_dim);
  check_same(fields, "rope.dimension_count", config.dims.head_dim);
  require_value<std::string>(fields, key("rope.scaling.type"), "yarn",
                             checkpoint::printable(fields.string(key("rope.scaling.type"))));
  check_same(fields, "rope.freq_base_swa", config.rope.theta);
  check_same(fields, "rope.scaling.yarn_ext_factor", 1.0);
  config.layer_kinds = layer_kinds_of(fields, config.dims.layers);
  const auto id = [&](std::string_view name) {
    return fields.has(name) ? std::optional(static_cast<int32_t>(fields.integer(name, 0, INT32_MAX))) : std::nullopt;
  };
  config.bos_id = id(kBosNames.back());
  config.pad_id = id(kPadNames.back());
  if (const auto eos = id(kEosNames.back())) config.eos_ids = {*eos};
  validate(config, fields.where(), Naming::kGguf);
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
      config.layer_kinds != alternating_layers(d.layers) || !config.layer_experts.empty()) {
    throw Error(Code::kUnsupported,
                "want a model that the format can express: rope without truncate, swiglu_limit {} and "
                "alternating layers of {} experts, found truncate {}, swiglu_limit {} and {} sliding of {} layers{}",
                usual.swiglu_limit, d.experts, config.rope.truncate, config.swiglu_limit,
                config.layers_of(LayerKind::kSliding), d.layers,
                config.layer_experts.empty() ? "" : ", some with fewer experts");
  }
  std::vector<GgufEntry> entries = {{"general.architecture", std::string(kArchitecture)},
                                    {"general.type", std::string("model")},
                                    {"general.file_type", uint32_t{38}},  // MXFP4 experts (gguf-py, LlamaFileType)
                                    {"general.quantization_version", uint32_t{2}}};  // ggml.h, GGML_QNT_VERSION
  for (const ConfigField& field : kConfigFields) {
    const std::string_view name = gguf_name(field);
    if (name.empty() || name == kTokens) continue;
    const double value = field.of(config);
    if (&field == &model::field_of(&backend::Dims::inter))
      entries.push_back({key("feed_forward_length"), static_cast<uint32_t>(value)});
    if (&field == &model::field_of(&RopeConfig::factor))
      entries.push_back({key("rope.scaling.type"), std::string("yarn")});
    entries.push_back({std::string(name), field.is_integer() ? GgufPayload(static_cast<uint32_t>(value))
                                                             : GgufPayload(static_cast<float>(value))});
    if (&field == &model::field_of(&backend::Dims::head_dim))
      entries.push_back({key("attention.value_length"), static_cast<uint32_t>(value)});
  }
  return entries;
}

}  // namespace nibble::convert

#include "model/hf_config.h"

#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace nibble::model {
namespace {

using checkpoint::excerpt_of;
using checkpoint::JsonObject;
using checkpoint::printable;
using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 1 << 20;

// Keys of config.json that change no token: for training, other tasks and transformers' own code.
constexpr std::string_view kWithoutEffect =
    "architectures attention_dropout auto_map bad_words_ids chunk_size_feed_forward cross_attention_hidden_size "
    "dtype id2label initializer_range is_decoder is_encoder_decoder label2id model_type name_or_path "
    "output_attentions output_hidden_states output_router_logits prefix problem_type pruned_heads return_dict "
    "return_dict_in_generate router_aux_loss_coef sep_token_id task_specific_params tie_encoder_decoder "
    "tokenizer_class torch_dtype torchscript transformers_version unsloth_fixed unsloth_version use_cache";

// Refuses other values, which nothing here computes.
void refuse_other_numbers(JsonObject& fields, const char* key, double only) {
  if (fields.number_or(key, {-1e6, 1e6}, only) != only) fields.unsupported(key, fmt::format("{}", only));
}

// One note with the keys that were not read and may have been meant to change something.
void note_unread(const JsonObject& fields, HfConfig& config) {
  std::vector<std::string> keys;
  for (const std::string& key : fields.unread(kWithoutEffect))
    if (!key.starts_with('_')) keys.push_back(printable(key));
  if (!keys.empty())
    config.notes.push_back(
        fmt::format("{}: not known here, so without effect: {}", fields.where(), fmt::join(keys, ", ")));
}

// What both spellings may say of it.
void refuse_other_formulas(JsonObject& fields) {
  refuse_other_numbers(fields, "swiglu_alpha", 1.702);
  refuse_other_numbers(fields, "partial_rotary_factor", 1);
}

// names: the value's, and that of the other spelling, which may be there instead or beside it.
void read_number(JsonObject& fields, const ConfigField& field, std::pair<const char*, const char*> names,
                 bool has_usual, ModelConfig& config) {
  const checkpoint::Limits limits{field.least, field.most};
  if (field.is_integer()) {
    field.set(config, static_cast<double>(
                          fields.integer(names, static_cast<int64_t>(field.least), static_cast<int64_t>(field.most))));
  } else {
    field.set(config,
              has_usual ? fields.number_or(names.first, limits, field.of(config)) : fields.number(names.first, limits));
  }
}

// transformers 4 has rope_theta at the top and the rest in rope_scaling; transformers 5 has all in rope_parameters.
void read_rope(JsonObject& top, HfConfig& config) {
  const char* key = top.either("rope_scaling", "rope_parameters");
  const json* object = top.find(key);
  if (object == nullptr)
    throw Error(Code::kUnsupported, "{}: want rope_scaling or rope_parameters of rope_type \"yarn\", found neither",
                top.where());
  top.require_same("rope_scaling", top, "rope_parameters");
  JsonObject rope(*object, fmt::format("{}: {}", top.where(), key));
  const char* type_key = rope.either("rope_type", "type");
  if (rope.get(type_key) != "yarn") rope.unsupported(type_key, "\"yarn\"");
  rope.require_same("rope_type", rope, "type");
  for (const char* other : {"attention_factor", "mscale", "mscale_all_dim"})
    if (rope.find(other) != nullptr) rope.unsupported(other, "none");
  refuse_other_numbers(rope, "partial_rotary_factor", 1);
  const auto read = [&](JsonObject& from, const ConfigField& field, const char* name) {
    read_number(from, field, {name, name}, field.has_usual, config.config);
  };
  read(rope.find("rope_theta") != nullptr ? rope : top, field_of(&RopeConfig::theta), "rope_theta");
  rope.require_same("rope_theta", top, "rope_theta");
  for (const auto member : {&RopeConfig::factor, &RopeConfig::beta_fast, &RopeConfig::beta_slow})
    read(rope, field_of(member), field_of(member).names[0].data());
  config.config.rope.truncate = rope.boolean_or("truncate", true);  // as transformers/modeling_rope_utils.py
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const char* at_top = top.either(kOriginal, "initial_context_length");
  const bool is_at_top = rope.find(kOriginal) == nullptr && top.find(at_top) != nullptr;
  read(is_at_top ? top : rope, field_of(&RopeConfig::original_context), is_at_top ? at_top : kOriginal);
  top.require_same(kOriginal, top, "initial_context_length");
  rope.require_same(kOriginal, top, at_top);
  note_unread(rope, config);
}

// Layers that differ: a list with an object per layer, whose window may be null (nvidia's gpt_oss_puzzle). What the
// file says at its top of the same counts for no layer.
void read_blocks(JsonObject& fields, const json& blocks, HfConfig& hf) {
  const std::string where = fmt::format("{}: block_configs", fields.where());
  if (!blocks.is_array() || std::ssize(blocks) != hf.config.dims.layers)
    throw Error(Code::kCorrupt, "{}: want a list of {} layers, found {}", where, hf.config.dims.layers,
                excerpt_of(blocks));
  constexpr const ConfigField &kExperts = field_of(&backend::Dims::experts), &kTopk = field_of(&backend::Dims::topk),
                              &kWindow = field_of(&backend::Dims::sliding_window);
  const auto read = [](JsonObject& from, const ConfigField& field) {
    return from.integer({field.names[0].data(), field.names[1].data()}, static_cast<int64_t>(field.least),
                        static_cast<int64_t>(field.most));
  };
  for (const ConfigField* own : {&kExperts, &kWindow})
    for (const std::string_view name : {own->names[0], own->names[1]}) static_cast<void>(fields.find(name.data()));
  std::vector<LayerConfig> layers;
  for (const json& block : blocks) {
    JsonObject layer(block, fmt::format("{}[{}]", where, layers.size()));
    const bool sees_all = layer.find(kWindow.names[0].data()) == nullptr && block.contains(kWindow.names[0]);  // null
    layers.push_back({.window = sees_all ? 0 : read(layer, kWindow), .experts = read(layer, kExperts)});
    const char* topk = layer.either(kTopk.names[0].data(), kTopk.names[1].data());
    if (layer.find(topk) != nullptr && read(layer, kTopk) != hf.config.dims.topk)
      layer.unsupported(topk, fmt::format("{}, as in other layers", hf.config.dims.topk));
    note_unread(layer, hf);
  }
  set_layers(hf.config, layers, where);
}

void read_layer_types(JsonObject& fields, ModelConfig& config) {
  const json* types = fields.find("layer_types");
  const std::vector<LayerKind> told = std::exchange(config.layer_kinds, {});
  config.layer_kinds = told.empty() ? alternating_layers(config.dims.layers) : told;
  if (types == nullptr) return;
  if (!types->is_array())
    throw Error(Code::kCorrupt, "{}: layer_types: want a list, found {}", fields.where(), excerpt_of(*types));
  config.layer_kinds.clear();
  for (const json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention")
      throw Error(Code::kUnsupported, "{}: layer_types: want sliding_attention or full_attention, found {}",
                  fields.where(), excerpt_of(type));
    config.layer_kinds.push_back(type == "sliding_attention" ? LayerKind::kSliding : LayerKind::kFull);
  }
  if (told.empty()) return;
  const auto is_full = [](LayerKind kind) { return kind == LayerKind::kFull; };
  if (!std::ranges::equal(config.layer_kinds, told, {}, is_full, is_full))
    throw Error(Code::kCorrupt, "{}: layer_types: want full_attention where a block's sliding_window is null, found {}",
                fields.where(), excerpt_of(*types));
  config.layer_kinds = told;
}

// Refuses variants that the architecture's name would allow but that nothing here computes.
void refuse_variants(JsonObject& fields, HfConfig& config) {
  if (!fields.boolean_or("attention_bias", true)) fields.unsupported("attention_bias", "true");
  if (fields.boolean_or("tie_word_embeddings", false)) fields.unsupported("tie_word_embeddings", "false");
  if (fields.find("hidden_act") != nullptr && fields.get("hidden_act") != "silu")
    fields.unsupported("hidden_act", "\"silu\"");
  const json* object = fields.find("quantization_config");
  if (object == nullptr) return;  // experts in floats, as trainers save them
  JsonObject quantization(*object, fields.where() + ": quantization_config");
  if (quantization.get("quant_method") != "mxfp4") quantization.unsupported("quant_method", "\"mxfp4\"");
  for (const char* key : {"modules_to_not_convert", "dequantize"}) static_cast<void>(quantization.find(key));
  note_unread(quantization, config);
}

void read_token_ids(JsonObject& fields, ModelConfig& config) {
  const int64_t vocab = config.dims.vocab;
  if (const auto id = fields.token_id("bos_token_id", vocab)) config.bos_id = static_cast<int32_t>(*id);
  if (const auto id = fields.token_id("pad_token_id", vocab)) config.pad_id = static_cast<int32_t>(*id);
  if (const auto ids = fields.token_ids("eos_token_id", vocab); !ids.empty())
    config.eos_ids.assign(ids.begin(), ids.end());
}

HfConfig from_hugging_face(JsonObject& fields) {
  HfConfig hf;
  const json* blocks = fields.find("block_configs");
  for (const ConfigField& field : kConfigFields) {
    const std::string_view other = field.is_integer() && !field.names[1].empty() ? field.names[1] : field.names[0];
    const bool of_blocks =
        &field == &field_of(&backend::Dims::experts) || &field == &field_of(&backend::Dims::sliding_window);
    if (!field.is_of_rope() && !(of_blocks && blocks != nullptr))
      read_number(fields, field, {field.names[0].data(), other.data()}, field.has_usual, hf.config);
  }
  if (blocks != nullptr) read_blocks(fields, *blocks, hf);
  refuse_other_formulas(fields);
  read_rope(fields, hf);
  read_layer_types(fields, hf.config);
  refuse_variants(fields, hf);
  fields.require_same("dtype", fields, "torch_dtype");
  read_token_ids(fields, hf.config);
  note_unread(fields, hf);
  validate(hf.config, fields.where());
  return hf;
}

HfConfig from_original(JsonObject& fields) {
  HfConfig hf;
  ModelConfig& config = hf.config;
  for (const ConfigField& field : kConfigFields) {
    const std::string_view other = field.is_of_rope() ? field.names[1] : field.names[0];
    if (!field.names[1].empty()) read_number(fields, field, {field.names[1].data(), other.data()}, false, config);
  }
  refuse_other_formulas(fields);
  // gpt_oss/torch/model.py: RMSNorm's default eps and a YaRN that does not round are ModelConfig's; the file does not
  // say the longest context.
  const double context = static_cast<double>(config.rope.original_context) * config.rope.factor;
  if (context > field_of(&backend::Dims::max_context).most)
    throw Error(Code::kCorrupt, "{}: initial_context_length × rope_scaling_factor: want at most {}, found {}",
                fields.where(), field_of(&backend::Dims::max_context).most, context);
  config.dims.max_context = static_cast<int64_t>(context);
  config.layer_kinds = alternating_layers(config.dims.layers);
  note_unread(fields, hf);
  validate(config, fields.where(), Naming::kOriginal);
  return hf;
}

}  // namespace

HfConfig parse_hf_config(std::string_view text, std::string_view where) {
  const json object = checkpoint::parse_strict_json(text, where);
  JsonObject fields(object, std::string(where));
  const json* type = fields.find("model_type");
  const json* architectures = fields.find("architectures");
  if (type == nullptr && architectures == nullptr && fields.find("num_experts") != nullptr)
    return from_original(fields);
  const bool puzzle = type != nullptr && *type == "gpt_oss_puzzle";
  const auto& [name, architecture] =
      puzzle ? std::pair{"gpt_oss_puzzle", "GptOssPuzzleForCausalLM"} : std::pair{"gpt_oss", "GptOssForCausalLM"};
  const bool type_fits = type != nullptr && *type == name;
  const bool architectures_fit = architectures == nullptr || *architectures == json::array({architecture});
  if (!type_fits || !architectures_fit)
    throw Error(Code::kUnsupported, "{}: want model_type \"{}\" and architectures [\"{}\"], found {} and {}", where,
                name, architecture, type == nullptr ? "none" : excerpt_of(*type),
                architectures == nullptr ? "none" : excerpt_of(*architectures));
  if (puzzle) static_cast<void>(fields.get("block_configs"));  // or it is missing
  return from_hugging_face(fields);
}

void apply_generation_config(std::string_view text, std::string_view where, ModelConfig& config) {
  const json object = checkpoint::parse_strict_json(text, where);
  JsonObject fields(object, std::string(where));
  read_token_ids(fields, config);
}

HfConfig read_hf_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json", generation = directory / "generation_config.json";
  HfConfig config = parse_hf_config(read_text_file(path, kMaxConfigBytes), path.string());
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(generation, ignored)))  // a dead link counts as there
    apply_generation_config(read_text_file(generation, kMaxConfigBytes), generation.string(), config.config);
  return config;
}

}  // namespace nibble::model

#include "checkpoint/hf_config.h"

#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace nibble::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;

// Keys of config.json that change no token: for training, other tasks and transformers' own code.
constexpr std::array<std::string_view, 33> kWithoutEffect = {"architectures",
                                                             "attention_dropout",
                                                             "auto_map",
                                                             "bad_words_ids",
                                                             "chunk_size_feed_forward",
                                                             "cross_attention_hidden_size",
                                                             "dtype",
                                                             "id2label",
                                                             "initializer_range",
                                                             "is_decoder",
                                                             "is_encoder_decoder",
                                                             "label2id",
                                                             "model_type",
                                                             "name_or_path",
                                                             "output_attentions",
                                                             "output_hidden_states",
                                                             "output_router_logits",
                                                             "prefix",
                                                             "problem_type",
                                                             "pruned_heads",
                                                             "return_dict",
                                                             "return_dict_in_generate",
                                                             "router_aux_loss_coef",
                                                             "sep_token_id",
                                                             "task_specific_params",
                                                             "tie_encoder_decoder",
                                                             "tokenizer_class",
                                                             "torch_dtype",
                                                             "torchscript",
                                                             "transformers_version",
                                                             "unsloth_fixed",
                                                             "unsloth_version",
                                                             "use_cache"};

// The limits are far above any gpt-oss and far below what could overflow a product of a few of them.
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxContext = 1 << 24;
constexpr Limits kThetaLimits{1.5, 1e12}, kFactorLimits{1, 1e6}, kBetaLimits{1e-3, 1e6}, kClampLimits{1e-3, 1e6};

[[noreturn]] void unsupported(JsonObject& fields, const char* key, const std::string& want) {
  throw Error(Code::kUnsupported, "{}: {}: want {}, found {}", fields.where(), key, want, excerpt_of(fields.get(key)));
}

// Refuses other values, which nothing here computes.
void refuse_other_numbers(JsonObject& fields, const char* key, double only) {
  if (fields.number_or(key, {-1e6, 1e6}, only) != only) unsupported(fields, key, fmt::format("{}", only));
}

// One note with the keys that were not read and may have been meant to change something.
void note_unread(const JsonObject& fields, HfConfig& config) {
  std::vector<std::string> keys;
  for (const std::string& key : fields.unread()) {
    if (!key.starts_with('_') && std::ranges::find(kWithoutEffect, key) == kWithoutEffect.end())
      keys.push_back(printable(key));
  }
  if (!keys.empty())
    config.notes.push_back(
        fmt::format("{}: not known here, so without effect: {}", fields.where(), fmt::join(keys, ", ")));
}

// The keys that have the same name in both spellings.
HfConfig common_fields(JsonObject& fields) {
  HfConfig config;
  config.where = fields.where();
  config.num_hidden_layers = fields.integer("num_hidden_layers", 1, 1024);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxDim);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxDim);
  config.num_attention_heads = fields.integer("num_attention_heads", 1, 4096);
  config.num_key_value_heads = fields.integer("num_key_value_heads", 1, 4096);
  config.head_dim = fields.integer("head_dim", 1, 4096);
  config.vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  config.sliding_window = fields.integer("sliding_window", 1, kMaxContext);
  config.rope_theta = 0;
  refuse_other_numbers(fields, "swiglu_alpha", 1.702);
  refuse_other_numbers(fields, "partial_rotary_factor", 1);
  return config;
}

// transformers 4 has rope_theta at the top and the rest in rope_scaling; transformers 5 has all in rope_parameters.
void read_rope(JsonObject& top, HfConfig& config) {
  const char* key = top.either("rope_scaling", "rope_parameters");
  const json* object = top.find(key);
  if (object == nullptr) {
    throw Error(Code::kUnsupported, "{}: want rope_scaling or rope_parameters of rope_type \"yarn\", found neither",
                top.where());
  }
  top.require_same("rope_scaling", top, "rope_parameters");
  JsonObject rope(*object, fmt::format("{}: {}", top.where(), key));
  const char* type_key = rope.either("rope_type", "type");
  if (rope.get(type_key) != "yarn") unsupported(rope, type_key, "\"yarn\"");
  rope.require_same("rope_type", rope, "type");
  for (const char* other : {"attention_factor", "mscale", "mscale_all_dim"}) {
    if (rope.find(other) != nullptr) unsupported(rope, other, "none");
  }
  refuse_other_numbers(rope, "partial_rotary_factor", 1);
  config.rope_theta = (rope.find("rope_theta") != nullptr ? rope : top).number("rope_theta", kThetaLimits);
  rope.require_same("rope_theta", top, "rope_theta");
  config.rope_factor = rope.number("factor", kFactorLimits);
  // Defaults of transformers/modeling_rope_utils.py, _compute_yarn_parameters.
  config.rope_beta_fast = rope.number_or("beta_fast", kBetaLimits, 32);
  config.rope_beta_slow = rope.number_or("beta_slow", kBetaLimits, 1);
  config.rope_truncate = rope.boolean_or("truncate", true);
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const char* at_top = top.either(kOriginal, "initial_context_length");
  config.rope_original_context = rope.find(kOriginal) == nullptr && top.find(at_top) != nullptr
                                     ? top.integer(at_top, 1, kMaxContext)
                                     : rope.integer(kOriginal, 1, kMaxContext);
  top.require_same(kOriginal, top, "initial_context_length");
  rope.require_same(kOriginal, top, at_top);
  note_unread(rope, config);
}

void read_layer_types(JsonObject& fields, HfConfig& config) {
  const json* types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array()) {
    throw Error(Code::kCorrupt, "{}: layer_types: want a list, found {}", fields.where(), excerpt_of(*types));
  }
  if (static_cast<int64_t>(types->size()) != config.num_hidden_layers) {
    throw Error(Code::kCorrupt, "{}: layer_types: want {} entries, one per layer, found {}", fields.where(),
                config.num_hidden_layers, types->size());
  }
  config.layer_is_sliding.emplace();
  for (const json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      throw Error(Code::kUnsupported, "{}: layer_types: want sliding_attention or full_attention, found {}",
                  fields.where(), excerpt_of(type));
    }
    config.layer_is_sliding->push_back(type == "sliding_attention");
  }
}

// Refuses variants that the architecture's name would allow but that nothing here computes.
void refuse_variants(JsonObject& fields, HfConfig& config) {
  if (!fields.boolean_or("attention_bias", true)) unsupported(fields, "attention_bias", "true");
  if (fields.boolean_or("tie_word_embeddings", false)) unsupported(fields, "tie_word_embeddings", "false");
  if (fields.find("hidden_act") != nullptr && fields.get("hidden_act") != "silu") {
    unsupported(fields, "hidden_act", "\"silu\"");
  }
  const json* object = fields.find("quantization_config");
  if (object == nullptr) {
    config.notes.push_back(
        fmt::format("{}: quantization_config is missing: the experts are read as MXFP4, and only "
                    "where their tensors are (…_blocks and …_scales)",
                    fields.where()));
    return;
  }
  JsonObject quantization(*object, fields.where() + ": quantization_config");
  if (quantization.get("quant_method") != "mxfp4") unsupported(quantization, "quant_method", "\"mxfp4\"");
  for (const char* key : {"modules_to_not_convert", "dequantize"}) static_cast<void>(quantization.find(key));
  note_unread(quantization, config);
}

HfConfig from_hugging_face(JsonObject& fields) {
  HfConfig config = common_fields(fields);
  config.naming = Naming::kHuggingFace;
  config.num_experts = fields.integer({"num_local_experts", "num_experts"}, 1, 65536);
  config.experts_per_token = fields.integer({"num_experts_per_tok", "experts_per_token"}, 1, 1024);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxContext);
  config.rms_norm_eps = fields.number("rms_norm_eps", {1e-12, 1e-1});
  // transformers/modeling_gpt_oss.py has 7.0 in the code, so a file that it wrote may lack the key.
  config.swiglu_limit = fields.number_or("swiglu_limit", kClampLimits, 7.0);
  read_rope(fields, config);
  read_layer_types(fields, config);
  refuse_variants(fields, config);
  fields.require_same("dtype", fields, "torch_dtype");
  config.bos_token_id = fields.token_id("bos_token_id", config.vocab_size);
  config.pad_token_id = fields.token_id("pad_token_id", config.vocab_size);
  config.eos_token_ids = fields.token_ids("eos_token_id", config.vocab_size);
  note_unread(fields, config);
  return config;
}

HfConfig from_original(JsonObject& fields) {
  HfConfig config = common_fields(fields);
  config.naming = Naming::kOriginal;
  config.num_experts = fields.integer({"num_experts", "num_local_experts"}, 1, 65536);
  config.experts_per_token = fields.integer({"experts_per_token", "num_experts_per_tok"}, 1, 1024);
  config.swiglu_limit = fields.number("swiglu_limit", kClampLimits);
  config.rope_theta = fields.number("rope_theta", kThetaLimits);
  config.rope_factor = fields.number("rope_scaling_factor", kFactorLimits);
  config.rope_beta_slow = fields.number("rope_ntk_alpha", kBetaLimits);
  config.rope_beta_fast = fields.number("rope_ntk_beta", kBetaLimits);
  config.rope_original_context = fields.integer("initial_context_length", 1, kMaxContext);
  // gpt_oss/torch/model.py: RMSNorm's default eps; its YaRN does not round; the file does not say the longest context.
  config.rms_norm_eps = 1e-5;
  config.rope_truncate = false;
  const double context = static_cast<double>(config.rope_original_context) * config.rope_factor;
  if (context > static_cast<double>(kMaxContext)) {
    throw Error(Code::kCorrupt, "{}: initial_context_length × rope_scaling_factor: want at most {}, found {}",
                fields.where(), kMaxContext, context);
  }
  config.max_position_embeddings = static_cast<int64_t>(context);
  note_unread(fields, config);
  return config;
}

}  // namespace

HfConfig parse_hf_config(std::string_view text, std::string_view where) {
  const json object = parse_strict_json(text, where);
  JsonObject fields(object, std::string(where));
  const json* type = fields.find("model_type");
  const json* architectures = fields.find("architectures");
  if (type == nullptr && architectures == nullptr && fields.find("num_experts") != nullptr) {
    return from_original(fields);
  }
  const bool type_fits = type != nullptr && *type == "gpt_oss";
  const bool architectures_fit = architectures == nullptr || *architectures == json::array({"GptOssForCausalLM"});
  if (!type_fits || !architectures_fit) {
    throw Error(Code::kUnsupported,
                "{}: want model_type \"gpt_oss\" and architectures [\"GptOssForCausalLM\"], found {} and {}", where,
                type == nullptr ? "none" : excerpt_of(*type),
                architectures == nullptr ? "none" : excerpt_of(*architectures));
  }
  return from_hugging_face(fields);
}

void apply_generation_config(std::string_view text, std::string_view where, HfConfig& config) {
  const json object = parse_strict_json(text, where);
  JsonObject fields(object, std::string(where));
  const int64_t vocab = config.vocab_size;
  if (const auto id = fields.token_id("bos_token_id", vocab)) config.bos_token_id = id;
  if (const auto id = fields.token_id("pad_token_id", vocab)) config.pad_token_id = id;
  if (auto ids = fields.token_ids("eos_token_id", vocab); !ids.empty()) config.eos_token_ids = std::move(ids);
}

HfConfig read_hf_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json", generation = directory / "generation_config.json";
  HfConfig config = parse_hf_config(read_text_file(path, kMaxConfigBytes), path.string());
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(generation, ignored))) {  // a dead link counts as there
    apply_generation_config(read_text_file(generation, kMaxConfigBytes), generation.string(), config);
  }
  return config;
}

}  // namespace nibble::checkpoint

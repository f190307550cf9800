#include "checkpoint/hf_config.h"

#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <utility>

namespace nibble::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;

struct Limits {
  double low, high;
};

// The keys of one JSON object, each checked as it is read. A null counts as absent: that is how Python writes None.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw Error(Code::kCorrupt, "{}: want an object, found {}", where_, excerpt_of(object));
  }

  [[nodiscard]] const std::string& where() const { return where_; }

  [[nodiscard]] const json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  [[nodiscard]] const json& get(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) throw Error(Code::kCorrupt, "{}: {} is missing", where_, key);
    return *value;
  }

  [[nodiscard]] int64_t integer(const char* key, int64_t low, int64_t high) const {
    return integer_of(get(key), key, low, high);
  }

  [[nodiscard]] double number(const char* key, Limits limits) const {
    const json& value = get(key);
    if (!value.is_number())
      throw Error(Code::kCorrupt, "{}: {}: want a number, found {}", where_, key, excerpt_of(value));
    const auto number = value.get<double>();
    if (!(number >= limits.low && number <= limits.high)) {
      throw Error(Code::kCorrupt, "{}: {}: want {} to {}, found {}", where_, key, limits.low, limits.high,
                  excerpt_of(value));
    }
    return number;
  }
  [[nodiscard]] double number_or(const char* key, Limits limits, double otherwise) const {
    return find(key) == nullptr ? otherwise : number(key, limits);
  }

  [[nodiscard]] bool boolean_or(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      throw Error(Code::kCorrupt, "{}: {}: want true or false, found {}", where_, key, excerpt_of(*value));
    }
    return value->get<bool>();
  }

  [[nodiscard]] std::optional<int64_t> token_id(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return integer_of(*value, key, 0, kMaxTokenId);
  }

  // One id or a list of them; empty when absent.
  [[nodiscard]] std::vector<int64_t> token_ids(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) return {integer_of(*value, key, 0, kMaxTokenId)};
    std::vector<int64_t> ids;
    for (const json& id : *value) ids.push_back(integer_of(id, key, 0, kMaxTokenId));
    return ids;
  }

 private:
  [[nodiscard]] int64_t integer_of(const json& value, const char* key, int64_t low, int64_t high) const {
    if (!value.is_number_integer()) {
      throw Error(Code::kCorrupt, "{}: {}: want an integer, found {}", where_, key, excerpt_of(value));
    }
    const bool too_big = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high);
    if (too_big || value.get<int64_t>() < low) {
      throw Error(Code::kCorrupt, "{}: {}: want {} to {}, found {}", where_, key, low, high, excerpt_of(value));
    }
    return value.get<int64_t>();
  }

  const json& object_;
  std::string where_;
};

// The limits are far above any gpt-oss and far below what could overflow a product of a few of them.
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxContext = 1 << 24;
constexpr Limits kThetaLimits{1.5, 1e12}, kFactorLimits{1, 1e6}, kBetaLimits{1e-3, 1e6}, kClampLimits{1e-3, 1e6};

// What both spellings call the same.
HfConfig common_fields(const Fields& fields) {
  HfConfig config;
  config.where = fields.where();
  config.num_hidden_layers = fields.integer("num_hidden_layers", 1, 1024);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxDim);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxDim);
  config.num_attention_heads = fields.integer("num_attention_heads", 1, 4096);
  config.num_key_value_heads = fields.integer("num_key_value_heads", 1, 4096);
  config.head_dim = fields.integer("head_dim", 1, 4096);
  config.vocab_size = fields.integer("vocab_size", 1, kMaxTokenId + 1);
  config.sliding_window = fields.integer("sliding_window", 1, kMaxContext);
  config.rope_theta = 0;
  return config;
}

[[noreturn]] void unsupported(const Fields& fields, const char* key, const char* want) {
  throw Error(Code::kUnsupported, "{}: {}: want {}, found {}", fields.where(), key, want, excerpt_of(fields.get(key)));
}

// transformers 4 has rope_theta at the top and the rest in rope_scaling; transformers 5 has all in rope_parameters.
void read_rope(const Fields& top, HfConfig& config) {
  const bool is_new = top.find("rope_parameters") != nullptr;
  const char* key = is_new ? "rope_parameters" : "rope_scaling";
  const json* object = top.find(key);
  if (object == nullptr) {
    throw Error(Code::kUnsupported, "{}: want rope_scaling or rope_parameters of rope_type \"yarn\", found neither",
                top.where());
  }
  const Fields rope(*object, fmt::format("{}: {}", top.where(), key));
  const char* type_key = rope.find("rope_type") == nullptr && rope.find("type") != nullptr ? "type" : "rope_type";
  if (rope.get(type_key) != "yarn") unsupported(rope, type_key, "\"yarn\"");
  for (const char* other : {"attention_factor", "mscale", "mscale_all_dim", "partial_rotary_factor"}) {
    const json* value = rope.find(other);
    if (value != nullptr &&
        !(value->is_number() && std::string_view(other) == "partial_rotary_factor" && *value == 1)) {
      unsupported(rope, other, "none");
    }
  }
  config.rope_theta = (rope.find("rope_theta") != nullptr ? rope : top).number("rope_theta", kThetaLimits);
  config.rope_factor = rope.number("factor", kFactorLimits);
  // Defaults of transformers/modeling_rope_utils.py, _compute_yarn_parameters.
  config.rope_beta_fast = rope.number_or("beta_fast", kBetaLimits, 32);
  config.rope_beta_slow = rope.number_or("beta_slow", kBetaLimits, 1);
  config.rope_truncate = rope.boolean_or("truncate", true);
  const bool at_top =
      rope.find("original_max_position_embeddings") == nullptr && top.find("initial_context_length") != nullptr;
  config.rope_original_context = at_top ? top.integer("initial_context_length", 1, kMaxContext)
                                        : rope.integer("original_max_position_embeddings", 1, kMaxContext);
}

void read_layer_types(const Fields& fields, HfConfig& config) {
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

// Variants that the architecture's name would allow and that nothing here computes.
void refuse_variants(const Fields& fields, HfConfig& config) {
  if (!fields.boolean_or("attention_bias", true)) unsupported(fields, "attention_bias", "true");
  if (fields.boolean_or("tie_word_embeddings", false)) unsupported(fields, "tie_word_embeddings", "false");
  if (fields.find("hidden_act") != nullptr && fields.get("hidden_act") != "silu") {
    unsupported(fields, "hidden_act", "\"silu\"");
  }
  if (fields.find("quantization_config") == nullptr) return;
  const Fields quantization(fields.get("quantization_config"), fields.where() + ": quantization_config");
  if (quantization.get("quant_method") != "mxfp4") unsupported(quantization, "quant_method", "\"mxfp4\"");
  config.is_mxfp4 = true;
}

HfConfig from_hugging_face(const Fields& fields) {
  HfConfig config = common_fields(fields);
  config.naming = Naming::kHuggingFace;
  config.num_experts = fields.integer("num_local_experts", 1, 65536);
  const bool is_old = fields.find("num_experts_per_tok") == nullptr && fields.find("experts_per_token") != nullptr;
  config.experts_per_token = fields.integer(is_old ? "experts_per_token" : "num_experts_per_tok", 1, 1024);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxContext);
  config.rms_norm_eps = fields.number("rms_norm_eps", {1e-12, 1e-1});
  // transformers/modeling_gpt_oss.py has 7.0 in the code, so a file that it wrote may lack the key.
  config.swiglu_limit = fields.number_or("swiglu_limit", kClampLimits, 7.0);
  read_rope(fields, config);
  read_layer_types(fields, config);
  refuse_variants(fields, config);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.pad_token_id = fields.token_id("pad_token_id");
  config.eos_token_ids = fields.token_ids("eos_token_id");
  return config;
}

HfConfig from_original(const Fields& fields) {
  HfConfig config = common_fields(fields);
  config.naming = Naming::kOriginal;
  config.num_experts = fields.integer("num_experts", 1, 65536);
  config.experts_per_token = fields.integer("experts_per_token", 1, 1024);
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
  config.is_mxfp4 = true;
  return config;
}

}  // namespace

HfConfig parse_hf_config(std::string_view text, std::string_view where) {
  const json object = parse_strict_json(text, where);
  const Fields fields(object, std::string(where));
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
  const Fields fields(object, std::string(where));
  if (const auto id = fields.token_id("bos_token_id")) config.bos_token_id = id;
  if (const auto id = fields.token_id("pad_token_id")) config.pad_token_id = id;
  if (auto ids = fields.token_ids("eos_token_id"); !ids.empty()) config.eos_token_ids = std::move(ids);
}

HfConfig read_hf_config(const std::filesystem::path& directory) {
  const auto where = [](const std::filesystem::path& path) { return fmt::format("[config] {}", path.string()); };
  const std::filesystem::path path = directory / "config.json", generation = directory / "generation_config.json";
  HfConfig config = parse_hf_config(read_text_file(path, kMaxConfigBytes), where(path));
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(generation, ignored))) {  // a dead link is no absence
    apply_generation_config(read_text_file(generation, kMaxConfigBytes), where(generation), config);
  }
  return config;
}

}  // namespace nibble::checkpoint

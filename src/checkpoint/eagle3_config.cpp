#include "checkpoint/eagle3_config.h"

#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace nibble::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kMostConfigBytes = 1 << 20;
constexpr int64_t kMostDim = 1 << 20, kMostVocab = int64_t{1} << 24, kMostPositions = int64_t{1} << 24;
constexpr int64_t kMostHeadLayers = 64, kMostTaps = 64, kUsualTaps = 3;
constexpr Limits kTheta{1.5, 1e12}, kFactor{1, 1e6}, kTurns{1e-3, 1e6};

// Keys that change no draft.
constexpr std::array<std::string_view, 24> kNoDraft = {"architectures",
                                                       "attention_dropout",
                                                       "auto_map",
                                                       "bos_token_id",
                                                       "dtype",
                                                       "embed_requires_grad",
                                                       "eos_token_id",
                                                       "has_no_defaults_at_init",
                                                       "initializer_range",
                                                       "max_position_embeddings",
                                                       "max_window_layers",
                                                       "model_type",
                                                       "name_or_path",
                                                       "pad_token_id",
                                                       "pretraining_tp",
                                                       "return_dict",
                                                       "speculators_config",
                                                       "speculators_version",
                                                       "tokenizer_class",
                                                       "torch_dtype",
                                                       "transformers_version",
                                                       "use_cache",
                                                       "vocab_size",
                                                       "_name_or_path"};

[[noreturn]] void not_supported(JsonObject& object, const char* key, std::string_view want) {
  throw Error(Code::kUnsupported, "{}: {}: want {}, found {}", object.where(), key, want, excerpt_of(object.get(key)));
}

void refuse_unread(const JsonObject& object) {
  for (const std::string& key : object.unread()) {
    if (std::ranges::find(kNoDraft, key) != kNoDraft.end()) continue;
    throw Error(Code::kUnsupported, "{}: {}: want keys of an EAGLE-3 head, found this one, which is not known here",
                object.where(), printable(key));
  }
}

constexpr std::array<const char*, 3> kMaskTokens = {"mask_token_id", "pard_token", "ptd_token_id"};

bool has_mask_token(JsonObject& top) {
  return std::ranges::any_of(kMaskTokens, [&](const char* key) { return top.find(key) != nullptr; });
}

// Architectures of published heads, by what their names have in common. vLLM prefixes Llama's own, so a P-EAGLE head
// may have that.
bool is_head(JsonObject& top) {
  const json* names = top.find("architectures");
  if (names == nullptr || !names->is_array() || names->size() != 1 || !(*names)[0].is_string()) return false;
  const auto name = (*names)[0].get<std::string>();
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  return has("agle3") || has("PEagle") || has("Peagle") || (name == "LlamaForCausalLM" && has_mask_token(top));
}

void read_mask_token(JsonObject& top, bool wanted, Eagle3Config& config) {
  const char* first = kMaskTokens[0];
  for (const char* key : kMaskTokens) {
    if (top.find(key) == nullptr) continue;
    if (!config.mask_token_id) first = key;
    config.mask_token_id = top.token_id(key, config.vocab_size);
    top.require_same(first, top, key);
  }
  const bool parallel = top.boolean_or("parallel_drafting", wanted || config.mask_token_id.has_value());
  if (parallel && !config.mask_token_id)
    throw Error(Code::kCorrupt, "{}: mask_token_id is missing (or pard_token, ptd_token_id), as of every P-EAGLE head",
                top.where());
  if (!parallel && config.mask_token_id)
    throw Error(Code::kCorrupt, "{}: parallel_drafting: want true, as there is {}, found false", top.where(), first);
  if (parallel && !config.use_aux_hidden_state)
    throw Error(Code::kUnsupported, "{}: use_aux_hidden_state: want true of a P-EAGLE head, found false", top.where());
}

void require_only(JsonObject& object, const char* key, const json& only) {
  if (const json* value = object.find(key); value != nullptr && *value != only) not_supported(object, key, only.dump());
}

void read_rope(JsonObject& layer, Eagle3Config& config) {
  const char* key = layer.either("rope_scaling", "rope_parameters");
  const json* object = layer.find(key);
  layer.require_same("rope_scaling", layer, "rope_parameters");
  if (object == nullptr) {
    config.rope_theta = layer.number_or("rope_theta", kTheta, 10000);
    return;
  }
  JsonObject rope(*object, fmt::format("{}: {}", layer.where(), key));
  JsonObject& with_theta = rope.find("rope_theta") != nullptr ? rope : layer;
  config.rope_theta = with_theta.number_or("rope_theta", kTheta, 10000);
  rope.require_same("rope_theta", layer, "rope_theta");
  const char* type_key = rope.either("rope_type", "type");
  rope.require_same("rope_type", rope, "type");
  const json& type = rope.get(type_key);
  if (type == "llama3" || type == "yarn") {
    config.rope_factor = rope.number("factor", kFactor);
    config.rope_original_context = rope.integer("original_max_position_embeddings", 1, kMostPositions);
  }
  if (type == "llama3") {
    config.rope = Eagle3Rope::kLlama3;
    config.rope_low_freq_factor = rope.number("low_freq_factor", kTurns);
    config.rope_high_freq_factor = rope.number("high_freq_factor", kTurns);
    if (config.rope_high_freq_factor <= config.rope_low_freq_factor)
      throw Error(Code::kCorrupt, "{}: high_freq_factor: want more than low_freq_factor {}, found {}", rope.where(),
                  config.rope_low_freq_factor, config.rope_high_freq_factor);
  } else if (type == "yarn") {
    config.rope = Eagle3Rope::kYarn;
    config.rope_beta_fast = rope.number_or("beta_fast", kTurns, 32);
    config.rope_beta_slow = rope.number_or("beta_slow", kTurns, 1);
    config.rope_truncate = rope.boolean_or("truncate", true);
  } else if (type != "default") {
    not_supported(rope, type_key, "\"default\", \"llama3\" or \"yarn\"");
  }
  refuse_unread(rope);
}

// The keys of a Llama layer.
void read_layer(JsonObject& layer, Eagle3Config& config) {
  require_only(layer, "model_type", "llama");
  require_only(layer, "hidden_act", "silu");
  require_only(layer, "tie_word_embeddings", false);
  config.num_hidden_layers =
      layer.find("num_hidden_layers") == nullptr ? 1 : layer.integer("num_hidden_layers", 1, kMostHeadLayers);
  config.hidden_size = layer.integer("hidden_size", 1, kMostDim);
  config.intermediate_size = layer.integer("intermediate_size", 1, kMostDim);
  config.num_attention_heads = layer.integer("num_attention_heads", 1, 4096);
  config.num_key_value_heads = layer.find("num_key_value_heads") == nullptr
                                   ? config.num_attention_heads
                                   : layer.integer("num_key_value_heads", 1, 4096);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    throw Error(Code::kCorrupt, "{}: num_key_value_heads: want a divisor of num_attention_heads {}, found {}",
                layer.where(), config.num_attention_heads, config.num_key_value_heads);
  config.head_dim = layer.find("head_dim") == nullptr ? config.hidden_size / config.num_attention_heads
                                                      : layer.integer("head_dim", 2, 4096);
  if (config.head_dim < 2 || config.head_dim % 2 != 0)
    throw Error(Code::kUnsupported, "{}: head_dim: want an even number, found {}", layer.where(), config.head_dim);
  config.rms_norm_eps = layer.number("rms_norm_eps", {0, 1});
  // As transformers' Llama: attention_bias is of all four matrices, qkv_bias of the three that read.
  const bool all = layer.boolean_or("attention_bias", false);
  config.o_bias = layer.boolean_or("bias", false) || all;
  config.qkv_bias = layer.boolean_or("qkv_bias", config.o_bias);
  config.mlp_bias = layer.boolean_or("mlp_bias", false);
  const bool slides = layer.boolean_or("use_sliding_window", true);
  if (layer.find("sliding_window") != nullptr) {
    const int64_t window = layer.integer("sliding_window", 1, kMostPositions);
    if (slides) config.sliding_window = window;
  }
  read_rope(layer, config);
}

struct KeyPlace {
  JsonObject* object;
  const char* key;
};

// The keys of the head itself: at the top or in eagle_config. Where both have one, they agree.
class HeadKeys {
 public:
  HeadKeys(JsonObject& top, JsonObject* inner) : top_(top), inner_(inner) {}

  [[nodiscard]] KeyPlace at(const char* key) {
    const bool in_inner = inner_ != nullptr && inner_->find(key) != nullptr;
    if (in_inner) top_.require_same(key, *inner_, key);
    return {in_inner ? inner_ : &top_, key};
  }
  [[nodiscard]] bool boolean(const char* key, bool otherwise) {
    const KeyPlace found = at(key);
    return found.object->boolean_or(key, otherwise);
  }
  [[nodiscard]] std::optional<std::vector<int64_t>> ids(const char* key) {
    const KeyPlace found = at(key);
    const json* value = found.object->find(key);
    if (value == nullptr) return std::nullopt;
    const std::string want = "a rising list of layer ids";
    if (!value->is_array() || value->empty() || std::ssize(*value) > kMostTaps) not_supported(*found.object, key, want);
    std::vector<int64_t> ids;
    for (const json& id : *value) {
      const bool fits = id.is_number_integer() && (ids.empty() || id.get<int64_t>() > ids.back());
      if (!fits || id.get<int64_t>() < -1 || id.get<int64_t>() > 1024) not_supported(*found.object, key, want);
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }

 private:
  JsonObject& top_;
  JsonObject* inner_;
};

void read_head(HeadKeys keys, JsonObject& top, Eagle3Config& config) {
  config.use_aux_hidden_state = keys.boolean("use_aux_hidden_state", true);
  config.layer_ids = keys.ids("eagle_aux_hidden_state_layer_ids");
  if (const auto other = keys.ids("layer_ids")) {
    if (config.layer_ids && *config.layer_ids != *other)
      throw Error(Code::kCorrupt, "{}: layer_ids: want what eagle_aux_hidden_state_layer_ids says, found another list",
                  top.where());
    config.layer_ids = other;
  }
  // A head of the last state only says so in either way.
  if (config.layer_ids && *config.layer_ids == std::vector<int64_t>{-1}) config.use_aux_hidden_state = false;
  if (!config.use_aux_hidden_state) config.layer_ids.reset();
  config.num_aux_hidden_states = !config.use_aux_hidden_state ? 1
                                 : config.layer_ids           ? std::ssize(*config.layer_ids)
                                                              : kUsualTaps;
  if (const KeyPlace count = keys.at("num_aux_hidden_states"); count.object->find(count.key) != nullptr) {
    const int64_t said = count.object->integer(count.key, 1, kMostTaps);
    if (said != config.num_aux_hidden_states)
      throw Error(Code::kCorrupt, "{}: num_aux_hidden_states: want {}, as many as layers are read, found {}",
                  count.object->where(), config.num_aux_hidden_states, said);
  }
  config.norm_before_fc = keys.boolean("norm_before_fc", false);
  config.fc_norm = keys.boolean("fc_norm", false);
  config.fc_norm |= keys.boolean("use_aux_norm", false);
  config.norm_output = keys.boolean("norm_output", false);
  config.target_hidden_size =
      top.find("target_hidden_size") == nullptr ? config.hidden_size : top.integer("target_hidden_size", 1, kMostDim);
  config.draft_vocab_size = top.find("draft_vocab_size") == nullptr
                                ? config.vocab_size
                                : top.integer("draft_vocab_size", 1, config.vocab_size);
  config.logit_scale = top.number_or("logit_scale", {1e-6, 1e6}, 1);
}

}  // namespace

Eagle3Config parse_eagle3_config(std::string_view text, std::string_view where) {
  const json object = parse_strict_json(text, where);
  JsonObject top(object, std::string(where));
  if (!is_head(top)) {
    const json* names = top.find("architectures");
    throw Error(Code::kUnsupported, "{}: architectures: want one of an EAGLE-3 head, found {}", where,
                names == nullptr ? "none" : excerpt_of(*names));
  }
  if (top.find("dflash_config") != nullptr)
    not_supported(top, "dflash_config", "none: an EAGLE-3 or P-EAGLE head, not DFlash");
  Eagle3Config config{.where = std::string(where)};
  const json* kind = top.find("speculators_model_type");
  const bool speculators = kind != nullptr, peagle = speculators && *kind == "peagle";
  if (speculators) {
    if (!peagle) require_only(top, "speculators_model_type", "eagle3");
    JsonObject layer(top.get("transformer_layer_config"), fmt::format("{}: transformer_layer_config", where));
    read_layer(layer, config);
    config.vocab_size = layer.integer("vocab_size", 1, kMostVocab);
    refuse_unread(layer);
  } else {
    read_layer(top, config);
    config.vocab_size = top.integer("vocab_size", 1, kMostVocab);
  }
  config.norm_before_residual = top.boolean_or("norm_before_residual", speculators && !peagle);
  if (const json* inner = top.find("eagle_config")) {
    JsonObject fields(*inner, fmt::format("{}: eagle_config", where));
    read_head({top, &fields}, top, config);
    refuse_unread(fields);
  } else {
    read_head({top, nullptr}, top, config);
  }
  read_mask_token(top, peagle, config);
  if (config.norm_before_fc && config.fc_norm)
    throw Error(Code::kUnsupported, "{}: fc_norm: want one of norm_before_fc and fc_norm, found both", where);
  refuse_unread(top);
  return config;
}

Eagle3Config read_eagle3_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  return parse_eagle3_config(read_text_file(path, kMostConfigBytes), path.string());
}

}  // namespace nibble::checkpoint

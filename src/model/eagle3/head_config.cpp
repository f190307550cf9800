#include "model/eagle3/head.h"

#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace nibble::model::eagle3 {
namespace {

using checkpoint::excerpt_of;
using checkpoint::JsonObject;
using checkpoint::Limits;
using checkpoint::printable;
using nlohmann::json;

constexpr int64_t kMostConfigBytes = 1 << 20;
constexpr int64_t kMostDim = 1 << 20, kMostVocab = int64_t{1} << 24, kMostPositions = int64_t{1} << 24;
constexpr int64_t kMostHeadLayers = 64, kMostTaps = 64, kUsualTaps = 3;
constexpr Limits kTheta{1.5, 1e12}, kFactor{1, 1e6}, kTurns{1e-3, 1e6};

// Keys that change no draft.
constexpr std::string_view kNoDraft =
    "architectures attention_dropout auto_map bos_token_id dtype embed_requires_grad eos_token_id "
    "has_no_defaults_at_init initializer_range max_position_embeddings max_window_layers model_type name_or_path "
    "pad_token_id pretraining_tp return_dict speculators_config speculators_version tokenizer_class torch_dtype "
    "transformers_version use_cache vocab_size _name_or_path";

void refuse_unread(const JsonObject& object) {
  for (const std::string& key : object.unread(kNoDraft))
    throw Error(Code::kUnsupported, "{}: {}: want keys of an EAGLE-3 head, found this one, which is not known here",
                object.where(), printable(key));
}

constexpr std::array<const char*, 3> kMaskTokens = {"mask_token_id", "pard_token", "ptd_token_id"};

// Architectures of published heads, by what their names have in common. vLLM prefixes Llama's own, so a P-EAGLE head
// may have that.
bool is_head(JsonObject& top) {
  const json* names = top.find("architectures");
  if (names == nullptr || !names->is_array() || names->size() != 1 || !(*names)[0].is_string()) return false;
  const auto name = (*names)[0].get<std::string>();
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  const bool masks = std::ranges::any_of(kMaskTokens, [&](const char* key) { return top.find(key) != nullptr; });
  return has("agle3") || has("PEagle") || has("Peagle") || (name == "LlamaForCausalLM" && masks);
}

void read_mask_token(JsonObject& top, bool wanted, Head& head) {
  const char* first = kMaskTokens[0];
  for (const char* key : kMaskTokens) {
    if (top.find(key) == nullptr) continue;
    if (!head.mask_token) first = key;
    head.mask_token = static_cast<int32_t>(*top.token_id(key, head.reads.target_vocab));
    top.require_same(first, top, key);
  }
  const bool parallel = top.boolean_or("parallel_drafting", wanted || head.mask_token.has_value());
  if (parallel && !head.mask_token)
    throw Error(Code::kCorrupt, "{}: mask_token_id is missing (or pard_token, ptd_token_id), as of every P-EAGLE head",
                top.where());
  if (!parallel && head.mask_token)
    throw Error(Code::kCorrupt, "{}: parallel_drafting: want true, as there is {}, found false", top.where(), first);
  if (parallel && !head.reads.fc)
    throw Error(Code::kUnsupported, "{}: use_aux_hidden_state: want true of a P-EAGLE head, found false", top.where());
}

void require_only(JsonObject& object, const char* key, const json& only) {
  if (const json* value = object.find(key); value != nullptr && *value != only) object.unsupported(key, only.dump());
}

RopeTable read_rope(JsonObject& layer, int64_t head_dim) {
  const char* key = layer.either("rope_scaling", "rope_parameters");
  const json* object = layer.find(key);
  layer.require_same("rope_scaling", layer, "rope_parameters");
  if (object == nullptr) return plain_rope(layer.number_or("rope_theta", kTheta, 10000), head_dim);
  JsonObject rope(*object, fmt::format("{}: {}", layer.where(), key));
  JsonObject& with_theta = rope.find("rope_theta") != nullptr ? rope : layer;
  const double theta = with_theta.number_or("rope_theta", kTheta, 10000);
  rope.require_same("rope_theta", layer, "rope_theta");
  const char* type_key = rope.either("rope_type", "type");
  rope.require_same("rope_type", rope, "type");
  const json& type = rope.get(type_key);
  const auto original_context = [&] { return rope.integer("original_max_position_embeddings", 1, kMostPositions); };
  RopeTable table;
  if (type == "llama3") {
    const Llama3Rope llama3{.theta = theta,
                            .factor = rope.number("factor", kFactor),
                            .low_rotations = rope.number("low_freq_factor", kTurns),
                            .high_rotations = rope.number("high_freq_factor", kTurns),
                            .original_context = original_context()};
    if (llama3.high_rotations <= llama3.low_rotations)
      throw Error(Code::kCorrupt, "{}: high_freq_factor: want more than low_freq_factor {}, found {}", rope.where(),
                  llama3.low_rotations, llama3.high_rotations);
    table = llama3_rope(llama3, head_dim);
  } else if (type == "yarn") {
    table = yarn_rope({.theta = theta,
                       .factor = rope.number("factor", kFactor),
                       .beta_fast = rope.number_or("beta_fast", kTurns, 32),
                       .beta_slow = rope.number_or("beta_slow", kTurns, 1),
                       .original_context = original_context(),
                       .truncate = rope.boolean_or("truncate", true)},
                      head_dim);
  } else if (type == "default") {
    table = plain_rope(theta, head_dim);
  } else {
    rope.unsupported(type_key, "\"default\", \"llama3\" or \"yarn\"");
  }
  refuse_unread(rope);
  return table;
}

// The keys of a Llama layer.
void read_layer(JsonObject& layer, Head& head) {
  require_only(layer, "model_type", "llama");
  require_only(layer, "hidden_act", "silu");
  require_only(layer, "tie_word_embeddings", false);
  const auto integer_or = [&](const char* key, int64_t least, int64_t most, int64_t otherwise) {
    return layer.find(key) == nullptr ? otherwise : layer.integer(key, least, most);
  };
  backend::Dims& d = head.config.dims;
  d.layers = integer_or("num_hidden_layers", 1, kMostHeadLayers, 1);
  d.hidden = layer.integer("hidden_size", 1, kMostDim);
  d.inter = layer.integer("intermediate_size", 1, kMostDim);
  d.heads = layer.integer("num_attention_heads", 1, 4096);
  d.kv_heads = integer_or("num_key_value_heads", 1, 4096, d.heads);
  if (d.heads % d.kv_heads != 0)
    throw Error(Code::kCorrupt, "{}: num_key_value_heads: want a divisor of num_attention_heads {}, found {}",
                layer.where(), d.heads, d.kv_heads);
  d.head_dim = integer_or("head_dim", 2, 4096, d.hidden / d.heads);
  if (d.head_dim < 2 || d.head_dim % 2 != 0)
    throw Error(Code::kUnsupported, "{}: head_dim: want an even number, found {}", layer.where(), d.head_dim);
  d.experts = d.topk = 1;
  head.config.rms_eps = static_cast<float>(layer.number("rms_norm_eps", {0, 1}));
  // As transformers' Llama: attention_bias is of all four matrices, qkv_bias of the three that read.
  const bool all = layer.boolean_or("attention_bias", false);
  head.o_bias = layer.boolean_or("bias", false) || all;
  head.qkv_bias = layer.boolean_or("qkv_bias", head.o_bias);
  head.mlp_bias = layer.boolean_or("mlp_bias", false);
  const int64_t window = integer_or("sliding_window", 1, kMostPositions, 0);  // 0: all keys are seen
  const bool slides = layer.boolean_or("use_sliding_window", true) && window > 0;
  d.sliding_window = slides ? window : backend::kPageTokens;
  head.config.layer_kinds.assign(static_cast<size_t>(d.layers), slides ? LayerKind::kSliding : LayerKind::kFull);
  head.rope = read_rope(layer, d.head_dim);
  head.reads.target_vocab = layer.integer("vocab_size", 1, kMostVocab);
}

// The object with a key of the head itself: eagle_config (`inner`), if that has it, else the top. Where both have it,
// they agree.
JsonObject& object_of(const char* key, JsonObject& top, JsonObject* inner) {
  if (inner == nullptr || inner->find(key) == nullptr) return top;
  top.require_same(key, *inner, key);
  return *inner;
}

std::optional<std::vector<int64_t>> read_layer_ids(JsonObject& object, const char* key) {
  const json* value = object.find(key);
  if (value == nullptr) return std::nullopt;
  constexpr std::string_view kWant = "a rising list of layer ids";
  if (!value->is_array() || value->empty() || std::ssize(*value) > kMostTaps) object.unsupported(key, kWant);
  std::vector<int64_t> ids;
  for (const json& id : *value) {
    const bool fits = id.is_number_integer() && (ids.empty() || id.get<int64_t>() > ids.back());
    if (!fits || id.get<int64_t>() < -1 || id.get<int64_t>() > 1024) object.unsupported(key, kWant);
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

void read_head(JsonObject& top, JsonObject* inner, Head& head) {
  const auto boolean = [&](const char* key) { return object_of(key, top, inner).boolean_or(key, false); };
  const auto ids = [&](const char* key) { return read_layer_ids(object_of(key, top, inner), key); };
  backend::HeadConfig& reads = head.reads;
  reads.fc = object_of("use_aux_hidden_state", top, inner).boolean_or("use_aux_hidden_state", true);
  head.layer_ids = ids("eagle_aux_hidden_state_layer_ids");
  if (const auto other = ids("layer_ids")) {
    if (head.layer_ids && *head.layer_ids != *other)
      throw Error(Code::kCorrupt, "{}: layer_ids: want what eagle_aux_hidden_state_layer_ids says, found another list",
                  top.where());
    head.layer_ids = other;
  }
  // A head of the last state only says so in either way.
  if (head.layer_ids && *head.layer_ids == std::vector<int64_t>{-1}) reads.fc = false;
  if (!reads.fc) head.layer_ids.reset();
  reads.taps = !reads.fc ? 1 : head.layer_ids ? std::ssize(*head.layer_ids) : kUsualTaps;
  constexpr const char* kTaps = "num_aux_hidden_states";
  if (JsonObject& object = object_of(kTaps, top, inner); object.find(kTaps) != nullptr) {
    if (const int64_t said = object.integer(kTaps, 1, kMostTaps); said != reads.taps)
      throw Error(Code::kCorrupt, "{}: {}: want {}, as many as layers are read, found {}", object.where(), kTaps,
                  reads.taps, said);
  }
  const bool norm_before_fc = boolean("norm_before_fc");
  head.fc_norm = boolean("fc_norm");
  head.fc_norm |= boolean("use_aux_norm");
  if (norm_before_fc && head.fc_norm)
    throw Error(Code::kUnsupported, "{}: fc_norm: want one of norm_before_fc and fc_norm, found both", top.where());
  reads.tap_norms = head.fc_norm ? reads.taps : norm_before_fc || !reads.fc ? 1 : 0;
  reads.tap_eps = head.config.rms_eps;
  reads.norm_output = boolean("norm_output");
  const int64_t hidden = head.config.dims.hidden;
  reads.target_hidden =
      top.find("target_hidden_size") == nullptr ? hidden : top.integer("target_hidden_size", 1, kMostDim);
  head.config.dims.vocab = top.find("draft_vocab_size") == nullptr
                               ? reads.target_vocab
                               : top.integer("draft_vocab_size", 1, reads.target_vocab);
  head.logit_scale = top.number_or("logit_scale", {1e-6, 1e6}, 1);
}

}  // namespace

Head parse_head_config(std::string_view text, std::string_view where, const backend::Dims& target) {
  const json object = checkpoint::parse_strict_json(text, where);
  JsonObject top(object, std::string(where));
  if (!is_head(top)) {
    const json* names = top.find("architectures");
    throw Error(Code::kUnsupported, "{}: architectures: want one of an EAGLE-3 head, found {}", where,
                names == nullptr ? "none" : excerpt_of(*names));
  }
  if (top.find("dflash_config") != nullptr)
    top.unsupported("dflash_config", "none: an EAGLE-3 or P-EAGLE head, not DFlash");
  Head head;
  head.where = where;
  head.config.dims.max_context = target.max_context;
  const json* kind = top.find("speculators_model_type");
  const bool speculators = kind != nullptr, peagle = speculators && *kind == "peagle";
  if (speculators) {
    if (!peagle) require_only(top, "speculators_model_type", "eagle3");
    JsonObject layer(top.get("transformer_layer_config"), fmt::format("{}: transformer_layer_config", where));
    read_layer(layer, head);
    refuse_unread(layer);
  } else {
    read_layer(top, head);
  }
  head.reads.norm_before_residual = top.boolean_or("norm_before_residual", speculators && !peagle);
  if (const json* inner = top.find("eagle_config")) {
    JsonObject fields(*inner, fmt::format("{}: eagle_config", where));
    read_head(top, &fields, head);
    refuse_unread(fields);
  } else {
    read_head(top, nullptr, head);
  }
  read_mask_token(top, peagle, head);
  refuse_unread(top);
  return head;
}

Head read_head_config(const std::filesystem::path& directory, const backend::Dims& target) {
  const std::filesystem::path path = directory / "config.json";
  return parse_head_config(read_text_file(path, kMostConfigBytes), path.string(), target);
}

}  // namespace nibble::model::eagle3

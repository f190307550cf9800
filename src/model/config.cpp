#include "model/config.h"

#include "base/error.h"
#include "base/mx.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble::model {
namespace {

// gpt_oss/torch/model.py, ModelConfig, where it differs from Hugging Face's.
constexpr ConfigKeys kOriginalKeys{.experts = "num_experts",
                                   .topk = "experts_per_token",
                                   .factor = "rope_scaling_factor",
                                   .beta_fast = "rope_ntk_beta",
                                   .beta_slow = "rope_ntk_alpha",
                                   .original_context = "initial_context_length"};

// Begins each message with `where` and a key.
struct Checks {
  std::string_view where;

  void require(bool holds, Code code, std::string_view key, const std::string& message) const {
    if (!holds) throw Error(code, "{}: {}: {}", where, key, message);
  }

  void positive(std::string_view key, int64_t value) const {
    require(value > 0, Code::kCorrupt, key, fmt::format("want at least 1, found {}", value));
  }

  void multiple_of_block(std::string_view key, int64_t value) const {
    require(value % kMxBlock == 0, Code::kUnsupported, key,
            fmt::format("want a multiple of {} (MXFP4 blocks), found {}", kMxBlock, value));
  }

  void token_id(std::string_view key, int64_t id, int64_t vocab) const {
    require(id >= 0 && id < vocab, Code::kCorrupt, key, fmt::format("want 0 to {}, found {}", vocab - 1, id));
  }
};

void validate_dims(const backend::Dims& d, const Checks& checks, const ConfigKeys& keys) {
  checks.positive(keys.layers, d.layers);
  checks.positive(keys.hidden, d.hidden);
  checks.positive(keys.heads, d.heads);
  checks.positive(keys.kv_heads, d.kv_heads);
  checks.positive(keys.head_dim, d.head_dim);
  checks.positive(keys.inter, d.inter);
  checks.positive(keys.experts, d.experts);
  checks.positive(keys.topk, d.topk);
  checks.positive(keys.vocab, d.vocab);
  checks.positive(keys.sliding_window, d.sliding_window);
  checks.positive(keys.max_context, d.max_context);
  checks.multiple_of_block(keys.hidden, d.hidden);
  checks.multiple_of_block(keys.inter, d.inter);
  checks.require(d.heads % d.kv_heads == 0, Code::kCorrupt, keys.heads,
                 fmt::format("want a multiple of {} = {}, found {}", keys.kv_heads, d.kv_heads, d.heads));
  checks.require(d.head_dim % 2 == 0, Code::kUnsupported, keys.head_dim,
                 fmt::format("want an even number (rope rotates pairs), found {}", d.head_dim));
  checks.require(d.topk <= d.experts, Code::kCorrupt, keys.topk,
                 fmt::format("want at most {} = {}, found {}", keys.experts, d.experts, d.topk));
}

ModelConfig gpt_oss(int64_t layers, int64_t experts) {
  ModelConfig config;
  config.dims = {.layers = layers,
                 .hidden = 2880,
                 .heads = 64,
                 .kv_heads = 8,
                 .head_dim = 64,
                 .inter = 2880,
                 .experts = experts,
                 .topk = 4,
                 .vocab = 201088,
                 .sliding_window = 128,
                 .max_context = 131072};
  config.layer_kinds = alternating_layers(layers);
  config.bos_id = 199998;
  config.pad_id = 199999;
  config.eos_ids = {200002, 199999, 200012};  // generation_config.json: return, endoftext, call
  return config;
}

}  // namespace

int64_t ModelConfig::layers_of(LayerKind kind) const {
  return std::count(layer_kinds.begin(), layer_kinds.end(), kind);
}

std::vector<LayerKind> alternating_layers(int64_t layers) {
  std::vector<LayerKind> kinds;
  for (int64_t l = 0; l < layers; ++l) kinds.push_back(l % 2 == 0 ? LayerKind::kSliding : LayerKind::kFull);
  return kinds;
}

ModelConfig from_hf(const checkpoint::HfConfig& hf) {
  ModelConfig config;
  config.dims = {.layers = hf.num_hidden_layers,
                 .hidden = hf.hidden_size,
                 .heads = hf.num_attention_heads,
                 .kv_heads = hf.num_key_value_heads,
                 .head_dim = hf.head_dim,
                 .inter = hf.intermediate_size,
                 .experts = hf.num_experts,
                 .topk = hf.experts_per_token,
                 .vocab = hf.vocab_size,
                 .sliding_window = hf.sliding_window,
                 .max_context = hf.max_position_embeddings};
  config.rope = {.theta = hf.rope_theta,
                 .factor = hf.rope_factor,
                 .beta_fast = hf.rope_beta_fast,
                 .beta_slow = hf.rope_beta_slow,
                 .original_context = hf.rope_original_context,
                 .truncate = hf.rope_truncate};
  config.rms_eps = static_cast<float>(hf.rms_norm_eps);
  config.swiglu_limit = static_cast<float>(hf.swiglu_limit);
  config.layer_kinds = alternating_layers(hf.num_hidden_layers);
  if (hf.layer_is_sliding) {
    config.layer_kinds.clear();
    for (const bool sliding : *hf.layer_is_sliding) {
      config.layer_kinds.push_back(sliding ? LayerKind::kSliding : LayerKind::kFull);
    }
  }
  if (hf.bos_token_id) config.bos_id = static_cast<int32_t>(*hf.bos_token_id);
  if (hf.pad_token_id) config.pad_id = static_cast<int32_t>(*hf.pad_token_id);
  for (const int64_t id : hf.eos_token_ids) config.eos_ids.push_back(static_cast<int32_t>(id));
  validate(config, hf.where, hf.naming == checkpoint::Naming::kOriginal ? kOriginalKeys : ConfigKeys());
  return config;
}

void validate(const ModelConfig& config, std::string_view where, const ConfigKeys& keys) {
  const Checks checks{where};
  const backend::Dims& d = config.dims;
  validate_dims(d, checks, keys);
  checks.require(static_cast<int64_t>(config.layer_kinds.size()) == d.layers, Code::kCorrupt, keys.layer_kinds,
                 fmt::format("want one per layer = {}, found {}", d.layers, config.layer_kinds.size()));
  const RopeConfig& r = config.rope;
  checks.require(r.theta > 1, Code::kCorrupt, keys.theta, fmt::format("want more than 1, found {}", r.theta));
  checks.require(r.factor >= 1, Code::kCorrupt, keys.factor, fmt::format("want at least 1, found {}", r.factor));
  checks.require(r.beta_slow > 0, Code::kCorrupt, keys.beta_slow,
                 fmt::format("want more than 0, found {}", r.beta_slow));
  checks.require(r.beta_fast > r.beta_slow, Code::kCorrupt, keys.beta_fast,
                 fmt::format("want more than {} = {}, found {}", keys.beta_slow, r.beta_slow, r.beta_fast));
  checks.require(r.original_context > 0, Code::kCorrupt, keys.original_context,
                 fmt::format("want at least 1, found {}", r.original_context));
  checks.require(config.rms_eps > 0, Code::kCorrupt, keys.rms_eps,
                 fmt::format("want more than 0, found {}", config.rms_eps));
  checks.require(config.swiglu_limit > 0, Code::kCorrupt, keys.swiglu_limit,
                 fmt::format("want more than 0, found {}", config.swiglu_limit));
  if (config.bos_id) checks.token_id(keys.bos, *config.bos_id, d.vocab);
  if (config.pad_id) checks.token_id(keys.pad, *config.pad_id, d.vocab);
  for (const int32_t id : config.eos_ids) checks.token_id(keys.eos, id, d.vocab);
}

ModelConfig truncated(const ModelConfig& config, int64_t layers) {
  if (layers < 1 || layers > config.dims.layers) {
    throw Error(Code::kInvalidRequest, "--layers: want 1 to {}, found {}", config.dims.layers, layers);
  }
  ModelConfig result = config;
  result.dims.layers = layers;
  result.layer_kinds.resize(static_cast<size_t>(layers));
  return result;
}

ModelConfig gpt_oss_20b() { return gpt_oss(24, 32); }

ModelConfig gpt_oss_120b() { return gpt_oss(36, 128); }

ModelConfig tiny() {
  ModelConfig config = gpt_oss(4, 8);
  config.dims.hidden = 64;
  config.dims.inter = 96;
  config.dims.heads = 4;
  config.dims.kv_heads = 2;
  return config;
}

ModelConfig preset(std::string_view name) {
  if (name == "gpt-oss-20b") return gpt_oss_20b();
  if (name == "gpt-oss-120b") return gpt_oss_120b();
  if (name == "tiny") return tiny();
  throw Error(Code::kInvalidRequest, "want gpt-oss-20b, gpt-oss-120b or tiny, found {}", name);
}

RopeTable plain_rope(double theta, int64_t head_dim) {
  RopeTable table;
  for (int64_t i = 0; i < head_dim; i += 2)
    table.inv_freq.push_back(
        static_cast<float>(1.0 / std::pow(theta, static_cast<double>(i) / static_cast<double>(head_dim))));
  return table;
}

RopeTable llama3_rope(const Llama3Rope& rope, int64_t head_dim) {
  RopeTable table = plain_rope(rope.theta, head_dim);
  for (float& freq : table.inv_freq) {
    const double rotations = static_cast<double>(rope.original_context) * freq / (2 * std::numbers::pi);
    const double keep =
        std::clamp((rotations - rope.low_rotations) / (rope.high_rotations - rope.low_rotations), 0.0, 1.0);
    freq = static_cast<float>(freq * keep + freq / rope.factor * (1 - keep));
  }
  return table;
}

RopeTable yarn_rope(const RopeConfig& rope, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  // The dimension whose wave has `rotations` rotations within the original context.
  const auto dim_of = [&](double rotations) {
    return static_cast<double>(half) *
           std::log(static_cast<double>(rope.original_context) / (rotations * 2 * std::numbers::pi)) /
           std::log(rope.theta);
  };
  double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim) - 1.0);
  if (low == high) high += 0.001;  // as transformers: no division by zero
  RopeTable table;
  table.concentration = static_cast<float>(rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1.0 : 1.0);
  for (int64_t i = 0; i < half; ++i) {
    const auto freq =
        static_cast<float>(std::pow(rope.theta, static_cast<float>(2 * i) / static_cast<float>(head_dim)));
    const float extrapolated = 1.0f / freq;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * freq);
    const auto ramp = static_cast<float>((static_cast<double>(i) - low) / (high - low));
    const float share = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    table.inv_freq.push_back(interpolated * (1.0f - share) + extrapolated * share);
  }
  return table;
}

}  // namespace nibble::model

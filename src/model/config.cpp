#include "model/config.h"

#include "base/error.h"

#include <algorithm>

namespace nibble::model {
namespace {

constexpr int64_t kBlock = 32;  // MXFP4: values per scale (OCP MX v1.0)

// Refuses values, naming where they come from.
struct Rules {
  std::string_view where;

  void require(bool holds, Code code, const std::string& message) const {
    if (!holds) throw Error(code, "{}: {}", where, message);
  }

  void require_positive(const char* name, int64_t value) const {
    require(value > 0, Code::kCorrupt, fmt::format("{}: want at least 1, found {}", name, value));
  }

  void check_token_id(const char* name, int64_t id, int64_t vocab) const {
    require(id >= 0 && id < vocab, Code::kCorrupt,
            fmt::format("{}: want 0 to vocab-1 = {}, found {}", name, vocab - 1, id));
  }

  void dims(const backend::Dims& d) const {
    require_positive("layers", d.layers);
    require_positive("hidden", d.hidden);
    require_positive("heads", d.heads);
    require_positive("kv_heads", d.kv_heads);
    require_positive("head_dim", d.head_dim);
    require_positive("inter", d.inter);
    require_positive("experts", d.experts);
    require_positive("topk", d.topk);
    require_positive("vocab", d.vocab);
    require_positive("sliding_window", d.sliding_window);
    require_positive("max_context", d.max_context);
    require(d.hidden % kBlock == 0, Code::kUnsupported,
            fmt::format("hidden: want a multiple of {} (MXFP4 blocks), found {}", kBlock, d.hidden));
    require(d.inter % kBlock == 0, Code::kUnsupported,
            fmt::format("inter: want a multiple of {} (MXFP4 blocks), found {}", kBlock, d.inter));
    require(d.heads % d.kv_heads == 0, Code::kCorrupt,
            fmt::format("heads: want a multiple of kv_heads = {}, found {}", d.kv_heads, d.heads));
    require(d.head_dim % 2 == 0, Code::kUnsupported,
            fmt::format("head_dim: want an even number (rope turns pairs), found {}", d.head_dim));
    require(d.topk <= d.experts, Code::kCorrupt,
            fmt::format("topk: want at most experts = {}, found {}", d.experts, d.topk));
  }
};

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
  validate(config, hf.where);
  return config;
}

void validate(const ModelConfig& config, std::string_view where) {
  const backend::Dims& d = config.dims;
  const Rules rules{where};
  rules.dims(d);
  rules.require(static_cast<int64_t>(config.layer_kinds.size()) == d.layers, Code::kCorrupt,
                fmt::format("layer_kinds: want one per layer = {}, found {}", d.layers, config.layer_kinds.size()));
  const RopeConfig& r = config.rope;
  rules.require(r.theta > 1, Code::kCorrupt, fmt::format("rope theta: want more than 1, found {}", r.theta));
  rules.require(r.factor >= 1, Code::kCorrupt, fmt::format("rope factor: want at least 1, found {}", r.factor));
  rules.require(r.beta_slow > 0 && r.beta_fast > r.beta_slow, Code::kCorrupt,
                fmt::format("rope betas: want 0 < slow < fast, found slow {} and fast {}", r.beta_slow, r.beta_fast));
  rules.require(r.original_context > 0, Code::kCorrupt,
                fmt::format("rope original_context: want at least 1, found {}", r.original_context));
  rules.require(config.rms_eps > 0, Code::kCorrupt, fmt::format("rms_eps: want more than 0, found {}", config.rms_eps));
  rules.require(config.swiglu_limit > 0, Code::kCorrupt,
                fmt::format("swiglu_limit: want more than 0, found {}", config.swiglu_limit));
  if (config.bos_id) rules.check_token_id("bos_id", *config.bos_id, d.vocab);
  if (config.pad_id) rules.check_token_id("pad_id", *config.pad_id, d.vocab);
  for (const int32_t id : config.eos_ids) rules.check_token_id("eos_ids", id, d.vocab);
}

ModelConfig truncated(const ModelConfig& config, int64_t layers) {
  if (layers < 1 || layers > config.dims.layers) {
    throw Error(Code::kInvalidRequest, "[config] layers: want 1 to {}, found {}", config.dims.layers, layers);
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
  throw Error(Code::kInvalidRequest, "[config] want gpt-oss-20b, gpt-oss-120b or tiny, found {}", name);
}

}  // namespace nibble::model

#include "model/config.h"

#include "base/error.h"
#include "base/mx.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

namespace nibble::model {
namespace {

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

int64_t ModelConfig::keys_of(int64_t context) const {
  int64_t keys = 0;
  for (const LayerKind kind : layer_kinds) {
    const int64_t window = dims.window_of(kind);
    keys += window == 0 ? context : std::min(context, window);
  }
  return keys;
}

std::vector<LayerConfig> layers_of(const ModelConfig& config) {
  std::vector<LayerConfig> layers;
  for (size_t l = 0; l < config.layer_kinds.size(); ++l)
    layers.push_back({.window = config.dims.window_of(config.layer_kinds[l]),
                      .experts = experts_of(config.dims, config.layer_experts, static_cast<int>(l))});
  return layers;
}

void set_layers(ModelConfig& config, std::span<const LayerConfig> layers, std::string_view where) {
  backend::Dims& d = config.dims;
  std::set<int64_t> windows, experts;
  for (const LayerConfig& layer : layers) {
    if (layer.window > 0) windows.insert(layer.window);
    experts.insert(layer.experts);
  }
  if (windows.size() > 2)
    throw Error(Code::kUnsupported, "{}: want layers of at most 2 windows, found {}", where, fmt::join(windows, ", "));
  d.layers = std::ssize(layers);
  d.experts = experts.empty() ? 0 : *experts.rbegin();
  if (!windows.empty()) d.sliding_window = *windows.begin();
  if (d.sliding_window == 0) d.sliding_window = d.max_context;  // nobody's
  d.wide_window = windows.size() == 2 ? *windows.rbegin() : 0;
  config.layer_kinds.clear();
  config.layer_experts.clear();
  for (const LayerConfig& layer : layers) {
    config.layer_kinds.push_back(layer.window == 0                  ? LayerKind::kFull
                                 : layer.window == d.sliding_window ? LayerKind::kSliding
                                                                    : LayerKind::kWide);
    if (experts.size() > 1) config.layer_experts.push_back(layer.experts);
  }
}

std::vector<LayerKind> alternating_layers(int64_t layers) {
  std::vector<LayerKind> kinds;
  for (int64_t l = 0; l < layers; ++l) kinds.push_back(l % 2 == 0 ? LayerKind::kSliding : LayerKind::kFull);
  return kinds;
}

double ConfigField::of(const ModelConfig& config) const {
  if (const auto* dim = std::get_if<0>(&member)) return static_cast<double>(config.dims.**dim);
  if (const auto* rope = std::get_if<1>(&member)) return static_cast<double>(config.rope.**rope);
  if (const auto* rope = std::get_if<2>(&member)) return config.rope.**rope;
  return double{config.*std::get<3>(member)};
}

void ConfigField::set(ModelConfig& config, double value) const {
  if (const auto* dim = std::get_if<0>(&member)) config.dims.** dim = static_cast<int64_t>(value);
  if (const auto* rope = std::get_if<1>(&member)) config.rope.** rope = static_cast<int64_t>(value);
  if (const auto* rope = std::get_if<2>(&member)) config.rope.** rope = value;
  if (const auto* number = std::get_if<3>(&member)) config.** number = static_cast<float>(value);
}

void validate(const ModelConfig& config, std::string_view where, Naming naming) {
  const backend::Dims& d = config.dims;
  // A value that the file does not say goes by Hugging Face's name.
  const auto named = [&](const std::array<std::string_view, 3>& names) {
    const std::string_view own = names[static_cast<size_t>(naming)];
    return own.empty() ? names[0] : own;
  };
  const auto name_of = [&](auto member) { return named(field_of(member).names); };
  const auto require = [&](bool holds, Code code, std::string_view name, const std::string& message) {
    if (!holds) throw Error(code, "{}: {}: {}", where, name, message);
  };
  for (const ConfigField& field : kConfigFields) {
    const double value = field.of(config);
    const double rounding = std::holds_alternative<float ModelConfig::*>(field.member) ? 1e-6 : 0;
    require(value >= field.least * (1 - rounding) && value <= field.most * (1 + rounding), Code::kCorrupt,
            named(field.names), fmt::format("want {} to {}, found {}", field.least, field.most, value));
  }
  using backend::Dims;
  for (const auto member : {&Dims::hidden, &Dims::inter})
    require(d.*member % kMxBlock == 0, Code::kUnsupported, name_of(member),
            fmt::format("want a multiple of {} (MXFP4 blocks), found {}", kMxBlock, d.*member));
  require(d.heads % d.kv_heads == 0, Code::kCorrupt, name_of(&Dims::heads),
          fmt::format("want a multiple of {} = {}, found {}", name_of(&Dims::kv_heads), d.kv_heads, d.heads));
  require(d.head_dim % 2 == 0, Code::kUnsupported, name_of(&Dims::head_dim),
          fmt::format("want an even number (rope rotates pairs), found {}", d.head_dim));
  require(d.topk <= d.experts, Code::kCorrupt, name_of(&Dims::topk),
          fmt::format("want at most {} = {}, found {}", name_of(&Dims::experts), d.experts, d.topk));
  for (const int64_t experts : config.layer_experts)
    require(experts >= d.topk && experts <= d.experts, Code::kCorrupt, name_of(&Dims::experts),
            fmt::format("want {} to {} in each layer, found {}", d.topk, d.experts, experts));
  require(std::ssize(config.layer_kinds) == d.layers, Code::kCorrupt, named(kLayerKindsNames),
          fmt::format("want one per layer = {}, found {}", d.layers, config.layer_kinds.size()));
  const RopeConfig& r = config.rope;
  require(r.beta_fast > r.beta_slow, Code::kCorrupt, name_of(&RopeConfig::beta_fast),
          fmt::format("want more than {} = {}, found {}", name_of(&RopeConfig::beta_slow), r.beta_slow, r.beta_fast));
  const auto token_id = [&](const std::array<std::string_view, 3>& names, int32_t id) {
    require(id >= 0 && id < d.vocab, Code::kCorrupt, named(names),
            fmt::format("want 0 to {}, found {}", d.vocab - 1, id));
  };
  if (config.bos_id) token_id(kBosNames, *config.bos_id);
  if (config.pad_id) token_id(kPadNames, *config.pad_id);
  for (const int32_t id : config.eos_ids) token_id(kEosNames, id);
}

ModelConfig truncated(const ModelConfig& config, int64_t layers) {
  if (layers < 1 || layers > config.dims.layers)
    throw Error(Code::kInvalidRequest, "--layers: want 1 to {}, found {}", config.dims.layers, layers);
  ModelConfig result = config;
  std::vector<LayerConfig> first = layers_of(config);
  first.resize(static_cast<size_t>(layers));
  set_layers(result, first, "--layers");
  return result;
}

ModelConfig gpt_oss_20b() { return gpt_oss(24, 32); }

ModelConfig gpt_oss_120b() { return gpt_oss(36, 128); }

// The layers are those that public ports name (vLLM's pull request 38135). The model's card says that its YaRN factor
// is larger than 120b's, not which; config.json does, and shapes do not depend on it.
ModelConfig gpt_oss_puzzle_88b() {
  constexpr std::string_view kWindows = "sfswswsfsfsfsfsfsfsfswswsfswsfswswsw";
  constexpr std::string_view kKinds = "swf";
  constexpr std::array<int64_t, 3> kWidths = {128, 8192, 0};
  ModelConfig config = gpt_oss_120b();
  config.rope.factor = 64;
  std::vector<LayerConfig> layers;
  for (size_t l = 0; l < kWindows.size(); ++l) {
    const bool many = l < 15 || (l < 21 && l % 2 == 0);
    layers.push_back({.window = kWidths[kKinds.find(kWindows[l])], .experts = many ? 128 : 64});
  }
  set_layers(config, layers, "gpt-oss-puzzle-88b");
  return config;
}

ModelConfig tiny() {
  ModelConfig config = gpt_oss(4, 8);
  config.dims.hidden = 64;
  config.dims.inter = 96;
  config.dims.heads = 4;
  config.dims.kv_heads = 2;
  return config;
}

std::string_view ollama_name(const ModelConfig& config) {
  const auto is_like = [&config](const ModelConfig& other) {
    return config.dims.layers == other.dims.layers && config.dims.experts == other.dims.experts &&
           config.layer_experts == other.layer_experts;
  };
  return is_like(gpt_oss_20b()) ? "gpt-oss:20b" : is_like(gpt_oss_120b()) ? "gpt-oss:120b" : "";
}

ModelConfig preset(std::string_view name) {
  if (name == "gpt-oss-20b") return gpt_oss_20b();
  if (name == "gpt-oss-120b") return gpt_oss_120b();
  if (name == "gpt-oss-puzzle-88b") return gpt_oss_puzzle_88b();
  if (name == "tiny") return tiny();
  throw Error(Code::kInvalidRequest, "want gpt-oss-20b, gpt-oss-120b, gpt-oss-puzzle-88b or tiny, found {}", name);
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

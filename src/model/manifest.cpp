#include "model/manifest.h"

#include "backend/shards.h"
#include "base/error.h"
#include "base/ggml_blocks.h"
#include "base/mx.h"
#include "checkpoint/strict_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace nibble::model {
namespace {

using checkpoint::TensorEntry;
using enum WeightRole;

constexpr int64_t kBlockBytes = 16;  // two codes per byte
constexpr int kNanScale = 0xFF;      // E8M0 (OCP MX v1.0)

struct TensorNames {
  WeightRole role;
  Part part;
  std::array<std::string_view, 3> names;  // by Naming, behind "model.layers.N.", "block.N.", "blk.N."; empty: none
  Half half = Half::kWhole;
};

constexpr TensorNames kModelTable[] = {
    {kEmbedding, Part::kValues, {"model.embed_tokens.weight", "embedding.weight", "token_embd.weight"}},
    {kFinalNorm, Part::kValues, {"model.norm.weight", "norm.scale", "output_norm.weight"}},
    {kUnembedding, Part::kValues, {"lm_head.weight", "unembedding.weight", "output.weight"}},
};

constexpr TensorNames kLayerTable[] = {
    {kAttnNorm, Part::kValues, {"input_layernorm.weight", "attn.norm.scale", "attn_norm.weight"}},
    {kQ, Part::kValues, {"self_attn.q_proj.weight", "attn.qkv.weight", "attn_q.weight"}},
    {kQBias, Part::kValues, {"self_attn.q_proj.bias", "attn.qkv.bias", "attn_q.bias"}},
    {kK, Part::kValues, {"self_attn.k_proj.weight", "attn.qkv.weight", "attn_k.weight"}},
    {kKBias, Part::kValues, {"self_attn.k_proj.bias", "attn.qkv.bias", "attn_k.bias"}},
    {kV, Part::kValues, {"self_attn.v_proj.weight", "attn.qkv.weight", "attn_v.weight"}},
    {kVBias, Part::kValues, {"self_attn.v_proj.bias", "attn.qkv.bias", "attn_v.bias"}},
    {kO, Part::kValues, {"self_attn.o_proj.weight", "attn.out.weight", "attn_output.weight"}},
    {kOBias, Part::kValues, {"self_attn.o_proj.bias", "attn.out.bias", "attn_output.bias"}},
    {kSinks, Part::kValues, {"self_attn.sinks", "attn.sinks", "attn_sinks.weight"}},
    {kMlpNorm, Part::kValues, {"post_attention_layernorm.weight", "mlp.norm.scale", "post_attention_norm.weight"}},
    {kRouter, Part::kValues, {"mlp.router.weight", "mlp.gate.weight", "ffn_gate_inp.weight"}},
    {kRouterBias, Part::kValues, {"mlp.router.bias", "mlp.gate.bias", "ffn_gate_inp.bias"}},
    {kGateUp, Part::kValues, {"mlp.experts.gate_up_proj_blocks", "mlp.mlp1_weight.blocks", "ffn_gate_up_exps.weight"}},
    {kGateUp, Part::kScales, {"mlp.experts.gate_up_proj_scales", "mlp.mlp1_weight.scales", ""}},
    {kGateUpBias, Part::kValues, {"mlp.experts.gate_up_proj_bias", "mlp.mlp1_bias", "ffn_gate_up_exps.bias"}},
    {kGateUp, Part::kValues, {"", "", "ffn_gate_exps.weight"}, Half::kEven},
    {kGateUpBias, Part::kValues, {"", "", "ffn_gate_exps.bias"}, Half::kEven},
    {kGateUp, Part::kValues, {"", "", "ffn_up_exps.weight"}, Half::kOdd},
    {kGateUpBias, Part::kValues, {"", "", "ffn_up_exps.bias"}, Half::kOdd},
    {kDown, Part::kValues, {"mlp.experts.down_proj_blocks", "mlp.mlp2_weight.blocks", "ffn_down_exps.weight"}},
    {kDown, Part::kScales, {"mlp.experts.down_proj_scales", "mlp.mlp2_weight.scales", ""}},
    {kDownBias, Part::kValues, {"mlp.experts.down_proj_bias", "mlp.mlp2_bias", "ffn_down_exps.bias"}},
};

Shape mxfp4_shape(Part part, Shape matrix) {
  matrix.back() /= kMxBlock;
  if (part == Part::kValues) matrix.push_back(kBlockBytes);
  return matrix;
}

// The name of float experts: that of their blocks without its end, "_blocks" or ".blocks".
std::string_view float_name(std::string_view blocks) { return blocks.substr(0, blocks.find_last_of("_.")); }

// Rows q | k | v of the original layout (gpt_oss/torch/model.py, AttentionBlock.forward).
int64_t first_fused_row(WeightRole role, const backend::Dims& d) {
  if (role == kK || role == kKBias) return d.q_width();
  if (role == kV || role == kVBias) return d.q_width() + d.kv_width();
  return 0;
}

bool is_fused(WeightRole role) {
  return role == kQ || role == kK || role == kV || role == kQBias || role == kKBias || role == kVBias;
}

ManifestItem item_of(const TensorNames& row, int layer, const ModelConfig& config, Naming naming, Experts experts) {
  constexpr std::string_view kLayers[] = {"model.layers", "block", "blk"};
  backend::Dims d = config.dims;
  d.experts = experts_of(d, config.layer_experts, layer);
  const auto own = static_cast<size_t>(naming);
  ManifestItem item;
  item.role = row.role;
  item.part = row.part;
  item.half = row.half;
  item.layer = layer;
  if (layer >= 0) item.name = fmt::format("{}.{}.", kLayers[own], layer);
  const bool pairs = backend::is_expert_matrix(row.role) && experts != Experts::kFloats,
             floats = backend::is_expert_matrix(row.role) && !pairs;
  item.name += floats ? float_name(row.names[own]) : row.names[own];
  item.dtype = pairs ? DType::kU8 : DType::kBf16;
  item.shape = shape_of(row.role, d);
  if (pairs && naming != Naming::kGguf) item.shape = mxfp4_shape(row.part, std::move(item.shape));
  if (row.half != Half::kWhole) item.shape[1] /= 2;
  item.stored_shape = item.shape;
  item.transposed = floats && naming == Naming::kHuggingFace;
  if (item.transposed) std::swap(item.stored_shape[1], item.stored_shape[2]);
  if (naming == Naming::kOriginal && is_fused(row.role)) {
    item.first_row = first_fused_row(row.role, d);
    item.stored_shape[0] = d.q_width() + 2 * d.kv_width();
  }
  return item;
}

constexpr size_t kMostListed = 5;  // names in one message

// The names that `others` lacks, each once.
std::vector<std::string> not_in(const std::vector<std::string_view>& others,
                                const std::vector<std::string_view>& names) {
  std::unordered_set<std::string_view> known(others.begin(), others.end());
  std::vector<std::string> result;
  for (const std::string_view name : names)
    if (known.insert(name).second) result.push_back(checkpoint::printable(name));
  return result;
}

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMostListed);
  return fmt::format("{}: {}{}", names.size() == 1 ? "1 tensor" : fmt::format("{} tensors", names.size()),
                     fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < names.size() ? ", …" : "");
}

using ByName = std::unordered_map<std::string_view, const TensorEntry*>;

Experts experts_of(const ByName& by_name) {
  const auto has = [&](std::string_view name) { return by_name.contains(name); };
  if (has("blk.0.ffn_gate_up_exps.weight")) return Experts::kWholeGateUp;
  return has("model.layers.0.mlp.experts.gate_up_proj") || has("block.0.mlp.mlp1_weight") ? Experts::kFloats
                                                                                          : Experts::kMxfp4;
}

// Which layer's scale a tensor is, and of what: 'k', 'v' or 'q'. The spellings are those that vLLM reads; which one
// gpt-oss-puzzle-88B has, ports do not say.
std::optional<std::pair<int, char>> kv_scale_of(std::string_view name, int layers) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers) || !name.ends_with("_scale")) return std::nullopt;
  name.remove_prefix(kLayers.size());
  int layer = -1;
  name.remove_prefix(static_cast<size_t>(std::from_chars(name.begin(), name.end(), layer).ptr - name.begin()));
  for (const char of : {'k', 'v', 'q'})
    for (const std::string& within : {std::string(), std::string("attn."), fmt::format("{}_proj.", of)})
      if (layer >= 0 && layer < layers && name == fmt::format(".self_attn.{}{}_scale", within, of))
        return std::pair{layer, of};
  return std::nullopt;
}

// Throws Error(kCorrupt) naming `where` and some of the missing tensors, or else some of the unknown ones. A wanted
// name may occur more than once.
void check_names(const std::vector<ManifestItem>& items, std::span<const TensorEntry> tensors, std::string_view where) {
  std::vector<std::string_view> wanted, found;
  for (const ManifestItem& item : items) wanted.push_back(item.name);
  const int layers = std::ranges::max(items, {}, &ManifestItem::layer).layer + 1;
  for (const TensorEntry& entry : tensors)
    if (!kv_scale_of(entry.name, layers)) found.push_back(entry.name);
  const std::vector<std::string> missing = not_in(found, wanted), extra = not_in(wanted, found);
  if (!missing.empty()) throw Error(Code::kCorrupt, "{} lacks {}", where, listed(missing));
  if (!extra.empty()) throw Error(Code::kCorrupt, "{} has what this model does not: {}", where, listed(extra));
}

void check_type_and_shape(const ManifestItem& item, const RawTensor& tensor, std::string_view where) {
  const bool known = item.dtype == DType::kBf16 ? backend::is_float(tensor.dtype) : tensor.dtype == item.dtype;
  if (known && tensor.shape == item.stored_shape) return;
  throw Error(Code::kCorrupt, "{}: {}: want {}{}, got {}", where, item.name,
              checkpoint::describe(item.dtype, item.stored_shape), item.dtype == DType::kBf16 ? " (or F16, F32)" : "",
              checkpoint::describe(tensor.dtype, tensor.shape));
}

RawTensor rows_of(const ManifestItem& item, const RawTensor& stored) {
  const auto total = static_cast<int64_t>(stored.bytes.size());
  const int64_t row_bytes = total / item.stored_shape[0];
  return {.dtype = stored.dtype,
          .shape = item.shape,
          .bytes = stored.bytes.subspan(static_cast<size_t>(item.first_row * row_bytes),
                                        static_cast<size_t>(item.shape[0] * row_bytes))};
}

bool is_mxfp4(DType dtype) { return dtype == DType::kGgmlMxfp4 || dtype == DType::kOllamaMxfp4 || dtype == DType::kU8; }

// What a backend gets of a tensor: its own format where backends read it. experts: those of experts not in MXFP4.
backend::WeightFormat format_for(WeightRole role, DType dtype, backend::WeightFormat experts) {
  if (backend::is_expert_matrix(role) && !is_mxfp4(dtype)) return experts;
  return backend::is_read(dtype) ? backend::format_of(dtype)
                                 : backend::format_of(exact_type(dtype).value_or(DType::kBf16));
}

// A GGUF tensor: its shape is that of its values, a matrix's type any.
backend::HostWeight gguf_weight(const ManifestItem& item, const RawTensor& tensor, backend::WeightFormat experts,
                                std::string_view where) {
  if (tensor.shape != item.shape)
    throw Error(Code::kCorrupt, "{}: {}: want the shape [{}], got {}", where, item.name, fmt::join(item.shape, ","),
                checkpoint::describe(tensor.dtype, tensor.shape));
  const DTypeInfo& block = info_of(tensor.dtype);
  if (block.values > 1 && !backend::is_matrix(item.role))
    throw Error(Code::kUnsupported, "{}: {}: want F32, F16 or BF16, got {}", where, item.name,
                checkpoint::describe(tensor.dtype, tensor.shape));
  backend::HostWeight weight{.role = item.role,
                             .layer = item.layer,
                             .format = format_for(item.role, tensor.dtype, experts),
                             .values = tensor,
                             .scales = {}};
  if (block.values > 1 && backend::is_read(tensor.dtype) && backend::format_of(tensor.dtype) == weight.format) {
    weight.values.dtype = DType::kU8;
    weight.values.shape.back() /= block.values;
    weight.values.shape.push_back(block.bytes);
  }
  return weight;
}

// The odd rows to the even ones, which are bound already.
void join(backend::HostWeight& odd, std::span<backend::HostWeight> bound) {
  const auto even = std::find_if(bound.rbegin(), bound.rend(), [&](const backend::HostWeight& w) {
    return w.role == odd.role && w.layer == odd.layer;
  });
  check(even != bound.rend(), "gate stands before up in the table");
  // Gate and up are multiplied in one format: the half in MXFP4 becomes what the other half is.
  if (backend::is_expert_matrix(odd.role) && even->format != odd.format) {
    backend::HostWeight& mxfp4 = even->format == backend::WeightFormat::kGgmlMxfp4 ? *even : odd;
    mxfp4.values.dtype = DType::kGgmlMxfp4;
    mxfp4.values.shape.pop_back();
    mxfp4.values.shape.back() *= kMxBlock;
    mxfp4.format = &mxfp4 == &odd ? even->format : odd.format;
  }
  even->odd = std::move(odd.values);
  even->odd_format = odd.format;
}

// Index of the first block of ggml's with a scale that is no finite number, or of the first NaN in an array of scales.
std::optional<int64_t> find_bad_scale(const RawTensor& tensor) {
  if (tensor.dtype == DType::kU8) return find_nan_scale(tensor.bytes);
  const DTypeInfo& block = info_of(tensor.dtype);
  // E8M0's NaN; binary16 with all exponent bits set is an infinity or NaN. Little-endian: the exponent is in the second
  // byte.
  const bool e8m0 = is_mxfp4(tensor.dtype);
  const GgmlScales scales = e8m0 ? GgmlScales{-1, 1} : ggml_scales(tensor.dtype);
  const auto bad = e8m0 ? std::byte{kNanScale} : std::byte{0x7c};
  for (int64_t at = 0; block.values > 1 && at < std::ssize(tensor.bytes); at += block.bytes)
    for (int64_t i = 0; i < scales.count; ++i)
      if ((tensor.bytes[static_cast<size_t>(at + scales.first + 2 * i + 1)] & bad) == bad) return at / block.bytes;
  return std::nullopt;
}

struct ScalesOf {
  const std::string* name;
  RawTensor tensor;
};

void refuse_bad_scales(const std::vector<ScalesOf>& scales, const BindOptions& options) {
  std::vector<std::optional<int64_t>> bad(scales.size());
  parallel_for(options.pool, std::ssize(scales), [&](IndexRange range) {
    for (auto i = static_cast<size_t>(range.begin); i < static_cast<size_t>(range.end); ++i)
      bad[i] = find_bad_scale(scales[i].tensor);
  });
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!bad[i]) continue;
    const RawTensor& tensor = scales[i].tensor;
    if (tensor.dtype == DType::kU8)
      throw Error(Code::kCorrupt, "{}: {}: want E8M0 scales 0 to 254, got 255 (NaN) at index {} of {}", options.where,
                  *scales[i].name, *bad[i], checkpoint::describe(tensor.dtype, tensor.shape));
    throw Error(Code::kCorrupt, "{}: {}: want a finite scale in every block, found {} in block {} of {}", options.where,
                *scales[i].name, is_mxfp4(tensor.dtype) ? "E8M0 255 (NaN)" : "an infinite or NaN F16", *bad[i],
                std::ssize(tensor.bytes) / bytes_of(tensor.dtype));
  }
}

}  // namespace

Shape shape_of(WeightRole role, const backend::Dims& d) {
  const backend::Slice whole = backend::whole_of(role, d);
  Shape shape = {whole.rows.count};
  if (has_experts(role)) shape.insert(shape.begin(), whole.experts.count);
  if (is_matrix(role)) shape.push_back(whole.cols.count);
  return shape;
}

int64_t ManifestItem::bytes() const {
  int64_t n = bytes_of(dtype);
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<ManifestItem> manifest(const ModelConfig& config, Naming naming, Experts experts) {
  std::vector<ManifestItem> items;
  for (const TensorNames& row : kModelTable) items.push_back(item_of(row, -1, config, naming, experts));
  for (int layer = 0; layer < static_cast<int>(config.dims.layers); ++layer) {
    for (const TensorNames& row : kLayerTable) {
      const bool gate_up = row.role == kGateUp || row.role == kGateUpBias, whole = row.half == Half::kWhole;
      if (row.names[static_cast<size_t>(naming)].empty() ||
          (experts == Experts::kFloats && row.part == Part::kScales) ||
          (naming == Naming::kGguf && gate_up && whole != (experts == Experts::kWholeGateUp)))
        continue;
      items.push_back(item_of(row, layer, config, naming, experts));
    }
  }
  return items;
}

Naming naming_of(std::span<const TensorEntry> tensors) {
  for (const TensorEntry& t : tensors) {
    if (t.name.starts_with("block.") || t.name == "embedding.weight") return Naming::kOriginal;
    if (t.name.starts_with("blk.") || t.name == "token_embd.weight") return Naming::kGguf;
  }
  return Naming::kHuggingFace;
}

std::vector<backend::HostWeight> bind_weights(std::span<const TensorEntry> tensors, const ModelConfig& config,
                                              const BindOptions& options) {
  const Naming naming = naming_of(tensors);
  ByName by_name;
  for (const TensorEntry& entry : tensors) by_name.emplace(entry.name, &entry);
  const std::vector<ManifestItem> items = manifest(config, naming, experts_of(by_name));
  check_names(items, tensors, options.where);
  const auto is_rewritten = [&](const ManifestItem& item) {
    return backend::is_expert_matrix(item.role) && !is_mxfp4(by_name.at(item.name)->tensor.dtype);
  };
  if (options.experts && std::ranges::none_of(items, is_rewritten))
    throw Error(Code::kInvalidRequest, "{}: --expert-format: want experts that are not in MXFP4 already, found none",
                options.where);
  const backend::WeightFormat experts = options.experts.value_or(
      naming == Naming::kGguf ? backend::WeightFormat::kGgmlQ8 : backend::WeightFormat::kGgmlMxfp4);

  std::vector<backend::HostWeight> bound;
  std::vector<ScalesOf> scales;
  for (const ManifestItem& item : items) {
    const RawTensor& stored = by_name.at(item.name)->tensor;
    if (naming == Naming::kGguf) {
      backend::HostWeight weight = gguf_weight(item, stored, experts, options.where);
      scales.push_back({&item.name, stored});
      item.half == Half::kOdd ? join(weight, bound) : bound.push_back(std::move(weight));
      continue;
    }
    check_type_and_shape(item, stored, options.where);
    const RawTensor view = rows_of(item, stored);
    if (item.part == Part::kScales) {
      bound.back().scales = view;
      bound.back().format = backend::WeightFormat::kMxfp4;
      scales.push_back({&item.name, view});
    } else {
      bound.push_back({.role = item.role,
                       .layer = item.layer,
                       .format = format_for(item.role, view.dtype, experts),
                       .values = view,
                       .scales = {},
                       .transposed = item.transposed});
    }
  }
  if (options.check_scales) refuse_bad_scales(scales, options);
  return bound;
}

std::vector<KvScale> bind_kv_scales(std::span<const TensorEntry> tensors, const ModelConfig& config,
                                    std::string_view where) {
  const auto layers = static_cast<int>(config.dims.layers);
  std::vector<KvScale> scales(static_cast<size_t>(layers));
  for (const TensorEntry& entry : tensors) {
    const auto of = kv_scale_of(entry.name, layers);
    if (!of || of->second == 'q') continue;
    const RawTensor& t = entry.tensor;
    const bool one = backend::is_float(t.dtype) && std::ssize(t.bytes) == bytes_of(t.dtype);
    const float value = one ? backend::float_at(t, 0) : 0;
    if (!(value > 0) || !std::isfinite(value))
      throw Error(Code::kCorrupt, "{}: {}: want one positive float, got {} of {}", where, entry.name, value,
                  checkpoint::describe(t.dtype, t.shape));
    auto& [key, own] = scales[static_cast<size_t>(of->first)];
    (of->second == 'k' ? key : own) = value;
  }
  const auto whole = std::ranges::count_if(scales, [](const auto& s) { return s.key > 0 && s.value > 0; });
  const bool none = std::ranges::all_of(scales, [](const auto& s) { return s.key == 0 && s.value == 0; });
  if (none) return {};
  if (whole < layers)
    throw Error(Code::kCorrupt, "{}: want a k_scale and a v_scale in each of {} layers, found both in {}", where,
                layers, whole);
  return scales;
}

void scale_keys_and_values(std::span<const KvScale> scales, std::span<backend::HostWeight> weights) {
  const auto exponent_of = [](float scale) {
    int exponent = 0;
    return std::frexp(scale, &exponent) == 0.5f ? exponent - 1 : exponent;
  };
  for (backend::HostWeight& w : weights) {
    if (w.layer < 0) continue;
    const KvScale& scale = scales[static_cast<size_t>(w.layer)];
    switch (w.role) {
      case kQ:
      case kQBias: w.exponent = exponent_of(scale.key); break;
      case kK:
      case kKBias: w.exponent = -exponent_of(scale.key); break;
      case kV:
      case kVBias: w.exponent = -exponent_of(scale.value); break;
      case kO: w.exponent = exponent_of(scale.value); break;
      default: continue;
    }
    check(backend::is_float(w.values.dtype), "dense tensors of safetensors are floats");
    if (w.format == backend::WeightFormat::kF16) w.format = backend::WeightFormat::kF32;  // has room for 2^exponent
  }
}

std::optional<int64_t> find_nan_scale(std::span<const std::byte> scales) {
  if (scales.empty()) return std::nullopt;
  const void* at = std::memchr(scales.data(), kNanScale, scales.size());
  if (at == nullptr) return std::nullopt;
  return static_cast<const std::byte*>(at) - scales.data();
}

}  // namespace nibble::model

#include "model/manifest.h"

#include "base/error.h"
#include "base/mx.h"
#include "checkpoint/strict_json.h"

#include <algorithm>
#include <cstring>
#include <string_view>
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
  std::string_view hugging_face;  // behind "model.layers.N."
  std::string_view original;      // behind "block.N."
};

constexpr TensorNames kModelTable[] = {
    {kEmbedding, Part::kValues, "model.embed_tokens.weight", "embedding.weight"},
    {kFinalNorm, Part::kValues, "model.norm.weight", "norm.scale"},
    {kUnembedding, Part::kValues, "lm_head.weight", "unembedding.weight"},
};

constexpr TensorNames kLayerTable[] = {
    {kAttnNorm, Part::kValues, "input_layernorm.weight", "attn.norm.scale"},
    {kQ, Part::kValues, "self_attn.q_proj.weight", "attn.qkv.weight"},
    {kQBias, Part::kValues, "self_attn.q_proj.bias", "attn.qkv.bias"},
    {kK, Part::kValues, "self_attn.k_proj.weight", "attn.qkv.weight"},
    {kKBias, Part::kValues, "self_attn.k_proj.bias", "attn.qkv.bias"},
    {kV, Part::kValues, "self_attn.v_proj.weight", "attn.qkv.weight"},
    {kVBias, Part::kValues, "self_attn.v_proj.bias", "attn.qkv.bias"},
    {kO, Part::kValues, "self_attn.o_proj.weight", "attn.out.weight"},
    {kOBias, Part::kValues, "self_attn.o_proj.bias", "attn.out.bias"},
    {kSinks, Part::kValues, "self_attn.sinks", "attn.sinks"},
    {kMlpNorm, Part::kValues, "post_attention_layernorm.weight", "mlp.norm.scale"},
    {kRouter, Part::kValues, "mlp.router.weight", "mlp.gate.weight"},
    {kRouterBias, Part::kValues, "mlp.router.bias", "mlp.gate.bias"},
    {kGateUp, Part::kValues, "mlp.experts.gate_up_proj_blocks", "mlp.mlp1_weight.blocks"},
    {kGateUp, Part::kScales, "mlp.experts.gate_up_proj_scales", "mlp.mlp1_weight.scales"},
    {kGateUpBias, Part::kValues, "mlp.experts.gate_up_proj_bias", "mlp.mlp1_bias"},
    {kDown, Part::kValues, "mlp.experts.down_proj_blocks", "mlp.mlp2_weight.blocks"},
    {kDown, Part::kScales, "mlp.experts.down_proj_scales", "mlp.mlp2_weight.scales"},
    {kDownBias, Part::kValues, "mlp.experts.down_proj_bias", "mlp.mlp2_bias"},
};

Shape mxfp4_shape(Part part, Shape matrix) {
  matrix.back() /= kMxBlock;
  if (part == Part::kValues) matrix.push_back(kBlockBytes);
  return matrix;
}

Shape stored_shape(WeightRole role, Part part, const backend::Dims& d) {
  Shape shape = shape_of(role, d);
  return role == kGateUp || role == kDown ? mxfp4_shape(part, std::move(shape)) : shape;
}

// Rows q | k | v of the original layout (gpt_oss/torch/model.py, AttentionBlock.forward).
int64_t first_fused_row(WeightRole role, const backend::Dims& d) {
  if (role == kK || role == kKBias) return d.q_width();
  if (role == kV || role == kVBias) return d.q_width() + d.kv_width();
  return 0;
}

bool is_fused(WeightRole role) {
  return role == kQ || role == kK || role == kV || role == kQBias || role == kKBias || role == kVBias;
}

ManifestItem item_of(const TensorNames& row, int layer, const ModelConfig& config, Naming naming) {
  const backend::Dims& d = config.dims;
  const bool hf = naming == Naming::kHuggingFace;
  ManifestItem item;
  item.role = row.role;
  item.part = row.part;
  item.layer = layer;
  if (layer >= 0) item.name = fmt::format("{}.{}.", hf ? "model.layers" : "block", layer);
  item.name += hf ? row.hugging_face : row.original;
  item.dtype = row.role == kGateUp || row.role == kDown ? DType::kU8 : DType::kBf16;
  item.shape = stored_shape(row.role, row.part, d);
  item.stored_shape = item.shape;
  if (!hf && is_fused(row.role)) {
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
  for (const std::string_view name : names) {
    if (known.insert(name).second) result.push_back(checkpoint::printable(name));
  }
  return result;
}

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMostListed);
  return fmt::format("{}: {}{}", names.size() == 1 ? "1 tensor" : fmt::format("{} tensors", names.size()),
                     fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < names.size() ? ", …" : "");
}

using ByName = std::unordered_map<std::string_view, const TensorEntry*>;

void refuse_unquantised(const ByName& by_name, std::string_view where) {
  for (const char* name : {"model.layers.0.mlp.experts.gate_up_proj", "block.0.mlp.mlp1_weight"}) {
    const auto it = by_name.find(name);
    if (it == by_name.end()) continue;
    const RawTensor& t = it->second->tensor;
    throw Error(Code::kUnsupported, "{}: {}: want MXFP4 experts (…_blocks and …_scales), got {}: run nibble quantize",
                where, name, checkpoint::describe(t.dtype, t.shape));
  }
}

void check_names(const std::vector<ManifestItem>& items, std::span<const TensorEntry> tensors, std::string_view where) {
  std::vector<std::string_view> wanted, found;
  for (const ManifestItem& item : items) wanted.push_back(item.name);
  for (const TensorEntry& entry : tensors) found.push_back(entry.name);
  require_same_names(wanted, found, where);
}

void check_type_and_shape(const ManifestItem& item, const RawTensor& tensor, std::string_view where) {
  if (tensor.dtype == item.dtype && tensor.shape == item.stored_shape) return;
  const bool other_float = item.dtype == DType::kBf16 && (tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32);
  throw Error(other_float ? Code::kUnsupported : Code::kCorrupt, "{}: {}: want {}, got {}{}", where, item.name,
              checkpoint::describe(item.dtype, item.stored_shape), checkpoint::describe(tensor.dtype, tensor.shape),
              other_float ? ": only bf16 is read" : "");
}

RawTensor rows_of(const ManifestItem& item, const RawTensor& stored) {
  const auto total = static_cast<int64_t>(stored.bytes.size());
  const int64_t row_bytes = total / item.stored_shape[0];
  return {.dtype = item.dtype,
          .shape = item.shape,
          .bytes =
              stored.bytes.subspan(static_cast<size_t>(item.first_row * row_bytes), static_cast<size_t>(item.bytes()))};
}

struct ScalesOf {
  const std::string* name;
  RawTensor tensor;
};

void refuse_nan_scales(const std::vector<ScalesOf>& scales, const BindOptions& options) {
  std::vector<std::optional<int64_t>> first_nan(scales.size());
  const auto look = [&](IndexRange range) {
    for (auto i = static_cast<size_t>(range.begin); i < static_cast<size_t>(range.end); ++i) {
      first_nan[i] = find_nan_scale(scales[i].tensor.bytes);
    }
  };
  const auto count = static_cast<int64_t>(scales.size());
  if (options.pool != nullptr) {
    options.pool->parallel_for(count, look);
  } else {
    look({0, count, 0});
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!first_nan[i]) continue;
    throw Error(Code::kCorrupt, "{}: {}: want E8M0 scales 0 to 254, got 255 (NaN) at index {} of {}", options.where,
                *scales[i].name, *first_nan[i], checkpoint::describe(scales[i].tensor.dtype, scales[i].tensor.shape));
  }
}

}  // namespace

Shape shape_of(WeightRole role, const backend::Dims& d) {
  switch (role) {
    case kEmbedding:
    case kUnembedding: return {d.vocab, d.hidden};
    case kFinalNorm:
    case kAttnNorm:
    case kMlpNorm:
    case kOBias: return {d.hidden};
    case kQ: return {d.q_width(), d.hidden};
    case kQBias: return {d.q_width()};
    case kK:
    case kV: return {d.kv_width(), d.hidden};
    case kKBias:
    case kVBias: return {d.kv_width()};
    case kO: return {d.hidden, d.q_width()};
    case kSinks: return {d.heads};
    case kRouter: return {d.experts, d.hidden};
    case kRouterBias: return {d.experts};
    case kGateUp: return {d.experts, 2 * d.inter, d.hidden};
    case kGateUpBias: return {d.experts, 2 * d.inter};
    case kDown: return {d.experts, d.hidden, d.inter};
    case kDownBias: return {d.experts, d.hidden};
    case kTapNorm:
    case kTapFc:
    case kHiddenNorm: break;  // of heads
  }
  check(false, "every role has a shape");
  return {};
}

int64_t ManifestItem::bytes() const {
  int64_t n = bytes_of(dtype);
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<ManifestItem> manifest(const ModelConfig& config, Naming naming) {
  std::vector<ManifestItem> items;
  for (const TensorNames& row : kModelTable) items.push_back(item_of(row, -1, config, naming));
  for (int layer = 0; layer < static_cast<int>(config.dims.layers); ++layer) {
    for (const TensorNames& row : kLayerTable) items.push_back(item_of(row, layer, config, naming));
  }
  return items;
}

Naming naming_of(std::span<const TensorEntry> tensors) {
  const bool original = std::any_of(tensors.begin(), tensors.end(), [](const TensorEntry& t) {
    return t.name.starts_with("block.") || t.name == "embedding.weight";
  });
  return original ? Naming::kOriginal : Naming::kHuggingFace;
}

void require_same_names(const std::vector<std::string_view>& wanted, const std::vector<std::string_view>& found,
                        std::string_view where) {
  const std::vector<std::string> missing = not_in(found, wanted), extra = not_in(wanted, found);
  if (!missing.empty()) throw Error(Code::kCorrupt, "{} lacks {}", where, listed(missing));
  if (!extra.empty()) {
    throw Error(Code::kCorrupt, "{} has what this model does not: {}", where, listed(extra));
  }
}

std::vector<backend::HostWeight> bind_weights(std::span<const TensorEntry> tensors, const ModelConfig& config,
                                              const BindOptions& options) {
  const std::vector<ManifestItem> items = manifest(config, naming_of(tensors));
  ByName by_name;
  for (const TensorEntry& entry : tensors) by_name.emplace(entry.name, &entry);
  refuse_unquantised(by_name, options.where);
  check_names(items, tensors, options.where);

  std::vector<backend::HostWeight> bound;
  std::vector<ScalesOf> scales;
  for (const ManifestItem& item : items) {
    const RawTensor& stored = by_name.at(item.name)->tensor;
    check_type_and_shape(item, stored, options.where);
    const RawTensor view = rows_of(item, stored);
    if (item.part == Part::kScales) {
      bound.back().scales = view;
      bound.back().format = backend::WeightFormat::kMxfp4;
      scales.push_back({&item.name, view});
    } else {
      bound.push_back({.role = item.role,
                       .layer = item.layer,
                       .format = backend::WeightFormat::kBf16,
                       .values = view,
                       .scales = {}});
    }
  }
  if (options.check_scales) refuse_nan_scales(scales, options);
  return bound;
}

std::optional<int64_t> find_nan_scale(std::span<const std::byte> scales) {
  if (scales.empty()) return std::nullopt;
  const void* at = std::memchr(scales.data(), kNanScale, scales.size());
  if (at == nullptr) return std::nullopt;
  return static_cast<const std::byte*>(at) - scales.data();
}

}  // namespace nibble::model

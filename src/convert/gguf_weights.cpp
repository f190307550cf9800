#include "convert/gguf.h"

#include "base/error.h"
#include "model/manifest.h"

#include <algorithm>
#include <atomic>
#include <string_view>
#include <unordered_map>

namespace nibble::convert {

using model::require_same_names;
using model::shape_of;
namespace {

using backend::WeightFormat;
using checkpoint::GgmlType;
using checkpoint::GgufTensor;
using enum WeightRole;

struct NamedRole {
  WeightRole role;
  std::string_view name;
  Half half = Half::kWhole;
};

constexpr NamedRole kGgufModelTable[] = {
    {kEmbedding, "token_embd.weight"}, {kFinalNorm, "output_norm.weight"}, {kUnembedding, "output.weight"}};

// Behind "blk.N.".
constexpr NamedRole kGgufLayerTable[] = {{kAttnNorm, "attn_norm.weight"},
                                         {kQ, "attn_q.weight"},
                                         {kQBias, "attn_q.bias"},
                                         {kK, "attn_k.weight"},
                                         {kKBias, "attn_k.bias"},
                                         {kV, "attn_v.weight"},
                                         {kVBias, "attn_v.bias"},
                                         {kO, "attn_output.weight"},
                                         {kOBias, "attn_output.bias"},
                                         {kSinks, "attn_sinks.weight"},
                                         {kMlpNorm, "post_attention_norm.weight"},
                                         {kRouter, "ffn_gate_inp.weight"},
                                         {kRouterBias, "ffn_gate_inp.bias"},
                                         {kGateUp, "ffn_gate_exps.weight", Half::kEven},
                                         {kGateUpBias, "ffn_gate_exps.bias", Half::kEven},
                                         {kGateUp, "ffn_up_exps.weight", Half::kOdd},
                                         {kGateUpBias, "ffn_up_exps.bias", Half::kOdd},
                                         {kDown, "ffn_down_exps.weight"},
                                         {kDownBias, "ffn_down_exps.bias"}};

struct Storage {
  WeightFormat format;
  DType dtype;
};

Storage storage_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return {WeightFormat::kF32, DType::kF32};
    case GgmlType::kF16: return {WeightFormat::kF16, DType::kF16};
    case GgmlType::kBf16: return {WeightFormat::kBf16, DType::kBf16};
    case GgmlType::kQ8: return {WeightFormat::kGgmlQ8, DType::kU8};
    case GgmlType::kMxfp4: return {WeightFormat::kGgmlMxfp4, DType::kU8};
  }
  check(false, "every tensor type has a format");
  return {};
}

backend::HostWeight weight_of(const GgufItem& item, const GgufTensor& tensor, std::string_view where) {
  if (tensor.shape != item.shape) {
    throw Error(Code::kCorrupt, "{}: {}: want the shape [{}], got {}", where, item.name, fmt::join(item.shape, ","),
                checkpoint::describe(tensor.type, tensor.shape));
  }
  const bool is_expert = item.role == kGateUp || item.role == kDown;
  if (is_expert && tensor.type != GgmlType::kMxfp4) {
    throw Error(Code::kUnsupported, "{}: {}: want MXFP4 experts, got {}", where, item.name,
                checkpoint::describe(tensor.type, tensor.shape));
  }
  const auto [format, dtype] = storage_of(tensor.type);
  Shape shape = tensor.shape;
  if (const checkpoint::GgmlBlock block = block_of(tensor.type); block.values > 1) {
    shape.back() /= block.values;
    shape.push_back(block.bytes);
  }
  return {.role = item.role,
          .layer = item.layer,
          .format = format,
          .values = {.dtype = dtype, .shape = std::move(shape), .bytes = tensor.bytes},
          .scales = {}};
}

// The odd rows to the even ones, which are bound already.
void join(backend::HostWeight& odd, std::span<backend::HostWeight> bound) {
  const auto even = std::find_if(bound.rbegin(), bound.rend(), [&](const backend::HostWeight& w) {
    return w.role == odd.role && w.layer == odd.layer;
  });
  check(even != bound.rend(), "gate stands before up in the table");
  even->odd = std::move(odd.values);
  even->odd_format = odd.format;
}

// E8M0's NaN; binary16 with all exponent bits set is an infinity or NaN.
bool is_bad_scale(GgmlType type, const std::byte* block) {
  if (type == GgmlType::kMxfp4) return block[0] == std::byte{0xff};
  return (block[1] & std::byte{0x7c}) == std::byte{0x7c};  // little-endian: the exponent is in the second byte
}

void check_scales(const GgufTensor& tensor, const BindOptions& options) {
  const checkpoint::GgmlBlock block = block_of(tensor.type);
  if (block.values == 1) return;
  const int64_t blocks = static_cast<int64_t>(tensor.bytes.size()) / block.bytes;
  std::atomic<int64_t> first_bad = blocks;
  const auto look = [&](IndexRange range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      if (!is_bad_scale(tensor.type, tensor.bytes.data() + i * block.bytes)) continue;
      int64_t known = first_bad;
      while (i < known && !first_bad.compare_exchange_weak(known, i)) continue;
      return;
    }
  };
  if (options.pool != nullptr) {
    options.pool->parallel_for(blocks, look);
  } else {
    look({0, blocks, 0});
  }
  if (first_bad == blocks) return;
  throw Error(Code::kCorrupt, "{}: {}: want a finite scale in every block, found {} in block {} of {}", options.where,
              tensor.name, tensor.type == GgmlType::kMxfp4 ? "E8M0 255 (NaN)" : "an infinite or NaN F16",
              first_bad.load(), blocks);
}

}  // namespace

std::vector<GgufItem> gguf_manifest(const ModelConfig& config) {
  std::vector<GgufItem> items;
  for (const auto& [role, name, half] : kGgufModelTable) {
    items.push_back(
        {.role = role, .half = half, .layer = -1, .name = std::string(name), .shape = shape_of(role, config.dims)});
  }
  for (int layer = 0; layer < static_cast<int>(config.dims.layers); ++layer) {
    for (const auto& [role, name, half] : kGgufLayerTable) {
      Shape shape = shape_of(role, config.dims);
      if (half != Half::kWhole) shape[1] /= 2;
      items.push_back({.role = role,
                       .half = half,
                       .layer = layer,
                       .name = fmt::format("blk.{}.{}", layer, name),
                       .shape = std::move(shape)});
    }
  }
  return items;
}

std::vector<backend::HostWeight> bind_gguf(std::span<const GgufTensor> tensors, const ModelConfig& config,
                                           const BindOptions& options) {
  const std::vector<GgufItem> items = gguf_manifest(config);
  std::vector<std::string_view> wanted, found;
  std::unordered_map<std::string_view, const GgufTensor*> by_name;
  for (const GgufItem& item : items) wanted.push_back(item.name);
  for (const GgufTensor& tensor : tensors) {
    found.push_back(tensor.name);
    by_name.emplace(tensor.name, &tensor);
  }
  require_same_names(wanted, found, options.where);
  std::vector<backend::HostWeight> bound;
  for (const GgufItem& item : items) {
    backend::HostWeight weight = weight_of(item, *by_name.at(item.name), options.where);
    if (item.half == Half::kOdd) {
      join(weight, bound);
    } else {
      bound.push_back(std::move(weight));
    }
  }
  if (options.check_scales) {
    for (const GgufItem& item : items) check_scales(*by_name.at(item.name), options);
  }
  return bound;
}

}  // namespace nibble::convert

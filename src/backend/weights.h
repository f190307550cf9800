#pragma once
// What a checkpoint's tensors are to a backend.

#include "base/mx.h"
#include "base/tensor.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::backend {

// A part of a tensor, as ranges of its dimensions.
struct Range {
  int64_t first = 0, count = 0;

  [[nodiscard]] constexpr int64_t end() const { return first + count; }
  [[nodiscard]] constexpr bool has(int64_t idx) const { return idx >= first && idx < end(); }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

// A part of a tensor of values, whose shape is as WeightRole states it: [experts, rows, cols], where a tensor without
// experts has one of them and a vector has one column.
struct Slice {
  Range experts, rows, cols;
  bool zeros = false;  // in place of these values

  [[nodiscard]] constexpr int64_t values() const { return experts.count * rows.count * cols.count; }
  friend constexpr bool operator==(const Slice&, const Slice&) = default;
};

// Shapes are row-major [out, in]; experts lead with [experts].
enum class WeightRole : uint8_t {
  kEmbedding,    // [vocab, hidden]
  kFinalNorm,    // [hidden]
  kUnembedding,  // [vocab, hidden]
  kAttnNorm,     // [hidden]
  kQ,            // [heads*head_dim, hidden]
  kQBias,
  kK,  // [kv_heads*head_dim, hidden]
  kKBias,
  kV,
  kVBias,
  kO,  // [hidden, heads*head_dim]
  kOBias,
  kSinks,    // [heads]
  kMlpNorm,  // [hidden]
  kRouter,   // [experts, hidden]
  kRouterBias,
  kGateUp,      // [experts, 2*inter, hidden]; gate = even rows, up = odd rows
  kGateUpBias,  // [experts, 2*inter]
  kDown,        // [experts, hidden, inter]
  kDownBias,    // [experts, hidden]
  // A head's alone (HeadConfig)
  kTapNorm,     // [taps * target_hidden]
  kTapFc,       // [hidden, taps * target_hidden]
  kHiddenNorm,  // [hidden], of layer 0, whose q, k and v are [.., 2 * hidden]
};
inline constexpr int kWeightRoles = static_cast<int>(WeightRole::kHiddenNorm) + 1;

[[nodiscard]] constexpr std::string_view name_of(WeightRole role) {
  constexpr std::array<std::string_view, kWeightRoles> kNames = {
      "embedding", "final_norm",   "unembedding", "attn_norm", "q",     "q_bias",   "k",      "k_bias",
      "v",         "v_bias",       "o",           "o_bias",    "sinks", "mlp_norm", "router", "router_bias",
      "gate_up",   "gate_up_bias", "down",        "down_bias"};
  return kNames[static_cast<size_t>(role)];
}

// Whether it leads with [experts].
[[nodiscard]] constexpr bool has_experts(WeightRole role) {
  return role >= WeightRole::kGateUp && role <= WeightRole::kDownBias;
}
[[nodiscard]] constexpr bool is_expert_matrix(WeightRole role) {
  return role == WeightRole::kGateUp || role == WeightRole::kDown;
}
// Whether it ends with [out, in]; else it is a vector, or one for each expert.
[[nodiscard]] constexpr bool is_matrix(WeightRole role) {
  using enum WeightRole;
  constexpr WeightRole kMatrices[] = {kEmbedding, kUnembedding, kQ, kK, kV, kO, kRouter, kGateUp, kDown, kTapFc};
  for (const WeightRole matrix : kMatrices)
    if (role == matrix) return true;
  return false;
}

// How a tensor's bytes are read. Blocks hold 32 values along the input dimension.
enum class WeightFormat : uint8_t {
  kBf16,
  kF16,
  kF32,
  kMxfp4,      // values U8 [.., in/32, 16] as OpenAI ships them (base/mx.h), scales U8 [.., in/32]
  kMxfp8,      // values U8 [.., in/32, 32] E4M3, scales U8 [.., in/32]
  kGgmlMxfp4,  // values U8 [.., in/32, 17]: E8M0, then byte j holds elements j (low nibble) and j + 16; of ggml
  kGgmlQ8,     // values U8 [.., in/32, 34]: F16 scale, then 32 signed bytes; ggml's Q8_0
};

// Neighbours of a row that are stored together: a value, or a block.
struct WeightBlock {
  std::string_view name;  // of the format
  int64_t values, bytes;
  int64_t scale_bytes = 0;  // in an array of their own
};
inline constexpr WeightBlock kWeightBlocks[] = {{"bf16", 1, 2},
                                                {"f16", 1, 2},
                                                {"f32", 1, 4},
                                                {"mxfp4", kMxBlock, 16, 1},
                                                {"mxfp8", kMxBlock, 32, 1},
                                                {"ggml mxfp4", kMxBlock, 17},
                                                {"ggml q8_0", kMxBlock, 34}};
[[nodiscard]] constexpr const WeightBlock& block_of(WeightFormat format) {
  return kWeightBlocks[static_cast<size_t>(format)];
}
[[nodiscard]] constexpr std::string_view name_of(WeightFormat format) { return block_of(format).name; }

// Whether backends read a file's type as it is; and as what. REQUIRES that they do.
[[nodiscard]] constexpr bool is_read(DType dtype) {
  return info_of(dtype).values == 1 || dtype == DType::kGgmlQ8 || dtype == DType::kGgmlMxfp4;
}
[[nodiscard]] constexpr WeightFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return WeightFormat::kF16;
    case DType::kF32: return WeightFormat::kF32;
    case DType::kGgmlQ8: return WeightFormat::kGgmlQ8;
    case DType::kGgmlMxfp4: return WeightFormat::kGgmlMxfp4;
    default: return WeightFormat::kBf16;
  }
}

// One tensor on its way to a backend. Where a file holds it in another way than a backend takes it (is_recoded), its
// values have the file's type and the role's shape, and sliced() makes `format` of them.
struct HostWeight {
  WeightRole role = WeightRole::kEmbedding;
  int layer = -1;  // -1: not of a layer
  WeightFormat format = WeightFormat::kBf16;
  RawTensor values;
  RawTensor scales;  // of kMxfp4 and kMxfp8
  // kGateUp and kGateUpBias of a file that holds gate and up apart: rows 1, 3, 5, …; `values`
  // are rows 0, 2, 4, … Where it is empty, `values` are all.
  RawTensor odd = {};
  WeightFormat odd_format = WeightFormat::kBf16;
  bool transposed = false;  // of floats: they lie as [experts, in, out]
  int exponent = 0;         // of floats: what is meant are they times 2^exponent
  // The part that is meant, of all rows of a gate_up; none: all of it.
  std::optional<Slice> slice = {};
};
// Its rows 1, 3, 5, … as a weight of their own. REQUIRES odd.
[[nodiscard]] inline HostWeight odd_rows(HostWeight weight) {
  weight.format = weight.odd_format;
  weight.values = std::exchange(weight.odd, {});
  return weight;
}

[[nodiscard]] constexpr bool is_float(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}
// What a file holds of a weight, and what a backend gets of it: two parts where gate and up lie apart.
struct WeightPart {
  const RawTensor* values;
  WeightFormat format;
  bool recoded;  // the values are not yet in the format. Blocks that backends take as they are have dtype U8
};
[[nodiscard]] inline std::vector<WeightPart> parts_of(const HostWeight& weight) {
  std::vector<WeightPart> parts;
  for (const auto& [values, format] :
       {std::pair(&weight.values, weight.format), std::pair(&weight.odd, weight.odd_format)}) {
    if (!parts.empty() && values->bytes.empty()) continue;
    const DType dtype = values->dtype;
    const bool other = info_of(dtype).values > 1 || (is_float(dtype) && format_of(dtype) != format);
    parts.push_back({values, format, weight.transposed || weight.exponent != 0 || other});
  }
  return parts;
}
[[nodiscard]] inline bool is_recoded(const HostWeight& weight) {
  return std::ranges::any_of(parts_of(weight), &WeightPart::recoded);
}
// A value of a tensor of such floats, and all.
[[nodiscard]] inline float float_at(const RawTensor& tensor, int64_t idx) {
  const std::byte* const at = tensor.bytes.data() + idx * bytes_of(tensor.dtype);
  if (tensor.dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return tensor.dtype == DType::kF16 ? F16{bits}.to_float() : Bf16{bits}.to_float();
}
[[nodiscard]] std::vector<float> floats_of(const RawTensor& tensor);

struct WeightHandle {
  int32_t idx = -1;  // -1: none
};

// What the dense matrices are held in: as they came, or requantised by the backend while they are uploaded. kGgmlQ8, of
// a card alone: so, which few tokens multiply, and in a copy rounded to bf16, which more tokens do.
struct DenseFormats {
  std::optional<WeightFormat> qkv, o, lm_head;  // kMxfp4, kMxfp8 or kGgmlQ8; none: as it came, on a card in bf16
  bool keeps_q8 = true;                         // Q8_0 of a file may become kGgmlQ8 above (cuda::with_q8)
  bool q8_copies = true;  // false: there is no copy, and more tokens multiply what rounds to it on the way

  // Whether something is in MX blocks; and in which.
  [[nodiscard]] constexpr bool any() const {
    return in_mx(WeightRole::kQ) || in_mx(WeightRole::kO) || in_mx(WeightRole::kUnembedding);
  }
  [[nodiscard]] constexpr std::optional<WeightFormat> in_mx(WeightRole role) const {
    const std::optional<WeightFormat> format = of(role);
    return format == WeightFormat::kGgmlQ8 ? std::nullopt : format;
  }
  // What another model's file may be held in, too.
  [[nodiscard]] constexpr DenseFormats of_any_file() const {
    return {in_mx(WeightRole::kQ), in_mx(WeightRole::kO), in_mx(WeightRole::kUnembedding)};
  }
  [[nodiscard]] constexpr std::optional<WeightFormat> of(WeightRole role) const {
    switch (role) {
      case WeightRole::kQ:
      case WeightRole::kK:
      case WeightRole::kV: return qkv;
      case WeightRole::kO: return o;
      case WeightRole::kUnembedding: return lm_head;
      default: return std::nullopt;
    }
  }
};

// The weight as what is to be uploaded: what is no Q8_0, and shall be, is recoded.
[[nodiscard]] inline HostWeight in_q8(HostWeight weight, const DenseFormats& dense) {
  if (dense.of(weight.role) == WeightFormat::kGgmlQ8 && weight.values.dtype != DType::kU8)
    weight.format = WeightFormat::kGgmlQ8;
  return weight;
}

// The rule of a requantisation, the same on every backend, so that all hold the same codes.
[[nodiscard]] constexpr MxScaleRule scale_rule(WeightFormat format) {
  return format == WeightFormat::kMxfp4 ? MxScaleRule::kRoundLlama : MxScaleRule::kCeil;
}

// The handles of one layer, or of the tensors outside the layers.
struct LayerWeights {
  std::array<WeightHandle, kWeightRoles> handles{};
  constexpr WeightHandle& operator[](WeightRole role) { return handles[static_cast<size_t>(role)]; }
  constexpr WeightHandle operator[](WeightRole role) const { return handles[static_cast<size_t>(role)]; }
};

struct Weights {
  LayerWeights outer;  // embedding, final norm, unembedding
  std::vector<LayerWeights> layers;
};

}  // namespace nibble::backend

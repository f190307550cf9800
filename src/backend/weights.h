#pragma once
// What a checkpoint's tensors are to a backend.

#include "base/tensor.h"

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace nibble::backend {

// Shapes are row-major [out, in]; experts lead with [experts]. kGateUp and kDown are MXFP4: blocks + scales.
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
};
inline constexpr int kWeightRoles = static_cast<int>(WeightRole::kDownBias) + 1;

[[nodiscard]] constexpr std::string_view name_of(WeightRole role) {
  constexpr std::array<std::string_view, kWeightRoles> kNames = {
      "embedding", "final_norm",   "unembedding", "attn_norm", "q",     "q_bias",   "k",      "k_bias",
      "v",         "v_bias",       "o",           "o_bias",    "sinks", "mlp_norm", "router", "router_bias",
      "gate_up",   "gate_up_bias", "down",        "down_bias"};
  return kNames[static_cast<size_t>(role)];
}

// One tensor on its way to a backend. Dense: values BF16. MXFP4: values U8 [.., in/32, 16] as OpenAI ships them
// (base/mx.h), scales U8 [.., in/32].
struct HostWeight {
  WeightRole role = WeightRole::kEmbedding;
  int layer = -1;  // -1: not of a layer
  RawTensor values;
  RawTensor scales;
};

struct WeightHandle {
  int32_t idx = -1;
};

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

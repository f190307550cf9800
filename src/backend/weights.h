#pragma once
// What a weight is for: the names under which a model hands its tensors to a backend.

#include <cstdint>
#include <string_view>

namespace nibble::backend {

enum class WeightRole : uint8_t {
  kEmbedding,
  kFinalNorm,
  kUnembedding,
  kAttnNorm,
  kQ,
  kQBias,
  kK,
  kKBias,
  kV,
  kVBias,
  kO,
  kOBias,
  kSinks,
  kMlpNorm,
  kRouter,
  kRouterBias,
  kGateUp,  // a pair: blocks and scales; rows 2i are gate, 2i+1 up
  kGateUpBias,
  kDown,  // a pair: blocks and scales
  kDownBias,
};

[[nodiscard]] constexpr std::string_view name_of(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedding:
      return "embedding";
    case WeightRole::kFinalNorm:
      return "final_norm";
    case WeightRole::kUnembedding:
      return "unembedding";
    case WeightRole::kAttnNorm:
      return "attn_norm";
    case WeightRole::kQ:
      return "q";
    case WeightRole::kQBias:
      return "q_bias";
    case WeightRole::kK:
      return "k";
    case WeightRole::kKBias:
      return "k_bias";
    case WeightRole::kV:
      return "v";
    case WeightRole::kVBias:
      return "v_bias";
    case WeightRole::kO:
      return "o";
    case WeightRole::kOBias:
      return "o_bias";
    case WeightRole::kSinks:
      return "sinks";
    case WeightRole::kMlpNorm:
      return "mlp_norm";
    case WeightRole::kRouter:
      return "router";
    case WeightRole::kRouterBias:
      return "router_bias";
    case WeightRole::kGateUp:
      return "gate_up";
    case WeightRole::kGateUpBias:
      return "gate_up_bias";
    case WeightRole::kDown:
      return "down";
    case WeightRole::kDownBias:
      return "down_bias";
  }
  return "?";
}

}  // namespace nibble::backend

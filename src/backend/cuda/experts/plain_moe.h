#pragma once
// The experts with weights in row order: three kernels one after the other, of the same arguments. Pointers are device
// memory, weights as the checkpoint ships them. Plain C++.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/launch/launch.h"

#include <cstdint>

namespace nibble::backend::cuda {

struct MxfpMatrix {
  const uint8_t* codes = nullptr;   // [experts, rows, cols / 32, 16]
  const uint8_t* scales = nullptr;  // [experts, rows, cols / 32]
};

// Over own experts: delta[t,:] = Σ_k weights[t,k] * (down[e] · swiglu(gate_up[e] · x[t,:] + gate_up_bias[e]) +
// down_bias[e])
struct PlainMoeArgs {
  const float* x = nullptr;               // [tokens, hidden]
  const int32_t* expert_ids = nullptr;    // [tokens, topk]
  const float* expert_weights = nullptr;  // [tokens, topk]
  MxfpMatrix gate_up, down;               // [experts, 2*inter, hidden], [experts, hidden, inter]
  const Bf16* gate_up_bias = nullptr;     // [experts, 2*inter]
  const Bf16* down_bias = nullptr;        // [experts, hidden]
  float* hidden_out = nullptr;            // [tokens, topk, inter]: swiglu(...)
  float* delta = nullptr;                 // [tokens, hidden]
  // What GroupTiles leaves, in tiles of kMoeTileTokens
  const int32_t* pairs = nullptr;
  const ExpertTile* tiles = nullptr;
  const int32_t* tile_count = nullptr;
  float* down_out = nullptr;                                     // scratch [tokens, topk, hidden]
  int tokens = 0, topk = 0, experts = 0, hidden = 0, inter = 0;  // experts: own ones
  float swiglu_limit = 0;
  OwnExperts own{};
};
struct PlainGateUp {
  static constexpr Kernel kName{"any_moe_gate_up_f32_mxfp4"};
  using Args = PlainMoeArgs;
  static void launch(const Args& args, const Launch& on);
};
struct PlainDown {
  static constexpr Kernel kName{"any_moe_down_f32_mxfp4"};
  using Args = PlainMoeArgs;
  static void launch(const Args& args, const Launch& on);
};
struct PlainCombine {
  static constexpr Kernel kName{"any_moe_combine_f32"};
  using Args = PlainMoeArgs;
  static void launch(const Args& args, const Launch& on);
};

}  // namespace nibble::backend::cuda

#pragma once
// Matrices times many tokens: which GEMM serves them here, and what it needs beside its arguments. For steps beyond
// what the decode kernels take.

#include "backend/backend.h"
#include "backend/cuda/arena.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/gemm.h"

#include <cstdint>

namespace nibble::backend::cuda {

class GemmPath {
 public:
  // Takes scratch for config.max_tokens from the carver; without memory behind it, it only measures.
  GemmPath(const BackendConfig& config, Carver& carver);

  // y = W · x + bias, or y += (gemm_plan.h); args.x is filled in here from `x` f32 [tokens, cols].
  void dense(GemmArgs args, const float* x, const Launch& on) const;

  // residual[t] += Σ_k weights[t, k] (down · swiglu(up · x[t] + up_bias) + down_bias) of the step's experts.
  struct Moe {
    const uint8_t* up = nullptr;    // [experts] of [2 * inter, hidden] MXFP4, RowOrder::kGateUp
    const uint8_t* down = nullptr;  // [experts] of [hidden, inter] MXFP4
    const Bf16* up_bias = nullptr;
    const Bf16* down_bias = nullptr;
    const float* x = nullptr;               // [tokens, hidden]
    const int32_t* expert_ids = nullptr;    // [tokens, topk]
    const float* expert_weights = nullptr;  // likewise
    float* residual = nullptr;              // [tokens, hidden]
    int tokens = 0;
  };
  void moe(const Moe& args, const Launch& on) const;

  // What the last moe made of a (token, k): [tokens, topk, inter] in hidden_type's type and order.
  [[nodiscard]] const uint16_t* expert_hidden() const { return u_; }
  [[nodiscard]] InputType hidden_type() const { return input_before(layout::Packing::kMxfp4); }

 private:
  [[nodiscard]] GemmDevice device_for(layout::Packing packing) const;
  [[nodiscard]] InputType input_before(layout::Packing packing) const;
  void run(const GemmArgs& args, const GemmPlan& plan, const Launch& on) const;

  const Dims dims_;
  const float swiglu_limit_;
  int sms_ = 0;
  bool hopper_ = false;
  uint16_t* x_ = nullptr;  // [tokens, max(hidden, heads * head_dim)]
  uint16_t* u_ = nullptr;  // [tokens, topk, inter]
  float* y_ = nullptr;     // [tokens, topk, hidden]
  int32_t* pairs_ = nullptr;
  ExpertTile* tiles_ = nullptr;
  int32_t* tile_count_ = nullptr;
};

}  // namespace nibble::backend::cuda

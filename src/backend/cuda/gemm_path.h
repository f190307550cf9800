#pragma once
// Matrices times many tokens: which GEMM serves them here, and what it needs beside its arguments. For steps beyond
// what the decode kernels take.

#include "backend/backend.h"
#include "backend/cuda/arena.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/around_gemm.h"
#include "backend/cuda/kernels/any/gemm.h"

#include <cstdint>

namespace nibble::backend::cuda {

class GemmPath {
 public:
  // Takes scratch for config.max_tokens from the carver; without memory behind it, it only measures.
  GemmPath(const BackendConfig& config, Carver& carver);

  // Some MXFP4 scales are beyond sm90_gemm (layout::kMaxWgmmaScaleCode): any_gemm takes all of that packing.
  void with_wide_scales() { wide_scales_ = true; }

  // Where a matrix of this packing takes its input [tokens, cols] from, and in which type and order.
  [[nodiscard]] GemmInput input(layout::Packing packing, int64_t tokens) const;
  // Puts `x` f32 [tokens, cols] there.
  void round(const float* x, const GemmArgs& args, const Launch& on) const;
  // W · input, without bias, rows as they are packed; lies here until the next sums, dense or moe.
  [[nodiscard]] SplitSums sums(GemmArgs args, const Launch& on) const;
  // q, k and v of the input. With splits in what is returned, its sums are all that there is so far; they lie here
  // until the next sums, dense or moe.
  [[nodiscard]] RopeSumsArgs qkv(GemmArgs args, RopeSumsArgs rope, const Launch& on) const;
  // y = W · x + bias (gemm_plan.h); args.x is filled in here from `x` f32 [tokens, cols].
  void dense(GemmArgs args, const float* x, const Launch& on) const;

  // down · swiglu(up · x[t] + up_bias) + down_bias of the step's experts, in bf16; lies here until the next sums,
  // dense or moe.
  struct Moe {
    const uint8_t* up = nullptr;    // [experts] of [2 * inter, hidden] MXFP4, RowOrder::kGateUp
    const uint8_t* down = nullptr;  // [experts] of [hidden, inter] MXFP4
    const Bf16* up_bias = nullptr;
    const Bf16* down_bias = nullptr;
    const float* x = nullptr;        // [tokens, hidden]
    const float* inverse = nullptr;  // [tokens], with norm [hidden]: x times both is meant
    const Bf16* norm = nullptr;
    const int32_t* expert_ids = nullptr;    // [tokens, topk]
    const float* expert_weights = nullptr;  // likewise
    int tokens = 0;
    ExpertActivations activations = ExpertActivations::kExact;  // kMxfp8: x is rounded, u will be
  };
  [[nodiscard]] ExpertSums moe(const Moe& args, const Launch& on) const;

  // What lies in an input [tokens, cols], which its next writer replaces. Waits for the stream.
  [[nodiscard]] static SlotData values(const GemmInput& input, int64_t tokens, int64_t cols, cudaStream_t stream);
  // What the last moe, of so many tokens, made of each (token, k): [tokens, topk, inter]. Waits for the stream.
  [[nodiscard]] SlotData expert_hidden(int64_t tokens, cudaStream_t stream) const;

 private:
  [[nodiscard]] int x_rows(int64_t tokens) const;  // of panels that hold the step's pairs by place
  [[nodiscard]] GemmDevice device_for(layout::Packing packing) const;
  void group_and_round(const Moe& args, int tile_tokens, GemmArgs& gemm, const Launch& on) const;
  void run(const GemmArgs& args, const GemmPlan& plan, const Launch& on) const;

  const Dims dims_;
  const float swiglu_limit_;
  int sms_ = 0;
  bool hopper_ = false, wide_scales_ = false;
  uint16_t* x_ = nullptr;         // [tokens, max(hidden, heads * head_dim)]
  uint16_t* u_ = nullptr;         // [tokens, topk, inter], or by place
  uint16_t* placed_x_ = nullptr;  // on wgmma, x by place: down writes its results while gate_up still reads
  float* y_ = nullptr;            // what sums gives; of the experts, in bf16, [tokens, topk, hidden]
  int32_t* pairs_ = nullptr;
  int32_t* places_ = nullptr;
  ExpertTile* tiles_ = nullptr;
  int32_t* tile_counts_ = nullptr;
};

}  // namespace nibble::backend::cuda

#pragma once
// The experts of a step of more tokens than the decode kernels take: arguments, checks, plan and cost. Plain C++;
// launchers: grouped.h.

#include "backend/cuda/kernels/any/expert_tile.h"
#include "backend/cuda/kernels/any/gemv_plan.h"
#include "backend/cuda/layout/packed.h"
#include "base/dtype.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

// The pairs (token * topk + k) by expert, and their tiles of up to GroupedPlan::tokens: gemm_plan.h GroupArgs.
struct MoeGroups {
  const int32_t* pairs = nullptr;
  const ExpertTile* tiles = nullptr;    // [*tile_count]
  const int32_t* tile_count = nullptr;  // [1]
  int topk = 0;
};

// All pointers are device memory, weights, x and u 16-byte aligned. Activations are f16 and finite, products exact,
// sums f32 in the order of k: bitwise repeatable, whatever the other pairs.

// u[pair] = swiglu(W1[e] · x[pair / topk] + b1[e])
struct GroupedUpArgs {
  const uint8_t* weights = nullptr;  // [experts] of [2 * inter, hidden] RowOrder::kGateUp, MXFP4 (layout/packed.h)
  const Bf16* bias = nullptr;        // [experts, 2 * inter], gate even, up odd
  const F16* x = nullptr;            // [tokens, hidden]
  MoeGroups groups;
  F16* u = nullptr;  // [tokens * topk, inter]
  int hidden = 0, inter = 0;
  float swiglu_limit = 7.0f;
};
// y[pair] = W2[e] · u[pair] + b2[e]
struct GroupedDownArgs {
  const uint8_t* weights = nullptr;  // [experts] of [hidden, inter] RowOrder::kPlain, MXFP4
  const Bf16* bias = nullptr;        // [experts, hidden]
  const F16* u = nullptr;            // [tokens * topk, inter]
  MoeGroups groups;
  float* y = nullptr;  // [tokens * topk, hidden]
  int hidden = 0, inter = 0;
};

// One CTA per SM: a tile's activations in shared memory, and a ring of slices of weights for each warp.
struct GroupedPlan {
  int grid = 0, warps = 0;
  int tokens = 0;  // most pairs of a tile: 16, or 8 where shared memory has no room for more
  int64_t smem_bytes = 0;
  [[nodiscard]] std::string to_string() const;
};
// For matrices of `cols` columns. All of a step's launches must group alike: the fewest tokens of their plans. Throws
// Error(kUnsupported) for columns without slices or a card with too little shared memory.
[[nodiscard]] GroupedPlan plan_grouped(int64_t cols, const GemvDevice& device, int warps = 0);
[[nodiscard]] int grouped_tokens(int64_t hidden, int64_t inter, const GemvDevice& device);

inline constexpr int kGroupedStages = 4;  // of a warp's ring
// Bytes between two rows of activations in shared memory: half a line more, so that eight rows lie in different banks.
[[nodiscard]] constexpr int grouped_pitch(int64_t cols) { return static_cast<int>((cols * 2 + 63) / 128 * 128 + 64); }

[[nodiscard]] GemvCost cost(const GroupedUpArgs& args, int pairs, int distinct_experts);
[[nodiscard]] GemvCost cost(const GroupedDownArgs& args, int pairs, int distinct_experts);

// Throw Error(kInvalidRequest or kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const GroupedUpArgs& args);
void check_args(const GroupedDownArgs& args);

}  // namespace nibble::backend::cuda

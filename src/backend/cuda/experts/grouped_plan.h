#pragma once
// The experts of a step of more tokens than the decode kernels take: arguments, checks, plan, cost and
// launchers, those of moe_up and moe_down (gemv_plan.h) too. Plain C++.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/launch/kernel_table.h"
#include "backend/cuda/layout/packed.h"
#include "base/dtype.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

// The pairs (token * topk + k) by expert, and their tiles of up to grouped_tokens: gemm_plan.h GroupArgs.
struct MoeGroups {
  const int32_t* pairs = nullptr;
  const ExpertTile* tiles = nullptr;
  const int32_t* tile_counts = nullptr;
  int topk = 0;
};

inline constexpr RowWarpsWish kGrouped = {.rows = 24, .stages = 3};
static_assert(kGrouped.rows == kMmaColumns * kTileCounts);
// What a row tile costs with the activations of more than 8 * i pairs, in eighths of the cost of i = 0.
[[nodiscard]] constexpr int grouped_cost(int i) { return i == 0 ? 8 : i == 1 ? 9 : 12; }

// Row tiles of all expert tiles, in the order of these, cut into ranges of equal cost.
struct GroupedRanges {
  int row_tiles[kTileCounts] = {}, cost = 0;  // by the expert tiles' size; of all

  constexpr GroupedRanges(const int32_t* tile_counts, int expert_row_tiles) {
    for (int i = 0; i < kTileCounts; ++i) {
      row_tiles[i] = (tile_counts[i] - (i + 1 < kTileCounts ? tile_counts[i + 1] : 0)) * expert_row_tiles;
      cost += row_tiles[i] * grouped_cost(i);
    }
  }
  // The first row tile of range `idx`; idx = count: the end.
  [[nodiscard]] constexpr int first(int idx, int count) const {
    const int rest = cost % count;
    int left = cost / count * idx + (idx < rest ? idx : rest), before = 0;
    for (int i = kTileCounts; i-- > 0; before += row_tiles[i]) {
      if (left < row_tiles[i] * grouped_cost(i)) return before + left / grouped_cost(i);
      left -= row_tiles[i] * grouped_cost(i);
    }
    return before;
  }
};

// All pointers are device memory, weights, x and u 16-byte aligned. Activations are f16 and finite, products exact,
// sums f32 in the order of k: bitwise repeatable, whatever the other pairs.

// u[pair] = swiglu(W1[e] · x[pair / topk] + b1[e])
struct GroupedUpArgs {
  const uint8_t* weights = nullptr;  // [experts] of [2 * inter, hidden] RowOrder::kGateUp, MXFP4 (layout/packed.h)
  const Bf16* bias = nullptr;        // [experts, 2 * inter], gate even, up odd
  const F16* x = nullptr;            // [tokens, hidden]
  MoeGroups groups;
  F16* u = nullptr;  // [tokens * topk, layout::block_pair_width(inter)]: what is filled up gets zeros
  int hidden = 0, inter = 0;
  float swiglu_limit = 7.0f;
};
// y[pair] = W2[e] · u[pair] + b2[e]; inter in pairs of blocks
struct GroupedDownArgs {
  const uint8_t* weights = nullptr;  // [experts] of [hidden, inter] RowOrder::kPlain, MXFP4
  const Bf16* bias = nullptr;        // [experts, hidden]
  const F16* u = nullptr;            // [tokens * topk, inter]
  MoeGroups groups;
  float* y = nullptr;  // [tokens * topk, hidden]
  int hidden = 0, inter = 0;
};

// The most pairs of a tile: 24, or 16 or 8 where shared memory has no room for more; for all of a step's launches.
// Throws Error(kUnsupported) as plan_row_warps does.
[[nodiscard]] int grouped_tokens(int64_t hidden, int64_t inter, const GemvDevice& device);

[[nodiscard]] GemvCost cost(const GroupedUpArgs& args, int pairs, int distinct_experts);
[[nodiscard]] GemvCost cost(const GroupedDownArgs& args, int pairs, int distinct_experts);

// Throw Error(kInvalidRequest or kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const GroupedUpArgs& args);
void check_args(const GroupedDownArgs& args);

// Launchers. They check the arguments (Error as check_args says), launch, return. plan: plan_row_warps with kMoeUpWish,
// kMoeDownWish or kGrouped.
void moe_up_rows(const MoeUpArgs& args, const RowWarpsPlan& plan, const Launch& on);
void moe_down_rows(const MoeDownArgs& args, const RowWarpsPlan& plan, const Launch& on);
void grouped_up(const GroupedUpArgs& args, const RowWarpsPlan& plan, const Launch& on);
void grouped_down(const GroupedDownArgs& args, const RowWarpsPlan& plan, const Launch& on);

// Experts on dp4a: MXFP4 weights as they are packed, activations in int8 with a scale per 32 (round_blocks.h).
inline constexpr int kInt8Warps = 4;  // that share the slices of a row tile

// A CTA per row tile and tile of up to eight of an expert's pairs.
struct GemvInt8Plan {
  int row_tiles = 0;
  int64_t expert_tiles = 0;  // at most
  [[nodiscard]] std::string to_string() const;
};
// `rows` of each of the experts that `pairs` use. Throws Error(kUnsupported) for more than a grid holds.
[[nodiscard]] GemvInt8Plan plan_gemv_int8(int64_t rows, int64_t pairs, int64_t experts);

// GroupedUpArgs and GroupedDownArgs whose x and u are int8 blocks, of groups of up to eight pairs; up's u is f16. Sums
// are exact within a block, then f32 in an order fixed by the columns: bitwise repeatable, whatever the other pairs.
// Check the arguments, launch chained (chained_launch.cuh), return.
void any_gemv_int8_up(const GroupedUpArgs& args, const GemvInt8Plan& plan, const Launch& on);
void any_gemv_int8_down(const GroupedDownArgs& args, const GemvInt8Plan& plan, const Launch& on);

}  // namespace nibble::backend::cuda

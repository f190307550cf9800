#pragma once
// The experts' products outside the GEMMs: those of decode steps, and `grouped` for steps of more tokens. All pointers
// are device memory, weights, x and u 16-byte aligned. Activations are f16 and finite, products exact, sums f32 in the
// order of k: bitwise repeatable, whatever the other pairs. Plain C++.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/layout/packed.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

// How the kernels that give a warp a row tile (row_warps.cuh) use a card.
inline constexpr int kMmaColumns = 8;       // tokens of an mma
inline constexpr int kRowStages = 4;        // of a warp's ring of slices
inline constexpr int kRunStages = 3;        // of a warp's ring where warps have equal runs (row_runs.cuh)
inline constexpr int kRowExtraBytes = 512;  // of shared memory: barriers, routes
inline constexpr int kRowPartBytes = 512;   // of shared memory, of each warp that has a run: sums of a row tile

// Bytes between two rows of activations in shared memory: half a line more, so that eight rows lie in different banks.
[[nodiscard]] constexpr int row_pitch(int64_t cols) { return static_cast<int>((cols * 2 + 63) / 128 * 128 + 64); }

// One CTA per SM: rows of activations in shared memory, and for each warp a ring of slices of weights and, where it has
// a run, a part.
struct RowWarpsPlan : Plan {
  int rows = 0;  // of activations
};
// What a launch asks for.
struct RowWarpsWish {
  int rows = 0;  // of activations, a multiple of 8: fewer where shared memory has no room for so many
  int stages = kRowStages;
  int warps = 0;  // 0: as many as fit
  bool runs = false;
};
// For matrices of `cols` columns. Throws Error(kUnsupported) for columns without slices or a card with too little
// shared memory.
[[nodiscard]] RowWarpsPlan plan_row_warps(int64_t cols, const RowWarpsWish& wish, const PlanDevice& device);

// The topk experts of each token, by falling logit (the lower id first on a tie), and the softmax over them: worked out
// by every CTA for itself, which costs less than a launch.
struct ExpertChoice {
  const float* logits = nullptr;    // [tokens, experts]
  int32_t* expert_ids = nullptr;    // [tokens, topk] out, or null
  float* expert_weights = nullptr;  // [tokens, topk] out, or null
  int experts = 0, topk = 0;
  OwnExperts own{};  // whose weights there are; the others' pairs add nothing. GemvMoeDown::Args: all
};

// u[t, k] = swiglu(W1[e] · x[t] + b1[e]), e the k-th choice. An expert's weights are read once, whatever the number of
// its tokens.
struct MoeUp {
  static constexpr Kernel kName{"moe_up"};
  static constexpr RowWarpsWish kWish = {.rows = kGemvTokens, .stages = kRunStages, .runs = true};
  struct Args {
    const uint8_t* weights = nullptr;  // [experts] of [2 * inter, hidden] RowOrder::kGateUp, MXFP4
    const Bf16* bias = nullptr;        // [experts, 2 * inter], gate even, up odd
    const F16* x = nullptr;            // [tokens, hidden]
    ExpertChoice choice;
    F16* u = nullptr;  // [tokens, topk, layout::block_pair_width(inter)]: what is filled up gets zeros
    int hidden = 0, inter = 0, tokens = 0;
    float swiglu_limit = 7.0f;
  };
  static void launch(const Args& args, const RowWarpsPlan& plan, const Launch& on);
};
void check_args(const MoeUp::Args& args);

// y[t] = Σ_k weights[t, k] (W2[e] · u[t, k] + b2[e]); inter in pairs of blocks. In two forms: for many pairs of a token
// with an expert, and for up to kGemvTokens. Both REQUIRE that the logits were complete before the kernel before this
// one let it start; moe_up sees to that. Then the first weights are fetched while moe_up still runs.
struct MoeDown {
  static constexpr Kernel kName{"moe_down"};
  static constexpr RowWarpsWish kWish = {.rows = 2 * kGemvTokens};  // those of two experts
  struct Args {
    const uint8_t* weights = nullptr;  // [experts] of [hidden, inter] RowOrder::kPlain, MXFP4
    const Bf16* bias = nullptr;        // [experts, hidden]
    const F16* u = nullptr;            // [tokens, topk, inter]
    ExpertChoice choice;
    float* y = nullptr;       // [tokens, hidden]
    float* sums = nullptr;    // scratch [tokens, topk, hidden]
    int* finished = nullptr;  // scratch [hidden / 16]: zero before a launch and after it
    int hidden = 0, inter = 0, tokens = 0;
  };
  static void launch(const Args& args, const RowWarpsPlan& plan, const Launch& on);
};
void check_args(const MoeDown::Args& args);
// Few pairs. With two parts, the second half of the experts goes to y[1], and the reader adds: that balances the SMs
// better (180 row tiles over 132 SMs: 6 tiles instead of 8).
struct GemvMoeDown {
  static constexpr Kernel kName{"gemv<moe_down>"};
  struct Args {
    const uint8_t* weights = nullptr;  // as MoeDown::Args
    const Bf16* bias = nullptr;
    const F16* u = nullptr;
    ExpertChoice choice;
    float* y[2] = {};  // [tokens, hidden] by part
    int hidden = 0, inter = 0, tokens = 0, parts = 1;
  };
  [[nodiscard]] static constexpr GemvShape shape_of(const Args& a) { return {a.hidden, a.inter, a.parts}; }
  static void launch(const Args& args, const GemvPlan& plan, const Launch& on);
};
void check_args(const GemvMoeDown::Args& args);

// The pairs (token * topk + k) by expert, and their tiles of up to grouped_tokens: gemm_plan.h GroupTiles::Args.
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
  // Returns the row tile with which range `idx` begins; range `count` begins at the end.
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

// u[pair] = swiglu(W1[e] · x[pair / topk] + b1[e])
struct GroupedUp {
  static constexpr Kernel kName{"grouped<up>"};
  struct Args {
    const uint8_t* weights = nullptr;  // [experts] of [2 * inter, hidden] RowOrder::kGateUp, MXFP4 (layout/packed.h)
    const Bf16* bias = nullptr;        // [experts, 2 * inter], gate even, up odd
    const F16* x = nullptr;            // [tokens, hidden]
    MoeGroups groups;
    F16* u = nullptr;  // [tokens * topk, layout::block_pair_width(inter)]: what is filled up gets zeros
    int hidden = 0, inter = 0;
    float swiglu_limit = 7.0f;
  };
  static void launch(const Args& args, const RowWarpsPlan& plan, const Launch& on);
};
void check_args(const GroupedUp::Args& args);
// y[pair] = W2[e] · u[pair] + b2[e]; inter in pairs of blocks
struct GroupedDown {
  static constexpr Kernel kName{"grouped<down>"};
  struct Args {
    const uint8_t* weights = nullptr;  // [experts] of [hidden, inter] RowOrder::kPlain, MXFP4
    const Bf16* bias = nullptr;        // [experts, hidden]
    const F16* u = nullptr;            // [tokens * topk, inter]
    MoeGroups groups;
    float* y = nullptr;  // [tokens * topk, hidden]
    int hidden = 0, inter = 0;
  };
  static void launch(const Args& args, const RowWarpsPlan& plan, const Launch& on);
};
void check_args(const GroupedDown::Args& args);

// The most pairs of a tile: 24, or 16 or 8 where shared memory has no room for more; for all of a step's launches.
// Throws Error(kUnsupported) as plan_row_warps does.
[[nodiscard]] int grouped_tokens(int64_t hidden, int64_t inter, const PlanDevice& device);

// With weights in row order, as the checkpoint ships them: three kernels one after the other, of the same arguments.

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

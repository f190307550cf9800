#pragma once
// Kernels of an EAGLE-3 head (backend/draft_head.h): arguments, plans, cost and launchers. Activations that products
// read are bf16, sums and residuals f32. All pointers are device memory, rows 16-byte aligned; a row is a token and
// the feature of the token before it. Plain C++.

#include "backend/cuda/launch/kernel_table.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

namespace kernel {
inline constexpr Kernel kEagle3Linear[] = {{"any_eagle3_linear_bf16<8>"},
                                           {"any_eagle3_linear_bf16<16>"},
                                           {"any_eagle3_linear_bf16<32>"},
                                           {"any_eagle3_linear_bf16<64>"}};  // by most tokens
inline constexpr Kernel kEagle3Norm{"any_eagle3_norm_f32"}, kEagle3Enter{"any_eagle3_enter_bf16"},
    kEagle3Attend{"any_eagle3_attend_bf16"};
}  // namespace kernel

struct Eagle3Cost {
  int64_t bytes = 0;  // that must cross the memory bus
  int64_t flops = 0;
};

inline constexpr int kEagle3MostTokens = 64;  // of a launch of any_eagle3_linear
inline constexpr int kEagle3PageRows = 64;
inline constexpr int kEagle3MostHeadDim = 128;

// One layer's keys and values: [pages, kv_heads, kEagle3PageRows, head_dim].
struct Eagle3Pages {
  Bf16* keys = nullptr;
  Bf16* values = nullptr;
};

// The likeliest of some rows of lm_head.
struct Eagle3Best {
  float value;
  int32_t row;
};

// weight · x + bias, and what becomes of it.
//   kAdd   out = that + residual
//   kGate  weight's first half is the gate: gated = silu(gate) * up
//   kRope  rows are heads of queries, keys, values: queries are rotated to out, keys rotated to their pages, values
//          copied to theirs
//   kBest  the likeliest of every kEagle3RowTile rows; out as well, where it is given
struct Eagle3LinearArgs {
  enum class Then : uint8_t { kAdd, kGate, kRope, kBest } then = Then::kAdd;
  const Bf16* weight = nullptr;     // [rows, cols]
  const float* bias = nullptr;      // [rows]; may be none
  const Bf16* x = nullptr;          // [tokens, cols]
  float* out = nullptr;             // [tokens, rows]; kRope: [tokens, heads * head_dim]
  const float* residual = nullptr;  // [tokens, rows]; may be none, and may be out
  Bf16* gated = nullptr;            // [tokens, rows / 2]
  Eagle3Best* best = nullptr;       // [tokens, row tiles]
  const float* cosine = nullptr;    // [tokens, head_dim / 2] of any_rope_table
  const float* sine = nullptr;      // likewise
  const int32_t* slots = nullptr;   // [tokens] where keys and values lie: page * kEagle3PageRows + place in it
  Eagle3Pages pages{};
  int heads = 0, kv_heads = 0, head_dim = 0;
  int tokens = 0, rows = 0, cols = 0;  // cols: a multiple of 8
  // A thread has rows r and r + half() of each 2 * half().
  [[nodiscard]] constexpr int half() const {
    return then == Then::kGate ? rows / 2 : then == Then::kRope ? head_dim / 2 : 8;
  }
};
inline constexpr int kEagle3RowTile = 16;
[[nodiscard]] constexpr int eagle3_row_tiles(int rows) { return (rows + kEagle3RowTile - 1) / kEagle3RowTile; }

// A CTA of 8 warps takes 8 / parts row tiles; a tile's columns are cut among `parts` warps.
struct Eagle3LinearPlan {
  int token_tiles = 1;  // of 8 tokens: 1, 2, 4 or 8
  int parts = 1;        // 1, 2, 4 or 8
  int grid = 1;
  int smem_bytes = 0;
};
inline constexpr int kEagle3LinearWarps = 8;
[[nodiscard]] Eagle3LinearPlan plan(const Eagle3LinearArgs& args, int multiprocessors);
[[nodiscard]] Eagle3LinearPlan cut(const Eagle3LinearArgs& args, int parts);  // into so many

// Of segments of each row: rounded, and normed as floats, = segment / sqrt(mean(segment^2) + eps) * scale; the segment
// itself where there is no scale, and as plain.
struct Eagle3NormArgs {
  const float* x = nullptr;               // [*, segments * width]
  const int32_t* which = nullptr;         // [rows] rows of x; none: r itself
  const int32_t* to = nullptr;            // [rows] rows of the results, below 0: none; none: r itself
  const float* scale = nullptr;           // [segments * width]
  Bf16* rounded = nullptr;                // [*, segments * width]; may be none
  float* normed = nullptr;                // likewise
  float* plain = nullptr;                 // likewise
  int rows = 0, segments = 1, width = 0;  // width: a multiple of 4 up to kEagle3MostWidth
  float eps = 0;
};

inline constexpr int kEagle3MostWidth = 16384, kEagle3MostHidden = 8192;

// What layer 0 reads: x = [norm(embedding[id]), norm(feature)], residual = feature or its norm. With `best`, id is the
// token of the likeliest row of lm_head, and kept.
struct Eagle3EnterArgs {
  const Eagle3Best* best = nullptr;     // [tokens, best_tiles]; may be none
  const int32_t* target_ids = nullptr;  // [draft vocab]; none: the same
  int32_t* ids = nullptr;               // [tokens] out with best, else in
  const Bf16* embedding = nullptr;      // [vocab, hidden]
  const float* input_norm = nullptr;    // [hidden]
  const float* hidden_norm = nullptr;   // likewise
  const float* feature = nullptr;       // [tokens, hidden]
  Bf16* x = nullptr;                    // [tokens, 2 * hidden]; none: nothing but ids
  float* residual = nullptr;            // [tokens, hidden], may be feature
  int tokens = 0, hidden = 0;           // hidden: a multiple of 4 up to kEagle3MostHidden
  int best_tiles = 0;
  float eps = 0;
  bool norm_before_residual = false;
};

// Causal attention of each row over its sequence's rows [first, end).
struct Eagle3AttendArgs {
  const float* q = nullptr;  // [tokens, heads, head_dim]
  Eagle3Pages pages{};
  const int32_t* first = nullptr;     // [tokens]
  const int32_t* end = nullptr;       // [tokens] at least first + 1
  const int32_t* pages_at = nullptr;  // [tokens] where the sequence's pages begin in page_ids
  const int32_t* page_ids = nullptr;
  Bf16* out = nullptr;      // [tokens, heads, head_dim]
  float* parts = nullptr;   // scratch of eagle3_parts_bytes(), where there are splits
  int* finished = nullptr;  // scratch [tokens * kv_heads * head groups]: zero before a launch and after it
  int tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;  // head_dim: a multiple of 8, up to kEagle3MostHeadDim
  int splits = 1;                                         // most CTAs that share a row's keys
  // Heads that share keys, eight to a CTA.
  [[nodiscard]] constexpr int groups() const { return (heads / kv_heads + 7) / 8; }
  [[nodiscard]] constexpr int ctas() const { return tokens * kv_heads * groups(); }
};
inline constexpr int kEagle3MostSplits = 32;
// As many CTAs as keep the card busy.
[[nodiscard]] int attend_splits(const Eagle3AttendArgs& args, int multiprocessors);
[[nodiscard]] int64_t eagle3_parts_bytes(int head_dim, int multiprocessors);

[[nodiscard]] Eagle3Cost cost(const Eagle3LinearArgs& args);
[[nodiscard]] Eagle3Cost cost(const Eagle3NormArgs& args);
[[nodiscard]] Eagle3Cost cost(const Eagle3EnterArgs& args);
[[nodiscard]] Eagle3Cost cost(const Eagle3AttendArgs& args, int64_t keys);  // of all rows

// Throw Error(kUnsupported) that prints what a launch cannot serve.
void check_args(const Eagle3LinearArgs& args);
void check_args(const Eagle3NormArgs& args);
void check_args(const Eagle3EnterArgs& args);
void check_args(const Eagle3AttendArgs& args);

// Check their arguments, launch chained (chained_launch.cuh), return.
void any_eagle3_linear(const Eagle3LinearArgs& args, const Eagle3LinearPlan& plan, const Launch& on);
void any_eagle3_norm(const Eagle3NormArgs& args, const Launch& on);
void any_eagle3_enter(const Eagle3EnterArgs& args, const Launch& on);
void any_eagle3_attend(const Eagle3AttendArgs& args, const Launch& on);

}  // namespace nibble::backend::cuda

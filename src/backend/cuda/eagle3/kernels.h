#pragma once
// Kernels that a head has of its own (backend.h HeadConfig): activations that products read are bf16, sums and
// residuals f32. All pointers are device memory, rows 16-byte aligned. Plain C++.

#include "backend/args.h"
#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kEagle3MostTokens = 64;  // of a launch of Eagle3Linear
inline constexpr int kEagle3MostHeadDim = 128, kEagle3MostWidth = 16384, kEagle3MostHidden = 8192;

// A CTA of 8 warps takes 8 / parts row tiles; a tile's columns are cut among `parts` warps.
struct Eagle3LinearPlan : Plan {
  int token_tiles = 1;  // of 8 tokens: 1, 2, 4 or 8
  int parts = 1;        // 1, 2, 4 or 8
};
inline constexpr int kEagle3LinearWarps = 8, kEagle3RowTile = 16;
[[nodiscard]] constexpr int eagle3_row_tiles(int rows) { return (rows + kEagle3RowTile - 1) / kEagle3RowTile; }

// weight · x + bias, and what becomes of it.
//   kAdd   out = that + residual
//   kGate  weight's first half is the gate: gated = silu(gate) * up
//   kRope  rows are heads of queries, keys, values: queries are rotated to out, keys rotated to their pages, values
//          copied to theirs
struct Eagle3Linear {
  static constexpr std::string_view kTile = "16 rows per warp or part of one";
  struct Args {
    enum class Then : uint8_t { kAdd, kGate, kRope } then = Then::kAdd;
    const Bf16* weight = nullptr;             // [rows, cols]
    const float* bias = nullptr;              // [rows]; may be none
    const Bf16* x = nullptr;                  // [tokens, cols]
    float* out = nullptr;                     // [tokens, rows]; kRope: [tokens, heads * head_dim]
    const float* residual = nullptr;          // [tokens, rows]; may be none, and may be out
    Bf16* gated = nullptr;                    // [tokens, rows / 2]
    const float* cosine = nullptr;            // [tokens, head_dim / 2] of RopeTable
    const float* sine = nullptr;              // [tokens, head_dim / 2] of RopeTable
    const int32_t* slots = nullptr;           // [tokens] where keys and values lie: page * kPageTokens + place in it
    Bf16 *keys = nullptr, *values = nullptr;  // [pages, kv_heads, kPageTokens, head_dim]
    int heads = 0, kv_heads = 0, head_dim = 0;
    int tokens = 0, rows = 0, cols = 0;  // cols: a multiple of 8
    // A thread has rows r and r + half() of each 2 * half().
    [[nodiscard]] constexpr int half() const {
      return then == Then::kGate ? rows / 2 : then == Then::kRope ? head_dim / 2 : 8;
    }
  };
  [[nodiscard]] static constexpr Kernel name(int tokens) {
    constexpr Kernel kByMost[] = {{"any_eagle3_linear_bf16<8>"},
                                  {"any_eagle3_linear_bf16<16>"},
                                  {"any_eagle3_linear_bf16<32>"},
                                  {"any_eagle3_linear_bf16<64>"}};
    return kByMost[tokens <= 8 ? 0 : tokens <= 16 ? 1 : tokens <= 32 ? 2 : 3];
  }
  [[nodiscard]] static Eagle3LinearPlan plan(const Args& args, int multiprocessors);
  [[nodiscard]] static Eagle3LinearPlan cut(const Args& args, int parts);  // into so many
  static void launch(const Args& args, const Eagle3LinearPlan& plan, const Launch& on);
};
void check_args(const Eagle3Linear::Args& args);
// Norms of segments of each row: rounded, and normed as floats, = segment / sqrt(mean(segment^2) + eps) * scale; the
// segment itself where there is no scale, and as plain.
struct Eagle3Norm {
  static constexpr Kernel kName{"any_eagle3_norm_f32"};
  struct Args {
    const float* x = nullptr;               // [*, segments * width]
    const int32_t* which = nullptr;         // [rows] rows of x; none: r itself
    const float* scale = nullptr;           // [segments * width]
    Bf16* rounded = nullptr;                // [*, segments * width]; may be none
    float* normed = nullptr;                // [*, segments * width]; may be none
    float* plain = nullptr;                 // [*, segments * width]; may be none
    int rows = 0, segments = 1, width = 0;  // width: a multiple of 4 up to kEagle3MostWidth
    float eps = 0;
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const Eagle3Norm::Args& args);

// What layer 0 reads: x = [norm(embedding[id]), norm(feature)], residual = feature or its norm. An id below 0 names row
// -1 - id of the step before: its token, and its feature.
struct Eagle3Enter {
  static constexpr Kernel kName{"any_eagle3_enter_bf16"};
  struct Args {
    const int32_t* ids = nullptr;         // [tokens]
    const int32_t* sampled = nullptr;     // [rows] of the step before
    const int32_t* target_ids = nullptr;  // [draft vocab] what is sampled to the embedding; none: the same
    const float* features = nullptr;      // [rows, hidden]
    const Bf16* embedding = nullptr;      // [vocab, hidden]
    const float* input_norm = nullptr;    // [hidden]
    const float* hidden_norm = nullptr;   // [hidden]
    Bf16* x = nullptr;                    // [tokens, 2 * hidden]
    float* residual = nullptr;            // [tokens, hidden] in: features of tokens whose id is not below 0
    int tokens = 0, hidden = 0;           // hidden: a multiple of 4 up to kEagle3MostHidden
    float eps = 0;
    bool norm_before_residual = false;
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const Eagle3Enter::Args& args);

}  // namespace nibble::backend::cuda

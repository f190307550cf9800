#pragma once
// Matrix products for many tokens (9 and more) and what the MoE needs around them: arguments, checks, plan and cost.
// Plain C++; launchers: gemm.h.

#include "backend/cuda/layout/packed.h"
#include "base/dtype.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

inline constexpr int kGemmRowTiles = 8;  // of 16 rows, per CTA
inline constexpr int kGemmMaxParts = 3;
inline constexpr int kGemmTokens[] = {32, 64, 128};    // that a CTA may take
inline constexpr int kWgmmaTokens[] = {64, 128, 256};  // likewise, of sm90_gemm
inline constexpr int kGroupMaxExperts = 256;

// Up to tile_tokens of the pairs (token * topk + k) that use one expert: pairs[first, first + count).
struct ExpertTile {
  int32_t expert = 0, first = 0, count = 0;
  friend constexpr bool operator==(const ExpertTile&, const ExpertTile&) = default;
};
[[nodiscard]] constexpr int64_t max_expert_tiles(int64_t pairs, int64_t experts, int tile_tokens) {
  return pairs / tile_tokens + (pairs < experts ? pairs : experts);
}

// The pairs by expert, rising within one, and their tiles; all on the device.
struct GroupArgs {
  const int32_t* expert_ids = nullptr;  // [tokens, topk], in [0, experts)
  int32_t* pairs = nullptr;             // [tokens * topk]
  ExpertTile* tiles = nullptr;          // [max_expert_tiles]
  int32_t* tile_count = nullptr;        // [1]
  int tokens = 0, topk = 0, experts = 0, tile_tokens = 0;
};

// A range of result rows and where it goes: to[token, row - first_row].
struct GemmPart {
  float* to = nullptr;  // [tokens, rows]
  int first_row = 0, rows = 0;
};

enum class GemmInto : uint8_t { kStore, kAdd };

// y[t, r] = W[r] · x[t] + bias[r], or y += with kAdd. Grouped (tiles given): t is a pair, W and bias are those of its
// expert, and x's row is pair / x_share.
// Weights are packed as layout/packed.h says; x is row-major, 16-byte aligned; any_gemm wants it in bf16 for bf16
// weights and in f16 for MXFP8 and MXFP4, sm90_gemm in bf16 in the order of layout/wgmma_b.h. Products are exact, sums
// f32 in an order fixed by cols: bitwise repeatable, whatever the other tokens.
struct GemmArgs {
  layout::Packing packing = layout::Packing::kBf16;
  layout::RowOrder order = layout::RowOrder::kPlain;
  const uint8_t* weights = nullptr;    // [experts or 1] of [rows, cols]
  const Bf16* bias = nullptr;          // [experts or 1, rows] in the checkpoint's order, or null
  const uint16_t* x = nullptr;         // [*, cols]
  GemmPart parts[kGemmMaxParts] = {};  // a row lies in one of them
  GemmInto into = GemmInto::kStore;
  int rows = 0, cols = 0, tokens = 0;  // grouped: tokens is the number of pairs
  // Grouped
  const ExpertTile* tiles = nullptr;
  const int32_t* tile_count = nullptr;
  const int32_t* pairs = nullptr;
  int x_share = 1, experts = 1;
  // order kGateUp: u[t, i] = swiglu(row 2i, row 2i + 1) instead of parts
  uint16_t* u = nullptr;  // [tokens, rows / 2] of x's type and order
  float swiglu_limit = 7.0f;
};

// residual[t] += Σ_k weights[t, k] y[t, k], k rising.
struct CombineArgs {
  const float* y = nullptr;        // [tokens, topk, hidden]
  const float* weights = nullptr;  // [tokens, topk]
  float* residual = nullptr;       // [tokens, hidden]
  int tokens = 0, topk = 0, hidden = 0;
};

// Activations to the type and order that a GEMM takes. kWgmma: bf16, blocks of 32 in the order of layout/wgmma_b.h.
enum class InputType : uint8_t { kBf16, kF16, kWgmma };
struct RoundArgs {
  const float* from = nullptr;
  uint16_t* to = nullptr;
  int64_t count = 0;  // a multiple of 4; kWgmma: rows are multiples of 32
  InputType type = InputType::kBf16;
};

struct GemmPlan {
  int tokens = 0;      // per CTA
  int grid_x = 0;      // blocks of rows
  int64_t grid_y = 0;  // tiles of tokens that there may be
  int smem_bytes = 0;
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const GemmPlan&, const GemmPlan&) = default;
};
// The tile that should finish first: waves of CTAs over `sms` times a tile's work. All of a step's grouped launches
// must use the same tile: plan with the larger rows. Throws Error(kUnsupported) for a shape that has no tiles.
struct GemmShape {
  int64_t rows = 0, cols = 0;
  int64_t tokens = 0;  // grouped: pairs
  int64_t experts = 1;
};
struct GemmDevice {
  int sms = 0;
  bool wgmma = false;  // plan for sm90_gemm
};
[[nodiscard]] GemmPlan plan_gemm(const GemmShape& shape, const GemmDevice& device);
[[nodiscard]] GemmPlan plan_gemm(const GemmShape& shape, const GemmDevice& device, int tile_tokens);

struct GemmCost {
  int64_t bytes = 0;  // weights of each distinct expert once, activations and results once
  int64_t flops = 0;
};
[[nodiscard]] GemmCost cost(const GemmArgs& args, int distinct_experts);

// Throw Error(kInvalidRequest or kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const GemmArgs& args);
void check_args(const GroupArgs& args);

}  // namespace nibble::backend::cuda

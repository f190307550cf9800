#pragma once
// Norm and rope of steps of many tokens, which run on GEMMs. Decode kernels have them fused in. All pointers are device
// memory, rows of floats 16-byte aligned. Plain C++.

#include "backend/cuda/comm/mailbox.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"

#include <cstdint>

namespace nibble::backend::cuda {

// What its reader adds up, s rising: splits of a GEMM, Σ_s sums[s, t]; or what a token's experts made, Σ_s weights[t,
// s] sums[t, s].
struct SplitSums {
  const void* at = nullptr;
  int splits = 0;  // 0: there is nothing to add; of experts the topk
  enum class Order : uint8_t {
    kRows,        // f32 [splits, tokens, rows]
    kTiles,       // bf16 [splits], each where gemm_plan.h place_in_sums says
    kExpertsF32,  // [tokens, splits, rows]
    kExpertsBf16
  } order = {};
  const float* weights = nullptr;  // [tokens, splits], of experts
  [[nodiscard]] constexpr bool of_experts() const { return order >= Order::kExpertsF32; }
  [[nodiscard]] constexpr int bytes() const {  // of a value
    return splits * (order == Order::kRows || order == Order::kExpertsF32 ? 4 : 2);
  }
};

// x[t] += bias + the sums; then rmsnorm(x[t]) * norm, in f32 or rounded as a GEMM or the experts take it, or both.
struct NormSums {
  static constexpr Kernel kName{"any_norm_sums_f32"};
  struct Args {
    float* x = nullptr;          // [tokens, hidden]
    SplitSums sums{};            // rows: hidden
    const Bf16* bias = nullptr;  // [hidden], with splits of a GEMM
    const Bf16* norm = nullptr;  // [hidden]; null: nothing but x
    float* normed = nullptr;     // [tokens, hidden]
    GemmInput rounded{};
    int tokens = 0, hidden = 0;  // hidden: a multiple of 8, without experts of 16, up to kNormHidden
    float eps = 0;
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const NormSums::Args& args);
inline constexpr int kNormHidden = 4096;

// One rank's delta as a row per token, for the sum over ranks: bias + the sums, of its own experts alone.
struct Combine {
  static constexpr Kernel kName{"any_combine_f32"};
  static constexpr std::string_view kTile = "half a row tile of a token per thread";
  struct Args {
    SplitSums sums{};              // rows: hidden; of a GEMM by tiles
    const Bf16* bias = nullptr;    // [hidden], with splits of a GEMM
    const int32_t* ids = nullptr;  // [tokens, topk], with experts: the router's
    OwnExperts own{};
    uint16_t* tiles = nullptr;   // out: bf16 where place_in_sums says, unless `places` sends it away
    PartPlaces places{};         // where tiles are sent
    int tokens = 0, hidden = 0;  // hidden: a multiple of 16, up to kNormHidden
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const Combine::Args& args);

// q, k, v = the sums + bias; rope rotates q and k; k and v go into their slots. Rows are heads of 64: q, then k, then
// v. The rows of the sums are in RowOrder::kHeads64.
struct RopeSums {
  static constexpr Kernel kName{"any_rope_sums_f32"};
  static constexpr std::string_view kTile = "8 rows of a token per thread";
  struct Args {
    SplitSums sums = {};
    const Bf16* bias = nullptr;         // [rows], in the checkpoint's order
    float* q = nullptr;                 // [tokens, heads, 64]
    const float* cosine = nullptr;      // [tokens, 32], times the concentration
    const float* sine = nullptr;        // [tokens, 32], times the concentration
    const int32_t* kv_slots = nullptr;  // [tokens] page * kPageTokens + offset
    KvPages kv;
    int tokens = 0, heads = 0, kv_heads = 0;
    [[nodiscard]] constexpr int rows() const { return (heads + 2 * kv_heads) * kGemvHeadDim; }
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const RopeSums::Args& args);

// The residual stream as a head reads it: out[t] = x[t] + the sums.
struct Tap {
  static constexpr Kernel kName{"any_tap_f32"};
  struct Args {
    const float* x = nullptr;  // [tokens, hidden]
    SplitSums sums{};          // in rows of hidden
    float* out = nullptr;      // [tokens, hidden], rows `pitch` floats apart
    int64_t pitch = 0;
    int tokens = 0, hidden = 0;  // hidden: a multiple of 4
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const Tap::Args& args);

}  // namespace nibble::backend::cuda

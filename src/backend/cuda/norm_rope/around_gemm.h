#pragma once
// Norm, rope and router of steps of many tokens, which run on GEMMs. Decode kernels have them fused in. Arguments, cost
// and launchers. All pointers are device memory, rows of floats 16-byte aligned.

#include "backend/cuda/comm/share_box.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/launch/kernel_table.h"

#include <cstdint>

namespace nibble::backend::cuda {

// A GEMM's result in splits, which its reader adds up.
struct SplitSums {
  const void* at = nullptr;
  int splits = 0;  // 0: there is none
  // f32 [tokens, rows], or bf16 where gemm_plan.h place_in_sums says
  enum class Order : uint8_t { kRows, kTiles } order = {};
  [[nodiscard]] constexpr int bytes() const { return splits * (order == Order::kTiles ? 2 : 4); }  // of a value
};

// The results of each token's experts. The reader adds them up with the experts' weights.
struct ExpertSums {
  const void* at = nullptr;  // [tokens, topk, hidden]; none: there is nothing to add
  enum class Type : uint8_t { kF32, kBf16 } type = Type::kF32;
  const float* weights = nullptr;  // [tokens, topk]
  int topk = 0;
};

// The form of a delta that its reader adds up.
enum class NormDelta : uint8_t { kSplits, kExpertsF32, kExpertsBf16 };

// x[t] += Σ_s sums[s, t] + bias, s rising, and the bias first; or x[t] += Σ_k weights[t, k] experts[t, k], k rising.
// Then rmsnorm(x[t]) * norm, in f32 or rounded as a GEMM or the experts take it, or both.
struct NormSumsArgs {
  float* x = nullptr;          // [tokens, hidden]
  SplitSums sums{};            // rows: hidden
  const Bf16* bias = nullptr;  // [hidden], with sums
  ExpertSums experts{};        // not with sums
  const Bf16* norm = nullptr;  // [hidden]; null: nothing but x
  float* normed = nullptr;     // [tokens, hidden]
  GemmInput rounded{};
  int tokens = 0, hidden = 0;  // hidden: a multiple of 8, without experts of 16, up to kNormHidden
  float eps = 0;
};
inline constexpr int kNormHidden = 4096;

// One rank's delta as a row per token, for the sum over ranks: bias + Σ_s sums[s, t], the bias first; or Σ_k
// weights[t, k] experts[t, k] over the rank's own experts, in the order of k.
struct CombineArgs {
  SplitSums sums{};              // rows: hidden
  const Bf16* bias = nullptr;    // [hidden], with sums
  ExpertSums experts{};          // not with sums
  const int32_t* ids = nullptr;  // [tokens, topk], with experts: the router's
  OwnExperts own{};
  float* rows = nullptr;       // [tokens, hidden] out, or
  uint16_t* tiles = nullptr;   // out: bf16 where place_in_sums says, unless `places` sends it away
  PartPlaces places{};         // where tiles are sent
  int tokens = 0, hidden = 0;  // hidden: a multiple of 16, up to kNormHidden
};

template <class Args>
[[nodiscard]] constexpr NormDelta norm_delta(const Args& args) {
  if (args.experts.at == nullptr) return NormDelta::kSplits;
  return args.experts.type == ExpertSums::Type::kF32 ? NormDelta::kExpertsF32 : NormDelta::kExpertsBf16;
}

// q, k, v = the sums + bias; rope rotates q and k; k and v go into their slots. Rows are heads of 64: q, then k, then
// v. The rows of the sums are in RowOrder::kHeads64.
struct RopeSumsArgs {
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

// logits[t, e] = x[t] · W[e] + bias[e]; the topk largest by falling logit (the lower id first on a tie), and the
// softmax over them. x is rounded to two bf16 (16 bits). `hidden` fixes the order of a sum, so other tokens do not
// change a token's bits.
struct RouteTokensArgs {
  const float* x = nullptr;                           // [tokens, hidden]
  const Bf16* weight = nullptr;                       // [experts, hidden]
  const Bf16* bias = nullptr;                         // [experts]
  float* logits = nullptr;                            // [tokens, experts]
  int32_t* ids = nullptr;                             // [tokens, topk]
  float* weights = nullptr;                           // [tokens, topk]
  float* parts = nullptr;                             // scratch [route_parts_floats], 16-byte aligned
  int* finished = nullptr;                            // scratch [route_tiles(tokens)]: zero before and after
  int tokens = 0, hidden = 0, experts = 0, topk = 0;  // hidden: in slices (layout/mx_a_m16k32.h)
};
inline constexpr int kRouteTokens = 8;                   // of a tile, or twice as many
inline constexpr int kRouteMaxTokens = 512;              // more: any_route_sums
inline constexpr int kRouteWarps = 16, kRouteParts = 8;  // of a CTA; of K: at most
[[nodiscard]] constexpr int64_t route_tiles(int64_t tokens) { return (tokens + kRouteTokens - 1) / kRouteTokens; }

// Adds sums and bias to x[t] as NormSumsArgs does; inverse[t] = 1 / sqrt(mean(x[t]^2) + eps). Then chooses experts as
// RouteTokensArgs does, for inverse[t] * x[t] * norm, which is split into two bf16.
struct RouteSumsArgs {
  float* x = nullptr;                                    // [tokens, hidden]
  SplitSums sums{};                                      // rows: hidden; none, or one split; by tiles one or two
  const Bf16* bias = nullptr;                            // [hidden], with sums
  const Bf16* norm = nullptr;                            // [hidden]
  const Bf16 *weight = nullptr, *router_bias = nullptr;  // [experts, hidden], [experts]
  float* inverse = nullptr;                              // [tokens]
  float* logits = nullptr;                               // [tokens, experts]
  int32_t* ids = nullptr;                                // [tokens, topk]
  float* weights = nullptr;                              // [tokens, topk]
  ExpertRanges ranges{};                                 // out, where they are asked for
  int tokens = 0, hidden = 0, experts = 0, topk = 0;     // hidden: a multiple of 32
  float eps = 0;
};
inline constexpr int kRouteSumsExperts = 128;  // at most: what a warp's registers hold

// Grid: parts of K x columns of experts x tiles of tokens. A CTA has a warp per slice of its part and group of 16
// experts. Parts are fixed by hidden and experts.
struct RouteShape {
  int64_t tokens = 0, hidden = 0, experts = 0;
};
struct RoutePlan {
  int tiles = 0, tokens = 0;              // tokens: of a tile
  int parts = 0, slices = 0, groups = 0;  // slices of a part, groups of a column: at most
  int columns = 0;
  int pitch = 0;  // bytes of a token's x in shared memory
  int threads = 0, smem_bytes = 0;
  [[nodiscard]] int grid() const { return parts * columns * tiles; }
  [[nodiscard]] std::string to_string() const;
};
[[nodiscard]] RoutePlan plan_route(const RouteShape& shape, int sms);
// Size of RouteTokensArgs::parts.
[[nodiscard]] int64_t route_parts_floats(const RouteShape& shape);

// Norm and router of few tokens in one launch: norm's sums and no experts, normed in f32 and rounded to 16 bits in
// rows; route's x is what is normed.
struct NormRouteArgs {
  NormSumsArgs norm;
  RouteTokensArgs route;  // without x, parts and finished
};
// A cluster of CTAs per eight tokens, of which each has some of the panels of 64 columns and chooses for one token.
inline constexpr int kNormRouteCtas = 8, kNormRouteTokens = 8, kNormRouteThreads = 512;
inline constexpr int kNormRouteExperts = 128, kNormRouteMaxTokens = 64;  // at most; beyond, W would be read too often
inline constexpr int kNormRoutePanels = kNormHidden / 64 / kNormRouteCtas;  // of a CTA, at most
struct NormRoutePart {
  int first = 0, panels = 0;
  constexpr NormRoutePart(int hidden, int rank)
      : first(rank * (hidden / 64) / kNormRouteCtas), panels((rank + 1) * (hidden / 64) / kNormRouteCtas - first) {}
};
struct NormRoutePlan {
  int clusters = 0;
  int smem_bytes = 0;
  [[nodiscard]] int grid() const { return clusters * kNormRouteCtas; }
  [[nodiscard]] std::string to_string() const;
};
// Shared memory of a CTA: bytes of a row of W, x, norm or bias, so that rows begin in different banks; rows of W.
[[nodiscard]] constexpr int norm_route_pitch(int hidden) {
  return (hidden / 64 + kNormRouteCtas - 1) / kNormRouteCtas * 128 + 16;
}
[[nodiscard]] constexpr int norm_route_rows(int experts) { return (experts + 15) / 16 * 16; }
// Whether it serves such a step.
[[nodiscard]] bool norm_route_serves(const RouteShape& shape);
[[nodiscard]] NormRoutePlan plan_norm_route(const RouteShape& shape);

[[nodiscard]] GemmCost cost(const NormSumsArgs& args);
[[nodiscard]] GemmCost cost(const CombineArgs& args);
[[nodiscard]] GemmCost cost(const RopeSumsArgs& args);
[[nodiscard]] GemmCost cost(const RouteTokensArgs& args);
[[nodiscard]] GemmCost cost(const RouteSumsArgs& args);
[[nodiscard]] GemmCost cost(const NormRouteArgs& args);

// Throw Error(kUnsupported) that prints what a launch cannot serve.
void check_args(const NormSumsArgs& args);
void check_args(const CombineArgs& args);
void check_args(const RopeSumsArgs& args);
void check_args(const RouteTokensArgs& args);
void check_args(const RouteSumsArgs& args);
void check_args(const NormRouteArgs& args);

// Check the arguments, launch chained (chained_launch.cuh), return.
void any_norm_sums(const NormSumsArgs& args, const Launch& on);
void any_combine(const CombineArgs& args, const Launch& on);
void any_rope_sums(const RopeSumsArgs& args, const Launch& on);
void any_route_tokens(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on);
void any_route_sums(const RouteSumsArgs& args, const Launch& on);

// The residual stream as a head reads it: out[t] = x[t] + delta[t] + rest[t], the terms that there are.
struct TapArgs {
  const float* x = nullptr;      // [tokens, hidden]
  const float* delta = nullptr;  // [tokens, hidden]
  const float* rest = nullptr;   // [tokens, hidden], with delta
  float* out = nullptr;          // [tokens, hidden], rows `pitch` floats apart
  int64_t pitch = 0;
  int tokens = 0, hidden = 0;  // hidden: a multiple of 4
};

void check_args(const TapArgs& args);
void any_tap(const TapArgs& args, const Launch& on);

}  // namespace nibble::backend::cuda

#pragma once
// Who goes where: the routers of few and many tokens, and the choice of experts. All pointers are device memory, rows
// of floats 16-byte aligned. Plain C++.

#include "backend/cuda/norm_rope/around_gemm.h"

#include <cstdint>

namespace nibble::backend::cuda {

// sum = x + delta + rest; normed = rmsnorm(sum) * norm, rounded for the experts; logits[t, e] = rmsnorm(sum[t]) * norm
// · W[e] + bias[e]. One CTA per expert; W stays in row order.
struct Router {
  static constexpr Kernel kName{"any_router_f32_bf16"};
  struct Args {
    const float* x = nullptr;      // [tokens, hidden]
    const float* delta = nullptr;  // [tokens, hidden], or null: x has it
    const float* rest = nullptr;   // [tokens, hidden], or null: added after delta
    float* sum = nullptr;          // [tokens, hidden]; null where x is the sum
    const Bf16* norm = nullptr;    // [hidden]
    const Bf16* weight = nullptr;  // [experts, hidden]
    const Bf16* bias = nullptr;    // [experts]
    F16* normed = nullptr;         // [tokens, hidden]
    float* logits = nullptr;       // [tokens, experts]
    int hidden = 0, experts = 0, tokens = 0;
    float eps = 0;
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const Router::Args& args);
inline constexpr int kRouterThreads = 384, kRouterParts = 3;
inline constexpr int kRouterHidden = kRouterThreads * kRouterParts * 8;  // the widest

// The topk largest logits of a token, ids by falling logit (lower id on a tie), weights their softmax.
struct TopExperts {
  static constexpr Kernel kName{"any_top_experts_f32"};
  static constexpr std::string_view kTile = "a warp per token";
  struct Args {
    const float* logits = nullptr;  // [tokens, experts]
    int32_t* ids = nullptr;         // [tokens, topk]
    float* weights = nullptr;       // [tokens, topk]
    int tokens = 0, experts = 0, topk = 0;
  };
  static void launch(const Args& args, const Launch& on);
};

// Adds sums and bias to x[t] as NormSums::Args does; inverse[t] = 1 / sqrt(mean(x[t]^2) + eps). logits[t, e] =
// inverse[t] * x[t] * norm · W[e] + router_bias[e], where norm * x is split into two bf16 (16 bits). Then the choice of
// TopExperts.
struct RouteSums {
  static constexpr Kernel kName{"any_route_sums"};
  static constexpr std::string_view kTile = "32 or 64 tokens per CTA";
  struct Args {
    float* x = nullptr;                                    // [tokens, hidden]
    SplitSums sums{};                                      // rows: hidden; none, or one split; by tiles one or two
    const Bf16* bias = nullptr;                            // [hidden], with sums
    const Bf16* norm = nullptr;                            // [hidden]
    const Bf16 *weight = nullptr, *router_bias = nullptr;  // [experts, hidden], [experts]
    float* inverse = nullptr;                              // [tokens]
    float* logits = nullptr;                               // [tokens, experts]
    int32_t* ids = nullptr;                                // [tokens, topk]
    float* weights = nullptr;                              // [tokens, topk]
    int tokens = 0, hidden = 0, experts = 0, topk = 0;     // hidden: a multiple of 32
    float eps = 0;
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const RouteSums::Args& args);
inline constexpr int kRouteSumsExperts = 128;  // at most: what a warp's registers hold

// Norm and router in one launch: norm's sums and no experts, normed in f32 and rounded to 16 bits in rows; then the
// choice of TopExperts. norm * x is split into two bf16, and hidden fixes the order of a sum: other tokens do not
// change a token's bits.
struct NormRouteArgs {
  NormSums::Args norm;
  const Bf16 *weight = nullptr, *bias = nullptr;  // [experts, hidden], [experts]
  float* logits = nullptr;                        // [tokens, experts]
  int32_t* ids = nullptr;                         // [tokens, topk]
  float* weights = nullptr;                       // [tokens, topk]
  int experts = 0, topk = 0;
};
struct RouteShape {
  int64_t tokens = 0, hidden = 0, experts = 0;
};
// A cluster of CTAs, of which each has some of the panels of 64 columns and chooses for some of the tokens.
inline constexpr int kNormRouteCtas = 8, kNormRouteThreads = 512;
// A cluster's tokens. Few are fastest as long as their clusters do not read W too often (docs/decisions/0053).
[[nodiscard]] constexpr int norm_route_tokens(int64_t tokens) { return tokens <= 64 ? 8 : tokens <= 128 ? 16 : 32; }
inline constexpr int kNormRouteExperts = 128, kNormRouteMaxTokens = 512;    // at most; more: RouteSums
inline constexpr int kNormRoutePanels = kNormHidden / 64 / kNormRouteCtas;  // of a CTA, at most
struct NormRoutePart {
  int first = 0, panels = 0;
  constexpr NormRoutePart(int hidden, int rank)
      : first(rank * (hidden / 64) / kNormRouteCtas), panels((rank + 1) * (hidden / 64) / kNormRouteCtas - first) {}
};
// Shared memory of a CTA: bytes of a row of W, x, norm or bias, so that rows begin in different banks; rows of W.
[[nodiscard]] constexpr int norm_route_pitch(int hidden) {
  return (hidden / 64 + kNormRouteCtas - 1) / kNormRouteCtas * 128 + 16;
}
[[nodiscard]] constexpr int norm_route_rows(int experts) { return (experts + 15) / 16 * 16; }
// Whether it serves such a step.
[[nodiscard]] bool norm_route_serves(const RouteShape& shape);
[[nodiscard]] Plan plan_norm_route(const RouteShape& shape);

void check_args(const NormRouteArgs& args);

}  // namespace nibble::backend::cuda

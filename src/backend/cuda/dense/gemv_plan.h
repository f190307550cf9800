#pragma once
// The decode kernels (W4A16 "marlin" and its dense kin) for 1 to 8 tokens: arguments, checks, plan, cost and launchers;
// and those that pack weights. Plain C++.

#include "backend/args.h"
#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/packed.h"
#include "backend/weights.h"
#include "base/dtype.h"

#include <cstdint>
#include <string>

// cudaStream_t points to one.
struct CUstream_st;  // NOLINT(readability-identifier-naming): CUDA's name

namespace nibble::backend::cuda {

struct Launch;  // launch/kernel_table.h

inline constexpr int kGemvTokens = 8;     // most tokens in a launch: the columns of an mma
inline constexpr int kGemvRoutes = 32;    // most tokens * topk in a launch: the lanes of a warp
inline constexpr int kGemvExperts = 128;  // that a launch can choose among: 4 per lane
inline constexpr int kGemvEpilogues = 2;  // most of a CTA: warps that add partial sums
inline constexpr int kPartialSlots = 2;   // of each epilogue, for a tile's sums
inline constexpr int kGemvHeadDim = 64;   // the only one that QkvArgs takes: RowOrder::kHeads64

// What the plan needs to know of a card (cudaDeviceProp: multiProcessorCount, sharedMemPerBlockOptin,
// sharedMemPerMultiprocessor).
struct GemvDevice {
  int sms = 0;
  int64_t cta_smem_bytes = 0;
  int64_t sm_smem_bytes = 0;
  bool chained = true;  // a launch may begin while the one before it runs: from sm_90 on
};

// All pointers are device memory. Weights: packed as layout/packed.h says, 16-byte aligned. Activations are row-major,
// 16-byte aligned, finite; each is rounded once: to f16 before MX weights, to two bf16 (16 bits of mantissa) before
// bf16 weights. Products are exact; sums are f32 in a fixed order, so that a launch is bitwise repeatable. Biases keep
// the checkpoint's order. A row's result is finite where no partial sum of |w||x| leaves float's range.

// Rows of float activations, normed or not: x[i] + delta[0][i] + delta[1][i], i = which[column], or column.
struct RowsIn {
  const float* x = nullptr;        // [*, cols]
  const float* delta[2] = {};      // [*, cols] parts of the slot, each may be null
  float* sum = nullptr;            // [tokens, cols] gets the rows before the norm, or null
  const int32_t* which = nullptr;  // [tokens], or null
  const Bf16* norm = nullptr;      // [cols]: rmsnorm first; null: as they are
  float eps = 0;
  bool in_mxfp8 = false;  // rounded as MXFP8 in the end (backend/activations.h)
};

// y[t, r] = W[r] · x[t] + bias[r]; with `rest`, y has the first chunks of each slice of K and the bias, `rest` the
// others, and the reader adds (balances_in_halves).
struct DenseArgs {
  layout::Packing packing = layout::Packing::kMxfp4;
  const uint8_t* weights = nullptr;  // [rows, cols] RowOrder::kPlain
  const Bf16* bias = nullptr;        // [rows], or null
  RowsIn in;
  float* y = nullptr;     // [tokens, rows]
  float* rest = nullptr;  // [tokens, rows], or null; not of MXFP4
  int rows = 0, cols = 0, tokens = 0;
};

// q, k, v = W · x + bias; rope rotates q and k; k and v go into their slots, q to y.
struct QkvArgs {
  layout::Packing packing = layout::Packing::kMxfp4;
  const uint8_t* weights = nullptr;  // [(heads + 2 * kv_heads) * 64, cols] RowOrder::kHeads64: q, k, v
  const Bf16* bias = nullptr;        // of these rows
  RowsIn in;
  float* q = nullptr;                 // [tokens, heads, 64]
  const float* cosine = nullptr;      // [tokens, 32], times the concentration
  const float* sine = nullptr;        // [tokens, 32], times the concentration
  const int32_t* kv_slots = nullptr;  // [tokens] page * kPageTokens + offset
  KvPages kv;                         // of a type whose values stand alone
  int heads = 0, kv_heads = 0, cols = 0, tokens = 0;
  [[nodiscard]] constexpr int rows() const { return (heads + 2 * kv_heads) * kGemvHeadDim; }
};

// sum = x + delta + rest; normed = rmsnorm(sum) * norm, once as it is and once rounded for the experts; logits[t, e] =
// normed[t] · W[e] + bias[e]. One CTA per expert; W stays in row order.
struct RouterArgs {
  const float* x = nullptr;      // [tokens, hidden]
  const float* delta = nullptr;  // [tokens, hidden], or null: x has it
  const float* rest = nullptr;   // [tokens, hidden], or null: added after delta
  float* sum = nullptr;          // [tokens, hidden]; null where x is the sum
  const Bf16* norm = nullptr;    // [hidden]
  const Bf16* weight = nullptr;  // [experts, hidden]
  const Bf16* bias = nullptr;    // [experts]
  float* normed = nullptr;       // [tokens, hidden]; may be none
  F16* rounded = nullptr;        // [tokens, hidden]; may be none
  float* logits = nullptr;       // [tokens, experts]
  int hidden = 0, experts = 0, tokens = 0;
  float eps = 0;
};
inline constexpr int kRouterThreads = 384, kRouterParts = 3;
inline constexpr int kRouterHidden = kRouterThreads * kRouterParts * 8;  // the widest

// The topk experts of each token, by falling logit (the lower id first on a tie), and the softmax over them: worked out
// by every CTA for itself, which costs less than a launch.
struct ExpertChoice {
  const float* logits = nullptr;    // [tokens, experts]
  int32_t* expert_ids = nullptr;    // [tokens, topk] out, or null
  float* expert_weights = nullptr;  // [tokens, topk] out, or null
  int experts = 0, topk = 0;
  OwnExperts own{};  // whose weights there are; the others' pairs add nothing. GemvDownArgs: all
};

// u[t, k] = swiglu(W1[e] · x[t] + b1[e]), e the k-th choice. An expert's weights are read once, whatever the number of
// its tokens.
struct MoeUpArgs {
  const uint8_t* weights = nullptr;  // [experts] of [2 * inter, hidden] RowOrder::kGateUp, MXFP4
  const Bf16* bias = nullptr;        // [experts, 2 * inter], gate even, up odd
  const F16* x = nullptr;            // [tokens, hidden]
  ExpertChoice choice;
  F16* u = nullptr;  // [tokens, topk, layout::block_pair_width(inter)]: what is filled up gets zeros
  int hidden = 0, inter = 0, tokens = 0;
  float swiglu_limit = 7.0f;
};

// y[t] = Σ_k weights[t, k] (W2[e] · u[t, k] + b2[e]); inter in pairs of blocks. In two forms: for many pairs of a token
// with an expert, and for up to kGemvTokens. Both REQUIRE that the logits were complete before the kernel before this
// one let it start; moe_up sees to that. Then the first weights are fetched while moe_up still runs.
struct MoeDownArgs {
  const uint8_t* weights = nullptr;  // [experts] of [hidden, inter] RowOrder::kPlain, MXFP4
  const Bf16* bias = nullptr;        // [experts, hidden]
  const F16* u = nullptr;            // [tokens, topk, inter]
  ExpertChoice choice;
  float* y = nullptr;       // [tokens, hidden]
  float* sums = nullptr;    // scratch [tokens, topk, hidden]
  int* finished = nullptr;  // scratch [hidden / 16]: zero before a launch and after it
  int hidden = 0, inter = 0, tokens = 0;
};
// Few pairs. With two parts, the second half of the experts goes to y[1], and the reader adds: that balances the SMs
// better (180 row tiles over 132 SMs: 6 tiles instead of 8).
struct GemvDownArgs {
  const uint8_t* weights = nullptr;  // as MoeDownArgs
  const Bf16* bias = nullptr;
  const F16* u = nullptr;
  ExpertChoice choice;
  float* y[2] = {};  // [tokens, hidden] by part
  int hidden = 0, inter = 0, tokens = 0, parts = 1;
};

// One launch: a ring of `stages` chunks in shared memory, filled by one warp, read by one warp per slice, the warps'
// partial sums added by one more.
struct GemvPlan {
  int grid = 0, threads = 0, stages = 0;
  int epilogues = 0;  // warps that add partial sums, 1 or 2
  int under_way = 0;  // most chunks that are asked for and not there
  layout::Geometry tile;
  int64_t smem_bytes = 0;

  [[nodiscard]] std::string to_string() const;
};

struct GemvShape {
  int64_t rows = 0, cols = 0;
  int matrices = 1;  // most that one launch may read: distinct experts
  layout::Packing packing = layout::Packing::kMxfp4;
};

[[nodiscard]] constexpr GemvShape shape_of(const DenseArgs& a) { return {a.rows, a.cols, 1, a.packing}; }
[[nodiscard]] constexpr GemvShape shape_of(const QkvArgs& a) { return {a.rows(), a.cols, 1, a.packing}; }
[[nodiscard]] constexpr GemvShape shape_of(const GemvDownArgs& a) { return {a.hidden, a.inter, a.parts}; }

// stages 0: as many as serve the shape best. Throws Error(kUnsupported) for a shape without slices or a card
// with too little shared memory for a ring of two.
[[nodiscard]] GemvPlan plan_gemv(const GemvShape& shape, const GemvDevice& device, int stages = 0);

// Whether CTAs have less to read at most where a tile is read in two halves (180 row tiles over 132 SMs: 3 halves
// instead of 4), which needs an even number of chunks.
[[nodiscard]] bool balances_in_halves(const GemvShape& shape, const GemvDevice& device);

struct GemvCost {
  int64_t bytes = 0;  // that must cross the memory bus: weights of each distinct expert once, activations once
  int64_t flops = 0;
};
[[nodiscard]] GemvCost cost(const DenseArgs& args);
[[nodiscard]] GemvCost cost(const QkvArgs& args);
[[nodiscard]] GemvCost cost(const RouterArgs& args);
[[nodiscard]] GemvCost cost(const MoeUpArgs& args, int distinct_experts);
[[nodiscard]] GemvCost cost(const MoeDownArgs& args, int distinct_experts);
[[nodiscard]] GemvCost cost(const GemvDownArgs& args, int distinct_experts);

// Throw Error(kInvalidRequest or kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const DenseArgs& args);
void check_args(const QkvArgs& args);
void check_args(const RouterArgs& args);
void check_args(const MoeUpArgs& args);
void check_args(const MoeDownArgs& args);
void check_args(const GemvDownArgs& args);

// Packs rows of a tall matrix on the device; experts follow each other as rows. `values` as the checkpoint ships them:
// bf16 [rows, cols], or codes [rows, cols / 32, 16 or 32] with scales [rows, cols / 32]. bad_scales counts scale codes
// that the format cannot hold (mxfp4: above layout::kMaxScaleCode; mxfp8: NaN), which make the matrix meaningless; the
// caller zeroes and reads it.
struct PackArgs {
  layout::Packing packing = layout::Packing::kMxfp4;
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;  // not of kBf16
  uint8_t* packed = nullptr;        // [packed_bytes(packing, rows, cols)], 16-byte aligned
  int* bad_scales = nullptr;
  layout::ScaleRange* scale_range = nullptr;  // of mxfp4, to which theirs are added; may be none
  int64_t rows = 0, cols = 0;
  layout::RowOrder order = layout::RowOrder::kPlain;
};
void check_args(const PackArgs& args);

// Floats [rows, cols], in any of the formats of quantise/pack.cuh float_at, to codes and scales as PackArgs takes them:
// the bits of base/mx.h mx_quantize.
struct QuantizeArgs {
  layout::Packing packing = layout::Packing::kMxfp4;  // kMxfp4 or kMxfp8
  WeightFormat format = WeightFormat::kBf16;
  const uint8_t* from = nullptr;
  uint8_t* values = nullptr;
  uint8_t* scales = nullptr;
  int64_t rows = 0, cols = 0;
};

// Rows as llama.cpp's files hold them to rows as OpenAI's do: bf16, to the nearest, ties to even; or where there are
// `scales`, of kGgmlMxfp4, codes and scales: the same values in another order of nibbles.
struct TranslateArgs {
  WeightFormat format = WeightFormat::kF32;
  const uint8_t* even = nullptr;  // rows 0, 2, 4, … where `odd` holds rows 1, 3, 5, …; else all
  const uint8_t* odd = nullptr;
  uint8_t* values = nullptr;  // 16-byte aligned
  uint8_t* scales = nullptr;  // may be none
  int64_t rows = 0, cols = 0;
};

// For the launchers, whose compiler does not take base/error.h: throws Error(kDevice).
[[noreturn]] void throw_device_error(const char* what, const char* reason);

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
struct RowWarpsPlan {
  int grid = 0, warps = 0;
  int rows = 0;  // of activations
  bool runs = false;
  int64_t smem_bytes = 0;
  [[nodiscard]] std::string to_string() const;
};
// What a launch asks for.
struct RowWarpsWish {
  int rows = 0;  // of activations, a multiple of 8: fewer where shared memory has no room for so many
  int stages = kRowStages;
  int warps = 0;  // 0: as many as fit
  bool runs = false;
};
inline constexpr RowWarpsWish kMoeUpWish = {.rows = kGemvTokens, .stages = kRunStages, .runs = true};
inline constexpr RowWarpsWish kMoeDownWish = {.rows = 2 * kGemvTokens};  // those of two experts
// For matrices of `cols` columns. Throws Error(kUnsupported) for columns without slices or a card with too little
// shared memory.
[[nodiscard]] RowWarpsPlan plan_row_warps(int64_t cols, const RowWarpsWish& wish, const GemvDevice& device);

// Launchers. They check the arguments (Error as check_args says), launch, return. plan: plan_gemv of shape_of(args).
// The kernels fetch their first weights before they wait for the one before.
void gemv_dense(const DenseArgs& args, const GemvPlan& plan, const Launch& on);
void gemv_qkv(const QkvArgs& args, const GemvPlan& plan, const Launch& on);
void route_logits(const RouterArgs& args, const Launch& on);
void gemv_moe_down(const GemvDownArgs& args, const GemvPlan& plan, const Launch& on);

void pack_weights(const PackArgs& args, CUstream_st* stream);
void quantize_weights(const QuantizeArgs& args, CUstream_st* stream);
void translate_weights(const TranslateArgs& args, CUstream_st* stream);

}  // namespace nibble::backend::cuda

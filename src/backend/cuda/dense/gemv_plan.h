#pragma once
// The decode kernels (W4A16 "marlin" and its dense kin) for 1 to 8 tokens: dense products, and those that pack weights.
// Plain C++.

#include "backend/args.h"
#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/layout/packed.h"
#include "backend/weights.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kGemvTokens = 8;               // most tokens in a launch: the columns of an mma
inline constexpr int kGemvRoutes = 32;              // most tokens * topk in a launch: the lanes of a warp
inline constexpr int kGemvExperts = 128;            // that a launch can choose among: 4 per lane
inline constexpr int kGemvEpilogues = 2;            // most of a CTA: warps that add partial sums
inline constexpr int kPartialSlots = 2;             // of each epilogue, for a tile's sums
inline constexpr int kMoeTileTokens = kGemvTokens;  // pairs of an expert that plain kernels take at a time
inline constexpr int kGemvHeadDim = 64;             // the only one that GemvQkv::Args takes: RowOrder::kHeads64

// One launch: a ring of `stages` chunks in shared memory, filled by one warp, read by one warp per slice, the warps'
// partial sums added by one more.
struct GemvPlan : Plan {
  int stages = 0;
  int epilogues = 0;  // warps that add partial sums, 1 or 2
  int under_way = 0;  // most chunks that are asked for and not there
  layout::Geometry geometry;
};

struct GemvShape {
  int64_t rows = 0, cols = 0;
  int matrices = 1;  // most that one launch may read: distinct experts
  layout::Packing packing = layout::Packing::kMxfp4;
};

// stages 0: as many as serve the shape best. Throws Error(kUnsupported) for a shape without slices or a card
// with too little shared memory for a ring of two.
[[nodiscard]] GemvPlan plan_gemv(const GemvShape& shape, const PlanDevice& device, int stages = 0);

// Throws Error(kUnsupported) for a matrix or a number of tokens that no kernel for 1 to 8 takes. short_slice: the first
// slice may be shorter.
void check_gemv(Kernel kernel, const GemvShape& shape, int tokens, bool short_slice);

// Whether CTAs have less to read at most where a tile is read in two halves (180 row tiles over 132 SMs: 3 halves
// instead of 4), which needs an even number of chunks.
[[nodiscard]] bool balances_in_halves(const GemvShape& shape, const PlanDevice& device);

// All pointers are device memory. Weights: packed as layout/packed.h says, 16-byte aligned. Activations are row-major,
// 16-byte aligned, finite; each is rounded once: to f16 before MX weights and Q8_0, to two bf16 (16 bits of mantissa)
// before bf16 weights. Products are exact; sums are f32 in a fixed order, so that a launch is bitwise repeatable.
// Biases keep the checkpoint's order. A row's result is finite where no partial sum of |w||x| leaves float's range.

// Rows of float activations, normed or not: x[i] + delta[0][i] + delta[1][i], i = which[column], or column.
struct RowsIn {
  const float* x = nullptr;        // [*, cols]
  const float* delta[2] = {};      // [*, cols] parts of the slot, each may be null
  float* sum = nullptr;            // [tokens, cols] gets the rows before the norm, or null
  const int32_t* which = nullptr;  // [tokens], or null
  const Bf16* norm = nullptr;      // [cols]: rmsnorm first; null: as they are
  float eps = 0;
};

// How many of a launch's tiles there are, as a kernel before it has counted them (sampling/screen.h).
struct TileCount {
  int count = 0;
};

// y[t, r] = W[r] · x[t] + bias[r]; with `rest`, y has the first chunks of each slice of K and the bias, `rest` the
// others, and the reader adds (balances_in_halves).
struct GemvDense {
  static constexpr Kernel kNames[] = {
      {"gemv<dense, bf16>"}, {"gemv<dense, mxfp8>"}, {"gemv<dense, mxfp4>"}, {"gemv<dense, q8_0>"}};
  static constexpr Kernel kListed{"gemv<listed, bf16>"};
  struct Args {
    layout::Packing packing = layout::Packing::kMxfp4;
    const uint8_t* weights = nullptr;  // [rows, cols] RowOrder::kPlain
    const Bf16* bias = nullptr;        // [rows], or null
    RowsIn in;
    float* y = nullptr;     // [tokens, rows]
    float* rest = nullptr;  // [tokens, rows], or null; not of MXFP4
    int rows = 0, cols = 0, tokens = 0;
    // Only these tiles of 16 rows, of bf16, where there is a list; the bits are those of all.
    const int32_t* tiles = nullptr;
    const TileCount* listed = nullptr;
  };
  [[nodiscard]] static constexpr GemvShape shape_of(const Args& a) { return {a.rows, a.cols, 1, a.packing}; }
  static void launch(const Args& args, const GemvPlan& plan, const Launch& on);
};
void check_args(const GemvDense::Args& args);

// q, k, v = W · x + bias; rope rotates q and k; k and v go into their slots, q to y.
struct GemvQkv {
  static constexpr Kernel kNames[] = {
      {"gemv<qkv, bf16>"}, {"gemv<qkv, mxfp8>"}, {"gemv<qkv, mxfp4>"}, {"gemv<qkv, q8_0>"}};
  struct Args {
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
  [[nodiscard]] static constexpr GemvShape shape_of(const Args& a) { return {a.rows(), a.cols, 1, a.packing}; }
  static void launch(const Args& args, const GemvPlan& plan, const Launch& on);
};
void check_args(const GemvQkv::Args& args);

// Packs rows of a tall matrix on the device; experts follow each other as rows. `values` as the checkpoint ships them:
// bf16 [rows, cols], or codes [rows, cols / 32, 16 or 32] with scales [rows, cols / 32]; Q8_0 as llama.cpp's files hold
// it. bad_scales counts scale codes that the format cannot hold (mxfp4: above layout::kMaxScaleCode; mxfp8: NaN), which
// make the matrix meaningless; the caller zeroes and reads it.
struct PackArgs {
  layout::Packing packing = layout::Packing::kMxfp4;
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;  // of MX blocks
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

void pack_weights(const PackArgs& args, CUstream_st* stream);
void quantize_weights(const QuantizeArgs& args, CUstream_st* stream);
void translate_weights(const TranslateArgs& args, CUstream_st* stream);

}  // namespace nibble::backend::cuda

#pragma once
// Hopper's kernels: their tiles, shared memory and plans. Arguments and contracts: the operations' headers. In a build
// without sm_90a a launch throws Error(kUnsupported) (absent.cpp). Plain C++.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/layout/wgmma_b.h"
#include "backend/cuda/experts/route.h"
#include "backend/kv_dtype.h"

#include <cstdint>
#include <optional>

namespace nibble::backend::cuda {

inline constexpr int kSm90SharedBytes = 227 * 1024;  // of a CTA, at most

// sm90_mxfp4_gemm: row tiles of a CTA's tile, one for each warp of three warpgroups; columns of a tile, at most.
inline constexpr int kMxfp4RowTiles = 12, kMxfp4WarpgroupTiles = 4;
inline constexpr int kMxfp4Tokens = 160;
// Where no expert's tile has more, x is cut into smaller stages, and so into more.
inline constexpr int kMxfp4Narrow = 64;
// Columns of its instructions: dense where prompts have their tiles, and few. Each is code, which every launch fetches
// again: all multiples of 8 cost a decode step 2 %.
inline constexpr int kMxfp4Widths[] = {32, 64, 80, 112, 120, 128, 136, 144, 152, kMxfp4Tokens};
inline constexpr int kMxfp4NarrowWidths[] = {8, 16, 32, 48, kMxfp4Narrow};
// What it multiplies weights with: f16 (layout/wgmma_b.h), or e4m3 codes of rows (layout/wgmma_b.h).
enum class Mxfp4Input : uint8_t { kF16, kRowCodes };
[[nodiscard]] constexpr int mxfp4_row_bytes(Mxfp4Input input) {  // of 64 k
  return input == Mxfp4Input::kF16 ? layout::kAtomRowBytes : layout::kByteRowBytes;
}
// sm90_grouped, of experts with few pairs: of a tile at most so many, whose x stays in shared memory while rows go by;
// warpgroups, a row tile to a warp, which has a ring of so many slices.
inline constexpr int kSm90GroupedTokens = 24, kSm90GroupedStages = 3;
inline constexpr int kSm90GroupedWarpgroups = 4, kSm90GroupedWarps = kSm90GroupedWarpgroups * kMxfp4WarpgroupTiles;
inline constexpr int kSm90GroupedRows = kMxfp4WarpgroupTiles * layout::kTileRows;  // that a warpgroup takes at once
// sm90_dense_gemm, for bf16: widths of a CTA's tile, and one for steps of up to so many tokens: all of them, of fewer
// rows. It does not apply rope.
inline constexpr int kDenseTokens[] = {64, 96, 128, 160, 176, 192}, kDenseWide = 256;
// And its row tiles.
[[nodiscard]] constexpr int dense_row_tiles(int tokens) { return tokens == kDenseWide ? 12 : 16; }

// The tile that should finish first: of experts by the mean of an expert's pairs; of dense bf16 by what a CTA's tile
// needs of the tensor cores and of L2. All of a step's launches of experts must use the same tile: plan with the larger
// rows. Throws Error(kUnsupported) for a shape that has no tiles.
[[nodiscard]] GemmPlan plan_sm90_gemm(const GemmShape& shape, int sms);
[[nodiscard]] GemmPlan plan_sm90_gemm(const GemmShape& shape, int sms, int tile_tokens);

// A plan for both products of the experts, whose gate and up rows `shape` is. None where sm90_grouped does not take it:
// more pairs per expert, other widths of down, or a hidden size for whose x there is no room.
[[nodiscard]] std::optional<GemmPlan> plan_sm90_grouped(const GemmShape& shape, int sms);

// Whether sm90_mxfp4_gemm makes both products of f16 experts in one launch: with one K, or in slices of the same size.
[[nodiscard]] bool sm90_experts_at_once(int64_t hidden, int64_t inter);

// sm90_mxfp4_gemm's shared memory: stages of x (64 k of a tile's tokens) and of weights (a slice of the row tiles).
struct WgmmaRings {
  int inputs = 0, weights = 0;
};
inline constexpr int kWgmmaBarrierBytes = 512;
// Stages of x come in slices: as many as fit beside few of weights.
[[nodiscard]] constexpr WgmmaRings mxfp4_rings(int slice_block_pairs, int tokens, Mxfp4Input input) {
  if (tokens == kMxfp4Narrow) return slice_block_pairs == 3 ? WgmmaRings{12, 6} : WgmmaRings{12, 4};
  if (input == Mxfp4Input::kRowCodes) return slice_block_pairs == 3 ? WgmmaRings{12, 5} : WgmmaRings{12, 4};
  return slice_block_pairs == 3 ? WgmmaRings{6, 5} : WgmmaRings{8, 2};
}
// Scales of a tile's rows: a place for each slice of x that is on its way, of whose works one ends in it.
[[nodiscard]] constexpr int mxfp4_row_scale_bytes(int slice_block_pairs, int tokens, Mxfp4Input input) {
  return input == Mxfp4Input::kF16
             ? 0
             : mxfp4_rings(slice_block_pairs, tokens, input).inputs / slice_block_pairs * tokens * 4;
}
[[nodiscard]] constexpr int mxfp4_ring_bytes(int slice_block_pairs, int tokens, Mxfp4Input input) {
  const WgmmaRings rings = mxfp4_rings(slice_block_pairs, tokens, input);
  return rings.inputs * tokens * mxfp4_row_bytes(input) +
         rings.weights * kMxfp4RowTiles * layout::slice_bytes(2 * slice_block_pairs) +
         mxfp4_row_scale_bytes(slice_block_pairs, tokens, input);
}
// Which of both cuts a launch needs is known on the device.
[[nodiscard]] constexpr int mxfp4_shared_bytes(int slice_block_pairs, Mxfp4Input input) {
  const int narrow = mxfp4_ring_bytes(slice_block_pairs, kMxfp4Narrow, input),
            wide = mxfp4_ring_bytes(slice_block_pairs, kMxfp4Tokens, input);
  return kWgmmaBarrierBytes + 1024 + (narrow > wide ? narrow : wide);  // 1024: to align the rings
}
[[nodiscard]] constexpr int64_t sm90_grouped_bytes(int64_t cols) {
  return kWgmmaBarrierBytes + 1024 + cols * 2 * kSm90GroupedTokens +
         int64_t{kSm90GroupedWarps} * kSm90GroupedStages * layout::slice_bytes(layout::slices_of(cols).blocks);
}
// sm90_dense_gemm's: as many stages as fit, of 64 k of x and of the row tiles' weights, and two barriers of each.
[[nodiscard]] constexpr int dense_stage_bytes(int tokens) {
  return tokens * 128 + dense_row_tiles(tokens) * layout::block_pair_bytes(layout::Packing::kBf16);
}
[[nodiscard]] constexpr int dense_stages(int tokens) {
  return (kSm90SharedBytes - 1024) /  // 1024: to align the ring
         (dense_stage_bytes(tokens) + 16);
}
[[nodiscard]] constexpr int dense_shared_bytes(int tokens) {
  return 1024 + dense_stages(tokens) * (dense_stage_bytes(tokens) + 16);
}
[[nodiscard]] constexpr int64_t dense_blocks(int64_t rows, int tile_tokens) {
  const int tile_rows = dense_row_tiles(tile_tokens) * layout::kTileRows;
  return (rows + tile_rows - 1) / tile_rows;
}

// sm90_attend_prefill multiplies pages as they are.
inline constexpr KvDtype kSm90PrefillPages = KvDtype::kBf16;
inline constexpr int kSm90PrefillTokens = 24;  // of one row, that a tile of sm90_attend_prefill takes

// Attention of many tokens: args.tile_count tiles. REQUIRES flash_serves.
struct Sm90AttendPrefill {
  static constexpr Kernel kName{"sm90_attend_prefill"};
  static void launch(const AttentionArgs& args, const Launch& on);
};
// GEMMs of many tokens: of bf16 by Sm90DenseGemm, of experts with few pairs by Sm90Grouped. plan: plan_sm90_gemm.
// REQUIRES MXFP4 scale codes up to layout::kMaxNarrowScaleCode.
struct Sm90Gemm {
  static constexpr Kernel kPlain{"sm90_mxfp4_gemm"}, kGateUp{"sm90_mxfp4_gemm<gate_up>"},
      kExperts{"sm90_mxfp4_gemm<experts>"};
  // Row codes: FP8 by wgmma.
  static constexpr Kernel kCodes{"sm90_mxfp4_gemm<e4m3>"}, kGateUpCodes{"sm90_mxfp4_gemm<gate_up, e4m3>"};
  // Which of all of them a launch is.
  [[nodiscard]] static Kernel name(const GemmArgs& args, const GemmPlan& plan);
  static void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
};
// Products of bf16 matrices.
struct Sm90DenseGemm {
  static constexpr Kernel kName{"sm90_dense_gemm"};
  static void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
};
// One launch makes both products of experts with few pairs each. args: with down, f16. plan: plan_sm90_grouped.
struct Sm90Grouped {
  static constexpr Kernel kName{"sm90_grouped"};
  static void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
};
// The dense GEMM of few tokens, launched chained. plan: plan_split_gemm of the same shape.
struct Sm90SplitGemm {
  static constexpr Kernel kName{"sm90_split_gemm"};
  static void launch(const SplitGemmArgs& args, const SplitGemmPlan& plan, const Launch& on);
};
// Norm and router of few tokens, launched chained. plan: plan_norm_route of the same shape.
struct Sm90NormRoute {
  static constexpr Kernel kName{"sm90_norm_route"};
  static void launch(const NormRouteArgs& args, const Plan& plan, const Launch& on);
};

// Whether this build has them: for tests and benches that call them by name. Programs ask Arch::serve.
[[nodiscard]] bool sm90_is_built();

struct PeakLaunch;  // arch.h
// wgmma m64n128k16, 16-bit operands, float sums. Returns the flops of the launch; 0, and launches nothing, in a build
// without sm_90a.
double sm90_peak_wgmma(const PeakLaunch& args, CUstream_st* stream);

}  // namespace nibble::backend::cuda

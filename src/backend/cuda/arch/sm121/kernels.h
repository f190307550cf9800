#pragma once
// The kernels of GB10 and its like: their tiles, shared memory and plans. In a build without sm_120a and sm_121a a
// launch throws Error(kUnsupported) (absent.cpp). Plain C++.

#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/mx_b_n8k64.h"

namespace nibble::backend::cuda {

// sm121_mx_gemm: 8 tiles of 16 rows, up to 64 or 128 tokens.
inline constexpr int kMxGemmTokens[] = {64, 128};
inline constexpr int kMxRowTiles = 8, kMxWarpRowTiles = 2, kMxThreads = kMxRowTiles / kMxWarpRowTiles * 32;
inline constexpr int kMxBlockBytes = 99 * 1024;  // of shared memory that a block has on compute capability 12
// CTAs of an SM that its registers hold.
[[nodiscard]] constexpr int mx_ctas(int tokens) { return tokens == 128 ? 2 : 3; }

// A row's scales in shared memory: an odd number of 16 bytes, so that 8 rows' lie in different banks.
[[nodiscard]] constexpr int mx_scale_pitch(int cols) {
  const int bytes = layout::mx_scale_bytes(cols);
  return bytes / 16 % 2 == 0 ? bytes + 16 : bytes;
}
// Gate and up rows leave 64 channels of each token here, in f32, before they are rounded; the rest is padding.
inline constexpr int kMxChannels = kMxRowTiles * layout::kTileRows / 2, kMxChannelPitch = (kMxChannels + 4) * 4;
[[nodiscard]] constexpr int mx_stage_bytes(InputType codes, int tokens) {
  return tokens * layout::mx_code_bytes(element_of(codes), layout::kBlockPairK);
}
// A fourth one would leave an SM one CTA of 128 tokens of K = 4096; its products take long enough to hide two.
[[nodiscard]] constexpr int mx_stages(InputType codes, int tokens) {
  return tokens == 128 && codes != InputType::kMxfp4 ? 3 : 4;
}
[[nodiscard]] constexpr int mx_shared_bytes(InputType codes, int tokens, int cols) {
  const int multiply = mx_stages(codes, tokens) * mx_stage_bytes(codes, tokens) + tokens * mx_scale_pitch(cols);
  const int leave = tokens * kMxChannelPitch;
  return multiply > leave ? multiply : leave;
}
static_assert(mx_shared_bytes(InputType::kMxfp8, 128, 2880) == 38912 &&
              mx_shared_bytes(InputType::kMxfp8, 64, 2880) == 23552);
static_assert(mx_shared_bytes(InputType::kMxfp8, 128, 4096) <= kMxBlockBytes);
static_assert(mx_ctas(128) * (mx_shared_bytes(InputType::kMxfp8, 128, 4096) + 1024) <= 100 * 1024, "two CTAs to an SM");

// Whole tiles of tokens, of one expert where there are several, by whole blocks of rows; the grid takes them in turn.
// All of a step's launches of experts must use the same tile: plan with the larger rows. shape.activations: kMxfp8,
// kMxfp6 or kMxfp4. tile_tokens 0: by the mean of an expert's pairs. Throws Error(kUnsupported) for a shape that has no
// tiles.
[[nodiscard]] GemmPlan plan_mx_gemm(const GemmShape& shape, const DeviceFacts& card, int tile_tokens = 0);
// Attention over prompts in FP8. REQUIRES args.fp8. Throws Error(kUnsupported) for pages other than e4m3.
struct Sm121AttendPrefill {
  static constexpr Kernel kName{"any_attend_prefill_fp8<mx>"};
  static void launch(const AttentionArgs& args, const Launch& on);
};
// plan: plan_mx_gemm of the same shape, with the tile that the groups were made with.
struct Sm121MxGemm {
  // By the experts' codes: mxfp8, mxfp6, mxfp4.
  static constexpr Kernel kGateUp[] = {
      {"sm121_mx_gemm<gate_up, mxfp8>"}, {"sm121_mx_gemm<gate_up, mxfp6>"}, {"sm121_mx_gemm<gate_up, mxfp4>"}};
  static constexpr Kernel kDown[] = {
      {"sm121_mx_gemm<down, mxfp8>"}, {"sm121_mx_gemm<down, mxfp6>"}, {"sm121_mx_gemm<down, mxfp4>"}};
  // By the weights, with MXFP8 codes.
  static constexpr Kernel kMxfp8{"sm121_mx_gemm<mxfp8>"}, kMxfp4{"sm121_mx_gemm<mxfp4>"};
  [[nodiscard]] static constexpr Kernel by_codes(const Kernel (&kernels)[3], InputType codes) {
    return kernels[static_cast<size_t>(codes) - static_cast<size_t>(InputType::kMxfp8)];
  }
  [[nodiscard]] static constexpr Kernel name(const GemmArgs& args) {
    if (args.u != nullptr) return by_codes(kGateUp, args.codes);
    if (args.y16 != nullptr) return by_codes(kDown, args.codes);
    return args.packing == layout::Packing::kMxfp8 ? kMxfp8 : kMxfp4;
  }
  // GemmArgs, of which x and u are codes: x of tokens / x_share rows, u of tokens. Grouped: MXFP4 weights, u or y16;
  // else MXFP4 or MXFP8 weights with MXFP8 codes, sums or one part. Throws as check_args there.
  static void check(const GemmArgs& args);
  static void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
};

struct PeakLaunch;  // arch.h
// mma.sync m16n8k32 with block scales, weights as e5m2, activations e4m3, float sums. Returns the flops of the launch;
// 0, and launches nothing, in a build without the instruction.
double sm121_peak_mx(const PeakLaunch& args, CUstream_st* stream);

}  // namespace nibble::backend::cuda

#pragma once
// Attention: the plain kernel; and on tensor cores, for head_dim 64 and up to 8 query heads per kv head: which tokens
// of a step each kernel takes, and how keys are split. Plain C++.

#include "backend/args.h"
#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

inline constexpr int kHeadDim = 64;            // the only one that the kernels on tensor cores take
inline constexpr int kGroupHeads = 8;          // most query heads of a kv head: they share a tile of an mma
inline constexpr int kMaxDecodeTokens = 8;     // a row with more new tokens goes to the prefill kernel
inline constexpr int kPrefillTokens = 16;      // of one row, that a CTA of the prefill kernel takes
inline constexpr int kDecodeStepKeys = 16;     // that a warp takes at a time
inline constexpr int kMinChunkBlocks = 2;      // splitting finer costs more than it hides
inline constexpr int kMaxDecodeCount = 16384;  // tokens in a launch

// A CTA's warps, and the stages of their rings of such steps. The fewer warps, the more CTAs fit on an SM, so that many
// short sequences wait for each other less.
struct DecodeRing {
  int warps = 0, stages = 0;
  friend bool operator==(const DecodeRing&, const DecodeRing&) = default;
};
inline constexpr DecodeRing kDecodeRing{8, 3}, kSmallDecodeRing{4, 2}, kLoneDecodeRing{1, 3};
// Shared memory of a CTA of the decode kernel: the warps' rings of steps, and the queries as operands for several.
[[nodiscard]] constexpr int decode_smem_bytes(int row_bytes, const DecodeRing& ring) {
  return ring.warps * ring.stages * kDecodeStepKeys * 2 * row_bytes + (ring.warps > 1 ? kGroupHeads * kHeadDim * 4 : 0);
}

// Consecutive tokens of one row.
struct AttendTile {
  int32_t first_token = 0;  // in the step
  int32_t tokens = 0;       // at most what share_tokens was told
  int32_t row = 0;          // of the page table
  int32_t first_position = 0;
  friend constexpr bool operator==(const AttendTile&, const AttendTile&) = default;
};

// A step's tokens by kernel.
struct AttendShares {
  std::vector<int32_t> decode;      // token numbers
  std::vector<AttendTile> prefill;  // by rising position, so that the kernel can start with the longest
};
// Overwrites `out`, whose memory is kept.
void share_tokens(std::span<const Row> rows, AttendShares& out, int tile_tokens = kPrefillTokens);
// The most tiles that a step makes.
[[nodiscard]] constexpr int64_t max_attend_tiles(int64_t tokens) {
  return tokens / 8 + 1;  // two for 17 tokens is the worst
}

struct KeyRange {
  int first = 0, last = 0;
  [[nodiscard]] constexpr int first_page() const { return first / kPageTokens; }
  [[nodiscard]] constexpr int pages() const { return last / kPageTokens - first_page() + 1; }
  // Blocks of kPageTokens keys, from the first on.
  [[nodiscard]] constexpr int blocks() const { return (last - first + kPageTokens) / kPageTokens; }
};

// window 0: all.
[[nodiscard]] constexpr KeyRange visible_keys(int position, int window) {
  return {window > 0 && position >= window ? position - window + 1 : 0, position};
}

// One CTA of the decode kernel takes one chunk of a token's keys: whole blocks. All tokens' blocks are dealt in chunks
// of about the same size, so that one long sequence fills the device and many short ones are not cut. What a CTA does
// depends on the step's positions and on `target` only: bits repeat. It is computed on the device, so a captured launch
// serves any positions.
[[nodiscard]] constexpr int chunk_blocks(int all_blocks, int target) {
  const int blocks = (all_blocks + target - 1) / target;
  return blocks < kMinChunkBlocks ? kMinChunkBlocks : blocks;
}
[[nodiscard]] constexpr int chunks_of(int blocks, int chunk) { return (blocks + chunk - 1) / chunk; }
// Whether every token's keys are one chunk, so that chunk n is decode token n's.
[[nodiscard]] constexpr bool never_split(int window) {
  return window > 0 && visible_keys(window, window).blocks() <= kMinChunkBlocks;
}
// The blocks [first, first + count) of a token's are chunk `idx` of `chunks`: sizes differ by one at most.
struct BlockSpan {
  int first = 0, count = 0;
};
[[nodiscard]] constexpr BlockSpan chunk_span(int blocks, int chunks, int idx) {
  const int each = blocks / chunks, more = blocks % chunks;
  return {idx * each + (idx < more ? idx : more), each + (idx < more ? 1 : 0)};
}

// What all kernels of attention take, in device memory. A token sees the keys of its row up to its own position, at
// most `window` of them (0: all). Pages are 16-byte aligned; what no visible position names may hold anything, and is
// not read into a sum.
struct AttentionArgs {
  const float* q = nullptr;            // [tokens, heads, head_dim]
  float* out = nullptr;                // [tokens, heads, head_dim]
  GemmInput rounded{};                 // [tokens, heads * head_dim], instead of out, where it is given; not by Attend
  const Bf16* sinks = nullptr;         // [heads]; may be none
  const int32_t* token_row = nullptr;  // [tokens] the row of the page table
  const int32_t* positions = nullptr;  // [tokens]
  const int32_t* pages = nullptr;      // [rows, pages_per_row]
  KvPages kv{};
  int pages_per_row = 0, heads = 0, kv_heads = 0, window = 0;
  bool fp8 = false;         // queries and weights are rounded (backend/kv_dtype.h); pages are e4m3
  int head_dim = kHeadDim;  // another one by Attend alone
  // Token by token
  const int32_t* decode_tokens = nullptr;  // [decode_count]; none: 0, 1, …
  int decode_count = 0;                    // Attend: all of the step's
  int target = 0;                          // DecodePlan
  float* partials = nullptr;               // DecodeScratch floats
  int* finished = nullptr;                 // DecodeScratch counters; zero before a launch and after it
  // Prefill kernel
  const AttendTile* tiles = nullptr;
  int tile_count = 0;
  int ctas = 0;  // that share them, where the architecture plans so (Plan::grid)
};

// Grid: kv heads x chunks that there may be.
struct DecodePlan : Plan {
  int target = 0;  // chunks that fill the device, per kv head
  DecodeRing ring;
};
struct DecodeShape {
  int tokens = 0, kv_heads = 0;
  int row_bytes = 0;  // of a key or a value
  int window = 0;     // AttentionArgs
};
[[nodiscard]] DecodePlan plan_decode(const DecodeShape& shape, const PlanDevice& device);
// The largest target of any step.
[[nodiscard]] int most_target(int kv_heads, int row_bytes, const PlanDevice& device);

// Only units of tokens in several chunks leave partials. Such a token has more than 1 / target of the
// step's pages, so there are at most `target` of them and at most 2 * target units of theirs, whatever the step.
[[nodiscard]] constexpr int max_split_units(int target) { return 2 * target; }
struct DecodeScratch {
  int64_t floats = 0, counters = 0;
};
[[nodiscard]] constexpr DecodeScratch decode_scratch(int target, int64_t kv_heads) {
  const int64_t units = max_split_units(target) * kv_heads;
  return {.floats = units * kGroupHeads * (kHeadDim + 2), .counters = units};
}

// Whether the kernels take these shapes; the launchers throw Error(kUnsupported) where this is false.
[[nodiscard]] constexpr bool flash_serves(int64_t heads, int64_t kv_heads, int64_t head_dim, KvDtype type) {
  return head_dim == kHeadDim && kv_heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= kGroupHeads &&
         on_tensor_cores(type);
}

// Any shape, without tensor cores.
struct Attend {
  static constexpr PageKernel kNames{"any_attend"};
  static void launch(const AttentionArgs& args, const Launch& on);
};
// Token by token: args.decode_count tokens. REQUIRES args.target and scratch as plan_decode and decode_scratch say.
struct AttendDecode {
  [[nodiscard]] static constexpr Kernel name(KvDtype type, bool fp8) {
    return fp8 ? Kernel{"any_attend_decode<e4m3, fp8>"} : kNames.of(type);
  }
  static void launch(const AttentionArgs& args, const DecodePlan& plan, const Launch& on);

 private:
  static constexpr PageKernel kNames{"any_attend_decode"};
};
// args.tile_count tiles.
struct AttendPrefill {
  [[nodiscard]] static constexpr Kernel name(KvDtype type, bool fp8) {
    return fp8 ? Kernel{"any_attend_prefill_fp8<mma>"} : kNames.of(type);
  }
  static void launch(const AttentionArgs& args, const Launch& on);

 private:
  static constexpr PageKernel kNames{"any_attend_prefill"};
};
struct DeviceFacts;  // card/device_facts.h
// A CTA per tile of kPrefillTokens and kv head.
[[nodiscard]] Plan plan_prefill(int64_t tiles, int64_t kv_heads, const DeviceFacts& card);

}  // namespace nibble::backend::cuda

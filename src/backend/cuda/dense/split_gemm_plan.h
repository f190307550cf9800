#pragma once
// Dense matrix products for 9 to 256 tokens, where a GEMM's row blocks would leave most of a card idle: K is split
// among CTAs too, and whoever reads the result adds the splits. Arguments, checks, plan and cost. Plain C++; launcher:
// arch/sm90/kernels.h.

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/layout/packed.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

inline constexpr int kSplitRowTiles = 8;                   // of 16 rows, per CTA: two warpgroups
inline constexpr int kSplitTokens[] = {32, 64, 128, 256};  // that a CTA may take
inline constexpr int kSplitRingBytes = 200 * 1024;         // at most
inline constexpr int kSplitMaxTokens = 256;                // beyond, GEMMs have row blocks enough
inline constexpr int kMaxSplits = 8;
inline constexpr int kSplitWeightBytes = kSplitRowTiles * layout::block_pair_bytes(layout::Packing::kBf16);
inline constexpr int kSplitBarrierBytes = 256;

// sums[s, t, r] = W[r] · x[t] over the s-th part of K. All pointers are device memory.
struct SplitGemmArgs {
  const uint8_t* weights = nullptr;  // [rows, cols] bf16, layout/packed.h, in any order of rows
  const uint16_t* x = nullptr;       // bf16 [tokens, cols] in panels of x_rows rows (layout/wgmma_b.h)
  uint16_t* sums = nullptr;          // [splits] of split_pitch, where place_in_sums says, rows as they are packed
  int rows = 0, cols = 0, tokens = 0;
  int x_rows = 0;  // a multiple of 8
};

// Sums are bf16 (docs/decisions/0011) and lie as warps hold them: by row tile, then by eight tokens, the even ones
// first; of a token rows g and g + 8 of the tile are neighbours.
// Unsigned inside: a signed division by a power of two is several instructions of a kernel, of 64 bits ten.
[[nodiscard]] constexpr int64_t split_pitch(int64_t tokens, int64_t rows) {
  return int64_t{(static_cast<uint32_t>(tokens) + 7) / 8 * 8} * rows;
}
[[nodiscard]] constexpr int64_t place_in_sums(int64_t tokens, int64_t token, int64_t row) {
  const auto eights = (static_cast<uint32_t>(tokens) + 7) / 8, t = static_cast<uint32_t>(token),
             r = static_cast<uint32_t>(row);
  return (int64_t{r / 16} * eights + t / 8) * 128 + ((t % 2 * 4 + t % 8 / 2) * 16 + r % 8 * 2 + r % 16 / 8);
}

// Splits depend on the shape and the card only, and so does the order of a sum: bitwise repeatable, whatever the other
// tokens.
struct SplitGemmPlan {
  int tokens = 0;  // of a CTA, at most: an entry of kSplitTokens
  int token_tiles = 0, row_blocks = 0, splits = 0;
  int smem_bytes = 0;
  [[nodiscard]] int grid() const { return token_tiles * row_blocks * splits; }
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const SplitGemmPlan&, const SplitGemmPlan&) = default;
};
// Parts of K: as many as give each SM a CTA, for all tokens that one CTA takes.
[[nodiscard]] int split_count(int64_t rows, int64_t cols, int sms);
// Throws Error(kUnsupported) for a shape that has no tiles, or more than kSplitMaxTokens.
[[nodiscard]] SplitGemmPlan plan_split_gemm(const GemmShape& shape, int sms);

// Stages of a CTA's ring, 64 k of both operands each.
[[nodiscard]] constexpr int split_stages(int tile_tokens) {
  return kSplitRingBytes / (tile_tokens * 128 + kSplitWeightBytes);
}
[[nodiscard]] constexpr int split_shared_bytes(int tile_tokens) {  // 1024: to align the ring
  return 1024 + split_stages(tile_tokens) * (tile_tokens * 128 + kSplitWeightBytes) + kSplitBarrierBytes;
}

[[nodiscard]] GemmCost cost(const SplitGemmArgs& args, const SplitGemmPlan& plan);

// Throws Error(kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const SplitGemmArgs& args);

}  // namespace nibble::backend::cuda

#pragma once
// How the kernels that give a warp a row tile (row_warps.cuh) use a card. Plain C++.

#include "backend/cuda/dense/gemv_plan.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

inline constexpr int kColumns = 8;          // of an mma
inline constexpr int kRowStages = 4;        // of a warp's ring of slices
inline constexpr int kRowExtraBytes = 512;  // of shared memory: barriers, routes

// Bytes between two rows of activations in shared memory: half a line more, so that eight rows lie in different banks.
[[nodiscard]] constexpr int row_pitch(int64_t cols) { return static_cast<int>((cols * 2 + 63) / 128 * 128 + 64); }

// One CTA per SM: rows of activations in shared memory, and a ring of slices of weights for each warp.
struct RowWarpsPlan {
  int grid = 0, warps = 0;
  int rows = 0;  // of activations
  int64_t smem_bytes = 0;
  [[nodiscard]] std::string to_string() const;
};
// What a launch asks for.
struct RowWarpsWish {
  int rows = 0;  // of activations, a multiple of 8: fewer where shared memory has no room for so many
  int stages = kRowStages;
  int warps = 0;  // 0: as many as fit
};
inline constexpr RowWarpsWish kMoeUpWish = {.rows = kGemvTokens};
inline constexpr RowWarpsWish kMoeDownWish = {.rows = 2 * kGemvTokens};  // those of two experts
// For matrices of `cols` columns. Throws Error(kUnsupported) for columns without slices or a card with too little
// shared memory.
[[nodiscard]] RowWarpsPlan plan_row_warps(int64_t cols, const RowWarpsWish& wish, const GemvDevice& device);

}  // namespace nibble::backend::cuda

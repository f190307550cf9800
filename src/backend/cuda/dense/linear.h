#pragma once
// Products with weights in row order. Plain C++.

#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"

namespace nibble::backend::cuda {

// out[t,r] = weight[r,:] · x[t,:] + bias[r]
struct Linear {
  static constexpr Kernel kName{"any_linear_f32_bf16"};
  struct Args {
    const Bf16* weight = nullptr;  // [rows, cols], device memory as all pointers
    const Bf16* bias = nullptr;    // [rows]; may be none
    const float* x = nullptr;      // [tokens, cols]
    float* out = nullptr;          // [tokens, rows]
    int tokens = 0, rows = 0, cols = 0;
  };
  static void launch(const Args& args, const Launch& on);
};
inline constexpr int kLinearWarps = 4;  // of a CTA

struct LinearTile {
  int rows = 1, tokens = 1;  // of a warp
};

[[nodiscard]] constexpr LinearTile linear_tile(int64_t tokens) {
  if (tokens == 1) return {1, 1};
  if (tokens == 2) return {1, 2};
  if (tokens <= 4) return {2, 4};
  return {4, 8};
}

}  // namespace nibble::backend::cuda

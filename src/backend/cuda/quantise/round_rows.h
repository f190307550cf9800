#pragma once
// Activations as codes of rows, which wgmma multiplies in FP8: what they are, arguments, launcher.
//
// A row is rounded in MX blocks as MXFP8 says (backend/activations.h). Its scale is the largest of its blocks'; a code
// of a block whose scale is d binades smaller is rounded once more, to the e4m3 nearest to it times 2^-d. So a block's
// values are those of MXFP8 down to 2^(d - 6) of its scale, and multiples of 2^-9 of the row's scale below: at most
// 2^-18 of the row's largest value is lost.

#include "backend/cuda/launch/kernel_table.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

inline constexpr int kRoundRowsCols = 4096;

struct RoundRowsArgs {
  const float* from = nullptr;     // [tokens, cols]
  const float* inverse = nullptr;  // [tokens], with norm [cols]: what is rounded is from * inverse * norm
  const Bf16* norm = nullptr;
  const uint16_t* panels = nullptr;  // instead of from: f16 (layout/wgmma_b.h) of `rows` rows, token t's at places[t]
  const int32_t* places = nullptr;   // [tokens, copies]: the rows that a token's codes go to
  uint8_t* codes = nullptr;          // panels (layout/wgmma_b8.h) of `rows` rows; what is no row's place is left
  float* scales = nullptr;           // [rows]
  int tokens = 0, cols = 0, copies = 1, rows = 0;  // cols: a multiple of 64 up to kRoundRowsCols
};

// Checks the arguments, launches chained (chained_launch.cuh), returns.
void any_round_rows(const RoundRowsArgs& args, const Launch& on);
[[nodiscard]] constexpr int round_rows_threads(int cols) { return (cols / 8 + 31) / 32 * 32; }
inline constexpr int kRoundRowsShared = 16 * 4;  // a word per warp

}  // namespace nibble::backend::cuda

#pragma once
// Rounded activations. In blocks of 32 (backend/activations.h) where they lie, for who multiplies values; and as codes
// of rows, which wgmma multiplies in FP8:
//
// A row is rounded in MX blocks as MXFP8 says (backend/activations.h). Its scale is the largest of its blocks'; a code
// of a block whose scale is d binades smaller is rounded once more, to the e4m3 nearest to it times 2^-d. So a block's
// values are those of MXFP8 down to 2^(d - 6) of its scale, and multiples of 2^-9 of the row's scale below: at most
// 2^-18 of the row's largest value is lost.

#include "backend/activations.h"
#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"
#include "base/mx.h"

#include <cstdint>
#include <string_view>

namespace nibble::backend::cuda {

// f16 values to what MX blocks hold of them, in their place: exactly where the largest is below 2^16 and a block's
// scale not below 2^-15 (mxfp8), 2^-21 (mxfp6) or 2^-23 (mxfp4); smaller ones become multiples of 2^-24. Whatever order
// a row's k have: a block must be 64 bytes at a multiple of 64, which layout/wgmma_b.h keeps.
struct RoundBlocks {
  static constexpr std::string_view kTile = "a block of 32 per 4 threads";
  struct Args {
    Activations form = Activations::kMxfp8;  // in MX blocks
    F16* at = nullptr;                       // [values], 64-byte aligned
    int64_t values = 0;                      // a multiple of 32
  };
  [[nodiscard]] static constexpr Kernel name(Activations form) {
    switch (form) {
      case Activations::kMxfp8: return {"any_round_blocks<mxfp8>"};
      case Activations::kMxfp6: return {"any_round_blocks<mxfp6>"};
      case Activations::kMxfp4: return {"any_round_blocks<mxfp4>"};
      default: return {};
    }
  }
  static void launch(const Args& args, const Launch& on);
};

inline constexpr int kRoundRowsCols = 4096;

struct RoundRows {
  static constexpr Kernel kName{"any_round_rows_e4m3"};
  static constexpr std::string_view kTile = "a CTA per few rows";
  // A CTA takes as many as its threads' registers hold.
  [[nodiscard]] static constexpr int rows_at_once(bool panels) { return panels ? 4 : 2; }
  struct Args {
    const float* from = nullptr;     // [tokens, cols]
    const float* inverse = nullptr;  // [tokens], with norm [cols]: what is rounded is from * inverse * norm
    const Bf16* norm = nullptr;
    const int32_t* places = nullptr;  // [tokens, copies]: the rows that a token's codes go to; -1: none
    // Instead of from: f16 panels (layout/wgmma_b.h) of `rows` rows, the first `tokens` of which are rounded, each to
    // the same row, so that neighbours in memory are read together.
    const uint16_t* panels = nullptr;
    uint8_t* codes = nullptr;  // panels (layout/wgmma_b.h) of `rows` rows; what is no row's place is left
    float* scales = nullptr;   // [rows]
    int tokens = 0, cols = 0, copies = 1, rows = 0;  // cols: a multiple of 64 up to kRoundRowsCols
  };
  static void launch(const Args& args, const Launch& on);
};

[[nodiscard]] constexpr int round_rows_threads(int cols) { return (cols / 8 + 31) / 32 * 32; }
inline constexpr int kRoundRowsWarps = kRoundRowsCols / 8 / 32,
                     kRoundRowsShared = RoundRows::rows_at_once(true) * kRoundRowsWarps * 4;

}  // namespace nibble::backend::cuda

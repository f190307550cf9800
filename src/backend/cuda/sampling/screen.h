#pragma once
// A screen (backend/screen.h) on a card: candidates' tiles of 16 rows are multiplied by the kernel that multiplies the
// whole matrix. All other logits become -infinity, which no draw takes.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/layout/screen_codes.h"
#include "backend/cuda/sampling/sample.h"
#include "backend/screen.h"

#include <cstdint>

namespace nibble::backend::cuda {

// A matrix [rows, cols] beside its short copy. Device memory.
struct ScreenCopy {
  const uint8_t* matrix = nullptr;         // bf16, layout/packed.h, RowOrder::kPlain
  uint8_t* codes = nullptr;                // [layout::screen_bytes(rows, cols)]
  float *mean = nullptr, *rms = nullptr;   // [cols]
  float* scale = nullptr;                  // [rows] w' of a code
  float *lost = nullptr, *kept = nullptr;  // [rows] |w' - q| and |q|, rounded up
  float* length = nullptr;                 // [rows] |w|
  float longest = 0;                       // of them; infinity or NaN: every tile is a candidate
  int rows = 0, cols = 0;
};
// Bytes of all that is beside the matrix.
[[nodiscard]] constexpr int64_t screen_copy_bytes(int64_t rows, int64_t cols) {
  return layout::screen_bytes(rows, cols) + 4 * (2 * cols + 4 * rows);
}
// Makes a copy from its matrix: all but `longest`.
void make_screen_copy(const ScreenCopy& copy, CUstream_st* stream);

// Between the launches of a screen, and from step to step.
struct ScreenState : TileCount {  // of the candidates, tiles of 16 rows
  ScreenCounts total{};           // steps that did not rest
  int done = 0;                   // CTAs of a launch
  int resting = 0;                // steps until the next one that is screened: after one with too many candidates
};
struct ScreenScratch {
  float* v = nullptr;               // [tokens, cols] 16-byte aligned
  ScreenedToken* tokens = nullptr;  // [tokens]
  float* part_value = nullptr;      // [tokens, kScreenParts] the best of some rows, by the short copy
  int32_t* part_token = nullptr;    // [tokens, kScreenParts]
  int32_t* tiles = nullptr;         // [rows / 16] the candidates
  ScreenState* state = nullptr;     // zeros before the first step
  ScreenCounts* shown = nullptr;    // in the host's memory: state->total
};
inline constexpr int kScreenParts = 512;  // CTAs of a screen, at most
// A B operand holds so many tokens: the high and the low digit of each is a column. More tokens are another set.
inline constexpr int kSetTokens = 4;
// Shared memory for the rounded activations, which comes first.
[[nodiscard]] constexpr int64_t screen_operand_bytes(int64_t cols, int tokens) {
  constexpr int kLaneBytes = 16;  // of a part
  return ceil_div(tokens, kSetTokens) * (cols / layout::kScreenColumns) * layout::kWarpLanes * kLaneBytes;
}

// Logits by the short copy, and the best of each CTA's.
struct Screen {
  static constexpr Kernel kName{"any_screen"};
  struct Args {
    ScreenCopy copy;
    ScreenScratch at;
    RowsIn in;
    const SampleRowParams* params = nullptr;  // [tokens]
    float* y = nullptr;                       // [tokens, rows]
    int tokens = 0;
  };
  [[nodiscard]] static Plan plan(int64_t rows, int64_t cols, int tokens, const PlanDevice& device);
  static void launch(const Args& args, const Plan& plan, const Launch& on);
};
void check_args(const Screen::Args& args);

// The candidates; -infinity in y for all other rows.
struct ScreenPick {
  static constexpr Kernel kName{"any_screen_pick"};
  static constexpr std::string_view kTile = "four rows per thread";
  struct Args {
    Screen::Args of;
    int parts = 0;  // CTAs of the screen
  };
  static void launch(const Args& args, const Launch& on);
};

}  // namespace nibble::backend::cuda

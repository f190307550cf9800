#pragma once
// int8 products of some tokens on Arm: a strip of a tile's rows is decoded once, side by side, and the tokens pass by.
// What a block becomes and how it is multiplied is a Panel's: neon_int8_dot.cpp, neon_int8_matrix.cpp.
#include "backend/cpu/ahead.h"
#include "backend/cpu/neon_int8.h"

#include <algorithm>
#include <array>

namespace nibble::backend::cpu::neon {

// Blocks whose decoded weights (23 KB at most) stay in the first cache meanwhile: a fifth of 2880 columns.
inline constexpr int64_t kStripBlocks = 18;
inline constexpr int kPanelRows = 8;  // rows of a tile come in multiples of these; the last is repeated, and not stored

struct FourRows {
  FourRows(const WeightRows& w, int first) {
    for (int r = 0; r < 4; ++r) {
      const int row = std::min(first + r, w.rows - 1);
      values[static_cast<size_t>(r)] = w.values_of(row);
      scales[static_cast<size_t>(r)] = has_scale_array(w.format) ? w.scales_of(row) : nullptr;
    }
  }
  // Where the rows' codes of a block begin, and their scales.
  template <WeightFormat kFormat>
  [[nodiscard]] Four blocks_at(int64_t block) const {
    return moved(values, block * Blocks<kFormat>::kBytes);
  }
  template <WeightFormat kFormat>
  [[nodiscard]] Four scales_at(int64_t block) const {
    return kFormat == WeightFormat::kMxfp4 ? moved(scales, block) : blocks_at<kFormat>(block);
  }

  Four values, scales;

 private:
  static Four moved(const Four& from, int64_t bytes) {
    return {from[0] + bytes, from[1] + bytes, from[2] + bytes, from[3] + bytes};
  }
};

// Some tokens' products with a decoded strip.
template <class Panel>
struct StripArgs {
  const typename Panel::Block* w;  // [blocks]
  int64_t first, blocks;           // of the rows' blocks
  int rows;                        // a multiple of kPanelRows
  const PreparedRow* x;
  int tokens;                        // at most Panel::kTokens
  typename Panel::Operands* packed;  // [blocks], to write
  float* sums;                       // [tokens, kTileRows], which they are added to
};

template <WeightFormat kFormat, class Panel>
void multiply_lanes(const MultiplyPreparedArgs& args) {
  using Block = typename Panel::Block;
  const WeightRows& w = args.w;
  const int rows = (w.rows + kPanelRows - 1) / kPanelRows * kPanelRows;
  const std::array<FourRows, kTileRows / 4> fours = {FourRows(w, 0),  FourRows(w, 4),  FourRows(w, 8),
                                                     FourRows(w, 12), FourRows(w, 16), FourRows(w, 20),
                                                     FourRows(w, 24), FourRows(w, 28)};
  auto* const decoded = reinterpret_cast<Block*>(args.scratch);
  auto* const packed = reinterpret_cast<typename Panel::Operands*>(decoded + kStripBlocks);
  static_assert(kStripBlocks * (sizeof(Block) + sizeof(typename Panel::Operands)) <= kLeastScratch * sizeof(float));
  std::array<PreparedRow, kTileTokens> x;  // the first are set
  for (size_t t = 0; t < static_cast<size_t>(args.tokens); ++t) x[t] = PreparedRow(args.x[t], w.cols);
  alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> sums;
  std::fill_n(sums.begin(), args.tokens * kTileRows, 0.0f);
  Ahead ahead(w, args.next, Ahead::rows_ahead(w, kTileRows));
  const int64_t blocks = w.cols / kMxBlock, strips = (blocks + kStripBlocks - 1) / kStripBlocks;
  const int64_t passes = (args.tokens + Panel::kTokens - 1) / Panel::kTokens * strips;
  const int64_t ahead_bytes = (w.rows * row_bytes(kFormat, w.cols) + passes - 1) / passes;
  for (int64_t first = 0; first < blocks; first += kStripBlocks) {
    const int64_t count = std::min(kStripBlocks, blocks - first);
    for (int64_t b = 0; b < count; ++b)
      for (int r = 0; r < rows; r += 4)
        Panel::template decode<kFormat>(fours[static_cast<size_t>(r / 4)], first + b, r, decoded[b]);
    for (int t = 0; t < args.tokens; t += Panel::kTokens) {
      ahead.advance(ahead_bytes);
      Panel::multiply({.w = decoded,
                       .first = first,
                       .blocks = count,
                       .rows = rows,
                       .x = x.data() + t,
                       .tokens = std::min(Panel::kTokens, args.tokens - t),
                       .packed = packed,
                       .sums = sums.data() + t * kTileRows});
    }
  }
  for (int t = 0; t < args.tokens; ++t) {
    float* const row = sums.data() + t * kTileRows;
    for (int r = 0; r < rows; r += 4) vst1q_f32(row + r, infinite_to_nan(vld1q_f32(row + r)));
    std::copy_n(row, w.rows, args.out + t * kTileRows);
  }
}

template <class Panel>
void multiply_lanes(const MultiplyPreparedArgs& args) {
  with_int8_format(args.w.format, [&](auto format) { multiply_lanes<decltype(format)::value, Panel>(args); });
}

}  // namespace nibble::backend::cpu::neon

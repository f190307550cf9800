#pragma once
// Which rows of which tile of tokens a CTA of sm90_mxfp4_gemm takes in a wave. Plain C++: device and tests run the
// same.

#include "backend/cuda/arch/sm90/kernels.h"

namespace nibble::backend::cuda {

struct RowWork {
  int tile = 0, first_row_tile = 0;
  int row_tiles = 0;    // of the CTA's warps, those with a row tile; 0: no work
  bool second = false;  // of the second matrix
};

// The matrix of a launch, after another of as many columns that has the tiles of tokens first.
struct Mxfp4Matrices {
  int row_tiles, before_row_tiles = 0;  // 0: there is no other
};

// Work tiles of kMxfp4RowTiles row tiles, row blocks fastest, in whole waves. What is left for the last wave is cut
// into work tiles of fewer warpgroups where the CTAs suffice, so that a few do not take as long as all: of 20b's gate
// and up rows for 256 tokens, 7.27 waves, the last one takes a third.
struct Mxfp4Waves {
  int row_tiles, tiles, ctas;
  int blocks, before_blocks;  // work tiles of a tile of tokens
  int before;                 // work tiles of the matrix before
  int whole;                  // waves
  int last_row_tiles = kMxfp4WarpgroupTiles;

  constexpr Mxfp4Waves(const Mxfp4Matrices& matrices, int token_tiles, int grid)
      : row_tiles(matrices.row_tiles),
        tiles(token_tiles),
        ctas(grid),
        blocks(blocks_of(row_tiles)),
        before_blocks(blocks_of(matrices.before_row_tiles)),
        before(before_blocks * tiles),
        whole((before + blocks * tiles) / ctas) {
    const bool both = whole * ctas < before;  // in the last wave, which stays whole then
    while (last_row_tiles < kMxfp4RowTiles && (both || last_works() > ctas)) last_row_tiles += kMxfp4WarpgroupTiles;
  }
  [[nodiscard]] constexpr bool cut() const { return last_row_tiles < kMxfp4RowTiles; }
  // The tile of tokens within which a last wave that is cut begins; `tiles` where nothing is left for it.
  [[nodiscard]] constexpr int last_tile() const { return (whole * ctas - before) / blocks; }
  // Given the tokens of the first tile and of last_tile(): where they differ much, the CTAs that a last wave of whole
  // work tiles leaves out are those that had the largest ones before, and it stays whole.
  constexpr void weigh(int first_tokens, int last_tokens) {
    constexpr int kFixed = 75;  // of a work's time, in tokens
    if (first_tokens + kFixed > 2 * (last_tokens + kFixed)) last_row_tiles = kMxfp4RowTiles;
  }
  [[nodiscard]] constexpr RowWork of(int cta, int wave) const {
    if (wave > whole) return {};
    // Work tiles fall in size: every other wave runs backwards, so that no CTA has the larger one of all.
    const int turn = wave % 2 == 0 ? cta : ctas - 1 - cta;
    if (wave < whole || !cut()) {
      const int work = wave * ctas + turn;
      const bool second = before == 0 || work >= before;
      const int own = second ? work - before : work, of_tile = second ? blocks : before_blocks;
      const RowWork work_of_tile{own / of_tile, own % of_tile * kMxfp4RowTiles, kMxfp4RowTiles, second && before > 0};
      return work_of_tile.tile < tiles ? work_of_tile : RowWork{};
    }
    const int tile = last_tile(), first = last_row_tile();
    const int of_first = works_of(row_tiles - first), of_tile = works_of(row_tiles), later = turn - of_first;
    if (tile >= tiles) return {};
    if (later < 0) return {tile, first + turn * last_row_tiles, last_row_tiles, before > 0};
    const RowWork work{tile + 1 + later / of_tile, later % of_tile * last_row_tiles, last_row_tiles, before > 0};
    return work.tile < tiles ? work : RowWork{};
  }

 private:
  [[nodiscard]] static constexpr int blocks_of(int rows) { return (rows + kMxfp4RowTiles - 1) / kMxfp4RowTiles; }
  // Where the last wave begins in its first tile of tokens.
  [[nodiscard]] constexpr int last_row_tile() const { return (whole * ctas - before) % blocks * kMxfp4RowTiles; }
  [[nodiscard]] constexpr int works_of(int rows) const { return (rows + last_row_tiles - 1) / last_row_tiles; }
  [[nodiscard]] constexpr int last_works() const {
    return works_of(row_tiles - last_row_tile()) + (tiles - last_tile() - 1) * works_of(row_tiles);
  }
};

}  // namespace nibble::backend::cuda

#pragma once
// Which rows of which tile of tokens a warpgroup of sm90_grouped takes, and where a tile's x lies in shared memory.
// Plain C++: device and tests run the same.

#include "backend/cuda/arch/sm90/kernels.h"

namespace nibble::backend::cuda {

// A CTA's groups of rows (kSm90GroupedRows each) of one tile of tokens: [first, end) of those of gate_up or of down.
struct Sm90Part {
  bool down = false;
  int tile = -1, first = 0, end = 0;
  [[nodiscard]] constexpr bool there() const { return tile >= 0; }
};

// The groups of all tiles of one matrix, a range of equal size to each CTA.
struct Sm90Range {
  int groups, at, end;  // groups: of a tile
  constexpr Sm90Range(int of_tile, int tiles, int cta, int ctas)
      : groups(of_tile), at(first(of_tile * tiles, cta, ctas)), end(first(of_tile * tiles, cta + 1, ctas)) {}
  constexpr Sm90Part next(bool down) {
    const int tile = at / groups, from = at - tile * groups, left = end - at;
    const int count = groups - from < left ? groups - from : left;
    at += count;
    return {down, tile, from, from + count};
  }

 private:
  [[nodiscard]] static constexpr int first(int all, int cta, int ctas) {
    const int rest = all % ctas;
    return all / ctas * cta + (cta < rest ? cta : rest);
  }
};

// A CTA's parts, those of down after all of gate_up.
struct Sm90Parts {
  Sm90Range up, down;
  constexpr Sm90Part next() {
    if (up.at < up.end) return up.next(false);
    return down.at < down.end ? down.next(true) : Sm90Part{};
  }
};

// A warpgroup's groups of these: warpgroups take turns, from part to part.
struct Sm90Groups {
  Sm90Parts parts;
  Sm90Part part;
  int group;
  constexpr Sm90Groups(const Sm90Parts& all, int warpgroup) : parts(all), part(parts.next()), group(part.first) {
    move_on(warpgroup);
  }
  [[nodiscard]] constexpr bool valid() const { return part.there(); }
  constexpr void advance() { move_on(kSm90GroupedWarpgroups); }

 private:
  constexpr void move_on(int turns) {
    group += turns;
    while (part.there() && group >= part.end) {
      const int beyond = group - part.end;
      part = parts.next();
      group = part.first + beyond;
    }
  }
};

// Where the x of one part after the other lies: beside the one before, where there is room.
struct Sm90Places {
  int first = 0, rows = 0;  // of the last one
  // Whether the part before has to end first.
  constexpr bool take(int count) {
    const int before = first, end = first + rows;
    rows = (count + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomRows;
    first = rows <= before ? 0 : end + rows <= kSm90GroupedTokens ? end : 0;
    return first < end && before < first + rows;
  }
};

}  // namespace nibble::backend::cuda

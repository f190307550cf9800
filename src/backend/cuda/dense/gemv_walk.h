#pragma once
// Which tiles a CTA of the MXFP4 kernels computes, in which order. Producer, consumers and epilogue of a CTA walk the
// same sequence independently. Plain C++, so that tests can walk every CTA without a GPU.

namespace nibble::backend::cuda {

// One weight tile. slot: which of the step's distinct experts (0 in a dense matrix). ends_unit: the sums of the tiles
// since the last such tile belong to one result.
struct Cursor {
  int row_tile = 0;
  int slot = 0;
  int part = 0;
  bool ends_unit = true;
};

// Every row tile of every slot, each a unit of its own; CTA c takes tiles c, c + ctas, … of the slot-major order.
// Interleaving beats contiguous ranges: neighbours in time are neighbours in DRAM.
struct TileWalk {
  int row_tiles, slots, ctas;

  [[nodiscard]] constexpr Cursor first(int cta) const { return wrapped({.row_tile = cta}); }
  [[nodiscard]] constexpr bool valid(const Cursor& c) const { return c.slot < slots; }
  [[nodiscard]] constexpr Cursor next(Cursor c) const {
    c.row_tile += ctas;
    return wrapped(c);
  }

 private:
  [[nodiscard]] constexpr Cursor wrapped(Cursor c) const {
    while (c.row_tile >= row_tiles) {
      c.row_tile -= row_tiles;
      ++c.slot;
    }
    return c;
  }
};

// Units (part, row tile); a unit is its row tile in the part's slots, one after the other, so one CTA sums the experts
// of a row tile without atomics. A CTA has units of one part, where there are as many CTAs as parts, and so reads the
// activations of that part's experts alone. No division: every warp walks, tile by tile. REQUIRES parts 1 or 2, parts
// <= slots: every part has a slot.
struct UnitWalk {
  int row_tiles, slots, parts, ctas;

  [[nodiscard]] constexpr Cursor first(int cta) const {
    if (!split()) return opened({.row_tile = cta});
    return cta < 2 * group() ? opened({.row_tile = cta < group() ? cta : cta - group(), .part = cta < group() ? 0 : 1})
                             : Cursor{.part = parts};
  }
  [[nodiscard]] constexpr bool valid(const Cursor& c) const { return c.part < parts; }
  [[nodiscard]] constexpr Cursor next(Cursor c) const {
    if (c.ends_unit) {
      c.row_tile += group();
      return opened(c);
    }
    ++c.slot;
    c.ends_unit = c.slot + 1 == end_of(c.part);
    return c;
  }

 private:
  [[nodiscard]] constexpr bool split() const { return parts == 2 && ctas >= 2; }
  [[nodiscard]] constexpr int group() const { return split() ? ctas / 2 : ctas; }  // CTAs of one part
  [[nodiscard]] constexpr int end_of(int part) const { return part + 1 == parts ? slots : slots / 2; }
  [[nodiscard]] constexpr Cursor opened(Cursor c) const {
    while (c.row_tile >= row_tiles && c.part < parts) {
      c.row_tile -= row_tiles;
      c.part += split() ? parts : 1;
    }
    c.slot = c.part == 0 ? 0 : slots / 2;
    c.ends_unit = c.slot + 1 == end_of(c.part);
    return c;
  }
};

}  // namespace nibble::backend::cuda

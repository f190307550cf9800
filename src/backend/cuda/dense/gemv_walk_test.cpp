#include "backend/cuda/dense/gemv_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace nibble::backend::cuda {
namespace {

TEST(gemv_walk, the_ctas_take_every_tile_once) {
  for (const int row_tiles : {1, 180, 320, 360})
    for (const int slots : {1, 4, 7, 32})
      for (const int ctas : {1, 48, 132}) {
        std::vector<int> seen(static_cast<size_t>(row_tiles * slots));
        size_t most = 0;
        for (int cta = 0; cta < ctas; ++cta) {
          const TileWalk walk{row_tiles, slots, ctas};
          size_t count = 0;
          for (Cursor c = walk.first(cta); walk.valid(c); c = walk.next(c), ++count) {
            EXPECT_TRUE(c.ends_unit);
            ++seen[static_cast<size_t>(c.slot * row_tiles + c.row_tile)];
          }
          most = std::max(most, count);
        }
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
        EXPECT_EQ(most, (seen.size() + static_cast<size_t>(ctas) - 1) / static_cast<size_t>(ctas));
      }
}

TEST(gemv_walk, a_unit_is_one_row_tile_in_all_slots_of_its_part) {
  for (const int slots : {1, 2, 3, 4, 7, 32})
    for (const int parts : {1, 2})
      for (const int ctas : {1, 48, 132, 360}) {
        if (parts > slots) continue;
        constexpr int kRowTiles = 180;
        std::map<std::tuple<int, int>, int> tiles;  // (row tile, slot) -> times
        std::map<std::tuple<int, int>, int> units;  // (row tile, part) -> times ended
        for (int cta = 0; cta < ctas; ++cta) {
          const UnitWalk walk{kRowTiles, slots, parts, ctas};
          bool open = false;
          Cursor last;
          for (Cursor c = walk.first(cta); walk.valid(c); c = walk.next(c)) {
            if (open)
              EXPECT_EQ(std::tuple(c.row_tile, c.part, c.slot), std::tuple(last.row_tile, last.part, last.slot + 1));
            ++tiles[{c.row_tile, c.slot}];
            if (c.ends_unit) ++units[{c.row_tile, c.part}];
            open = !c.ends_unit;
            last = c;
          }
          EXPECT_FALSE(open);
        }
        EXPECT_EQ(tiles.size(), static_cast<size_t>(kRowTiles * slots));
        EXPECT_EQ(units.size(), static_cast<size_t>(kRowTiles * parts));
        for (const auto& [tile, times] : tiles) EXPECT_EQ(times, 1);
        for (const auto& [unit, times] : units) EXPECT_EQ(times, 1);
      }
}

TEST(gemv_walk, a_cta_without_work_walks_nothing) {
  EXPECT_FALSE((TileWalk{3, 1, 8}.valid(TileWalk{3, 1, 8}.first(3))));
  EXPECT_FALSE((UnitWalk{3, 4, 2, 8}.valid(UnitWalk{3, 4, 2, 8}.first(3))));
}

}  // namespace
}  // namespace nibble::backend::cuda

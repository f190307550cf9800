#include "engine/pages.h"

#include <gtest/gtest.h>

#include <set>

namespace nibble::engine {
namespace {

TEST(pages, every_page_is_given_once_until_it_comes_back) {
  PagePool pool({3, 5, 2});
  for (const LayerKind kind : backend::kEachLayerKind) {
    std::set<int32_t> taken;
    const int64_t total = kind == LayerKind::kFull ? 5 : kind == LayerKind::kWide ? 2 : 3;
    EXPECT_EQ(pool.total(kind), total);
    for (int64_t i = 0; i < total; ++i) taken.insert(pool.take(kind));
    EXPECT_EQ(static_cast<int64_t>(taken.size()), total);
    EXPECT_EQ(*taken.begin(), 0);
    EXPECT_EQ(*taken.rbegin(), total - 1);
    EXPECT_EQ(pool.take(kind), -1);
    EXPECT_EQ(pool.free_pages(kind), 0);
    pool.give_back(kind, 1);
    EXPECT_EQ(pool.take(kind), 1);
  }
}

TEST(pages, a_page_that_comes_back_twice_is_our_bug) {
  PagePool pool({2, 2});
  const int32_t page = pool.take(LayerKind::kFull);
  pool.give_back(LayerKind::kFull, page);
  EXPECT_DEATH(pool.give_back(LayerKind::kFull, page), "given back once");
  EXPECT_DEATH(pool.give_back(LayerKind::kSliding, 7), "given back once");
}

TEST(pages, pages_for_rounds_up) {
  EXPECT_EQ(pages_for(0), 0);
  EXPECT_EQ(pages_for(1), 1);
  EXPECT_EQ(pages_for(64), 1);
  EXPECT_EQ(pages_for(65), 2);
}

}  // namespace
}  // namespace nibble::engine

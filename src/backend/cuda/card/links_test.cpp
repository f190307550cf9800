#include "backend/cuda/card/cards.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::backend::cuda {
namespace {

// Two H200 (bench/results/2026-11-26-h200-x2-sent.json).
TEST(links, nvlink_is_as_it_was_measured) {
  const KnownLink link = link_named("nvlink4");
  struct Measured {
    double bytes, push, shares;
  };
  for (const auto& [bytes, push, shares] :
       {Measured{5760, 2.7, 6.8}, Measured{46080, 3.2, 7.7}, Measured{368640, 5.7, 8.6}, Measured{1474560, 12.1, 12.2},
        Measured{11796480, 88, 42}, Measured{47185920, 346, 154}}) {
    EXPECT_NEAR(sum_us(link, {.ranks = 2, .bytes = bytes}) / push, 1, 0.12) << bytes;
    EXPECT_NEAR(sum_us(link, {.ranks = 2, .bytes = bytes, .longer = true}) / shares, 1, 0.12) << bytes;
  }
}

TEST(links, more_ranks_push_more_and_ring_hardly_more) {
  const KnownLink link = link_named("nvlink4");
  const auto grows = [&](bool longer) {
    constexpr double kBytes = 50e6;
    return sum_us(link, {8, kBytes, longer}) / sum_us(link, {2, kBytes, longer});
  };
  EXPECT_NEAR(grows(false), 7, 0.1);
  EXPECT_NEAR(grows(true), 1.75, 0.1);
}

TEST(links, cards_that_do_not_reach_each_other_push_nothing) {
  const KnownLink link = link_named(card_named("4090").link);
  EXPECT_EQ(link.word, "pcie4");
  EXPECT_EQ(sum_us(link, {.ranks = 2, .bytes = 5760}), sum_us(link, {.ranks = 2, .bytes = 5760, .longer = true}));
}

TEST(links, every_card_has_one) {
  for (const KnownCard& card : known_cards()) EXPECT_FALSE(link_named(card.link).from.empty());
  EXPECT_EQ(card_named("gb10").link, "connectx7");
  try {
    static_cast<void>(link_named("carrier pigeon"));
    FAIL() << "there is none";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("nvlink4, nvlink3, pcie4, connectx7"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace nibble::backend::cuda

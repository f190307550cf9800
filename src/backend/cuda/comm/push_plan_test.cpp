#include "backend/cuda/comm/sums.h"
#include "backend/cuda/testing/costs.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::backend::cuda {
namespace {

std::string refusal(const PushReduce::Args& args) {
  try {
    check_args(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(push_plan, ranks_of_one_card_fit_it_together) {
  EXPECT_EQ(plan_push(2880, 132, 1).grid, 3);
  EXPECT_EQ(plan_push(4, 132, 1).grid, 1);
  EXPECT_EQ(plan_push(int64_t{1} << 20, 132, 1).grid, 132);
  EXPECT_EQ(plan_push(int64_t{1} << 20, 132, 2).grid, 66);
  EXPECT_EQ(plan_push(int64_t{1} << 20, 132, 8).grid, 16);
  EXPECT_EQ(plan_push(int64_t{1} << 20, 1000, 1).grid, kMostPushCtas);
}

TEST(push_plan, picks_take_a_warp_a_row) {
  EXPECT_EQ(plan_pick(1, 132, 1).grid, 1);
  EXPECT_EQ(plan_pick(256, 132, 1).grid, 32);
  EXPECT_EQ(plan_pick(1024, 132, 8).grid, 16);
}

TEST(push_plan, cost_is_what_crosses_the_links) {
  const PushLink link{.shape = {.words = 4096, .ranks = 4}};
  EXPECT_EQ(cost(PushReduce::Args{.link = link, .words = 2880}).bytes, 3 * 2880 * 8);
  PushGather::Args gather{.link = link, .rows = 2};
  gather.count[0] = 12;
  EXPECT_EQ(cost(gather).bytes, 3 * 2 * 12 * 8);
  EXPECT_EQ(cost(PushPick::Args{.link = link, .rows = 5}).bytes, 3 * 5 * 32);
}

TEST(push_plan, refuses_what_it_cannot_serve) {
  PushReduce::Args args{.link = {.shape = {.words = 1024, .ranks = 2}}, .words = 1024};
  EXPECT_EQ(refusal(args), "");
  args.words = 6;
  EXPECT_NE(refusal(args).find("want whole vectors of 16 bytes, found 6"), std::string::npos) << refusal(args);
  args.words = 1028;
  EXPECT_NE(refusal(args).find("want a message that the mailbox holds, found 1028"), std::string::npos);
  args.link.shape.ranks = 9;
  EXPECT_NE(refusal(args).find("want 2 to 8 ranks, found 9"), std::string::npos);
}

}  // namespace
}  // namespace nibble::backend::cuda

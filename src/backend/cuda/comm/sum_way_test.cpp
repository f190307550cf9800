#include "backend/cuda/comm/sums.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace nibble::backend::cuda {
namespace {

constexpr int64_t kMega = 1 << 20;

TEST(sum_way, short_messages_are_pushed_and_long_ones_are_not) {
  for (const int ranks : {2, 4, 8}) {
    EXPECT_EQ(sum_way(ranks, 5760), SumWay::kPush);
    EXPECT_EQ(sum_way(ranks, 2 * kMega), SumWay::kShares);
    EXPECT_LE(first_long_bytes(ranks), 4 * kMessageWords) << "what a push combines is one message";
  }
  EXPECT_EQ(sum_way(2, kMega - 2), SumWay::kPush);
  EXPECT_EQ(sum_way(2, kMega), SumWay::kShares);
  EXPECT_EQ(sum_way(8, kMega / 8), SumWay::kShares);
}

TEST(sum_plan, names_what_is_launched_and_how_often) {
  const auto plan = [](int64_t tokens, bool by_nccl = false) {
    return plan_sum({.values = {.count = tokens * 2880, .type = DeltaValues::Type::kBf16},
                     .ranks = 2,
                     .sms = 132,
                     .by_nccl = by_nccl});
  };
  const SumPlan decode = plan(1);
  EXPECT_EQ(decode.kernel.name, "any_push_reduce<bf16>");
  EXPECT_EQ(decode.tile, "4 words per thread, 256 threads, 2 CTAs, 5760 B of each of 2 ranks");
  EXPECT_EQ(decode.launches, 1);
  EXPECT_EQ(decode.cost.bytes, 2 * 5760);
  const SumPlan prompt = plan(8192);
  EXPECT_EQ(prompt.kernel.name, "any_share_reduce<bf16>");
  EXPECT_EQ(prompt.launches, 1);
  EXPECT_NEAR(static_cast<double>(prompt.cost.bytes), 8192.0 * 5760, 5e4);
  EXPECT_EQ(plan(16384).launches, 2);
  using enum DeltaValues::Sending;
  const auto sent = [](DeltaValues::Sending to) {
    return plan_sum(
        {.values = {.count = 8192 * 2880, .type = DeltaValues::Type::kBf16, .sent = to}, .ranks = 2, .sms = 132});
  };
  EXPECT_EQ(sent(kToOwners).kernel.name, "any_share_sum<bf16>");
  EXPECT_NEAR(static_cast<double>(sent(kToOwners).cost.bytes), 4096.0 * 5760, 5e4) << "its own half of the sums";
  EXPECT_EQ(sent(kToAll).kernel.name, "any_push_barrier");
  EXPECT_EQ(sent(kToAll).way, SumWay::kExchange);
  EXPECT_EQ(sent(kToAll).cost.bytes, 32) << "all else was sent before";
  EXPECT_EQ(sent_as_made(2, int64_t{8192} * 5760), kToAll);
  EXPECT_EQ(sent_as_made(4, int64_t{8192} * 5760), kToOwners);
  EXPECT_EQ(sent_as_made(2, int64_t{9000} * 5760), kNot) << "more than a box holds";
  EXPECT_EQ(sent_as_made(2, 5760), kNot);
  EXPECT_EQ(sent_as_made(2, kFirstExchangedBytes), kToAll);
  EXPECT_EQ(sent_as_made(2, kFirstExchangedBytes - 2), kNot);
  const SumPlan nccl = plan(16384, true);
  EXPECT_EQ(nccl.kernel.name, "ncclDevKernel_AllReduce");
  EXPECT_EQ(nccl.launches, 2);
  EXPECT_EQ(nccl.cost.bytes, 16384 * 5760);
}

TEST(share_plan, ranks_of_one_card_fit_it_together) {
  EXPECT_EQ(plan_shares(4, 132, 1).grid, 1);
  EXPECT_EQ(plan_shares(kChunkWords + 4, 132, 1).grid, 2);
  EXPECT_EQ(plan_shares(kMega, 120, 1).grid, 240);
  EXPECT_EQ(plan_shares(kMega, 132, 1).grid, kMostPushCtas);
  EXPECT_EQ(plan_shares(kMega, 132, 2).grid, 66);
}

// Half of the message there, the sums of the other half back.
TEST(share_plan, two_ranks_send_the_message_once) {
  const ShareLink link{.shape = {.chunks = 8, .ranks = 2}};
  EXPECT_EQ(cost(ShareReduce::Args{.link = link, .words = 8 * kChunkWords}).bytes, 4 * 8 * kChunkWords);
}
TEST(share_plan, eight_ranks_send_it_less_than_twice) {
  const ShareLink link{.shape = {.chunks = 8, .ranks = 8}};
  EXPECT_EQ(cost(ShareReduce::Args{.link = link, .words = 8 * kChunkWords}).bytes, 4 * 14 * kChunkWords);
}

TEST(share_plan, no_two_things_lie_in_one_place) {
  constexpr ShareShape kShape{.chunks = 12, .ranks = 3};
  std::set<int64_t> taken;
  const auto take = [&](int64_t first, int64_t count) {
    for (int64_t at = first; at < first + count; ++at) {
      EXPECT_TRUE(at >= 0 && at < kShape.bytes() / 8);
      EXPECT_TRUE(taken.insert(at).second) << at;
    }
  };
  const int owner = 1;
  for (int64_t chunk = owner; chunk < kShape.chunks; chunk += kShape.ranks) {
    for (int sender = 0; sender < kShape.ranks; ++sender) {
      take(kShape.first_part(sender, chunk), kChunkWords / 2);
      take(kShape.part_flag(sender, chunk), 2);
    }
  }
  for (int64_t chunk = 0; chunk < kShape.chunks; ++chunk) take(kShape.sum_flag(chunk), 1);
  EXPECT_EQ(std::ssize(taken), kShape.bytes() / 8);
}

TEST(share_plan, refuses_what_it_cannot_serve) {
  const auto refusal = [](const ShareReduce::Args& args) {
    try {
      check_args(args);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ShareReduce::Args args{.link = {.shape = {.chunks = 2, .ranks = 2}}, .words = 2 * kChunkWords};
  EXPECT_EQ(refusal(args), "");
  args.words = 6;
  EXPECT_NE(refusal(args).find("want whole vectors of 16 bytes, found 6"), std::string::npos) << refusal(args);
  args.words = 2 * kChunkWords + 4;
  EXPECT_NE(refusal(args).find("want a message that the box holds, found 8196"), std::string::npos) << refusal(args);
  args.link.shape.chunks = 3;
  EXPECT_NE(refusal(args).find("want as many chunks for every rank, found 3"), std::string::npos) << refusal(args);
}

}  // namespace
}  // namespace nibble::backend::cuda

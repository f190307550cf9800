#include "base/queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace nibble {
namespace {

TEST(queue, keeps_the_order_of_each_sender) {
  Queue<std::pair<int, int>> queue;
  constexpr int kSenders = 4, kEach = 500;
  std::vector<std::jthread> senders;
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&queue, s] {
      for (int i = 0; i < kEach; ++i) queue.push({s, i});
    });
  }
  std::vector<int> next(kSenders);
  for (int got = 0; got < kSenders * kEach;) {
    for (const auto& [sender, i] : queue.wait()) {
      EXPECT_EQ(next[static_cast<size_t>(sender)]++, i);
      ++got;
    }
  }
  EXPECT_TRUE(queue.take().empty());
}

}  // namespace
}  // namespace nibble

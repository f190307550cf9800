#include "base/bound_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace nibble {
namespace {

TEST(BoundThreads, an_index_is_always_the_same_threads_and_each_has_its_own) {
  BoundThreads threads(4);
  std::vector<std::thread::id> first(4), again(4);
  threads.each([&](size_t i) { first[i] = std::this_thread::get_id(); });
  for (int round = 0; round < 100; ++round) {
    threads.each([&](size_t i) { again[i] = std::this_thread::get_id(); });
    EXPECT_EQ(again, first);
  }
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 4u);
  EXPECT_FALSE(std::set(first.begin(), first.end()).contains(std::this_thread::get_id()));
}

// All run at once: each waits for the others, as ranks do.
TEST(BoundThreads, may_wait_for_one_another_again_and_again) {
  BoundThreads threads(3);
  std::atomic<int> came = 0;
  for (int round = 1; round <= 2000; ++round) {
    threads.each([&](size_t) {
      ++came;
      while (came < 3 * round) std::this_thread::yield();
    });
    ASSERT_EQ(came, 3 * round) << "all are done when the call returns";
  }
}

TEST(BoundThreads, tell_what_each_threw_and_go_on) {
  BoundThreads threads(3);
  const auto what = [](const std::exception_ptr& thrown) -> std::string {
    if (!thrown) return "";
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      return e.what();
    }
  };
  const auto thrown = threads.each([](size_t i) {
    if (i > 0) throw std::runtime_error("thread " + std::to_string(i));
  });
  ASSERT_EQ(thrown.size(), 3u);
  EXPECT_EQ(what(thrown[0]), "");
  EXPECT_EQ(what(thrown[1]), "thread 1");
  EXPECT_EQ(what(thrown[2]), "thread 2");
  for (const std::exception_ptr& none : threads.each([](size_t) {})) EXPECT_EQ(what(none), "");
}

}  // namespace
}  // namespace nibble

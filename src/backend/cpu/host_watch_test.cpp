#include "backend/cpu/host_watch.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::backend {
namespace {

// 90 GB/s were promised; the clock and the kernel's accounts are what the test says.
class Watched : public testing::Test {
 protected:
  // A window of work at so many GB/s, while the accounts change by these.
  void window(double rate, const ProcessAccounts& by = {}) {
    accounts_.waited_seconds += by.waited_seconds;
    accounts_.major_faults += by.major_faults;
    accounts_.disk_bytes += by.disk_bytes;
    accounts_.throttled += by.throttled;
    for (int layer = 0; layer < 4; ++layer) {
      now_ += kWindow / 4;
      watch_.worked({.bytes = rate * 1e9 * kWindow / 4, .flops = 1e9}, kWindow / 4);
    }
  }
  void windows(int count, double rate, const ProcessAccounts& by) {
    for (int i = 0; i < count; ++i) window(rate, by);
  }

  static constexpr double kWindow = HostWatch::kWindowSeconds;
  static constexpr double kFew = 6, kMost = 85;  // GB/s
  const ProcessAccounts taken_{.waited_seconds = 20}, disk_{.major_faults = 1240, .disk_bytes = 3'100'000'000};

  ProcessAccounts accounts_{.processors = 16, .runnable = 30, .memory = int64_t{200} << 30};
  double now_ = 1000;
  int asked_ = 0;
  std::vector<std::string> said_;
  HostWatch watch_{{.say = [this](const std::string& line) { said_.push_back(line); },
                    .read_bytes_per_s = 90e9,
                    .flops_per_s = 1e12,
                    .weight_bytes = 60'000'000'000,
                    .threads = 16,
                    .seconds = [this] { return now_; },
                    .accounts =
                        [this] {
                          ++asked_;
                          return accounts_;
                        }}};
  using Said = std::vector<std::string>;
};

TEST_F(Watched, other_programs_that_take_the_processors_are_named) {
  windows(2, kFew, taken_);
  EXPECT_EQ(said_, Said{"experts on the host are slow: 6.0 GB/s of 90.0; other programs take the processors (threads "
                        "waited 20.0 s for one in 2.0 s of work; 30 tasks want 16 processors)"});
}

// The other threads sleep meanwhile, so they do not wait.
TEST_F(Watched, one_thread_that_does_not_run_is_enough) {
  accounts_.runnable = 2;
  windows(2, kFew, {.waited_seconds = 1.5});
  EXPECT_EQ(said_, Said{"experts on the host are slow: 6.0 GB/s of 90.0; other programs take the processors (threads "
                        "waited 1.5 s for one in 2.0 s of work)"});
}

TEST_F(Watched, memory_that_is_too_short_for_the_weights_is_named) {
  accounts_.memory = 44'000'000'000;
  windows(2, kFew, disk_);
  EXPECT_EQ(said_, Said{"experts on the host are slow: 6.0 GB/s of 90.0; weights are read from the disk (1240 major "
                        "page faults, 3.1 GB): memory is short, 60.0 GB of weights, 44.0 GB to be had"});
}

TEST_F(Watched, what_was_counted_while_nobody_asked_is_not_of_the_work) {
  window(kFew);
  now_ += 3600;
  window(kFew, disk_);
  EXPECT_EQ(said_, Said{});
  window(kFew, disk_);
  EXPECT_EQ(said_.size(), 1U);
}

// A limit that nobody here sees.
TEST_F(Watched, what_comes_from_the_disk_again_and_again_has_no_room) {
  accounts_.disk_bytes = 118'000'000'000;
  windows(2, kFew, disk_);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_NE(said_[0].find("memory is short, 60.0 GB of weights, 214.7 GB to be had"), std::string::npos) << said_[0];
}

TEST_F(Watched, first_touches_after_the_start_will_end) {
  windows(2, kFew, disk_);
  EXPECT_EQ(said_, Said{"experts on the host are slow: 6.0 GB/s of 90.0; weights are read from the disk (1240 major "
                        "page faults, 3.1 GB): memory has room for them, so this will end"});
}

TEST_F(Watched, a_limit_of_the_control_group_is_named) {
  accounts_.processors = 2;
  windows(2, kFew, {.waited_seconds = 20, .throttled = 19});
  EXPECT_EQ(
      said_,
      Said{
          "experts on the host are slow: 6.0 GB/s of 90.0; the process may use 2 processors and used up their time 19 times (cpu.max)"});
}

TEST_F(Watched, processors_that_were_taken_away_are_counted) {
  accounts_.processors = 2;
  windows(2, kFew, taken_);
  EXPECT_EQ(said_,
            Said{"experts on the host are slow: 6.0 GB/s of 90.0; the process may use 2 processors for 16 threads"});
}

TEST_F(Watched, two_causes_are_one_line) {
  windows(2, kFew, {.waited_seconds = 20, .major_faults = 1240});
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_NE(said_[0].find("weights are read"), std::string::npos);
  EXPECT_NE(said_[0].find("; other programs take"), std::string::npos);
}

TEST_F(Watched, a_machine_that_is_fast_enough_is_not_asked) {
  windows(20, kMost, {.waited_seconds = 20, .major_faults = 1240, .throttled = 19});
  windows(20, 31, taken_);  // more than a third
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(said_, Said());
}

TEST_F(Watched, a_hiccup_is_no_alarm) {
  for (int i = 0; i < 20; ++i) {
    window(kFew, taken_);
    window(kMost);
  }
  EXPECT_EQ(said_, Said());
}

TEST_F(Watched, nothing_is_said_without_a_cause) {
  const ProcessAccounts little{.waited_seconds = 0.5, .major_faults = 30};
  windows(20, kFew, little);
  EXPECT_EQ(said_, Said());
  window(kFew, taken_);
  windows(100, kFew, little);
  EXPECT_EQ(said_.size(), 1U);
}

// What came before a slow window is not its cause: pages that loading touched.
TEST_F(Watched, what_happened_before_does_not_count) {
  window(kMost, disk_);
  window(kFew, disk_);
  windows(5, kFew, {});
  EXPECT_EQ(said_, Said());
}

// A prompt reads little for what it computes: 1.8e12 operations in a window are 0.9 of what the machine does.
TEST_F(Watched, work_that_computes_is_held_to_what_the_machine_computes) {
  for (int i = 0; i < 20; ++i) {
    accounts_.waited_seconds += 20;
    watch_.worked({.bytes = 1e9, .flops = 1.8e12}, kWindow);
  }
  EXPECT_EQ(said_, Said());
}

TEST_F(Watched, the_same_is_said_once_until_all_is_well) {
  windows(100, kFew, taken_);
  EXPECT_EQ(said_.size(), 1U);
  window(kMost);
  windows(2, kFew, taken_);
  EXPECT_EQ(said_.size(), 2U);
}

TEST_F(Watched, another_cause_is_said_after_a_minute) {
  windows(2, kFew, taken_);
  windows(29, kFew, disk_);
  EXPECT_EQ(said_.size(), 1U);
  windows(2, kFew, disk_);
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_NE(said_[1].find("weights are read from the disk"), std::string::npos);
}

}  // namespace
}  // namespace nibble::backend

#include "base/machine.h"

#include <gtest/gtest.h>

#include <sched.h>

namespace nibble {
namespace {

constexpr std::string_view kText = "MemTotal:       24612345 kB\nMemAvailable:   1024 kB\nMem: x kB\n";

TEST(machine, meminfo_is_read_by_name) {
  EXPECT_EQ(meminfo_bytes(kText, "MemAvailable"), 1024 * 1024);
  EXPECT_EQ(meminfo_bytes(kText, "MemTotal"), int64_t{24612345} * 1024);
}

TEST(machine, what_meminfo_does_not_say_is_none) {
  EXPECT_EQ(meminfo_bytes(kText, "MemFree"), std::nullopt);
  EXPECT_EQ(meminfo_bytes(kText, "Mem"), std::nullopt);
  EXPECT_EQ(meminfo_bytes(kText, "MemAvail"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("", "MemTotal"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("MemTotal:", "MemTotal"), std::nullopt);
}

TEST(machine, a_quota_of_processor_time_is_rounded_up) {
  EXPECT_EQ(quota_processors("200000 100000\n"), 2);
  EXPECT_EQ(quota_processors("150000 100000\n"), 2);
  EXPECT_EQ(quota_processors("1000 100000\n"), 1);
  EXPECT_EQ(quota_processors("9223372036854775807 1"), 1 << 20);
  for (const std::string_view none : {"max 100000\n", "", "100000", "100000 0", "0 100000", "-5 100000", "a b"})
    EXPECT_EQ(quota_processors(none), std::nullopt) << none;
}

TEST(machine, processors_are_those_that_the_process_may_run_on) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_LE(available_processors(), CPU_COUNT(&before));
  CPU_ZERO(&one);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_processors(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(machine, this_machine_has_some) { EXPECT_GT(available_memory().value_or(1), 0); }

}  // namespace
}  // namespace nibble

#include "base/memory.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

constexpr std::string_view kText = "MemTotal:       24612345 kB\nMemAvailable:   1024 kB\nMem: x kB\n";

TEST(memory, meminfo_is_read_by_name) {
  EXPECT_EQ(meminfo_bytes(kText, "MemAvailable"), 1024 * 1024);
  EXPECT_EQ(meminfo_bytes(kText, "MemTotal"), int64_t{24612345} * 1024);
}

TEST(memory, what_meminfo_does_not_say_is_none) {
  EXPECT_EQ(meminfo_bytes(kText, "MemFree"), std::nullopt);
  EXPECT_EQ(meminfo_bytes(kText, "Mem"), std::nullopt);
  EXPECT_EQ(meminfo_bytes(kText, "MemAvail"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("", "MemTotal"), std::nullopt);
  EXPECT_EQ(meminfo_bytes("MemTotal:", "MemTotal"), std::nullopt);
}

TEST(memory, this_machine_has_some) { EXPECT_GT(available_memory().value_or(1), 0); }

}  // namespace
}  // namespace nibble

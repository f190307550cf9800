#include "app/result_metadata.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(ResultMetadata, a_hash_is_sha256_of_names_sizes_and_content) {
  const std::string text = "hello";
  // printf 'a\n5\nhello' | sha256sum
  EXPECT_EQ(hash_of(std::vector{HashedFile{"a", bytes_of(text)}}),
            "03c8d5d9da11b30d40136dddc1996cd22bea0bda1198868f98e7c97dbd11bf59");
  EXPECT_NE(hash_of(std::vector{HashedFile{"b", bytes_of(text)}}),
            hash_of(std::vector{HashedFile{"a", bytes_of(text)}}));
}

TEST(ResultMetadata, a_flipped_bit_changes_the_hash) {
  std::string text(1000, 'x');
  const std::string before = hash_of(std::vector{HashedFile{"a", bytes_of(text)}});
  text[500] ^= 1;
  EXPECT_NE(hash_of(std::vector{HashedFile{"a", bytes_of(text)}}), before);
}

TEST(ResultMetadata, a_large_file_counts_by_its_ends) {
  std::string text((size_t{64} << 20) + 2, 'x');
  const auto hash = [&] { return hash_of(std::vector{HashedFile{"a", bytes_of(text)}}); };
  const std::string before = hash();
  text[(size_t{32} << 20)] = 'y';  // neither in the first 32 MiB nor in the last
  EXPECT_EQ(hash(), before);
  text.back() = 'y';
  EXPECT_NE(hash(), before);
}

TEST(ResultMetadata, dates_are_utc) {
  EXPECT_EQ(utc_text(std::chrono::system_clock::time_point(std::chrono::seconds(1764076801))), "2025-11-25T13:20:01Z");
}

TEST(ResultMetadata, says_what_is_not_known) {
  Settings settings;
  settings.all = {{"--threads", "0", "default", "2"}};
  const Metadata meta = metadata_of({.command = "nibble bench",
                                     .settings = settings,
                                     .environment = {{"NIBBLE_CPU_MASK", "avx2"}},
                                     .workload = {{"a", 1}},
                                     .warm_up = "none",
                                     .startup_seconds = 1.5});
  EXPECT_TRUE(meta["device"].is_null());
  EXPECT_EQ(meta["settings"]["threads"]["resolved"], "2");
  EXPECT_EQ(meta["environment"]["NIBBLE_CPU_MASK"], "avx2");
  EXPECT_GT(meta["peak_memory_bytes"]["host"], 0);
  EXPECT_FALSE(meta["build"]["compiler"].get<std::string>().empty());
}

}  // namespace
}  // namespace nibble::app

#include "lab/results/metadata.h"

#include "base/error.h"
#include "lab/results/testing/metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(ResultMetadata, a_hash_is_sha256_of_names_sizes_and_content) {
  const std::string text = "hello";
  // printf 'a\n5\nhello' | sha256sum
  EXPECT_EQ(hash_of(std::vector{MappedSource{bytes_of(text), "a"}}),
            "03c8d5d9da11b30d40136dddc1996cd22bea0bda1198868f98e7c97dbd11bf59");
  EXPECT_NE(hash_of(std::vector{MappedSource{bytes_of(text), "b"}}),
            hash_of(std::vector{MappedSource{bytes_of(text), "a"}}));
}

TEST(ResultMetadata, a_flipped_bit_changes_the_hash) {
  std::string text(1000, 'x');
  const std::string before = hash_of(std::vector{MappedSource{bytes_of(text), "a"}});
  text[500] ^= 1;
  EXPECT_NE(hash_of(std::vector{MappedSource{bytes_of(text), "a"}}), before);
}

TEST(ResultMetadata, a_large_file_counts_by_its_ends) {
  std::string text((size_t{64} << 20) + 2, 'x');
  const auto hash = [&] { return hash_of(std::vector{MappedSource{bytes_of(text), "a"}}); };
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

TEST(ResultMetadata, whole_metadata_has_no_gaps) { EXPECT_TRUE(metadata_gaps(whole_metadata()).empty()); }

TEST(ResultMetadata, each_gap_is_named) {
  for (const char* path :
       {"/date", "/warm_up", "/startup_seconds", "/environment", "/settings", "/build/commit", "/build/cuda",
        "/host/cpu_governor", "/host/cpu_mhz", "/device/name", "/device/driver", "/device/clock_mhz",
        "/device/power_limit_watts", "/peak_memory_bytes/host", "/peak_memory_bytes/device"}) {
    Metadata metadata = whole_metadata();
    const Metadata::json_pointer pointer(path);
    metadata[pointer.parent_pointer()].erase(pointer.back());
    const std::vector<std::string> gaps = metadata_gaps(metadata);
    ASSERT_EQ(gaps.size(), 1U) << path;
    std::string dotted = std::string(path).substr(1);
    std::ranges::replace(dotted, '/', '.');
    EXPECT_EQ(gaps[0], dotted);
  }
  Metadata unknown = whole_metadata();
  unknown["model"]["sha256"] = nullptr;
  EXPECT_EQ(metadata_gaps(unknown), std::vector<std::string>{"model.sha256"});
}

TEST(ResultMetadata, of_a_card_driver_and_clock_are_known) {
  Metadata metadata = whole_metadata();
  metadata["device"]["backend"] = "cuda";
  EXPECT_EQ(metadata_gaps(metadata),
            (std::vector<std::string>{"build.cuda", "device.driver", "device.clock_mhz", "peak_memory_bytes.device"}));
}

TEST(ResultMetadata, of_a_server_what_its_client_knows_is_enough) {
  Metadata metadata = whole_metadata();
  metadata["server"] = {{"base_url", "http://a"}};
  metadata["device"] = {{"name", "H100"}};
  metadata["model"] = {{"name", "tiny"}};
  EXPECT_TRUE(metadata_gaps(metadata).empty());
  metadata["device"]["name"] = nullptr;
  EXPECT_EQ(metadata_gaps(metadata), std::vector<std::string>{"device.name"});
}

TEST(ReportFile, that_cannot_be_written_is_refused_and_others_stay_as_they_are) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "nibble_report_file";
  std::filesystem::remove_all(dir);
  EXPECT_THROW(require_writable("--report", dir / "page.md"), Error);
  std::filesystem::create_directory(dir);
  require_writable("--report", dir / "page.md");
  EXPECT_FALSE(exists(dir / "page.md"));
  write_report(dir / "page.md", "kept");
  require_writable("--report", dir / "page.md");
  EXPECT_EQ(file_size(dir / "page.md"), 4);
  require_writable("--report", "");
  std::filesystem::remove_all(dir);
  EXPECT_THROW(write_report(dir / "page.md", "lost"), Error);
}

TEST(ReportFile, ends_with_a_line_for_every_value) {
  Metadata metadata = whole_metadata("a | b\nc");
  const std::string section = metadata_section(metadata);
  for (const char* line :
       {"\n| device.name | a / b c |\n", "\n| build.commit | abc |\n", "\n| settings.threads.value | 0 |\n"})
    EXPECT_NE(section.find(line), std::string::npos) << line << section;
}

}  // namespace
}  // namespace nibble::app

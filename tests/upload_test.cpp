// The uploader's threads, over the emulated runtime.

#include "backend/cuda/memory/upload.h"
#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/testing/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace nibble::backend::cuda {
namespace {

constexpr size_t kBytes = (size_t{20} << 20) + 12345;  // no whole number of pieces

class UploaderTest : public testing::Test {
 protected:
  UploaderTest() {
    emulated_cuda() = {.card = {.name = "any", .memory_bytes = int64_t{1} << 37}};
    for (size_t i = 0; i < kBytes; ++i) content_[i] = static_cast<char>(i * 2654435761u >> 24);
    std::ofstream(dir_ / "f", std::ios::binary).write(content_.data(), kBytes);
    file_.emplace(dir_ / "f");
    source_ = {file_->bytes(), dir_ / "f"};
  }
  [[nodiscard]] Uploader uploader() const { return {std::span(&source_, 1), 4}; }
  [[nodiscard]] std::span<const std::byte> host(size_t begin, size_t bytes) const {
    return file_->bytes().subspan(begin, bytes);
  }

  test::ScratchDir dir_;
  std::vector<char> content_ = std::vector<char>(kBytes);
  std::optional<MmapFile> file_;
  MappedSource source_;
  std::vector<std::byte> device_ = std::vector<std::byte>(kBytes);
};

TEST_F(UploaderTest, ends_the_threads_that_it_has_when_the_system_refuses_more) {
  constexpr int kThreads = 60;
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto room = static_cast<size_t>(Uploader::memory_bytes(kThreads)) + (size_t{64} << 20);  // no stack for each
  const rlimit tight{.rlim_cur = pages * 4096 + room, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  if (void* const more = mmap(nullptr, 2 * room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); more != MAP_FAILED) {
    munmap(more, 2 * room);
    setrlimit(RLIMIT_AS, &old);
    GTEST_SKIP() << "the system holds nobody to RLIMIT_AS (qemu does not)";
  }
  test::expect_error([&] { Uploader(std::span(&source_, 1), kThreads); }, Code::kIo, "cannot start 60 threads");
  ASSERT_EQ(setrlimit(RLIMIT_AS, &old), 0);
}

TEST_F(UploaderTest, brings_all_parts_before_it_calls_what_is_to_follow) {
  Uploader uploader = this->uploader();
  constexpr size_t kFirst = 7'654'321;
  std::atomic<int> calls = 0;
  const std::array parts = {Uploader::Part{device_.data(), host(0, kFirst)},
                            Uploader::Part{device_.data() + kFirst, host(kFirst, kBytes - kFirst)}};
  const Uploader::Job job = uploader.copy(parts, nullptr, [&] {
    ++calls;
    EXPECT_TRUE(std::ranges::equal(device_, file_->bytes()));
  });
  uploader.wait(job);
  EXPECT_EQ(calls, 1);
  uploader.copy(std::array{Uploader::Part{device_.data(), host(1, 100)}}, nullptr);  // small: at once
  EXPECT_TRUE(std::ranges::equal(std::span(device_).first(100), host(1, 100)));
  uploader.wait_all();
}

TEST_F(UploaderTest, throws_where_it_is_waited_for_what_a_thread_threw) {
  Uploader uploader = this->uploader();
  const std::array all = {Uploader::Part{device_.data(), file_->bytes()}};
  uploader.copy(all, nullptr, [] { throw Error(Code::kDevice, "the launch failed"); });
  EXPECT_THROW(uploader.wait_all(), Error);
  EXPECT_THROW(uploader.copy(all, nullptr), Error);
}

TEST_F(UploaderTest, a_copy_that_failed_is_told_and_nothing_follows_it) {
  Uploader uploader = this->uploader();
  emulated_cuda().copies = cudaErrorMemoryAllocation;
  std::atomic<int> calls = 0;
  uploader.copy(std::array{Uploader::Part{device_.data(), file_->bytes()}}, nullptr, [&] { ++calls; });
  EXPECT_THROW(uploader.wait_all(), Error);
  EXPECT_EQ(calls, 0);
}

TEST_F(UploaderTest, reads_past_the_page_cache_what_it_is_told_to_drop_from_it) {
  const int written = ::open((dir_ / "f").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(fdatasync(written), 0);  // what is not on the disk stays in the cache
  ::close(written);
  ASSERT_TRUE(is_resident(file_->bytes()));
  Uploader uploader(std::span(&source_, 1), 2, Uploader::PageCache::kDropped);
  uploader.copy(std::array{Uploader::Part{device_.data(), file_->bytes()}}, nullptr, [] {});
  uploader.wait_all();
  if (DirectFile(dir_ / "f").direct())  // a file system in memory keeps it
    EXPECT_FALSE(is_resident(host(size_t{1} << 20, size_t{1} << 20)));
  EXPECT_EQ(std::memcmp(device_.data(), content_.data(), kBytes), 0);
}

TEST_F(UploaderTest, may_end_before_its_copies_do) {
  Uploader uploader = this->uploader();
  for (int i = 0; i < 3; ++i) uploader.copy(std::array{Uploader::Part{device_.data(), file_->bytes()}}, nullptr, [] {});
}

}  // namespace
}  // namespace nibble::backend::cuda

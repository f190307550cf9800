
#include "base/error.h"
#include "base/mmap_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFileBytes = (int64_t{9} << 20) + 1234;  // no whole number of blocks

std::byte byte_at(int64_t offset) { return static_cast<std::byte>((offset * 2654435761u) >> 13); }

struct Free {
  void operator()(std::byte* at) const { std::free(at); }
};

class DirectFileTest : public testing::Test {
 protected:
  DirectFileTest() : path_(fs::temp_directory_path() / fmt::format("nibble_direct_{}", getpid())) {
    std::vector<char> content(kFileBytes);
    for (int64_t i = 0; i < kFileBytes; ++i) content[static_cast<size_t>(i)] = static_cast<char>(byte_at(i));
    std::ofstream(path_, std::ios::binary).write(content.data(), kFileBytes);
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(DirectFile::kAlignment, kBufferBytes)));
  }
  ~DirectFileTest() override { fs::remove(path_); }

  // Whether all of the range is what the file holds there.
  bool reads(DirectFile& file, ByteRange range) {
    const auto bytes = file.read(range, {buffer_.get(), kBufferBytes});
    if (static_cast<int64_t>(bytes.size()) != range.bytes) return false;
    for (int64_t i = 0; i < range.bytes; ++i)
      if (bytes[static_cast<size_t>(i)] != byte_at(range.offset + i)) return false;
    return true;
  }
  void reads_all_kinds_of_ranges(DirectFile& file) {
    const std::vector<ByteRange> ranges = {{0, kFileBytes},
                                           {0, 1},
                                           {1, 1},
                                           {4095, 2},
                                           {4096, 4096},
                                           {4097, 4095},
                                           {123, 0},
                                           {kFileBytes - 1, 1},
                                           {kFileBytes, 0},
                                           {777, 5 << 20},
                                           {kFileBytes - 5000, 5000},
                                           {(4 << 20) - 1, 2}};
    for (const ByteRange& range : ranges) EXPECT_TRUE(reads(file, range)) << range.offset << " " << range.bytes;
  }

  static constexpr size_t kBufferBytes =
      (kFileBytes / DirectFile::kAlignment + 1) * DirectFile::kAlignment + DirectFile::kSlack;
  fs::path path_;
  std::unique_ptr<std::byte[], Free> buffer_;
};

// Stands between the file and the system; what it does is counted over all threads.
std::atomic<int> calls = 0;

int open_without_direct(const char* path, int flags, ...) {
  if ((flags & O_DIRECT) == 0) return ::open(path, flags);
  errno = EINVAL;
  return -1;
}
int open_with_flags(const char* path, int flags, ...) { return ::open(path, flags & ~O_DIRECT); }
ssize_t interrupted_pread(int file, void* into, size_t bytes, off_t offset) {
  if (++calls % 2 == 1) {
    errno = EINTR;
    return -1;
  }
  return ::pread(file, into, bytes, offset);
}
ssize_t short_pread(int file, void* into, size_t bytes, off_t offset) {
  return ::pread(file, into, std::min<size_t>(bytes, 5000 + static_cast<size_t>(++calls % 3) * 4096), offset);
}
ssize_t failing_pread(int file, void* into, size_t bytes, off_t offset) {
  if (offset < 4 << 20)
    return ::pread(file, into, std::min<size_t>(bytes, (4u << 20) - static_cast<size_t>(offset)), offset);
  errno = EIO;
  return -1;
}
ssize_t aligned_pread(int file, void* into, size_t bytes, off_t offset) {  // as strict as any O_DIRECT
  constexpr size_t kBlock = DirectFile::kAlignment;
  if (reinterpret_cast<uintptr_t>(into) % kBlock == 0 && bytes % kBlock == 0 && offset % DirectFile::kAlignment == 0)
    return ::pread(file, into, bytes, offset);
  errno = EINVAL;
  return -1;
}
ssize_t short_aligned_pread(int file, void* into, size_t bytes, off_t offset) {
  const ssize_t count = aligned_pread(file, into, bytes, offset);
  return std::min<ssize_t>(count, 4096 + 100 * (++calls % 5));
}

TEST_F(DirectFileTest, reads_ranges_that_start_and_end_anywhere) {
  DirectFile file(path_);
  reads_all_kinds_of_ranges(file);
}

TEST_F(DirectFileTest, reads_through_the_cache_where_direct_reads_are_refused) {
  DirectFile file(path_, {.open = open_without_direct, .pread = ::pread});
  EXPECT_FALSE(file.direct());
  reads_all_kinds_of_ranges(file);
}

TEST_F(DirectFileTest, asks_for_whole_blocks_only) {
  DirectFile file(path_, {.open = open_with_flags, .pread = aligned_pread});
  EXPECT_TRUE(file.direct());
  reads_all_kinds_of_ranges(file);
}

TEST_F(DirectFileTest, goes_on_after_signals_and_short_reads) {
  for (const auto& pread : {interrupted_pread, short_pread, short_aligned_pread}) {
    for (const auto& open : {open_with_flags, open_without_direct}) {
      if (pread == short_aligned_pread && open == open_without_direct) continue;
      DirectFile file(path_, {.open = open, .pread = pread});
      EXPECT_TRUE(reads(file, {0, kFileBytes}));
      EXPECT_TRUE(reads(file, {4097, 100'000}));
    }
  }
}

TEST_F(DirectFileTest, a_file_that_ends_too_early_is_named_with_where) {
  for (const auto& open : {open_with_flags, open_without_direct}) {
    DirectFile file(path_, {.open = open, .pread = ::pread});
    fs::resize_file(path_, kFileBytes - 4097);
    for (const ByteRange range : {ByteRange{0, kFileBytes}, ByteRange{kFileBytes - 1, 1}, ByteRange{1 << 24, 5}}) {
      std::vector<std::byte> unused;
      try {
        static_cast<void>(file.read(range, {buffer_.get(), kBufferBytes}));
        FAIL() << "bytes came from nowhere";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Code::kCorrupt);
        EXPECT_THAT(e.what(), testing::HasSubstr(path_.string()));
      }
    }
    EXPECT_TRUE(reads(file, {0, kFileBytes - 4097}));
  }
}

TEST_F(DirectFileTest, what_the_system_refuses_is_named_with_where) {
  DirectFile file(path_, {.open = open_with_flags, .pread = failing_pread});
  EXPECT_TRUE(reads(file, {0, 4 << 20}));
  try {
    static_cast<void>(file.read({0, kFileBytes}, {buffer_.get(), kBufferBytes}));
    FAIL() << "an error was swallowed";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kIo);
    EXPECT_THAT(e.what(), testing::HasSubstr("at byte 4194304"));
  }
  EXPECT_THROW(DirectFile(path_ / "nothing"), Error);
}

TEST_F(DirectFileTest, what_was_just_read_is_resident) {
  const MmapFile mapped(path_);
  unsigned sum = 0;
  for (const std::byte b : mapped.bytes()) sum += static_cast<unsigned>(b);
  EXPECT_GT(sum, 0u);
  EXPECT_TRUE(is_resident(mapped.bytes()));
  EXPECT_TRUE(is_resident({}));
}

TEST_F(DirectFileTest, forgets_what_a_mapping_held_and_reads_it_again) {
  const MmapFile mapped(path_);
  const DirectFile file(path_);
  const auto same = [&] {
    for (int64_t i = 0; i < kFileBytes; ++i)
      if (mapped.bytes()[static_cast<size_t>(i)] != byte_at(i)) return false;
    return true;
  };
  EXPECT_TRUE(same());
  EXPECT_TRUE(is_resident(mapped.bytes()));
  const int written = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(fdatasync(written), 0);  // what is not on the disk is not dropped
  ::close(written);
  file.forget(mapped.bytes());
  if (file.direct())  // a file system in memory has nowhere else to keep it
    EXPECT_FALSE(is_resident(mapped.bytes().subspan(4096, 4096)));
  file.forget({});
  EXPECT_TRUE(same());
}

}  // namespace
}  // namespace nibble

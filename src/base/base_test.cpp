#include "base/dtype.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/mmap_file.h"
#include "base/random.h"
#include "base/shared_library.h"
#include "base/tensor.h"
#include "base/testing/normal.h"
#include "base/thread_pool.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <unistd.h>

namespace nibble {
namespace {

TEST(bf16, rounds_to_nearest_even_and_keeps_nan) {
  EXPECT_EQ(Bf16::from_float(1.0f).bits, 0x3f80);
  EXPECT_EQ(Bf16::from_float(1.00390625f).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(Bf16::from_float(1.01171875f).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(Bf16::from_float(3.4e38f).to_float(), INFINITY);
  EXPECT_TRUE(std::isnan(Bf16::from_float(NAN).to_float()));
}

TEST(philox, matches_the_published_vectors) {  // Random123 kat_vectors, philox4x32 10
  EXPECT_EQ(philox(0, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(random, normal_has_mean_zero_and_variance_one) {
  double sum = 0, sum2 = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const Philox4 r = philox(7, static_cast<uint64_t>(i));
    const double v = normal_float(r[0], r[1]);
    sum += v;
    sum2 += v * v;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(sum2 / kDraws, 1, 0.02);
}

TEST(random, what_nobody_may_guess_differs_each_time) {
  std::array<uint8_t, 24> one{}, two{};
  fill_unguessable(one);
  fill_unguessable(two);
  EXPECT_NE(one, two);
  std::array<uint8_t, 257> many{};
  EXPECT_THROW(fill_unguessable(many), Error);
}

TEST(shared_library, has_its_functions_and_says_what_is_missing) {
  const SharedLibrary c({.file = "libc.so.6", .name = "libc", .purpose = "for all", .packages = "nothing"});
  int (*const absolute)(int) = c.find("abs");
  EXPECT_EQ(absolute(-3), 3);
  const auto says = [](const auto& act) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnsupported);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(says([&] { static_cast<void>(c.find("no_such_function")); }),
            "want a libc that has no_such_function, found an older one: update it");
  const std::string missing = says([] {
    SharedLibrary({.file = "libnone.so.9", .name = "libnone", .purpose = "to test", .packages = "apt install none"});
  });
  EXPECT_EQ(missing.find("want libnone to test, found none (libnone.so.9"), 0U) << missing;
  EXPECT_NE(missing.find("). Install it: apt install none"), std::string::npos) << missing;
}

TEST(thread_pool, covers_every_index_once) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 2, 4, 5, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      pool.parallel_for(count, [&](IndexRange range) {
        for (int64_t i = range.begin; i < range.end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (const auto& h : hits) EXPECT_EQ(h.load(), 1) << threads << " threads, count " << count;
    }
  }
}

TEST(thread_pool, chunks_cover_every_index_once_in_ranges_of_their_size) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      pool.parallel_chunks(count, 16, [&](IndexRange range) {
        EXPECT_EQ(range.begin % 16, 0);
        EXPECT_LE(range.end - range.begin, 16);
        EXPECT_LT(range.thread_idx, threads);
        for (int64_t i = range.begin; i < range.end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (const auto& h : hits) EXPECT_EQ(h.load(), 1) << threads << " threads, count " << count;
    }
  }
}

TEST(thread_pool, ranges_cover_every_index_once_in_whole_chunks_that_do_not_grow) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::vector<std::atomic<int64_t>> sizes(static_cast<size_t>(count));  // of the range that begins there
      pool.parallel_ranges(count, 16, [&](IndexRange range) {
        EXPECT_EQ(range.begin % 16, 0);
        EXPECT_TRUE(range.end % 16 == 0 || range.end == count) << range.end;
        EXPECT_LT(range.thread_idx, threads);
        sizes[static_cast<size_t>(range.begin)] = range.end - range.begin;
        for (int64_t i = range.begin; i < range.end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (const auto& h : hits) EXPECT_EQ(h.load(), 1) << threads << " threads, count " << count;
      int64_t last = count;
      for (const auto& size : sizes) {
        if (size == 0) continue;
        EXPECT_LE(size, last);
        last = size;
      }
      if (threads > 1 && count > 16) EXPECT_LE(last, 16);
    }
  }
}

TEST(thread_pool, calls_in_a_row_and_after_a_pause_see_what_the_last_one_wrote) {
  ThreadPool pool(3);
  std::vector<int64_t> values(100);  // no atomics: the pool orders the calls
  for (int call = 0; call < 2000; ++call) {
    if (call % 500 == 499) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // threads fall asleep
    pool.parallel_chunks(100, 7, [&](IndexRange range) {
      for (int64_t i = range.begin; i < range.end; ++i) ++values[static_cast<size_t>(i)];
    });
  }
  for (const int64_t v : values) EXPECT_EQ(v, 2000);
}

// More threads than cores: some come when their call is over and the next one, of another shape, runs.
TEST(thread_pool, who_comes_late_takes_nothing_of_another_call) {
  ThreadPool pool(3 * static_cast<int>(std::thread::hardware_concurrency()));
  for (int call = 0; call < 3000; ++call) {
    const int64_t count = 1 + call * 37 % 203, chunk = 1 + call % 5;
    std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
    const auto hit = [&](IndexRange range) {
      for (int64_t i = range.begin; i < range.end; ++i) ++hits[static_cast<size_t>(i)];
      for (int i = 0; i < 300; ++i) (void)hits[0].load();  // others get their turn
    };
    switch (call % 3) {
      case 0: pool.parallel_for(count, hit); break;
      case 1: pool.parallel_chunks(count, chunk, hit); break;
      default: pool.parallel_ranges(count, chunk, hit); break;
    }
    for (const auto& h : hits) ASSERT_EQ(h.load(), 1) << "call " << call;
  }
}

TEST(mmap_file, names_what_it_cannot_open) {
  try {
    MmapFile file("/dev/null/file");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kIo);
    EXPECT_NE(std::string(e.what()).find("/dev/null/file"), std::string::npos);
  }
  EXPECT_THROW(MmapFile("/tmp"), Error);
}

TEST(mmap_file, a_pointer_of_git_lfs_is_no_file) {
  const auto path = std::filesystem::path(testing::TempDir()) / "nibble_lfs_pointer";
  std::ofstream(path)
      << "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258"
         "daaa5e2ca24d17e2393\nsize 4792272488\n";
  try {
    MmapFile file(path);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kCorrupt);
    EXPECT_NE(std::string(e.what()).find("git lfs pull"), std::string::npos);
  }
  std::filesystem::remove(path);
}

TEST(mmap_file, a_copy_in_place_has_the_files_bytes_and_outlives_the_file) {
  ThreadPool pool(2);
  const auto path = std::filesystem::path(testing::TempDir()) / "nibble_copy_in_place";
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{5} << 20 | 123}) {
    std::string text(size, '\0');
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(philox(1, i)[0]);
    std::ofstream(path, std::ios::binary) << text;
    const MmapFile file(path);
    const std::byte* const at = file.bytes().data();
    copy_in_place(file.bytes(), pool);
    std::ofstream(path, std::ios::binary) << std::string(size, 'x');  // in the page cache, where a mapping would see it
    EXPECT_EQ(file.bytes().data(), at);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(at), size), text);
  }
  std::filesystem::remove(path);
}

TEST(check, aborts_with_the_message) { EXPECT_DEATH(check(false, "two plus two"), "two plus two"); }

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

// Two threads want the same processor, so one of them waits for it.
TEST(machine, threads_that_share_a_processor_wait_for_it) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  {
    const std::jthread busy([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
      }
    });
    const ProcessAccounts from = process_accounts();
    EXPECT_EQ(from.processors, 1);
    EXPECT_GE(from.runnable, 1);
    EXPECT_GT(from.memory.value_or(1), 0);
    const auto waited = [&] { return process_accounts().waited_seconds > from.waited_seconds + 0.05; };
    bool has_waited = !std::filesystem::exists("/proc/self/schedstat");
    for (int tries = 0; tries < 100'000 && !has_waited; ++tries) has_waited = waited();
    EXPECT_TRUE(has_waited);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(machine, pages_that_come_from_the_disk_are_counted) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("nibble_machine_test_{}", getpid());
  std::ofstream(path, std::ios::binary) << std::string(1 << 20, 'x');
  ::sync();
  const MmapFile mapped(path);
  DirectFile(path).forget(mapped.bytes());
  const bool gone = !is_resident(mapped.bytes());
  const ProcessAccounts from = process_accounts();
  EXPECT_EQ(mapped.bytes().front(), std::byte{'x'});
  const ProcessAccounts to = process_accounts();
  std::filesystem::remove(path);
  if (!gone) GTEST_SKIP() << path << " is on a file system in memory";
  EXPECT_GT(to.major_faults, from.major_faults);
  EXPECT_GT(to.disk_bytes, from.disk_bytes);
}

TEST(machine, this_machine_has_some) { EXPECT_GT(available_memory().value_or(1), 0); }

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

TEST(BoundThreads, the_caller_may_be_the_first) {
  BoundThreads threads(3, BoundThreads::First::kCaller);
  std::vector<std::thread::id> ids(3);
  const auto thrown = threads.each([&](size_t i) {
    ids[i] = std::this_thread::get_id();
    if (i == 0) throw std::runtime_error("the caller's");
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 3u);
  EXPECT_TRUE(thrown[0] != nullptr && thrown[1] == nullptr);
}

// All run at once: each waits for the others, as ranks do.
TEST(BoundThreads, may_wait_for_one_another_again_and_again) {
  for (const auto first : {BoundThreads::First::kOwnThread, BoundThreads::First::kCaller}) {
    BoundThreads threads(3, first);
    std::atomic<int> came = 0;
    for (int round = 1; round <= 2000; ++round) {
      threads.each([&](size_t) {
        ++came;
        while (came < 3 * round) std::this_thread::yield();
      });
      ASSERT_EQ(came, 3 * round) << "all are done when the call returns";
    }
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

#include "backend/cpu/measure.h"

#include "backend/cpu/peak_loops.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

namespace nibble::backend {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPiece = int64_t{1} << 20;  // bytes; what threads share the buffer in

double seconds(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Unmap {
  int64_t bytes = 0;
  void operator()(std::byte* at) const { munmap(at, static_cast<size_t>(bytes)); }
};
using Buffer = std::unique_ptr<std::byte[], Unmap>;

Buffer make_buffer(int64_t bytes) {
  void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    throw Error(Code::kOutOfMemory, "[measure] want {} MB to read from, found less", bytes / 1'000'000);
  madvise(at, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // the memory is measured, not the page tables
  return Buffer(static_cast<std::byte*>(at), Unmap{bytes});
}

int64_t buffer_bytes() {
  const int64_t cache = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
  const int64_t wanted = std::max(int64_t{256} << 20, 2 * cache);
  const int64_t most = available_memory().value_or(wanted) / 4;
  return std::max(int64_t{1}, std::min(wanted, most) / kPiece) * kPiece;
}

double measure_read(ThreadPool& pool) {
  const Buffer buffer = make_buffer(buffer_bytes() + kPiece);  // and what is prefetched behind the end
  const int64_t pieces = buffer.get_deleter().bytes / kPiece - 1;
  const auto each = [&](const std::function<void(std::byte*)>& body) {
    pool.parallel_for(pieces, [&](IndexRange range) {
      for (int64_t p = range.begin; p < range.end; ++p) body(buffer.get() + p * kPiece);
    });
  };
  each([](std::byte* piece) { std::fill_n(piece, kPiece, std::byte{1}); });  // where it is read, it is placed
  std::atomic<uint64_t> sum = 0;
  double best = 1e30;
  constexpr int kPasses = 7;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double s = seconds([&] {
      each([&](std::byte* piece) { sum += cpu::read_all(reinterpret_cast<const uint64_t*>(piece), kPiece / 8); });
    });
    best = std::min(best, s);
  }
  check(sum == static_cast<uint64_t>(kPasses * pieces) * (kPiece / 8) * 0x0101010101010101u, "every byte was read");
  return static_cast<double>(pieces * kPiece) / best;
}

double measure_loop(ThreadPool& pool, const cpu::PeakLoop& loop) {
  std::atomic<float> kept = 0;
  const auto time = [&](int64_t rounds) {
    return seconds([&] { pool.parallel_for(pool.threads(), [&](IndexRange) { kept = loop.run(rounds); }); });
  };
  int64_t rounds = 1 << 12;
  while (time(rounds) < 0.02) rounds *= 2;
  double best = 1e30;
  for (int i = 0; i < 5; ++i) best = std::min(best, time(rounds));
  return loop.flops_per_round * static_cast<double>(rounds) * pool.threads() / best;
}

// "model name" of /proc/cpuinfo; Arm's kernels give none.
std::string processor_name() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/cpuinfo", "re"), &std::fclose);
  char line[512];
  while (file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr) {
    const std::string_view text(line);
    const size_t colon = text.find(": ");
    if (!text.starts_with("model name") || colon == std::string_view::npos) continue;
    std::string name(text.substr(colon + 2));
    while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
    return name;
  }
  return "CPU";
}

}  // namespace

DevicePeaks measure_cpu(int threads) {
  ThreadPool pool(threads);
  DevicePeaks peaks{.device = processor_name(), .read_bytes_per_s = measure_read(pool), .matrix = {}};
  std::vector<cpu::PeakLoop> loops = cpu::matrix_loops();
  loops.insert(loops.begin(), cpu::float_loop());
  for (const cpu::PeakLoop& loop : loops) peaks.matrix.push_back({loop.type, loop.exact16, measure_loop(pool, loop)});
  return peaks;
}

}  // namespace nibble::backend

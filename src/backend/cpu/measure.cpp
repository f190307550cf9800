#include "backend/cpu/measure.h"

#include "backend/cpu/kernels.h"
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

int64_t buffer_bytes() {
  const int64_t cache = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
  const int64_t wanted = std::max(int64_t{256} << 20, 2 * cache);
  const int64_t most = available_memory().value_or(wanted) / 4;
  return std::max(int64_t{1}, std::min(wanted, most) / kPiece) * kPiece;
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

template <class Body>
void ReadMeter::each_piece(const Body& body) {
  pool_.parallel_each(pieces_, [&](int64_t p) { body(buffer_.as<std::byte>() + p * kPiece); });
}

// The buffer holds what is prefetched after the end, too.
ReadMeter::ReadMeter(int threads) : pool_(threads), pieces_(buffer_bytes() / kPiece), buffer_((pieces_ + 1) * kPiece) {
  each_piece([](std::byte* piece) { std::fill_n(piece, kPiece, std::byte{1}); });  // where it is read, it is placed
}

double ReadMeter::measure(int passes) {
  const cpu::Kernels kernels = cpu::kernels_here().front().kernels;
  std::atomic<uint64_t> sum = 0;
  double best = 1e30;
  for (int pass = 0; pass < passes; ++pass) {
    best = std::min(best, seconds([&] {
                      each_piece([&](std::byte* piece) {
                        sum += kernels.read_all(reinterpret_cast<const uint64_t*>(piece), kPiece / 8);
                      });
                    }));
  }
  check(sum == static_cast<uint64_t>(passes * pieces_) * (kPiece / 8) * 0x0101010101010101u, "every byte was read");
  return static_cast<double>(pieces_ * kPiece) / best;
}

#if !defined(__x86_64__) && !defined(__aarch64__)
std::vector<cpu::PeakLoop> cpu::matrix_loops() { return {}; }  // float alone is measured
#endif

DevicePeaks measure_cpu(int threads) {
  DevicePeaks peaks{.device = processor_name(), .read_bytes_per_s = ReadMeter(threads).measure(7), .matrix = {}};
  ThreadPool pool(threads);
  std::vector<cpu::PeakLoop> loops = cpu::matrix_loops();
  const cpu::Kernels::Peak peak = cpu::kernels_here().front().kernels.peak;
  loops.insert(loops.begin(), {fmt::format("f32 ({})", peak.set), true, peak.flops_per_round, peak.run});
  for (const cpu::PeakLoop& loop : loops) peaks.matrix.push_back({loop.type, loop.exact16, measure_loop(pool, loop)});
  return peaks;
}

}  // namespace nibble::backend

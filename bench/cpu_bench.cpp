// Times the CPU backend's matrix products against the memory read bandwidth measured beside them, and attention.
//   cpu_bench [threads] [megabytes] [products | screen | attention] [a table's name, as it prints them: "avx2"; or the
//   best]
// Weights are walked in slices of 4 MB out of a pool that no cache holds; each slice is timed by itself, and the
// figure is the fastest decile of the slices: on a machine that others use too, the mean says how busy they were.

#include "backend/cpu/attention.h"
#include "backend/cpu/linear.h"
#include "base/buffer.h"
#include "base/random.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <ctime>
#include <vector>

namespace nibble::backend::cpu {
namespace {

constexpr int64_t kCols = 2880;  // gpt-oss's hidden and inter
constexpr int64_t kSliceBytes = int64_t{4} << 20, kPromptRows = 1024;
constexpr int64_t kLeastMegabytes = 8;  // a prompt's rows of bf16 take 6

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The CPU's seconds of the process: of long calls on a machine that others use too, with one thread.
double cpu_seconds(const std::function<void()>& body) {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  body();
  return now() - start;
}

double decile(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 10), times.end());
  return times[times.size() / 10];
}

class Bench {
 public:
  Bench(int threads, int64_t pool_bytes, const Kernels& kernels)
      : pool_(threads), bytes_(pool_bytes), memory_(pool_bytes), kernels_(kernels) {
    madvise(memory_.as<void>(), static_cast<size_t>(bytes_), MADV_HUGEPAGE);
    pool_.parallel_chunks(bytes_, int64_t{1} << 20, [&](IndexRange range) {
      // Every byte 0x40..0x47 or 0x30..0x37: codes of all kinds, and scales that keep sums finite.
      auto* p = memory_.as<uint8_t>();
      for (int64_t i = range.begin; i < range.end; ++i) {
        const auto mixed = static_cast<uint32_t>(i) * 2654435761u;
        p[i] = static_cast<uint8_t>(((mixed >> 20) & 0x0f) | 0x70);
      }
    });
    x_.resize(static_cast<size_t>(512 * kCols));
    for (size_t i = 0; i < x_.size(); ++i) {
      const Philox4 r = philox(7, i);
      x_[i] = normal_float(r[0], r[1]);
    }
  }

  // GB/s of plain reads.
  double read() {
    std::vector<double> times;
    for (int64_t at = 0; at + kSliceBytes <= bytes_; at += kSliceBytes)
      times.push_back(seconds([&] { read_slice(at); }));
    return static_cast<double>(kSliceBytes) / decile(times) / 1e9;
  }

  void product(WeightFormat format, Activations activations, int64_t tokens) {
    const int64_t per_row = row_bytes(format, kCols) + (has_scale_array(format) ? kCols / kMxBlock : 0);
    const int64_t rows = tokens > 16 ? kPromptRows : kSliceBytes / per_row / 64 * 64, limit = tokens > 16 ? 60 : 1000,
                  walked = std::max(kSliceBytes, rows * per_row);
    Linear linear(kernels_, activations, pool_, {.cols = kCols, .inputs = tokens, .groups = 1});
    std::vector<int32_t> all(static_cast<size_t>(tokens));
    std::iota(all.begin(), all.end(), 0);
    std::vector<double> times;
    const double before = read();
    for (int64_t at = 0; at + walked <= bytes_ && static_cast<int64_t>(times.size()) < limit; at += kSliceBytes) {
      const Matrix matrix(weight_at(format, at, rows));
      const Group group{.weight = &matrix, .first_row = 0, .tokens = all};
      times.push_back((tokens > 16 && pool_.threads() == 1 ? cpu_seconds : seconds)([&] {
        linear.run({x_.data(), tokens, kCols}, std::span(&group, 1), matrix.rows(),
                   [&](const Tile& tile) { sink_ = tile.out[0]; });
      }));
    }
    const double after = read(), used = static_cast<double>(rows * per_row), time = decile(times);
    fmt::print("{:10} x {:5} {:4} tokens  {:7.2f} GB/s  {:5.1f} % of read {:5.2f}  {:8.1f} GFLOP/s\n", name_of(format),
               activations == Activations::kInt8 ? "int8" : "float", tokens, used / time / 1e9,
               100 * used / time / 1e9 / std::max(before, after), std::max(before, after),
               2.0 * static_cast<double>(rows * kCols * tokens) / time / 1e9);
    std::fflush(stdout);
  }

  // A screen's product.
  void screen(int tokens) {
    if (kernels_.screen == nullptr) return;
    constexpr int64_t kTileBytes = kCols * kScreenRows * 3 / 4, kTiles = kSliceBytes / kTileBytes;
    std::vector<int8_t> x(static_cast<size_t>(kCols * 2 * tokens), 3);
    std::vector<double> times;
    const double before = read();
    for (int64_t at = 0; at + kSliceBytes <= bytes_; at += kSliceBytes) {
      times.push_back(seconds([&] {
        pool_.parallel_ranges(kTiles, 4, [&](IndexRange range) {
          alignas(64) std::array<int32_t, 2 * kScreenTokens * kScreenRows> sums;
          for (int64_t i = range.begin; i < range.end; ++i)
            kernels_.screen({.codes = memory_.as<uint8_t>() + at + i * kTileBytes,
                             .cols = kCols,
                             .x = x.data(),
                             .tokens = tokens,
                             .sums = sums.data()});
          sink_ = static_cast<float>(sums[0]);
        });
      }));
    }
    const double after = read(), rate = static_cast<double>(kTiles * kTileBytes) / decile(times) / 1e9;
    fmt::print("screen, 6 bits     {:4} tokens  {:7.2f} GB/s  {:5.1f} % of read {:5.2f}\n", tokens, rate,
               100 * rate / std::max(before, after), std::max(before, after));
    std::fflush(stdout);
  }

  [[nodiscard]] bool int8() const { return kernels_.int8 != nullptr; }
  [[nodiscard]] std::string_view name() const { return kernels_.name; }

 private:
  void read_slice(int64_t at) {
    pool_.parallel_chunks(kSliceBytes, int64_t{1} << 18, [&](IndexRange range) {
      const auto* p = reinterpret_cast<const uint64_t*>(memory_.as<std::byte>() + at + range.begin);
      std::array<uint64_t, 32> sums{};
      for (int64_t i = 0; i + 32 <= (range.end - range.begin) / 8; i += 32) {
        for (int64_t j = 0; j < 32; j += 8) __builtin_prefetch(p + i + j + 512);
        for (size_t j = 0; j < 32; ++j) sums[j] ^= p[static_cast<size_t>(i) + j];
      }
      sink_ = static_cast<float>(std::accumulate(sums.begin(), sums.end(), uint64_t{0}));
    });
  }

  HostWeight weight_at(WeightFormat format, int64_t at, int64_t rows) {
    const auto* p = memory_.as<std::byte>() + at;
    HostWeight weight{.role = WeightRole::kQ, .layer = 0, .format = format, .values = {}, .scales = {}};
    weight.values.bytes = {p, static_cast<size_t>(rows * row_bytes(format, kCols))};
    weight.values.shape = {rows, kCols};
    if (in_blocks(format))
      weight.values.shape = {rows, kCols / kMxBlock, row_bytes(format, kCols) / (kCols / kMxBlock)};
    if (has_scale_array(format))
      weight.scales.bytes = {p + rows * row_bytes(format, kCols), static_cast<size_t>(rows * kCols / kMxBlock)};
    return weight;
  }

  ThreadPool pool_;
  int64_t bytes_;
  Buffer memory_;
  Kernels kernels_;
  AlignedVector<float> x_;
  std::atomic<float> sink_ = 0;
};

// Of that name, or the best.
Kernels kernels_named(std::string_view name) {
  std::string names;
  for (const IsaKernels& each : kernels_here()) {
    if (name.empty() || each.kernels.name == name) return each.kernels;
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", each.kernels.name);
  }
  fmt::print(stderr, "cpu_bench: want one of {}, found \"{}\"\n", names, name);
  std::exit(2);
}

// One full layer of gpt-oss-20b at a depth of 4096, by what keys and values are: one token, whose sequences and layers
// take turns so that no cache holds them, and a prompt's last 256.
void attention(int threads, KvDtype dtype, const Kernels& kernels) {
  constexpr int kDepth = 4096, kSequences = 4, kLayers = 8, kPages = kDepth / kPageTokens;
  BackendConfig config;
  config.dims = {.layers = 1, .heads = 64, .kv_heads = 8, .head_dim = 64};
  config.kv_pages.fill(kSequences * kPages);
  ThreadPool pool(threads);
  Attention attention(config, kernels, Activations::kF32, pool);
  std::vector<KvCache> layers;
  std::vector<float> kv(static_cast<size_t>(config.dims.kv_width())), q(static_cast<size_t>(256 * 64 * 64)), out(q);
  for (size_t i = 0; i < q.size(); ++i) q[i] = 0.01f * static_cast<float>(i % 199) - 1.0f;
  std::copy_n(q.begin(), kv.size(), kv.begin());
  for (int l = 0; l < kLayers; ++l) {
    KvCache& cache = layers.emplace_back(config.dims, kSequences * kPages, dtype);
    for (int32_t slot = 0; slot < kSequences * kDepth; ++slot) cache.write(slot, kv.data(), kv.data());
  }
  std::vector<int32_t> ids(static_cast<size_t>(kSequences * kPages));
  std::iota(ids.begin(), ids.end(), 0);
  const auto time = [&](int tokens) {
    const Row row{.first_token = 0, .tokens = tokens, .context = kDepth};
    std::vector<double> times;
    for (int i = 0; i < 3 * kSequences * kLayers; ++i) {
      const size_t sequence = static_cast<size_t>(i) % kSequences,
                   layer = static_cast<size_t>(i) / kSequences % kLayers;
      times.push_back(seconds([&] {
        attention.run({.cache = layers[layer],
                       .rows = {&row, 1},
                       .pages = {.ids = std::span(ids).subspan(sequence * kPages, kPages), .pages_per_row = kPages},
                       .window = 0,
                       .sinks = {},
                       .q = q.data(),
                       .out = out.data()});
      }));
      if (tokens > 1 && i > 10) break;
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  };
  const double one = time(1), many = time(256);
  const double bytes = 2.0 * kPages * static_cast<double>(config.dims.kv_heads * layers[0].page_bytes());
  fmt::print("attention, {:5} 1 token {:7.1f} us, {:6.2f} GB/s; 256 tokens {:8.1f} us, {:6.1f} GFLOP/s\n",
             name_of(dtype), one * 1e6, bytes / one / 1e9, many * 1e6, 4.0 * 4096 * 256 * (kDepth - 128) / many / 1e9);
}

}  // namespace
}  // namespace nibble::backend::cpu

int main(int argc, char** argv) {
  using namespace nibble::backend;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t megabytes = argc > 2 ? std::atoll(argv[2]) : 1024;
  const std::string what = argc > 3 ? argv[3] : "";
  const cpu::Kernels kernels = cpu::kernels_named(argc > 4 ? argv[4] : "");
  if (what != "products" && what != "screen")
    for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kE4m3, KvDtype::kInt8})
      cpu::attention(threads, dtype, kernels);
  if (what == "attention") return 0;
  if (megabytes < cpu::kLeastMegabytes) {
    fmt::print(stderr, "cpu_bench: want at least {} megabytes, found {}\n", cpu::kLeastMegabytes, megabytes);
    return 2;
  }
  cpu::Bench bench(threads, megabytes << 20, kernels);
  fmt::print("{} threads, {}; read {:.2f} GB/s\n", threads, bench.name(), bench.read());
  for (int tokens = 1; tokens <= cpu::kScreenTokens; ++tokens) bench.screen(tokens);
  if (what == "screen") return 0;
  for (const int64_t tokens : {1, 2, 3, 4, 6, 8, 11, 16, 64, 256}) {
    for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kGgmlMxfp4, WeightFormat::kGgmlQ8,
                                      WeightFormat::kMxfp8, WeightFormat::kBf16}) {
      bench.product(format, Activations::kF32, tokens);
      if (bench.int8() && cpu::int8_serves(format)) bench.product(format, Activations::kInt8, tokens);
    }
  }
}

// Times an EAGLE-3 head on a card: drafts and prompts of heads of gpt-oss's shape, then each product for every way of
// cutting it, against what the card's memory can read.
//   eagle3_bench [drafts | kernels]

#include "backend/cuda/card/device.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/eagle3/card_runner.h"
#include "backend/cuda/eagle3/head_testing.h"
#include "graph_timer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kRepetitions = 25;

double median_wall_us(const std::function<void()>& what) {
  std::vector<double> all;
  for (int i = 0; i < kRepetitions + 3; ++i) {  // the first ones load kernels and record graphs
    const auto from = std::chrono::steady_clock::now();
    what();
    if (i >= 3)
      all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - from).count());
  }
  std::ranges::sort(all);
  return all[all.size() / 2];
}

// What a drafted token reads of the weights at the least, whatever the batch.
double draft_bytes(const HeadWeights& head) {
  const auto of = [](const HeadMatrix& matrix) { return 2.0 * static_cast<double>(matrix.rows() * matrix.cols()); };
  double bytes = of(head.lm_head);
  for (const HeadLayer& layer : head.layers)
    for (const HeadMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      bytes += of(*matrix);
  return bytes;
}

void time_head(int64_t draft_vocab, double read_bytes_per_s) {
  HeadDims dims = kEagle3Of120b;
  dims.draft_vocab = draft_vocab, dims.vocab = std::max<int64_t>(draft_vocab, 40000);
  RandomHead random(dims);
  constexpr int kPrompt = 1024, kMostBatch = 64;
  const auto runner =
      make_eagle3_runner(random.weights, {.rows = (kPrompt + 64) * kMostBatch, .sequences = kMostBatch});
  std::vector<int32_t> tokens;
  for (int i = 0; i < kPrompt; ++i) tokens.push_back(i * 31 % 40000);
  const std::vector<float> residuals = random.floats(kPrompt * dims.taps * dims.target_hidden);
  std::vector<int32_t> drafted;
  const auto read = [&](uint64_t sequence, int64_t count, int64_t position) {
    const HeadRunner::Rows rows{
        .sequence = sequence,
        .tokens = std::span(tokens).first(static_cast<size_t>(count)),
        .residuals = std::span(residuals).first(static_cast<size_t>(count * dims.taps * dims.target_hidden)),
        .position = position};
    runner->read({&rows, 1});
  };
  const auto draft = [&](int batch, int most) {
    std::vector<std::vector<int32_t>> all(static_cast<size_t>(batch));
    std::vector<HeadRunner::Draft> drafts;
    for (int s = 0; s < batch; ++s)
      drafts.push_back({.sequence = static_cast<uint64_t>(s), .most = most, .tokens = &all[static_cast<size_t>(s)]});
    runner->draft(drafts);
  };
  const double prompt_us = median_wall_us([&] {
    runner->end(0);
    read(0, kPrompt, 0);
    static_cast<void>(runner->residual(0));
  });
  std::printf("head of %lld: prompt of %d rows %.0f us, %.2f us a row\n", static_cast<long long>(draft_vocab), kPrompt,
              prompt_us, prompt_us / kPrompt);
  for (int s = 1; s < kMostBatch; ++s) read(static_cast<uint64_t>(s), kPrompt, 0);
  int64_t position = kPrompt;
  const double limit = draft_bytes(random.weights) / read_bytes_per_s * 1e6;
  const double row_us = median_wall_us([&] {
    read(0, 1, position++);
    static_cast<void>(runner->residual(0));
  });
  std::printf("  a row read: %.1f us\n", row_us);
  for (const int batch : {1, 2, 4, 8, 16, 32, 64}) {
    // A draft's first token is of a row that was read: of k tokens, k - 1 pass through the layers.
    const double one = median_wall_us([&] { draft(batch, 1); });
    const double many = median_wall_us([&] { draft(batch, 5); });
    const double token = (many - one) / 4;
    std::printf("  batch %2d: first token %6.1f us, 5 tokens %6.1f us, each further %6.1f us, %3.0f %% of %.1f us\n",
                batch, one, many, token, 100 * limit / token, limit);
  }
}

void time_products(double read_bytes_per_s) {
  using Then = Eagle3LinearArgs::Then;
  struct Product {
    const char* name;
    Then then;
    int rows, cols;
  };
  constexpr Product kProducts[] = {{"fc", Then::kAdd, 2880, 8640},
                                   {"qkv", Then::kAdd, 5120, 5760},
                                   {"o", Then::kAdd, 2880, 4096},
                                   {"gate_up", Then::kGate, 34560, 2880},
                                   {"down", Then::kAdd, 2880, 17280},
                                   {"lm_head 32000", Then::kBest, 32000, 2880},
                                   {"lm_head 201088", Then::kBest, 201088, 2880}};
  constexpr int64_t kPool = int64_t{4} << 30;
  const DeviceBytes pool = allocate_device(kPool, "weights"), x = allocate_device(64 * 17280 * 2, "x"),
                    out = allocate_device(int64_t{64} * 34560 * 4, "out");
  cuda_check(cudaMemset(pool.get(), 0x3c, static_cast<size_t>(kPool)));
  cuda_check(cudaMemset(x.get(), 0x3c, 64 * 17280 * 2));
  const Stream stream = make_stream();
  const Launch on{.stream = stream.get()};
  const int sms = open_device(0).multiprocessors;
  std::printf("product         tokens  parts: us (share of the read limit); * the plan's\n");
  for (const Product& p : kProducts) {
    const int64_t bytes = int64_t{2} * p.rows * p.cols;
    for (const int tokens : {1, 8, 64}) {
      Eagle3LinearArgs args{.then = p.then, .x = reinterpret_cast<const Bf16*>(x.get())};
      args.tokens = tokens, args.rows = p.rows, args.cols = p.cols;
      if (p.then == Then::kAdd) args.out = reinterpret_cast<float*>(out.get());
      if (p.then == Then::kGate) args.gated = reinterpret_cast<Bf16*>(out.get());
      if (p.then == Then::kBest) args.best = reinterpret_cast<Eagle3Best*>(out.get());
      std::printf("%-15s %6d ", p.name, tokens);
      const int links = static_cast<int>(std::min<int64_t>(32, kPool / bytes));
      args.weight = reinterpret_cast<const Bf16*>(pool.get());
      const int planned = plan(args, sms).parts;
      for (const int parts : {1, 2, 4, 8}) {
        const double us = median_link_us({.stream = stream.get(), .links = links, .repetitions = 5}, [&](int link) {
          Eagle3LinearArgs own = args;
          own.weight = reinterpret_cast<const Bf16*>(pool.get() + link * bytes);
          any_eagle3_linear(own, cut(own, parts), on);
        });
        std::printf("  %d%s: %6.1f (%3.0f %%)", parts, parts == planned ? "*" : " ", us,
                    100 * static_cast<double>(bytes) / read_bytes_per_s * 1e6 / us);
      }
      std::printf("\n");
    }
  }
}

// What stands between the products, of heads of gpt-oss's shape.
void time_rows() {
  constexpr HeadDims kDims = kEagle3Of120b;
  constexpr int kHidden = static_cast<int>(kDims.hidden), kMostTiles = 201088 / 16, kMostKeys = 8192;
  constexpr int kPages = kMostKeys / kEagle3PageRows;
  const DeviceBytes memory = allocate_device(int64_t{1} << 30, "rows");
  cuda_check(cudaMemset(memory.get(), 0, size_t{1} << 30));  // every row of tables and pages is the first
  auto* const floats = reinterpret_cast<float*>(memory.get());
  auto* const bf16s = reinterpret_cast<Bf16*>(memory.get() + (size_t{256} << 20));
  auto* const ints = reinterpret_cast<int32_t*>(memory.get() + (size_t{512} << 20));
  const Stream stream = make_stream();
  const Launch on{.stream = stream.get()};
  const LinkChain chain{.stream = stream.get(), .links = 16, .repetitions = 5};
  const int sms = open_device(0).multiprocessors;
  for (const int tokens : {1, 8, 64}) {
    std::printf("%2d tokens: norm %5.1f us", tokens, median_link_us(chain, [&](int) {
                  any_eagle3_norm({.x = floats, .scale = floats, .rounded = bf16s, .rows = tokens, .width = kHidden},
                                  on);
                }));
    for (const int tiles : {2000, kMostTiles}) {
      Eagle3EnterArgs args{.best = reinterpret_cast<Eagle3Best*>(floats), .ids = ints, .embedding = bf16s};
      args.input_norm = args.hidden_norm = args.feature = args.residual = floats;
      args.x = bf16s, args.tokens = tokens, args.hidden = kHidden, args.best_tiles = tiles;
      std::printf(", enter of %d tiles %5.1f us", tiles,
                  median_link_us(chain, [&](int) { any_eagle3_enter(args, on); }));
    }
    for (const int keys : {64, 1024, kMostKeys}) {
      std::vector<int32_t> ends(static_cast<size_t>(tokens), keys), pages;
      for (int page = 0; page < kPages; ++page) pages.push_back(page);
      int32_t *const first = ints, *const end = ints + 64, *const ids = ints + 128;
      cuda_check(cudaMemcpy(end, ends.data(), ends.size() * 4, cudaMemcpyHostToDevice));
      cuda_check(cudaMemcpy(ids, pages.data(), pages.size() * 4, cudaMemcpyHostToDevice));
      Eagle3AttendArgs args{.q = floats, .pages = {bf16s, bf16s + (size_t{32} << 20)}, .first = first, .end = end};
      args.pages_at = first, args.page_ids = ids, args.out = bf16s + (size_t{64} << 20);
      args.parts = floats + (size_t{16} << 20), args.finished = ints + (size_t{1} << 20);
      args.tokens = tokens, args.heads = static_cast<int>(kDims.heads);
      args.kv_heads = static_cast<int>(kDims.kv_heads), args.head_dim = static_cast<int>(kDims.head_dim);
      args.splits = attend_splits(args, sms);
      std::printf(", attend to %d keys %5.1f us", keys,
                  median_link_us(chain, [&](int) { any_eagle3_attend(args, on); }));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace nibble::backend::cuda

int main(int argc, char** argv) {
  try {
    const std::string_view which = argc > 1 ? argv[1] : "";
    const nibble::backend::DevicePeaks peaks = nibble::backend::measure_cuda(0);
    std::printf("%s: reads %.0f GB/s\n", peaks.device.c_str(), peaks.read_bytes_per_s / 1e9);
    if (which != "kernels") {
      nibble::backend::cuda::time_head(32000, peaks.read_bytes_per_s);
      nibble::backend::cuda::time_head(201088, peaks.read_bytes_per_s);
    }
    if (which != "drafts") nibble::backend::cuda::time_rows();
    if (which != "drafts") nibble::backend::cuda::time_products(peaks.read_bytes_per_s);
  } catch (const std::exception& error) {
    std::printf("FAIL %s\n", error.what());
    return 1;
  }
  return 0;
}

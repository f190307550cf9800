// Times an EAGLE-3 head on a card: drafts and prompts of heads of gpt-oss's shape, then each product for every way of
// cutting it, against what the card's memory can read.
//   eagle3_bench [drafts | kernels]

#include "backend/cuda/card/device.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/eagle3/kernels.h"
#include "base/thread_pool.h"
#include "convert/dummy_head.h"
#include "engine/draft_model_proposer.h"
#include "graph_timer.h"
#include "model/eagle3/head.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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

void time_head(int64_t draft_vocab, double read_bytes_per_s) {
  model::ModelConfig config = model::gpt_oss_120b();
  config.dims.vocab = std::max<int64_t>(draft_vocab, 40000);  // of the embedding, which is but a table
  const backend::Dims& of = config.dims;
  const std::vector<Bf16> table(static_cast<size_t>(of.vocab * of.hidden), Bf16::from_float(0.5f));
  const HostWeight embedding{
      .role = WeightRole::kEmbedding,
      .values = {.dtype = DType::kBf16, .shape = {of.vocab, of.hidden}, .bytes = std::as_bytes(std::span(table))},
      .scales = {}};
  ThreadPool threads(16);
  const model::eagle3::Head head =
      convert::dummy_head({config, {&embedding, 1}}, {.draft_vocab = draft_vocab, .pool = &threads});
  constexpr int kPrompt = 1024, kMostBatch = 64, kPages = (kPrompt / kPageTokens + 2) * kMostBatch;
  const model::StepLimits limits = engine::head_step_limits({.kv_pages = {kPages, kPages}});
  const auto be = make_cuda_backend(model::eagle3::backend_config(head, limits), {.backend = BackendKind::kCuda}, {});
  const model::GptOss gpt = model::load(*be, head.config, head.weights);
  engine::DraftModelProposer proposer({.be = *be, .model = gpt, .limits = limits, .head = &head});
  std::vector<int32_t> tokens;
  for (int i = 0; i < 4 * kPrompt; ++i) tokens.push_back(i * 31 % 40000);
  const std::vector<float> residuals(static_cast<size_t>(kPrompt * 3 * of.hidden), 0.5f);
  const auto text = [&](uint64_t id, int64_t length) {
    return engine::Proposer::Text{.id = id,
                                  .tokens = std::span(tokens).first(static_cast<size_t>(length)),
                                  .prompt_tokens = kPrompt,
                                  .shares = false};
  };
  const auto saw = [&](uint64_t id, int64_t from, int64_t count) {
    const engine::Proposer::News seen{
        .text = text(id, from + count + 1),
        .residuals = {.from = from,
                      .count = count,
                      .values = std::span(residuals).first(static_cast<size_t>(count * 3 * of.hidden))}};
    proposer.saw({&seen, 1});
  };
  int64_t length = kPrompt + 1;  // of every text
  const auto draft = [&](int batch, int most) {
    std::vector<engine::Draft> drafts(static_cast<size_t>(batch));
    std::vector<engine::Proposer::Order> asked;
    for (int s = 0; s < batch; ++s)
      asked.push_back({text(static_cast<uint64_t>(s), length), most, &drafts[static_cast<size_t>(s)]});
    proposer.propose_all(asked);
  };
  const double prompt_us = median_wall_us([&] {
    proposer.ended(text(0, length));
    saw(0, 0, kPrompt);
    draft(1, 1);
  });
  std::printf("head of %lld: prompt of %d rows and a token %.0f us\n", static_cast<long long>(draft_vocab), kPrompt,
              prompt_us);
  for (int s = 1; s < kMostBatch; ++s) saw(static_cast<uint64_t>(s), 0, kPrompt);
  int64_t values = 0;  // that a drafted token reads of the weights at the least, whatever the batch
  for (const HostWeight& weight : head.weights)
    if (weight.role != WeightRole::kEmbedding && weight.role != WeightRole::kTapFc)
      values += std::ssize(weight.values.bytes) + std::ssize(weight.odd.bytes);
  const double limit = static_cast<double>(values) / read_bytes_per_s * 1e6;
  for (const int batch : {1, 2, 4, 8, 16, 32, 64}) {
    // A draft's first token is of the last row that is read, with its residuals.
    const double one = median_wall_us([&] { draft(batch, 1); });
    const double many = median_wall_us([&] { draft(batch, 5); });
    const double token = (many - one) / 4;
    std::printf("  batch %2d: first token %6.1f us, 5 tokens %6.1f us, each further %6.1f us, %3.0f %% of %.1f us\n",
                batch, one, many, token, 100 * limit / token, limit);
  }
}

void time_products(double read_bytes_per_s) {
  using Then = Eagle3Linear::Args::Then;
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
                                   {"lm_head 32000", Then::kAdd, 32000, 2880},
                                   {"lm_head 201088", Then::kAdd, 201088, 2880}};
  constexpr int64_t kPool = int64_t{4} << 30;
  const DeviceBytes pool = allocate_device(kPool, "weights"), x = allocate_device(64 * 17280 * 2, "x"),
                    out = allocate_device(int64_t{64} * 201088 * 4, "out");
  cuda_check(cudaMemset(pool.get(), 0x3c, static_cast<size_t>(kPool)));
  cuda_check(cudaMemset(x.get(), 0x3c, 64 * 17280 * 2));
  const Stream stream = make_stream();
  const Launch on{.stream = stream.get()};
  const int sms = open_device(0).multiprocessors;
  std::printf("product         tokens  parts: us (share of the read limit); * the plan's\n");
  for (const Product& p : kProducts) {
    const int64_t bytes = int64_t{2} * p.rows * p.cols;
    for (const int tokens : {1, 8, 64}) {
      Eagle3Linear::Args args{.then = p.then, .x = reinterpret_cast<const Bf16*>(x.get())};
      args.tokens = tokens, args.rows = p.rows, args.cols = p.cols;
      if (p.then == Then::kAdd) args.out = reinterpret_cast<float*>(out.get());
      if (p.then == Then::kGate) args.gated = reinterpret_cast<Bf16*>(out.get());
      std::printf("%-15s %6d ", p.name, tokens);
      const int links = static_cast<int>(std::min<int64_t>(32, kPool / bytes));
      args.weight = reinterpret_cast<const Bf16*>(pool.get());
      const int planned = Eagle3Linear::plan(args, sms).parts;
      for (const int parts : {1, 2, 4, 8}) {
        const double us = median_link_us({.stream = stream.get(), .links = links, .repetitions = 5}, [&](int link) {
          Eagle3Linear::Args own = args;
          own.weight = reinterpret_cast<const Bf16*>(pool.get() + link * bytes);
          Eagle3Linear::launch(own, Eagle3Linear::cut(own, parts), on);
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
  constexpr int kHidden = 2880;
  const DeviceBytes memory = allocate_device(int64_t{1} << 30, "rows");
  cuda_check(cudaMemset(memory.get(), 0, size_t{1} << 30));  // every id is that of the first token
  auto* const floats = reinterpret_cast<float*>(memory.get());
  auto* const bf16s = reinterpret_cast<Bf16*>(memory.get() + (size_t{256} << 20));
  auto* const ints = reinterpret_cast<int32_t*>(memory.get() + (size_t{512} << 20));
  const Stream stream = make_stream();
  const Launch on{.stream = stream.get()};
  const LinkChain chain{.stream = stream.get(), .links = 16, .repetitions = 5};
  for (const int tokens : {1, 8, 64}) {
    const double norm = median_link_us(chain, [&](int) {
      Eagle3Norm::launch({.x = floats, .scale = floats, .rounded = bf16s, .rows = tokens, .width = kHidden}, on);
    });
    const double enter = median_link_us(chain, [&](int) {
      Eagle3Enter::launch({.ids = ints,
                           .sampled = ints,
                           .features = floats,
                           .embedding = bf16s,
                           .input_norm = floats,
                           .hidden_norm = floats,
                           .x = bf16s,
                           .residual = floats,
                           .tokens = tokens,
                           .hidden = kHidden},
                          on);
    });
    std::printf("%2d tokens: norm %5.1f us, enter %5.1f us\n", tokens, norm, enter);
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

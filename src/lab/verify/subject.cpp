// What the levels run on; levels 1 and 4: it starts and answers, a few rows of speed.

#include "lab/verify/verify.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "engine/step_builder.h"
#include "lab/bench/loop.h"
#include "lab/results/metadata.h"
#include "model/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

namespace nibble::app {
namespace {

constexpr int64_t kSmokePrompt = 12, kSmokeTokens = 16;

using backend::Slot;
using backend::Stage;

std::string not_finite_in(backend::Backend& be, const model::Step& step, Stage stage, int layer) {
  for (const Slot slot : model::slots_of(stage)) {
    const backend::SlotData data = be.peek(slot);
    const auto bad = std::ranges::find_if_not(data.values, [](float v) { return std::isfinite(v); });
    if (bad == data.values.end()) continue;
    const int64_t at = bad - data.values.begin();
    return fmt::format("{}{}, {}: {} of {} is {}", layer < 0 ? "" : fmt::format("layer {} ", layer), name_of(stage),
                       model::place_of(step, slot, data.shape, at), at, backend::name_of(slot), *bad);
  }
  return {};
}

struct Softmax {
  explicit Softmax(std::span<const float> of) : logits(of) {
    top = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
    double sum = 0;
    for (const float v : logits) sum += std::exp(double{v} - logits[top]);
    log_all = logits[top] + std::log(sum);
  }
  [[nodiscard]] double log_p(size_t token) const { return double{logits[token]} - log_all; }

  std::span<const float> logits;
  size_t top = 0;
  double log_all = 0;
};

}  // namespace

OnBackend load(const VerifySubject& subject, const backend::RunConfig& run, const model::StepLimits& limits) {
  OnBackend on = load(subject.make, run, limits, {subject.source.config, subject.source.weights});
  if (subject.loaded) subject.loaded();
  return on;
}

OnBackend load(const MakeBackend& make, const backend::RunConfig& run, const model::StepLimits& limits,
               const ModelPart& part) {
  OnBackend on{.config = model::backend_config(part.config, limits, run.dense), .backend = {}, .model = {}};
  on.backend = make(run, on.config);
  on.model = model::load(*on.backend, part.config, part.weights);
  on.model.attention_sinks = run.sinks;
  return on;
}

model::StepLimits whole_step(int64_t tokens) {
  const auto count = static_cast<int>(tokens);
  const auto pages = static_cast<int32_t>(engine::pages_for(tokens));
  return {.max_tokens = count, .max_rows = count, .kv_pages = {pages, pages, pages}};
}

RunStep run_step(const VerifySubject& subject, const backend::RunConfig& run, std::span<const int32_t> tokens) {
  return run_step(load(subject, run, whole_step(std::ssize(tokens))), tokens);
}

RunStep run_step(const OnBackend& on, std::span<const int32_t> tokens, Scan scan) {
  model::Step step = engine::step_alone(tokens);
  step.logit_tokens.resize(tokens.size());
  std::iota(step.logit_tokens.begin(), step.logit_tokens.end(), 0);
  return run_step(on, step, scan);
}

RunStep run_step(const OnBackend& on, const model::Step& step, Scan scan) {
  RunStep result{.logits = {}, .not_finite = {}, .modes = on.backend->modes(), .called = {}};
  // With a probe, a backend runs verb by verb.
  model::forward(*on.backend, on.model, step, [&](Stage stage, int layer) {
    if (scan == Scan::kStages && result.not_finite.empty())
      result.not_finite = not_finite_in(*on.backend, step, stage, layer);
  });
  result.called = called_by(*on.backend);
  result.logits = on.backend->peek(Slot::kLogits).values;
  return result;
}

Divergence divergence(std::span<const float> exact, std::span<const float> other, int64_t vocab, int threads) {
  check(exact.size() == other.size() && vocab > 0, "distributions over the same tokens");
  const auto width = static_cast<size_t>(vocab);
  struct OfRow {
    double kl = 0;
    bool same_top = false;
  };
  std::vector<OfRow> rows(exact.size() / width);
  ThreadPool(threads).parallel_chunks(std::ssize(rows), 1, [&](IndexRange range) {
    for (auto r = static_cast<size_t>(range.begin); r < static_cast<size_t>(range.end); ++r) {
      const Softmax p(exact.subspan(r * width, width)), q(other.subspan(r * width, width));
      double kl = 0;
      for (size_t v = 0; v < width; ++v) kl += std::exp(p.log_p(v)) * (p.log_p(v) - q.log_p(v));
      rows[r] = {.kl = std::isfinite(kl) ? kl : HUGE_VAL, .same_top = p.top == q.top};  // infinite: no distribution
    }
  });
  Divergence d;
  for (const OfRow& row : rows) {
    d.mean_kl += row.kl / static_cast<double>(rows.size());
    if (row.kl > d.largest_kl) d.largest_at = &row - rows.data();
    d.largest_kl = std::max(d.largest_kl, row.kl);
    d.top1 += (row.same_top ? 1.0 : 0.0) / static_cast<double>(rows.size());
  }
  return d;
}

// Copies only the settings that do not round. A setting that is added later stays at its default here.
backend::RunConfig exact_run(const backend::RunConfig& run) {
  backend::RunConfig exact;
  exact.backend = run.backend;
  exact.threads = run.threads;
  exact.kv = backend::KvDtype::kBf16;
  exact.attention = run.attention;
  exact.family = run.family;
  exact.activations = run.backend == BackendKind::kCpu ? backend::Activations::kF32 : backend::Activations::kBf16;
  exact.isa = run.isa;
  exact.eager = run.eager;
  exact.screened_head = run.screened_head;
  if (!run.dense.any()) exact.dense = run.dense;
  exact.sinks = run.sinks;
  exact.max_model_len = run.max_model_len;
  exact.max_num_batched_tokens = run.max_num_batched_tokens;
  exact.gpu_memory_utilization = run.gpu_memory_utilization;
  return exact;
}

std::vector<int32_t> verify_tokens(const VerifySubject& subject, int64_t count) {
  std::ifstream file(std::filesystem::path(subject.model.model) / "heldout.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<int32_t> ids;
  if (!text.empty()) ids = subject.source.tokenizer.encode(text);
  std::vector<int32_t> all = random_tokens(1, count, subject.source.config.dims.vocab);
  std::ranges::copy(ids.begin(), ids.begin() + std::min(std::ssize(ids), count), all.begin());
  return all;
}

void verify_smoke(const VerifySubject& subject, VerifyChecks& checks) {
  checks.begin(VerifyLevel::kSmoke);
  const model::ModelConfig& config = subject.source.config;
  const auto start = std::chrono::steady_clock::now();
  const engine::EngineLimits limits = one_sequence(subject.model, kSmokePrompt + kSmokeTokens + 1);
  const OnBackend on = load(subject, subject.model.run, engine::step_limits(limits, config.dims));
  engine::Loop loop(*on.backend, on.model, limits);
  checks.add("starts", true, fmt::format("{} loaded in {:.2f} s", subject.model.name, seconds_since(start)));
  bool in_vocab = true;
  const engine::Finished end = loop.serve(
      {.prompt = verify_tokens(subject, kSmokePrompt), .max_tokens = kSmokeTokens, .sampling = {.temperature = 0}},
      [&](const engine::TokenEvent& event) {
        in_vocab = in_vocab && event.token >= 0 && event.token < config.dims.vocab;
        return true;
      });
  checks.add("one request",
             in_vocab && end.reason == engine::FinishReason::kLength && end.generated_tokens == kSmokeTokens,
             fmt::format("{} tokens of {}, ended by {}", end.generated_tokens, kSmokeTokens, name_of(end.reason)));
  const std::string modes = on.backend->modes();
  const std::set<std::string> called = called_by(*on.backend);
  const bool cpu = subject.model.run.backend == BackendKind::kCpu;
  const std::string want = cpu ? backend::describe_cpu(subject.model.run) : modes;
  std::string wrong;
  if (modes.empty() || modes.find(want) == std::string::npos)
    wrong = fmt::format("want {}, found {}", want, modes);
  else if (cpu)
    wrong = wrong_calls(subject.model.run, called);
  checks.add_unless("dispatch line", wrong,
                    called.empty() ? modes : fmt::format("{}; called: {}", modes, fmt::join(called, " ")));
}

MeasuredSpeed measure_speed(const VerifySubject& subject, int repetitions) {
  constexpr int kBatch = 8;
  constexpr int64_t kPrompt = 512, kGenerate = 32;
  const model::ModelConfig& config = subject.source.config;
  const bool card = subject.model.run.backend == BackendKind::kCuda;
  const BenchShape shape{.sequences = kBatch,
                         .depth = 0,
                         .prompt = kPrompt,
                         .generate = kGenerate,
                         .chunk_tokens = backend::with_defaults(subject.model.run).max_num_batched_tokens,
                         .async_scheduling = card};
  const model::StepLimits steps = engine::step_limits(engine_limits(shape), config.dims);
  const OnBackend on = load(subject, subject.model.run, steps);
  BenchLoop loop(*on.backend, on.model, shape);
  const auto go_on = [] { return true; };
  check(loop.fill(kBatch, 0, go_on), "nobody interrupts");
  MeasuredSpeed speed{
      .rows = {{.prompt = kPrompt}, {.generate = kGenerate, .batch = 1}, {.generate = kGenerate, .batch = kBatch}},
      .host_bytes = 0,
      .device_bytes = {}};
  // Taken in turn, so that other load on the machine slows all of them alike.
  const auto time_all = [&] {
    std::vector<double> seconds;
    for (const BenchRow& row : speed.rows) seconds.push_back(*loop.time(row, go_on));
    return seconds;
  };
  double warm = 0;
  do {
    const std::vector<double> seconds = time_all();
    warm = std::accumulate(seconds.begin(), seconds.end(), warm);
  } while (card && warm < kCardWarmUpSeconds);
  for (int round = 0; round < repetitions; ++round) {
    const std::vector<double> seconds = time_all();
    for (size_t i = 0; i < seconds.size(); ++i) speed.rows[i].seconds.push_back(seconds[i]);
  }
  speed.host_bytes = peak_host_bytes();
  if (card) {
    const backend::CudaMemory memory = backend::cuda_memory();
    speed.device_bytes = memory.total_bytes - memory.free_bytes;
  }
  return speed;
}

void verify_performance(const VerifySubject& subject, VerifyChecks& checks) {
  constexpr int kRepetitions = 3;
  checks.begin(VerifyLevel::kPerformance);
  for (const BenchRow& row : measure_speed(subject, kRepetitions).rows) {
    const MeanSd rate = row.tokens_per_second();
    const bool valid = !checks.failed(VerifyLevel::kPaths);
    checks.add(label_of(timed_json(row)), valid,
               fmt::format("{}{:.1f} t/s, coefficient of variation {:.1f} %", valid ? "" : kInvalid, rate.mean,
                           100 * rate.sd / rate.mean));
  }
}

}  // namespace nibble::app

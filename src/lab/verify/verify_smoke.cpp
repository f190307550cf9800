// Levels 1 and 4: it starts and answers; a few rows of speed.

#include "lab/bench/bench_loop.h"
#include "lab/bench/bench_report.h"
#include "lab/results/result_metadata.h"
#include "lab/verify/verify_subject.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

#include <fmt/format.h>

#include <chrono>
#include <numeric>

namespace nibble::app {
namespace {

constexpr int64_t kSmokePrompt = 12, kSmokeTokens = 16;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

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
  if (subject.model.run.backend == BackendKind::kCpu) {
    const std::string want = backend::describe_cpu(subject.model.run);
    checks.add("dispatch line", modes.find(want) != std::string::npos,
               modes.find(want) != std::string::npos ? modes : fmt::format("want {}, found {}", want, modes));
  } else {
    checks.add("dispatch line", !modes.empty(), modes);
  }
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
  MeasuredSpeed speed{.rows = {{.prompt = kPrompt, .seconds = {}},
                               {.generate = kGenerate, .batch = 1, .seconds = {}},
                               {.generate = kGenerate, .batch = kBatch, .seconds = {}}},
                      .host_bytes = 0,
                      .device_bytes = {}};
  // Taken in turn, so that other load on the machine slows all of them alike.
  const auto time_all = [&] {
    std::vector<double> seconds;
    for (const BenchRow& row : speed.rows)
      seconds.push_back(
          *(row.prompt > 0 ? loop.time_prompt(row.prompt, go_on) : loop.time_generate(row.batch, row.generate, go_on)));
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
    checks.add(row.label(), valid,
               fmt::format("{}{:.1f} t/s, coefficient of variation {:.1f} %", valid ? "" : kInvalid, rate.mean,
                           100 * rate.sd / rate.mean));
  }
}

}  // namespace nibble::app

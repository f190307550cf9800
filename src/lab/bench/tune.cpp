#include "lab/bench/bench.h"

#include "app/setup/loaded_model.h"
#include "app/setup/memory_budget.h"
#include "app/setup/terminal.h"
#include "backend/cuda/experts/route.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "lab/bench/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble::app {
namespace {

using backend::cuda::Tuned;

constexpr int64_t kLayers = 4;  // enough that experts' weights stay in no cache
constexpr int64_t kSteps[] = {12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048};
constexpr int64_t kTunedTokens = 2048, kEndless = int64_t{1} << 30;

const BenchShape kShape{.prompt = kTunedTokens, .chunk_tokens = kTunedTokens, .async_scheduling = true};

backend::BackendConfig backend_config(const ModelOptions& options, const model::ModelConfig& config) {
  return model::backend_config(config, engine::step_limits(engine_limits(kShape), config.dims), options.run.dense);
}

void check_memory(const ModelOptions& options, const model::ModelConfig& config) {
  require_fit({.weights = dummy_bytes(options, config)}, host_limit(), {});
  const auto [needs, limit] = budget_of(options, backend_config(options, config),
                                        {config.dims, backend::StoredFormats::of({}, options.run.dense)});
  require_fit(needs, limit, {});
}

// Least µs of a step of each of kSteps.
std::vector<double> time_steps(const BenchOptions& options, const model::ModelConfig& config,
                               const convert::DummyWeights& weights, const Tuned& tuned) {
  const auto be = backend::make_cuda_backend(backend_config(options.model, config), options.model.run,
                                             {.files = {}, .tuned = tuned});
  const model::GptOss gpt = model::load(*be, config, weights.weights());
  BenchLoop bench(*be, gpt, kShape);
  std::vector<double> us;
  for (const int64_t tokens : kSteps) {
    double best = 0;
    for (int i = 0; i <= options.repetitions; ++i) {  // the first warms up
      const double seconds = *bench.time({.prompt = tokens}, [] { return true; });
      if (i == 1 || (i > 1 && seconds * 1e6 < best)) best = seconds * 1e6;
    }
    us.push_back(best);
  }
  return us;
}

double loss(std::span<const TuneRow> rows, double TuneRow::* other, const TuneRange& range) {
  double sum = 0;
  for (const TuneRow& row : rows) {
    const bool within = row.tokens > range.above && row.tokens <= range.upto;
    sum += (within ? row.tuned_us : row.*other) / std::min(row.tuned_us, row.*other);
  }
  return sum;
}

// The longest of the ranges from `above` on that lose least.
TuneRange best_from(std::span<const TuneRow> rows, double TuneRow::* other, int64_t above) {
  TuneRange best{above, above};
  for (const TuneRow& row : rows) {
    const TuneRange range{above, row.tokens};
    if (row.tokens > above && loss(rows, other, range) <= loss(rows, other, best)) best = range;
  }
  return best;
}

}  // namespace

int64_t crossover(std::span<const TuneRow> rows, double TuneRow::* other, int64_t least) {
  return best_from(rows, other, least).upto;
}

TuneRange best_range(std::span<const TuneRow> rows, double TuneRow::* other, int64_t least) {
  TuneRange best = best_from(rows, other, least);
  for (const TuneRow& row : rows) {
    const TuneRange range = best_from(rows, other, row.tokens);
    if (loss(rows, other, range) < loss(rows, other, best)) best = range;
  }
  return best;
}

std::string tune_text(std::span<const TuneRow> rows, const TuneSubject& subject) {
  std::string out = "| tokens | as for fewer, µs | experts on GEMMs | router on mma |\n| -----: | --: | --: | --: |\n";
  for (const TuneRow& row : rows)
    out += fmt::format("| {} | {:.0f} | {:.0f} | {:.0f} |\n", row.tokens, row.tuned_us, row.experts_gemm_us,
                       row.router_mma_us);
  std::vector<TuneRow> routed(rows.begin(), rows.end());
  std::erase_if(routed, [](const TuneRow& row) { return row.tokens > backend::cuda::kNormRouteMaxTokens; });
  const TuneRange grouped = best_range(rows, &TuneRow::experts_gemm_us, 8);
  return out +
         fmt::format(
             "\n// {} (sm_{}{}), {}, nibble {}: for its architecture's Arch::tuned\nTuned{{.gemm_at_once_pairs = {}, "
             ".grouped_pairs = {}, .route_tokens = {}}}\n",
             subject.device, subject.major, subject.minor, subject.model, subject.commit,
             std::min(grouped.above * subject.topk, subject.experts), grouped.upto * subject.topk / subject.experts,
             crossover(routed, &TuneRow::router_mma_us, 8));
}

void check_tune(const BenchOptions& options) {
  const ModelOptions& asked = options.model;
  if (options.format != BenchFormat::kMarkdown)
    throw Error(Code::kInvalidRequest, "--tune: want --output md, found json");
  if (asked.run.backend != BackendKind::kCuda || asked.load_format != LoadFormat::kDummy ||
      asked.run.family != backend::KernelFamily::kAuto || asked.run.fast)
    throw Error(Code::kUnsupported,
                "--tune: want --backend cuda, --load-format dummy, no --moe-kernel and no --fast, found another");
  const backend::CudaAvailable available = backend::cuda_available();
  if (!available.yes) throw Error(Code::kUnsupported, "{}", available.reason);
}

int tune(const BenchOptions& options, std::string commit) {
  Terminal terminal(options.output);
  const ModelOptions& asked = options.model;
  const auto card = backend::cuda_plan_device();
  check(card.has_value(), "a card that is available has facts");
  const model::ModelConfig config = model::truncated(open_config(asked).config, kLayers);
  check_memory(asked, config);
  ThreadPool pool(thread_count(asked));
  const convert::DummyWeights weights(config, asked.dummy_seed, &pool);
  std::vector<TuneRow> rows;
  for (const int64_t tokens : kSteps) rows.push_back({.tokens = tokens});
  const std::pair<double TuneRow::*, Tuned> runs[] = {
      {&TuneRow::tuned_us, {.grouped_pairs = kEndless, .route_tokens = backend::cuda::kNormRouteMaxTokens}},
      {&TuneRow::experts_gemm_us, {.grouped_pairs = 0, .route_tokens = backend::cuda::kNormRouteMaxTokens}},
      {&TuneRow::router_mma_us, {.grouped_pairs = kEndless, .route_tokens = 0}}};
  for (const auto& [to, tuned] : runs) {
    const std::vector<double> us = time_steps(options, config, weights, tuned);
    for (size_t i = 0; i < us.size(); ++i) rows[i].*to = us[i];
  }
  terminal.print(tune_text(rows, {card->name, asked.name, std::move(commit), card->major, card->minor, config.dims.topk,
                                  config.dims.experts}));
  return kExitOk;
}

}  // namespace nibble::app

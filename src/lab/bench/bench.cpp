#include "app/options/build_facts.h"
#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/loaded_model.h"
#include "app/setup/memory_budget.h"
#include "app/setup/named_model.h"
#include "backend/cost.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/measure.h"
#include "backend/cuda/card/measure.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"
#include "lab/bench/bench.h"
#include "lab/bench/loop.h"
#include "lab/bench/profile.h"
#include "lab/bench/rows.h"
#include "lab/results/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <vector>

namespace nibble::app {
namespace {

// In rising order of depth, so that a longer prefix extends what is already cached.
std::vector<BenchRow> plan_rows(const BenchOptions& options) {
  std::vector<BenchRow> rows;
  for (const int64_t depth : options.depths) {
    for (const int64_t prompt : options.prompts)
      if (prompt > 0) rows.push_back({.prompt = prompt, .depth = depth});
    for (const int64_t generate : options.generates)
      for (const int64_t batch : options.batches)
        if (generate > 0) rows.push_back({.generate = generate, .depth = depth, .batch = static_cast<int>(batch)});
  }
  if (rows.empty()) throw Error(Code::kInvalidRequest, "want -p or -n above 0, found nothing to measure");
  return rows;
}

BenchShape shape_of(const BenchOptions& options, const std::vector<BenchRow>& rows) {
  BenchShape shape{.chunk_tokens = options.model.run.max_num_batched_tokens,
                   .async_scheduling = options.model.run.backend == BackendKind::kCuda};
  for (const BenchRow& row : rows) {
    shape.sequences = std::max(shape.sequences, row.batch);
    shape.depth = std::max(shape.depth, row.depth);
    shape.prompt = std::max(shape.prompt, row.prompt);
    shape.generate = std::max(shape.generate, row.generate);
  }
  return shape;
}

model::StepLimits steps_of(const BenchShape& shape, const model::ModelConfig& config) {
  return engine::step_limits(engine_limits(shape), config.dims);
}

void check_context(const BenchOptions& options, const BenchShape& shape, const model::ModelConfig& config) {
  const int64_t context = context_length(options.model, config, config.dims.max_context);
  if (shape.context() <= context) return;
  throw Error(Code::kInvalidRequest,
              "want a depth (-d) and -p or -n of at most {} tokens together ({} of {}, less one to draw), found {}",
              context - 1, options.model.run.max_model_len > 0 ? "--max-model-len" : "the model's context", context,
              shape.context() - 1);
}

// The dummy weights count with the backend's memory if both live in the same memory.
void check_memory(const BenchOptions& options, const BenchShape& shape, const model::ModelConfig& config) {
  const backend::CostModel cost = model::cost_of(config, backend::StoredFormats::of({}, options.model.run.dense));
  const int64_t dummies = dummy_bytes(options.model, config);
  const auto budget = [&](const BenchShape& s) {
    Budget b =
        budget_of(options.model, model::backend_config(config, steps_of(s, config), options.model.run.dense), cost);
    if (options.model.run.backend != BackendKind::kCuda) b.needs.weights += dummies;
    return b;
  };
  const auto [needs, limit] = budget(shape);
  require_fit({.weights = dummies}, host_limit(), {});
  if (needs.total() <= limit.bytes) return;
  std::vector<std::string> advice;
  const auto advise = [&, &room = limit](const char* flag, auto BenchShape::* field) {
    const auto value = largest_that_fits(room, shape.*field, [&](int64_t v) {
      BenchShape smaller = shape;
      smaller.*field = static_cast<std::remove_reference_t<decltype(smaller.*field)>>(v);
      return budget(smaller).needs;
    });
    if (value && *value < shape.*field) advice.push_back(fmt::format("{} {}", flag, *value));
  };
  advise("-b", &BenchShape::sequences);
  advise("-d", &BenchShape::depth);
  advise("-p", &BenchShape::prompt);
  advise("--max-num-batched-tokens", &BenchShape::chunk_tokens);
  require_fit(needs, limit, advice);
}

// The formats of the tensors that make up nearly all bytes.
std::string formats_text(const backend::StoredFormats& formats) {
  const auto name = [&](backend::WeightRole role) { return name_of(formats.of_role[static_cast<size_t>(role)]); };
  using enum backend::WeightRole;
  return fmt::format("experts {}, qkv {}, o {}, lm_head {}", name(kGateUp), name(kQ), name(kO), name(kUnembedding));
}

using BenchJson = nlohmann::ordered_json;

// What --json prints, without its rows.
BenchJson head_of(const BenchOptions& options, const model::ModelConfig& config, const backend::CostModel& cost,
                  const backend::DevicePeaks& peaks) {
  const backend::RunConfig& run = options.model.run;
  const bool is_cpu = run.backend == BackendKind::kCpu;
  return {{"version", NIBBLE_VERSION},
          {"commit", build_facts().commit},
          {"command", options.command},
          {"model", options.model.name},
          {"layers", config.dims.layers},
          {"experts", config.dims.experts},
          {"weight_bytes", cost.weight_bytes()},
          {"formats", formats_text(cost.formats)},
          {"backend", ""},
          {"kernels", is_cpu ? backend::describe_cpu(run) : ""},
          {"threads", is_cpu ? run.threads : 0},
          {"kv_cache", backend::type_of(run.kv_type()).word},
          {"step_tokens", run.max_num_batched_tokens},
          {"device", peaks.device},
          {"read_bytes_per_s", peaks.read_bytes_per_s},
          {"matrix", matrix_json(peaks)},
          {"host", peaks.host ? BenchJson{{"layers", peaks.host->layers},
                                          {"read_bytes_per_s", peaks.host->read_bytes_per_s},
                                          {"link_bytes_per_s", peaks.host->link_bytes_per_s}}
                              : BenchJson(nullptr)},
          {"rows", BenchJson::array()}};
}

// One note for all rows: a card that stays slow is slow for every row.
std::string slow_clock(const std::string& device, std::span<const BenchRow> rows) {
  std::vector<backend::ClockReading> clocks;
  for (const BenchRow& row : rows) clocks.insert(clocks.end(), row.clocks.begin(), row.clocks.end());
  return backend::slow_clock_warning(device, clocks);
}

// What runs, and how it was asked for.
struct BenchSubject {
  BenchLoop& loop;
  backend::Backend& backend;
  const model::ModelConfig& config;
  const backend::CostModel& cost;
  const backend::DevicePeaks& peaks;
};

struct RowProfile {
  std::string table;
  BenchJson json;
};

class Bench {
 public:
  Bench(const BenchSubject& subject, const BenchOptions& options, Terminal& terminal)
      : subject_(subject), loop_(subject.loop), options_(options), terminal_(terminal) {
    if (options.model.run.backend == BackendKind::kCpu) meter_.emplace(options.model.run.threads);
    if (options.model.run.backend == BackendKind::kCuda) read_clock_ = backend::cuda_clock(0);
  }

  // False when Ctrl-C ended it; then the row is not to be used.
  bool run(BenchRow& row) {
    const auto show = [&](std::string_view what, int done) {
      terminal_.progress(fmt::format("{} × {}", row.name(), row.batch),
                         static_cast<double>(done) / options_.repetitions, what);
    };
    show(fmt::format("filling to {}", row.depth), 0);
    if (!loop_.fill(row.batch, row.depth, go_on_)) return false;
    show("warming up", 0);
    if (!warm_up(row)) return false;
    measure_beside(row);
    const double joules = joules_so_far();
    const backend::ScreenCounts before = subject_.backend.screen_counts();
    for (int i = 0; i < options_.repetitions; ++i) {
      show(fmt::format("repetition {}", i + 1), i);
      const auto seconds = loop_.time(row, go_on_);
      if (!seconds) return false;
      row.seconds.push_back(*seconds);
      measure_beside(row);
    }
    // The driver's counter moves ten times a second.
    constexpr double kLeastSeconds = 0.5;
    const double timed = std::accumulate(row.seconds.begin(), row.seconds.end(), 0.0);
    if (timed >= kLeastSeconds) row.joules = joules_so_far() - joules;
    const backend::ScreenCounts after = subject_.backend.screen_counts();
    row.screened = {after.steps - before.steps, after.tiles - before.tiles};
    for (const BenchLoop::TimedStep& step : loop_.steps()) {
      const backend::StageCosts own = subject_.cost.by_stage(subject_.config.layer_kinds, step.shape());
      for (size_t s = 0; s < own.size(); ++s) row.costs[s] += own[s];
    }
    if (!options_.profile) return true;
    show("profiling", options_.repetitions);
    backend::KernelProfiler* const profiler = subject_.backend.kernel_profiler();
    return profiler != nullptr ? profile_kernels(row, *profiler) : profile_stages(row);
  }

  // Profiles of the rows run so far, if they were asked for.
  [[nodiscard]] const std::vector<RowProfile>& profiles() const { return profiles_; }

 private:
  // Measures the machine between repetitions. A card's clock needs no thread of its own: heat holds it down for
  // seconds, and right after a repetition the driver still reports the load.
  void measure_beside(BenchRow& row) {
    if (meter_) row.reads.push_back(meter_->measure(kReadPasses));
    if (!read_clock_) return;
    if (const auto clock = read_clock_()) row.clocks.push_back(*clock);
  }
  [[nodiscard]] double joules_so_far() const {
    const auto now = read_clock_ ? read_clock_() : std::nullopt;
    return now ? now->joules : 0;
  }
  bool warm_up(const BenchRow& row) {
    constexpr int64_t kWarmTokens = 4;
    BenchRow warm = row;
    warm.prompt = std::min<int64_t>(row.prompt, options_.model.run.max_num_batched_tokens);
    warm.generate = std::min(row.generate, kWarmTokens);
    do {
      const auto seconds = loop_.time(warm, go_on_);
      if (!seconds) return false;
      busy_seconds_ += *seconds;
    } while (read_clock_ && busy_seconds_ < kCardWarmUpSeconds);
    return true;
  }

  bool profile_stages(const BenchRow& row) {
    StageTimes times;
    loop_.profile(&times);
    const bool whole = loop_.time(row, go_on_).has_value();
    loop_.profile(nullptr);
    const backend::DevicePeaks peaks = peaks_beside(row, subject_.peaks);
    if (whole) profiles_.push_back({profile_table(row, times, peaks), profile_json(times, row.costs, peaks)});
    return whole;
  }

  bool profile_kernels(const BenchRow& row, backend::KernelProfiler& profiler) {
    profiler.begin();
    bool whole = warm_up(row);  // records the step's graph anew
    profiler.skip();
    whole = whole && loop_.time(row, go_on_).has_value();
    DeviceProfile profile{.times = profiler.take(), .costs = {}};
    profiler.end();
    if (!whole) return false;
    const backend::RunConfig& ran = options_.model.run;
    const backend::BackendConfig config =
        backend::cuda_config(model::backend_config(subject_.config, {}, ran.dense), ran.ranks);
    const auto card = backend::cuda_plan_device();
    const auto reduce = backend::cuda::planned_reduce(ran.ranks);
    check(card.has_value(), "a card that kernels were timed on");
    for (const BenchLoop::TimedStep& step : loop_.steps())
      add_step(profile.costs,
               backend::cuda::make_program({.config = config,
                                            .run = ran,
                                            .step = step.shape(),
                                            .card = *card,
                                            .reduce = reduce ? &*reduce : nullptr,
                                            .screened = true}),
               subject_.config);
    const backend::DevicePeaks own = backend::share_of(subject_.peaks, ran.ranks.count);  // of the first card
    profiles_.push_back({profile_table(row, profile, own), profile_json(profile, own)});
    return true;
  }

  static constexpr int kReadPasses = 3;

  const BenchSubject subject_;
  std::optional<backend::ReadMeter> meter_;  // of the CPU
  backend::ReadClock read_clock_;            // of the card
  double busy_seconds_ = 0;                  // warming up
  BenchLoop& loop_;
  const BenchOptions& options_;
  Terminal& terminal_;
  const Interrupt interrupt_;
  const BenchLoop::KeepGoing go_on_ = [this] { return !interrupt_.requested(); };
  std::vector<RowProfile> profiles_;
};

NamedResult read_result(const std::string& path) {
  NamedResult result{path, read_json_file("--compare", path)};
  if (!result.json.is_object())
    throw Error(
        Code::kInvalidRequest,
        "--compare {}: want a JSON object; bench/foreign_result.py makes one of llama-bench's and llama-benchy's",
        path);
  return result;
}

// --compare
int compare_files(const BenchOptions& options) {
  if (options.compare.size() != 2)
    throw Error(Code::kInvalidRequest, "--compare: want two files, found {}", options.compare.size());
  const NamedResult a = read_result(options.compare[0]), b = read_result(options.compare[1]);
  const ResultComparison comparison =
      compare_results(a, b, options.allow_mismatch ? Mismatch::kAllow : Mismatch::kRefuse);
  const std::string text = comparison_text(comparison, a, b);
  Terminal terminal(options.output);
  if (!options.report.empty()) {
    std::string page = "# nibble bench --compare\n\n" + text;
    for (const NamedResult* result : {&a, &b})
      page +=
          fmt::format("\n# {}\n{}", markdown_cell(result->name), metadata_section(value_at(result->json, "metadata")));
    write_report(options.report, page);
  }
  if (options.output.json || options.format == BenchFormat::kJson)
    terminal.print_json(comparison_json(comparison, a, b));
  else
    terminal.print(text);
  return kExitOk;
}

}  // namespace

BenchOptions resolved_options(const BenchOptions& options, Terminal& terminal) {
  BenchOptions with = options;
  with.model = with_files(options.model, terminal);
  if (options.tune) {
    with.model = resolved_model(std::move(with.model));
    return with;
  }
  const std::vector<BenchRow> rows = plan_rows(options);
  check_context(with, shape_of(with, rows), open_config(with.model).config);
  with.model = resolved_model(with_backend(with.model, [&](const ModelOptions&, const model::ModelConfig& config) {
    return steps_of(shape_of(with, rows), config);
  }));
  return with;
}

Metadata bench_metadata(const BenchOptions& options, std::string warm_up, double startup_seconds,
                        const ProcessRun& run) {
  return metadata_of({.command = options.command,
                      .settings = options.model.settings,
                      .environment = options.environment,
                      .workload = {{"prompts", "random tokens"}, {"repetitions", options.repetitions}},
                      .warm_up = std::move(warm_up),
                      .startup_seconds = startup_seconds},
                     run);
}

int bench_ended(bool interrupted, Terminal& terminal) {
  if (interrupted) terminal.note("nibble: interrupted; the rows above are whole");
  return interrupted ? kExitInterrupted : kExitOk;
}

int execute(const BenchOptions& asked) {
  if (!asked.compare.empty()) return compare_files(asked);
  if (asked.speculation.method != engine::DraftMethod::kOff) return bench_drafts(asked);
  Terminal terminal(asked.output);
  if (asked.tune) check_tune(asked);
  require_writable("--report", asked.report);
  const BenchOptions options = resolved_options(asked, terminal);
  if (options.tune) return tune(options, fmt::format("{} ({})", NIBBLE_VERSION, build_facts().commit));
  std::vector<BenchRow> rows = plan_rows(options);
  const BenchShape shape = shape_of(options, rows);
  check_memory(options, shape, open_config(options.model).config);
  terminal.progress("measuring the device", 0, "");
  const backend::DevicePeaks peaks = measured(options.model);
  const auto start = std::chrono::steady_clock::now();
  const ModelSource source = open_model(options.model, terminal);
  LoadedModel loaded(source, options.model, steps_of(shape, source.config), {terminal, {}});
  backend::CostModel cost = model::cost_of(source.config, stored_formats(options.model, source.weights));
  cost.formats.kv_row_bytes = kv_row_bytes(options.model, source.config.dims);
  const backend::RunConfig& run = options.model.run;
  if (const auto card = backend::cuda_plan_device(); card && run.backend == BackendKind::kCuda) {
    const backend::BackendConfig whole = model::backend_config(source.config, {}, run.dense);
    cost.screened_bytes = backend::cuda::screened_bytes(backend::cuda_config(whole, run.ranks), run, *card);
  }
  if (run.backend == BackendKind::kCpu) backend::set_cpu_screen(cost, run);
  BenchJson json = head_of(options, source.config, cost, peaks);
  json["backend"] = loaded.backend().name();
  const double startup = seconds_since(start);

  std::string markdown;  // as it is printed, for --report
  const auto tell = [&](const std::string& text) {
    if (options.format == BenchFormat::kMarkdown) terminal.print(text);
    markdown += text;
  };
  tell(markdown_head(json, peaks, options.repetitions));
  BenchLoop loop(loaded.backend(), loaded.model(), shape);
  Bench bench({loop, loaded.backend(), source.config, cost, peaks}, options, terminal);
  size_t done = 0;
  while (done < rows.size() && bench.run(rows[done])) {
    terminal.end_progress();
    json["rows"].push_back(json_of(rows[done], peaks));
    tell(markdown_row(json["rows"].back(), peaks));
    ++done;
  }
  terminal.end_progress();
  const bool interrupted = done < rows.size();
  rows.resize(done);
  for (const BenchRow& row : rows)
    if (const std::string note = clock_note(row); !note.empty()) tell("\n" + note);
  if (const std::string warning = slow_clock(peaks.device, rows); !warning.empty()) terminal.note(warning);
  for (size_t i = 0; options.profile && i < done; ++i) {
    tell(bench.profiles()[i].table);
    json["rows"][i]["profile"] = bench.profiles()[i].json;
  }
  if (options.format == BenchFormat::kJson || !options.report.empty()) {
    json["metadata"] = bench_metadata(options, "a step of each row, or 4 tokens of it; a card first for 2 s", startup,
                                      {source, options.model, peaks});
    json["interrupted"] = interrupted;
    if (options.format == BenchFormat::kJson) terminal.print_json(json);
    if (!options.report.empty()) write_report(options.report, markdown + metadata_section(json["metadata"]));
  }
  return bench_ended(interrupted, terminal);
}

}  // namespace nibble::app

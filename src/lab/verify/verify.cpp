// `nibble verify`: its checks and what is told of them, and the levels in their order.

#include "lab/verify/verify.h"

#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/named_model.h"
#include "base/error.h"
#include "lab/bench/loop.h"
#include "lab/results/metadata.h"
#include "lab/verify/features.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

namespace nibble::app {
namespace {

constexpr int kNameWidth = 57;  // of "activation=auto mxfp4-layers=none kv=bf16 speculation=off"

constexpr int64_t kContext = 8192;  // of level 3's longest sequence, unless --max-model-len says otherwise

// A cache of one context for up to 32 sequences: they have to share it.
engine::EngineLimits stress_limits(const ModelOptions& model, const model::ModelConfig& config) {
  const int64_t context = context_length(model, config, kContext);
  return {.max_context = context,
          .max_sequences = 32,
          .max_batched_tokens = backend::with_defaults(model.run).max_num_batched_tokens,
          .kv_tokens = context,
          .async_scheduling = model.run.backend == BackendKind::kCuda};
}

void stress(const VerifySubject& subject, VerifyChecks& checks) {
  const model::ModelConfig& config = subject.source.config;
  const engine::EngineLimits limits = stress_limits(subject.model, config);
  const backend::RunConfig& run = subject.model.run;
  const OnBackend on = load(subject, run, engine::step_limits(limits, config.dims));
  engine::Engine engine(*on.backend, on.model, limits);
  const server::EnginePort port = server::port_of(engine);
  verify_stress(port,
                {.vocab = config.dims.vocab,
                 .context = limits.max_context,
                 .kv_tokens = limits.kv_tokens,
                 .exact = alike_in_company(run)},
                checks);
}

bool wants(const VerifyOptions& o, VerifyLevel level) { return std::ranges::find(o.levels, level) != o.levels.end(); }

// What the levels found, and where it comes from.
struct Verification {
  explicit Verification(VerifyChecks::Watch watch) : checks(std::move(watch)) {}

  VerifyChecks checks;
  Metadata metadata;
  Metadata figures;                       // of level 5; null: none
  BaselineSearch baseline;                // what they are held against
  std::optional<FeatureReport> features;  // of level 6
};

// Errors that a level reports as a failed check instead of ending the command.
bool is_finding(const Error& e) { return e.code() != Code::kInvalidRequest && e.code() != Code::kOutOfMemory; }

ResultOrigin origin_of(const VerifyOptions& o, double startup_seconds) {
  Metadata levels = Metadata::array();
  for (const VerifyLevel level : o.levels) levels.push_back(name_of(level));
  return {.command = o.command,
          .settings = o.model.settings,
          .environment = o.environment,
          .workload = {{"levels", levels}},
          .warm_up = "levels 4 and 5: each row once, on a card for 2 s",
          .startup_seconds = startup_seconds};
}

// Level 5, first part: before the other levels, whose memory would count too.
void measure_regression(const VerifyOptions& o, const VerifySubject& subject, Verification& result,
                        Terminal& terminal) {
  if (o.baseline.empty() && !o.save_baseline.empty())
    result.baseline.why_none = "this run is to be one: --save-baseline";
  else
    result.baseline = find_baseline(o.baseline, baseline_folders(), result.metadata);
  if (!result.baseline.result && o.save_baseline.empty()) return;  // nobody asked for the figures
  terminal.status("measuring for level 5");
  result.checks.begin(VerifyLevel::kRegression);
  try {
    result.figures = measure_figures(subject);
    result.checks.add("measured, before all else", true, figures_text(result.figures));
  } catch (const Error& e) {
    if (!is_finding(e)) throw;
    result.checks.add("measured, before all else", false, e.what());
  }
}

// Level 5, second part: in its turn.
void verify_regression(Verification& result) {
  VerifyChecks& checks = result.checks;
  checks.begin(VerifyLevel::kRegression);
  if (!result.baseline.result) return checks.skip("a baseline", result.baseline.why_none);
  if (result.figures.is_null()) return;  // a check already says why
  const NamedResult& baseline = *result.baseline.result;
  const bool valid = !checks.failed(VerifyLevel::kPaths);
  std::vector<std::string> differences;
  for (const Difference& of : told_differences(value_at(baseline.json, "metadata"), result.metadata))
    differences.push_back(fmt::format("{}: {}, {}", of.what, text_of(of.a), text_of(of.b)));
  checks.add("a baseline", valid,
             fmt::format("{}{}, of {}{}", valid ? "" : kInvalid, baseline.name,
                         text_of(value_at(baseline.json, "metadata.date")),
                         differences.empty() ? "" : fmt::format("; differs in {}", fmt::join(differences, "; "))));
  check_regression(baseline, result.figures, checks);
}

void verify_process(const VerifyOptions& asked, Verification& result, Terminal& terminal) {
  const VerifyOptions o = resolved_options(asked, terminal);
  const auto start = std::chrono::steady_clock::now();
  const ModelSource source = open_model(o.model, terminal);
  const double startup = seconds_since(start);
  int64_t most_on_cards = 0;
  const VerifySubject subject{source, o.model,
                              [&](const backend::RunConfig& run, const backend::BackendConfig& config) {
                                return make_backend(run.backend, run, config, {.files = source.mapped_files()});
                              },
                              [&] { most_on_cards = std::max(most_on_cards, used_on_cards(o.model)); }};
  const auto level = [&](VerifyLevel which, const std::function<void(const VerifySubject&, VerifyChecks&)>& run) {
    if (!wants(o, which)) return;
    terminal.status(fmt::format("verifying level {}", name_of(which)));
    try {
      run(subject, result.checks);
    } catch (const Error& e) {
      if (!is_finding(e)) throw;
      result.checks.begin(which);
      result.checks.add("this level", false, e.what());
    }
  };
  const backend::DevicePeaks peaks = measured(o.model);
  const auto metadata = [&] {
    Metadata now = metadata_of(origin_of(o, startup), {source, o.model, peaks});
    if (Metadata& device = now["peak_memory_bytes"]["device"]; most_on_cards > 0)
      device = std::max(most_on_cards, device.get<int64_t>());
    return now;
  };
  result.metadata = metadata();
  if (wants(o, VerifyLevel::kRegression)) measure_regression(o, subject, result, terminal);
  level(VerifyLevel::kSmoke, verify_smoke);
  level(VerifyLevel::kPaths, verify_paths);
  level(VerifyLevel::kCorrectness, verify_correctness);
  level(VerifyLevel::kStress, stress);
  level(VerifyLevel::kPerformance, verify_performance);
  level(VerifyLevel::kRegression, [&](const VerifySubject&, VerifyChecks&) { verify_regression(result); });
  level(VerifyLevel::kFeatures, [&](const VerifySubject& s, VerifyChecks& checks) {
    VerifyOptions open = o;  // without the resolved settings, which would count as given
    open.model.run = asked.model.run;
    open.model.run.backend = o.model.run.backend;
    result.features = try_features(open, s, terminal, checks);
  });
  result.metadata = metadata();
}

void verify_server(const VerifyOptions& o, Verification& result, Terminal& terminal) {
  const client::Server server{
      .endpoint = client::parse_base_url(o.base_url), .api_key = o.api_key, .cacert = o.cacert, .insecure = o.insecure};
  const ServerSubject subject{server, o.served_model.empty() ? listed_model(server).id : o.served_model};
  result.metadata = metadata_of(origin_of(o, 0));
  result.metadata["model"] = {{"name", subject.model}};
  result.metadata["server"] = {{"base_url", server.endpoint.base_url()}};
  for (const VerifyLevel level : o.levels) {
    terminal.status(fmt::format("verifying level {}", name_of(level)));
    switch (level) {
      case VerifyLevel::kSmoke: verify_server_smoke(subject, result.checks); break;
      case VerifyLevel::kStress: verify_server_stress(subject, result.checks); break;
      case VerifyLevel::kPerformance: verify_server_performance(subject, result.checks); break;
      default: result.checks.begin(level); result.checks.skip("this level", "it looks inside: without --base-url");
    }
  }
}

// Throws Error(kInvalidRequest) if a check of another level failed: later runs must not be compared with a wrong one.
void save_baseline(const std::filesystem::path& path, const Verification& result) {
  for (const VerifyCheck& check : result.checks.all())
    if (check.verdict == Verdict::kFail && check.level != VerifyLevel::kRegression)
      throw Error(Code::kInvalidRequest, "--save-baseline {}: want a run that is right, found {}: {}", path.string(),
                  check.name, check.found);
  if (result.figures.is_null()) return;  // a check already says why
  Metadata json{{"metadata", result.metadata}};
  json.update(result.figures);
  std::ofstream file(path, std::ios::binary);
  file << json.dump(1) << "\n" << std::flush;
  if (!file) throw Error(Code::kIo, "--save-baseline {}: it cannot be written", path.string());
}

// What --json prints. Without "passed" while checks are still to come.
Metadata json_of(const Verification& result, bool ended) {
  Metadata json{{"metadata", result.metadata}};
  if (ended) json["passed"] = !result.checks.failed();
  json["checks"] = verify_json(result.checks.all());
  if (!result.figures.is_null()) json.update(result.figures);
  if (result.features) json["features"] = feature_report_json(*result.features);
  return json;
}

std::string features_section(const Verification& result) {
  return result.features ? "\n## Features\n" + feature_report_text(*result.features) : "";
}

void keep_report(const std::filesystem::path& path, const Verification& result, bool ended) {
  std::string page = verify_page(result.checks.all(), ended ? "" : ", not at its end") + features_section(result);
  if (result.baseline.result && !result.figures.is_null())
    page += "\n## Before and after\n\n" +
            comparison_table(
                compare_results(*result.baseline.result, {"this run", json_of(result, ended)}, Mismatch::kAllow));
  write_report(path, page + metadata_section(result.metadata));
}

}  // namespace

void VerifyChecks::add(std::string name, bool holds, std::string found) {
  put({level_, std::move(name), holds ? Verdict::kPass : Verdict::kFail, std::move(found)});
}

void VerifyChecks::add_unless(std::string name, std::string wrong, std::string found) {
  const bool holds = wrong.empty();
  add(std::move(name), holds, holds ? std::move(found) : std::move(wrong));
}

void VerifyChecks::put(VerifyCheck check) {
  const auto now = std::chrono::steady_clock::now();
  check.seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  checks_.push_back(std::move(check));
  if (watch_) watch_(checks_.back());
}

bool VerifyChecks::failed() const {
  return std::ranges::any_of(checks_, [](const VerifyCheck& c) { return c.verdict == Verdict::kFail; });
}

bool VerifyChecks::failed(VerifyLevel level) const {
  return std::ranges::any_of(checks_,
                             [level](const VerifyCheck& c) { return c.level == level && c.verdict == Verdict::kFail; });
}

std::string check_head() {
  return fmt::format(
      "| level | {:<{}} | verdict | seconds | found |\n| :---- | :{:-<{}} | :------ | ------: | :---- |\n", "check",
      kNameWidth, "", kNameWidth - 1);
}

std::string check_row_of(const VerifyCheck& check) {
  return fmt::format("| {:<5} | {:<{}} | {:<7} | {:>7.1f} | {} |\n", name_of(check.level), check.name, kNameWidth,
                     name_of(check.verdict), check.seconds, markdown_cell(check.found));
}

std::string verify_summary(std::span<const VerifyCheck> checks) {
  const auto count = [&](Verdict verdict) { return std::ranges::count(checks, verdict, &VerifyCheck::verdict); };
  return fmt::format("{} passed, {} failed, {} skipped", count(Verdict::kPass), count(Verdict::kFail),
                     count(Verdict::kSkipped));
}

std::string verify_times(std::span<const VerifyCheck> checks) {
  std::map<VerifyLevel, double> of_level;
  double all = 0;
  for (const VerifyCheck& check : checks) {
    of_level[check.level] += check.seconds;
    all += check.seconds;
  }
  std::string out;
  for (const auto& [level, seconds] : of_level)
    out += fmt::format("{}level {} {:.1f} s", out.empty() ? "" : ", ", name_of(level), seconds);
  return fmt::format("{:.1f} s: {}", all, out);
}

nlohmann::ordered_json verify_json(std::span<const VerifyCheck> checks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const VerifyCheck& check : checks)
    json.push_back({{"level", name_of(check.level)},
                    {"check", check.name},
                    {"verdict", check.verdict == Verdict::kFail ? "fail" : name_of(check.verdict)},
                    {"found", check.found},
                    {"seconds", check.seconds}});
  return json;
}

std::string verify_page(std::span<const VerifyCheck> checks, std::string_view state) {
  std::string out = fmt::format("# nibble verify: {}{}\n\n{}", verify_summary(checks), state, check_head());
  for (const VerifyCheck& check : checks) out += check_row_of(check);
  return out + fmt::format("\nIt took {}.\n", verify_times(checks));
}

VerifyOptions resolved_options(const VerifyOptions& options, Terminal& terminal) {
  VerifyOptions with = options;
  if (with.model.model.empty()) with.model.model = own_model().path;
  with.model = with_files(std::move(with.model), terminal);
  with.model = resolved_model(with_backend(with.model, [](const ModelOptions& o, const model::ModelConfig& config) {
    return engine::step_limits(stress_limits(o, config), config.dims);
  }));
  return with;
}

int execute(const VerifyOptions& options) {
  Terminal terminal(options.output);
  require_writable("--report", options.report);
  require_writable("--save-baseline", options.save_baseline);
  // Each check is told and kept as it ends: who stops a long run, or loses it, has what was found until then.
  Verification result([&](const VerifyCheck& check) {
    const bool first = result.checks.all().size() == 1;
    const std::string row = (first ? check_head() : "") + check_row_of(check);
    if (options.output.json) {
      terminal.note(row.substr(0, row.size() - 1));
    } else {
      terminal.end_progress();
      terminal.print(row);
    }
    if (!options.report.empty()) keep_report(options.report, result, false);
  });
  if (options.base_url.empty())
    verify_process(options, result, terminal);
  else
    verify_server(options, result, terminal);
  terminal.end_progress();
  const std::vector<VerifyCheck>& checks = result.checks.all();
  if (!options.report.empty()) keep_report(options.report, result, true);
  if (options.output.json)
    terminal.print_json(json_of(result, true));
  else
    terminal.print(fmt::format("{}\n{}\n{}\n", features_section(result), verify_summary(checks), verify_times(checks)));
  if (!options.save_baseline.empty()) save_baseline(options.save_baseline, result);
  return result.checks.failed() ? kExitFailure : kExitOk;
}

}  // namespace nibble::app

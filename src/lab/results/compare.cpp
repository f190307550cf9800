#include "lab/results/compare.h"

#include "base/error.h"
#include "base/read_json.h"
#include "lab/bench/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace nibble::app {
namespace {

using ResultJson = nlohmann::ordered_json;

// The two-sided 95 % point of Student's t, from any table; interpolated in 1 / degrees of freedom.
double student_t(double degrees) {
  constexpr std::array kDegrees = {1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 12., 15., 20., 30., 60.};
  constexpr std::array kPoints = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                  2.262,  2.228, 2.179, 2.131, 2.086, 2.042, 2.000};
  constexpr double kNormal = 1.960;
  if (degrees <= 1) return kPoints.front();
  for (size_t i = 1; i < kDegrees.size(); ++i) {
    if (degrees > kDegrees[i]) continue;
    const double high = 1 / kDegrees[i], low = 1 / kDegrees[i - 1];
    return std::lerp(kPoints[i], kPoints[i - 1], (1 / degrees - high) / (low - high));
  }
  return std::lerp(kNormal, kPoints.back(), kDegrees.back() / degrees);
}

// A metric's value in each repetition; a single one if only their mean is known.
struct Metric {
  std::string name;
  bool higher_is_better;
  std::vector<double> values;
};
struct MeasuredRow {
  std::string name;
  std::vector<Metric> metrics;
};

MeasuredRow bench_row(const ResultJson& row) {
  std::vector<double> rates;
  const double of_all = row.at("generate").get<double>() * row.at("batch").get<double>();
  const double tokens = row.at("prompt") > 0 ? row.at("prompt").get<double>() : of_all;
  for (const ResultJson& seconds : row.at("seconds")) rates.push_back(tokens / seconds.get<double>());
  return {label_of(row), {{"t/s", true, std::move(rates)}}};
}

MeasuredRow load_row(const ResultJson& row) {
  MeasuredRow found{row.contains("concurrency") ? fmt::format("concurrency {}", text_of(row.at("concurrency")))
                                                : fmt::format("{} requests/s", text_of(row.at("request_rate"))),
                    {}};
  found.metrics.push_back(
      {"out tok/s", true, row.at("output_tokens_per_second_of_repetitions").get<std::vector<double>>()});
  for (const auto& [word, name] : {std::pair{"ttft", "TTFT"}, {"tpot", "TPOT"}, {"itl", "ITL"}, {"e2e", "E2E"}}) {
    if (value_at(row, fmt::format("{}.count", word)) == 0) continue;
    found.metrics.push_back({fmt::format("{} p50 ms", name), false, {row.at(word).at("p50_ms").get<double>()}});
    found.metrics.push_back({fmt::format("{} p99 ms", name), false, {row.at(word).at("p99_ms").get<double>()}});
  }
  return found;
}

// Whose result it is where it is not ours: "llama-bench".
ResultJson program_of(const NamedResult& result) { return value_at(result.json, "metadata.program"); }

std::string kind_of_result(const NamedResult& result) {
  const ResultJson rows = value_at(result.json, "rows");
  if (rows.is_array() && !rows.empty()) {
    if (rows.front().contains("seconds") && rows.front().contains("test")) return "bench";
    if (rows.front().contains("output_tokens_per_second_of_repetitions")) return "load";
  }
  throw Error(
      Code::kInvalidRequest,
      "--compare: want a result of nibble bench --json or nibble load --json (bench/foreign_result.py makes one "
      "of llama-bench's and llama-benchy's), found {}",
      result.name);
}

constexpr double kMostRate = 1e100;  // squares of smaller numbers stay finite

std::vector<MeasuredRow> rows_of(const NamedResult& result, const std::string& kind) {
  std::vector<MeasuredRow> rows;
  try {
    for (const ResultJson& row : result.json.at("rows")) {
      rows.push_back(kind == "bench" ? bench_row(row) : load_row(row));
      for (const Metric& metric : rows.back().metrics)
        if (metric.values.empty() ||
            std::ranges::any_of(metric.values, [](double v) { return !(v > 0 && v < kMostRate); }))
          throw Error(Code::kInvalidRequest, "{}: {}: want {} above 0", result.name, rows.back().name, metric.name);
    }
  } catch (const ResultJson::exception& e) {
    throw Error(Code::kInvalidRequest, "{}: a row is not one of nibble {}: {}", result.name, kind,
                plain_json_error(e.what()));
  }
  return rows;
}

// If these differ, the two results metric different things.
constexpr std::array kMustMatch = {"device.name", "device.backend", "model.name", "model.sha256", "model.dummy_seed"};
constexpr std::array kToldOf = {"build.commit",
                                "build.type",
                                "build.compiler",
                                "build.flags",
                                "build.cuda",
                                "host.cpu",
                                "host.processors",
                                "host.cpu_governor",
                                "host.system",
                                "device.driver",
                                "device.power_limit_watts",
                                "device.kernels",
                                "workload",
                                "environment",
                                "warm_up"};

void check_metadata(const NamedResult& result) {
  if (!program_of(result).is_null()) return;
  if (!value_at(result.json, "metadata").is_object())
    throw Error(Code::kInvalidRequest,
                "{}: want a result with metadata (device, build, settings), found none: measure it again, or compare "
                "all the same with --allow-mismatch",
                result.name);
  const std::vector<std::string> gaps = metadata_gaps(value_at(result.json, "metadata"));
  if (gaps.empty()) return;
  const bool unnamed = std::ranges::find(gaps, "device.name") != gaps.end();
  throw Error(Code::kInvalidRequest,
              "{}: want metadata that says all of docs/result-schema.json, found no {}{}; measure it again, or compare "
              "all the same with --allow-mismatch",
              result.name, fmt::join(gaps, ", "), unnamed ? " (nibble load: --device)" : "");
}

void note_differences(const NamedResult& a, const NamedResult& b, Mismatch mismatch, ResultComparison& into) {
  const ResultJson meta_a = value_at(a.json, "metadata"), meta_b = value_at(b.json, "metadata");
  const ResultJson program_a = program_of(a), program_b = program_of(b);
  const bool foreign = !program_a.is_null() || !program_b.is_null();
  const auto note = [&](const Difference& of) {
    const auto shown = [flag = of.what.starts_with("--")](const ResultJson& value) {
      return flag && (value.is_null() || value == "") ? "not set" : text_of(value);
    };
    into.differences.push_back(fmt::format("{}: {}, {}", of.what, shown(of.a), shown(of.b)));
  };
  if (foreign)
    note({"program", program_a.is_null() ? "nibble" : program_a, program_b.is_null() ? "nibble" : program_b});
  for (const Difference& of : differing(kMustMatch, meta_a, meta_b)) {
    const bool its_own_word = foreign && of.what != "device.name";
    if (mismatch == Mismatch::kRefuse && !its_own_word)
      throw Error(Code::kInvalidRequest,
                  "want results of the same device and model, found {} \"{}\" in {} and \"{}\" in {}; compare all the "
                  "same with --allow-mismatch",
                  of.what, text_of(of.a), a.name, text_of(of.b), b.name);
    note(of);
  }
  std::ranges::for_each(told_differences(meta_a, meta_b), note);
  if (!foreign)  // its settings have other names
    std::ranges::for_each(differing_settings(meta_a, meta_b), note);
}

std::string percent_text(double relative) { return fmt::format("{:+.2f}%", 100 * relative); }

std::string interval_text(const Change& change) {
  if (!change.interval) return "—";
  return fmt::format("{} to {}", percent_text(change.interval->low), percent_text(change.interval->high));
}

}  // namespace

std::vector<Difference> told_differences(const ResultJson& a, const ResultJson& b) { return differing(kToldOf, a, b); }

Change change_of(std::span<const double> a, std::span<const double> b) {
  const MeanSd of_a = mean_sd(a), of_b = mean_sd(b);
  const double ratio = of_b.mean / of_a.mean;
  Change change{.relative = ratio - 1, .interval = {}};
  if (a.size() < 2 || b.size() < 2) return change;
  // Variances of the means, relative to them; the ratio's by the delta method.
  const auto n_a = static_cast<double>(a.size()), n_b = static_cast<double>(b.size());
  const double var_a = std::pow(of_a.sd / of_a.mean, 2) / n_a, var_b = std::pow(of_b.sd / of_b.mean, 2) / n_b;
  const double sum = var_a + var_b;
  const double degrees = sum > 0 ? sum * sum / (var_a * var_a / (n_a - 1) + var_b * var_b / (n_b - 1)) : n_a + n_b - 2;
  const double half = student_t(degrees) * ratio * std::sqrt(sum);
  change.interval = {.low = change.relative - half, .high = change.relative + half};
  return change;
}

std::string ComparedRow::verdict() const {
  if (!change.interval) return "one repetition";
  if (!change.shown()) return "within noise";
  return (change.relative > 0) == higher_is_better ? "faster" : "slower";
}

ResultComparison compare_results(const NamedResult& a, const NamedResult& b, Mismatch mismatch) {
  const std::string kind = kind_of_result(a);
  if (kind_of_result(b) != kind)
    throw Error(Code::kInvalidRequest, "--compare: want two results of one command, found {} and {}", kind,
                kind_of_result(b));
  if (mismatch == Mismatch::kRefuse) {
    check_metadata(a);
    check_metadata(b);
  }
  ResultComparison comparison;
  note_differences(a, b, mismatch, comparison);
  const std::vector<MeasuredRow> rows_a = rows_of(a, kind), rows_b = rows_of(b, kind);
  for (const MeasuredRow& row : rows_a) {
    const auto other = std::ranges::find(rows_b, row.name, &MeasuredRow::name);
    if (other == rows_b.end()) {
      comparison.unmatched.push_back(fmt::format("{} alone: {}", a.name, row.name));
      continue;
    }
    for (const Metric& metric : row.metrics) {
      const auto same = std::ranges::find(other->metrics, metric.name, &Metric::name);
      if (same == other->metrics.end()) continue;
      comparison.rows.push_back({row.name, metric.name, metric.higher_is_better, mean_sd(metric.values).mean,
                                 mean_sd(same->values).mean, change_of(metric.values, same->values)});
    }
  }
  for (const MeasuredRow& row : rows_b)
    if (std::ranges::find(rows_a, row.name, &MeasuredRow::name) == rows_a.end())
      comparison.unmatched.push_back(fmt::format("{} alone: {}", b.name, row.name));
  return comparison;
}

std::string comparison_table(const ResultComparison& c) {
  std::string out = fmt::format("| {:<26} | {:<12} | {:>10} | {:>10} | {:>9} | {:>20} | {:<14} |\n", "row", "metric",
                                "A", "B", "change", "95 % interval", "verdict");
  out +=
      "| :------------------------- | :----------- | ---------: | ---------: | --------: | -------------------: | :------------- |\n";
  for (const ComparedRow& row : c.rows)
    out += fmt::format("| {:<26} | {:<12} | {:>10.2f} | {:>10.2f} | {:>9} | {:>20} | {:<14} |\n", row.name, row.metric,
                       row.a, row.b, percent_text(row.change.relative), interval_text(row.change), row.verdict());
  return out + "\nThe interval is Welch's t on the ratio of the means.\n";
}

std::string comparison_text(const ResultComparison& c, const NamedResult& a, const NamedResult& b) {
  std::string out = fmt::format("A: {} ({})\nB: {} ({})\n\n", a.name, text_of(value_at(a.json, "metadata.date")),
                                b.name, text_of(value_at(b.json, "metadata.date")));
  if (!c.differences.empty()) out += "What differs, A first:\n\n";
  for (const std::string& difference : c.differences) out += fmt::format("- {}\n", difference);
  if (!c.differences.empty()) out += "\n";
  out += comparison_table(c);
  for (const std::string& row : c.unmatched) out += fmt::format("\n{}", row);
  return out + (c.unmatched.empty() ? "" : "\n");
}

ResultJson comparison_json(const ResultComparison& c, const NamedResult& a, const NamedResult& b) {
  ResultJson json = {{"a", a.name},
                     {"b", b.name},
                     {"differences", c.differences},
                     {"interval", "95 %, Welch's t on the ratio of the means"},
                     {"rows", ResultJson::array()},
                     {"unmatched", c.unmatched}};
  for (const ComparedRow& row : c.rows) {
    json["rows"].push_back({{"row", row.name},
                            {"metric", row.metric},
                            {"a", row.a},
                            {"b", row.b},
                            {"change", row.change.relative},
                            {"interval", nullptr},
                            {"verdict", row.verdict()}});
    if (row.change.interval) json["rows"].back()["interval"] = {row.change.interval->low, row.change.interval->high};
  }
  return json;
}

}  // namespace nibble::app

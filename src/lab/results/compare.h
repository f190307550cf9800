#pragma once
// Two results of `nibble bench` or `nibble load`, row by row. Pure.

#include "lab/results/metadata.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

// The mean of B over the mean of A, minus one, with the 95 % interval from the repetitions of both (Welch's t on the
// ratio). No interval if one of them has a single repetition.
struct Change {
  double relative = 0;
  struct Interval {
    double low = 0, high = 0;
  };
  std::optional<Interval> interval;
  [[nodiscard]] bool shown() const { return interval && (interval->low > 0 || interval->high < 0); }
};
[[nodiscard]] Change change_of(std::span<const double> a, std::span<const double> b);

struct ComparedRow {
  std::string name;    // "tg128 @ d4096, batch 8", "concurrency 8"
  std::string metric;  // what is compared: "t/s", "TTFT p50 ms"
  bool higher_is_better = true;
  double a = 0, b = 0;
  Change change;
  [[nodiscard]] std::string verdict() const;  // "faster", "slower", "within noise", "one repetition"
};

struct NamedResult {
  std::string name;  // its file
  nlohmann::ordered_json json;
};

struct ResultComparison {
  std::vector<std::string> differences;  // facts in which both results differ, one line each: "build.commit: abc, def"
  std::vector<ComparedRow> rows;         // that both have
  std::vector<std::string> unmatched;    // "A.json alone: pp512"
};

// What else, according to both results' metadata, may have changed the figures: build, driver, power, environment.
// Device, model and settings are not listed.
[[nodiscard]] std::vector<Difference> told_differences(const nlohmann::ordered_json& a,
                                                       const nlohmann::ordered_json& b);

enum class Mismatch { kRefuse, kAllow };
// Throws Error(kInvalidRequest) if one is not such a result, or if they are of two commands. With kRefuse also if the
// metadata has gaps (metadata.h), or the device or the model differ. A result that names another program
// (metadata.program, bench/foreign_result.py) only needs the same device, if it names one.
[[nodiscard]] ResultComparison compare_results(const NamedResult& a, const NamedResult& b, Mismatch mismatch);

[[nodiscard]] std::string comparison_table(const ResultComparison& comparison);  // its rows, in Markdown
[[nodiscard]] std::string comparison_text(const ResultComparison& comparison, const NamedResult& a,
                                          const NamedResult& b);
[[nodiscard]] nlohmann::ordered_json comparison_json(const ResultComparison& comparison, const NamedResult& a,
                                                     const NamedResult& b);

}  // namespace nibble::app

#pragma once
// Level 6 of `nibble verify`: tries combinations of features, and shows their effects alone and together.

#include "app/result_compare.h"
#include "app/terminal.h"
#include "app/verify_product.h"
#include "app/verify_report.h"
#include "app/verify_trial.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// A combination and its outcome: refused, equal to an earlier one, or tried.
struct FeatureRow {
  Combination combination;
  std::string refused;  // the validator's message
  std::string same_as;  // the name of the earlier one
  std::optional<Trial> trial;
};

struct FeatureReport {
  std::vector<TriedFeature> features;  // empty: presets were tried
  std::vector<FeatureRow> rows;        // the first one that was tried is the base of the others
  TrialRates again;                    // the base measured again, at the end

  [[nodiscard]] const FeatureRow* base() const;  // null: all were refused
  [[nodiscard]] double drift() const;  // relative change of the machine's speed from the first round to the end
};

// The rates of a combination relative to the base: each one, and the geometric mean of all but `again`. Rounds are
// compared one by one, so that other load on the machine cancels out.
struct FeatureGain {
  Change prompt, alone, together, again;
  double score = 1;                           // 1: as fast as the base
  double noise = 0;                           // of the score, relative: the uncertainty from repetitions and drift
  [[nodiscard]] std::string verdict() const;  // "helps", "costs", "no difference shown"
};
// REQUIRES as many rounds of both.
[[nodiscard]] FeatureGain gain_of(std::span<const TrialRates> base, std::span<const TrialRates> other, double drift);

// Tries them. Adds a check per combination when its figures are there, and a skipped one per reason of refusal.
// `options`: with a backend, otherwise as given. Throws Error(kInvalidRequest) if more than o.most_combinations would
// run.
[[nodiscard]] FeatureReport try_features(const VerifyOptions& o, const VerifySubject& subject, Terminal& terminal,
                                         VerifyChecks& checks);
// What it adds. REQUIRES a row that was tried.
void add_check(const FeatureRow& row, VerifyChecks& checks);
void skip_refused(const FeatureReport& report, VerifyChecks& checks);
// Markdown: alone, together, refused.
[[nodiscard]] std::string feature_report_text(const FeatureReport& report);
[[nodiscard]] nlohmann::ordered_json feature_report_json(const FeatureReport& report);

// Results in a feature's page under docs/features, between two marks.
inline constexpr std::string_view kResultsBegin = "<!-- results -->", kResultsEnd = "<!-- end of results -->";

// What was measured, where, and by which command. `metadata`: as in result_metadata.h.
[[nodiscard]] std::string review_results(const FeatureReport& report, const nlohmann::ordered_json& metadata);
// The page with these results in place of those between its marks. Throws Error(kInvalidRequest), naming the file, if
// the page lacks the two lines.
[[nodiscard]] std::string with_results(const std::string& page, const std::string& results, const std::string& file);

}  // namespace nibble::app

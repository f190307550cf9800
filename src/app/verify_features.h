#pragma once
// Level 6 of `nibble verify`: combinations of features, and what they do alone and together.

#include "app/result_compare.h"
#include "app/terminal.h"
#include "app/verify_product.h"
#include "app/verify_report.h"
#include "app/verify_trial.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

// A combination, and what became of it: refused, the same run as an earlier one, or tried.
struct FeatureRow {
  Combination combination;
  std::string refused;  // in the validator's words
  std::string same_as;  // the earlier one's name
  std::optional<Trial> trial;
};

struct FeatureReport {
  std::vector<TriedFeature> features;  // none: of presets
  std::vector<FeatureRow> rows;        // the first that was tried is what the others are held against
  TrialRates again;                    // of that one, at the end

  [[nodiscard]] const FeatureRow* base() const;  // null: all were refused
  [[nodiscard]] double drift() const;  // how far the machine's speed moved from the first round to the end, relative
};

// The rates of a combination over those of the first: each, and the geometric mean of all but `again`. Several rounds
// are compared one by one, so that what a machine does beside them falls out.
struct FeatureGain {
  Change prompt, alone, together, again;
  double score = 1;                           // 1: as the first
  double noise = 0;                           // of the score, relative: what repetitions and drift leave open
  [[nodiscard]] std::string verdict() const;  // "helps", "costs", "no difference shown"
};
// REQUIRES as many rounds of both.
[[nodiscard]] FeatureGain gain_of(std::span<const TrialRates> base, std::span<const TrialRates> other, double drift);

// Runs them. `options`: with a backend, else as given. Throws Error(kInvalidRequest) where more would run than
// o.most_combinations.
[[nodiscard]] FeatureReport try_features(const VerifyOptions& o, const ModelSource& source, const MakeBackend& make,
                                         Terminal& terminal);

// A check per combination that was tried, a skipped one per reason of refusal.
void add_checks(const FeatureReport& report, VerifyChecks& checks);
// Markdown: alone, together, refused.
[[nodiscard]] std::string feature_report_text(const FeatureReport& report);
[[nodiscard]] nlohmann::ordered_json feature_report_json(const FeatureReport& report);

}  // namespace nibble::app

#pragma once
// Level 5 of `nibble verify`: compares a run's speed, memory and accuracy with a stored run of the same device, model
// and settings. Pure.

#include "lab/results/result_compare.h"
#include "lab/verify/verify_report.h"
#include "lab/verify/verify_subject.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {

struct Figures {
  MeasuredSpeed speed;
  double perplexity = 0;    // of the same tokens
  double kl = 0, top1 = 0;  // against the same model with nothing rounded: KL divergence in nats, and the share of
                            // equal top tokens
};

// Adds "rows" (as nibble bench has them), "memory_bytes" and "accuracy" to a result.
void add_figures(nlohmann::ordered_json& result, const Figures& figures);
// In one line.
[[nodiscard]] std::string figures_text(const Figures& figures);
// Throws Error(kInvalidRequest), naming the file, if it is not a baseline or its metadata has gaps.
[[nodiscard]] Figures figures_of(const NamedResult& baseline);

// The first fact in which the baseline is not of this run: `device.name: want "AMD EPYC", found "Xeon"`; empty: it is.
// Both arguments are metadata (result_metadata.h).
[[nodiscard]] std::string mismatch(const nlohmann::ordered_json& baseline, const nlohmann::ordered_json& now);

// Adds one check per row, one for memory and one for the loss. A row fails if it is more than 3 % slower anywhere in
// the 95 % interval of the change; memory, if it takes 1 GB more; the loss, if accuracy got worse.
void check_regression(const Figures& baseline, const Figures& now, VerifyChecks& checks);

// Level 5 of `nibble verify` in this process: finds a baseline and measures this run's figures.
struct FoundBaseline {
  std::optional<NamedResult> result;
  std::string why_none;
};
// The file; without one, the first baseline in the folders that is of this run. Throws Error(kInvalidRequest) if the
// file is not a baseline, or is of another device, model, backend or settings. In folders such files are skipped.
[[nodiscard]] FoundBaseline find_baseline(const std::filesystem::path& file,
                                          const std::vector<std::filesystem::path>& folders,
                                          const nlohmann::ordered_json& now);
// The folders of baselines that come with the program.
[[nodiscard]] std::vector<std::filesystem::path> baseline_folders();

// Measures speed first, so that the peak of memory is the model's own.
[[nodiscard]] Figures measure_figures(const VerifySubject& subject);

}  // namespace nibble::app

#pragma once
// Level 5 of `nibble verify` in this process: finds a baseline and measures this run's figures.

#include "app/verify_baseline.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {

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

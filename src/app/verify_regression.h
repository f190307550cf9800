#pragma once
// Level 5 of `nibble verify` in this process: a baseline is found and this run's figures are measured.

#include "app/terminal.h"
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
// The file, or without one the first in the folders that is of this run. Throws Error(kInvalidRequest) for a file that
// is no baseline or one of another device, model, backend or settings; one of those in the folders is passed over.
[[nodiscard]] FoundBaseline find_baseline(const std::filesystem::path& file,
                                          const std::vector<std::filesystem::path>& folders,
                                          const nlohmann::ordered_json& now);
// Where baselines come along with the program.
[[nodiscard]] std::vector<std::filesystem::path> baseline_folders();

// Speed first: the process's peak of memory is to be its own.
[[nodiscard]] Figures measure_figures(const VerifySubject& subject);

}  // namespace nibble::app

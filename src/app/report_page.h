#pragma once
// The page that --report FILE.html writes: where a result comes from, its figures, and their plots. It needs no other
// file. Pure.

#include "app/result_compare.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace nibble::app {

struct ReportSection {
  std::string title, text;  // as a terminal shows it
};

// `result`: what --json prints for nibble bench, load or verify. `before`: the comparison with a baseline; null: there
// is none.
[[nodiscard]] std::string report_html(const std::string& command, const nlohmann::ordered_json& result,
                                      const std::vector<ReportSection>& sections = {},
                                      const ResultComparison* before = nullptr);
[[nodiscard]] std::string comparison_html(const ResultComparison& comparison, const NamedResult& a,
                                          const NamedResult& b);

}  // namespace nibble::app

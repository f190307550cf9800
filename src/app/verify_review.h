#pragma once
// Writes level 6's results into a feature's page under docs/features, between two marks. Pure.

#include "app/verify_features.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace nibble::app {

inline constexpr std::string_view kResultsBegin = "<!-- results -->", kResultsEnd = "<!-- end of results -->";

// What was measured, where, and by which command. `metadata`: as in result_metadata.h.
[[nodiscard]] std::string review_results(const FeatureReport& report, const nlohmann::ordered_json& metadata);
// The page with these results in place of those between its marks. Throws Error(kInvalidRequest), naming the file, if
// the page lacks the two lines.
[[nodiscard]] std::string with_results(const std::string& page, const std::string& results, const std::string& file);

}  // namespace nibble::app

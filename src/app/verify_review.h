#pragma once
// The results of a feature's page under docs/features: measured by level 6, put between two marks. Pure.

#include "app/verify_features.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace nibble::app {

inline constexpr std::string_view kResultsBegin = "<!-- results -->", kResultsEnd = "<!-- end of results -->";

// What was measured, where and by which command. `metadata`: result_metadata.h's.
[[nodiscard]] std::string review_results(const FeatureReport& report, const nlohmann::ordered_json& metadata);
// The page with these results instead of those between its marks. Throws Error(kInvalidRequest), naming the file, where
// there are no such two lines.
[[nodiscard]] std::string with_results(const std::string& page, const std::string& results, const std::string& file);

}  // namespace nibble::app

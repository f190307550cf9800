#include "app/verify_review.h"

#include "base/error.h"

#include <fmt/format.h>

namespace nibble::app {
namespace {

std::string told(const nlohmann::ordered_json& metadata, const char* at) {
  const nlohmann::ordered_json::json_pointer pointer(at);
  if (!metadata.contains(pointer) || metadata[pointer].is_null()) return "unknown";
  return metadata[pointer].is_string() ? metadata[pointer].get<std::string>() : metadata[pointer].dump();
}

}  // namespace

std::string review_results(const FeatureReport& report, const nlohmann::ordered_json& metadata) {
  return fmt::format(
      "`{}`, {}, commit {} ({})\n\n{}, {} processors; {}; model {}; {} KL divergence against the same model with "
      "nothing rounded.\n\n{}",
      told(metadata, "/command"), told(metadata, "/date"), told(metadata, "/build/commit"),
      told(metadata, "/build/type"), told(metadata, "/host/cpu"), told(metadata, "/host/processors"),
      told(metadata, "/device/kernels"), told(metadata, "/model/name"),
      "three repetitions behind one that does not count; loss:", feature_report_text(report));
}

std::string with_results(const std::string& page, const std::string& results, const std::string& file) {
  const size_t begin = page.find(kResultsBegin), end = page.find(kResultsEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    throw Error(Code::kInvalidRequest,
                "--report {}: want a line {} and one {} behind it, found none (docs/features/TEMPLATE.md)", file,
                kResultsBegin, kResultsEnd);
  return page.substr(0, begin + kResultsBegin.size()) + "\n" + results + page.substr(end);
}

}  // namespace nibble::app

#pragma once
// The page that --report writes, in Markdown or HTML: where a result comes from, and its figures; in HTML also their
// plots. It needs no other file.

#include "app/result_compare.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble::app {

enum class ReportFormat : uint8_t { kMarkdown, kHtml };
// From the name's ending. Throws Error(kInvalidRequest) unless it is .md or .html.
[[nodiscard]] ReportFormat report_format(const std::filesystem::path& path);
// Throws Error(kIo).
void write_report(const std::filesystem::path& path, const std::string& text);

// "## Where this comes from" and a table of all metadata: the end of a page in Markdown.
[[nodiscard]] std::string metadata_section(const nlohmann::ordered_json& metadata);
// Text as a table's cell.
[[nodiscard]] std::string markdown_cell(std::string text);

struct ReportSection {
  std::string title, text;  // as a terminal shows it
  bool markdown = false;    // shown as such
};

// `result`: what --json prints for nibble bench, load or verify. `before`: the comparison with a baseline; null: there
// is none.
[[nodiscard]] std::string report_html(const std::string& command, const nlohmann::ordered_json& result,
                                      const std::vector<ReportSection>& sections = {},
                                      const ResultComparison* before = nullptr);
[[nodiscard]] std::string comparison_html(const ResultComparison& comparison, const NamedResult& a,
                                          const NamedResult& b);

}  // namespace nibble::app

#pragma once
// Where --report writes, and in which format.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

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

}  // namespace nibble::app

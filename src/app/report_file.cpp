#include "app/report_file.h"

#include "app/result_metadata.h"
#include "base/error.h"

#include <fmt/format.h>

#include <fstream>

namespace nibble::app {

ReportFormat report_format(const std::filesystem::path& path) {
  if (path.extension() == ".html") return ReportFormat::kHtml;
  if (path.extension() == ".md") return ReportFormat::kMarkdown;
  throw Error(Code::kInvalidRequest, "--report: want a name that ends in .md or .html, found {}", path.string());
}

void write_report(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw Error(Code::kIo, "--report {}: it cannot be written", path.string());
}

std::string metadata_section(const nlohmann::ordered_json& metadata) {
  std::string out = "\n## Where this comes from\n\n| | |\n| :-- | :-- |\n";
  for (const auto& [path, value] : flat_metadata(metadata))
    out += fmt::format("| {} | {} |\n", markdown_cell(path), markdown_cell(value));
  return out;
}

std::string markdown_cell(std::string text) {
  for (char& c : text)
    if (c == '|' || c == '\n') c = c == '|' ? '/' : ' ';
  return text;
}

}  // namespace nibble::app

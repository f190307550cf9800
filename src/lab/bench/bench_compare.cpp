#include "app/setup/commands.h"
#include "lab/results/report_page.h"
#include "lab/results/result_compare.h"
#include "lab/results/result_import.h"
#include "lab/results/result_metadata.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>

namespace nibble::app {
namespace {

NamedResult read_result(const std::string& path) {
  const std::string text = read_text(std::filesystem::path(path));
  if (std::optional<NamedResult> foreign = import_result(path, text)) return *std::move(foreign);
  NamedResult result{path, read_ordered_json(text)};
  if (!result.json.is_object())
    throw Error(Code::kInvalidRequest, "--compare: want a JSON object of at most {} levels in {}, found another text",
                kMostJsonDepth, path);
  return result;
}

std::string comparison_page(const ResultComparison& comparison, const NamedResult& a, const NamedResult& b) {
  std::string page = "# nibble bench --compare\n\n" + comparison_text(comparison, a, b);
  for (const NamedResult* result : {&a, &b})
    page +=
        fmt::format("\n# {}\n{}", markdown_cell(result->name), metadata_section(value_at(result->json, "metadata")));
  return page;
}

}  // namespace

int compare_files(const BenchOptions& options) {
  if (options.compare.size() != 2)
    throw Error(Code::kInvalidRequest, "--compare: want two files, found {}", options.compare.size());
  const NamedResult a = read_result(options.compare[0]), b = read_result(options.compare[1]);
  const ResultComparison comparison =
      compare_results(a, b, options.allow_mismatch ? Mismatch::kAllow : Mismatch::kRefuse);
  Terminal terminal(options.output);
  if (!options.report.empty()) {
    write_report(options.report, report_format(options.report) == ReportFormat::kHtml
                                     ? comparison_html(comparison, a, b)
                                     : comparison_page(comparison, a, b));
  }
  if (options.output.json || options.format == BenchFormat::kJson) {
    terminal.print_json(comparison_json(comparison, a, b));
  } else {
    terminal.print(comparison_text(comparison, a, b));
  }
  return kExitOk;
}

}  // namespace nibble::app

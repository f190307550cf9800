#include "app/commands.h"
#include "app/result_compare.h"
#include "app/terminal.h"
#include "app/text_input.h"
#include "base/error.h"

#include <filesystem>
#include <string>

namespace nibble::app {
namespace {

NamedResult read_result(const std::string& path) {
  NamedResult result{path, nlohmann::ordered_json::parse(read_text(std::filesystem::path(path)), nullptr, false)};
  if (!result.json.is_object())
    throw Error(Code::kInvalidRequest, "--compare: want a JSON object in {}, found another text", path);
  return result;
}

}  // namespace

int compare_files(const BenchOptions& options) {
  if (options.compare.size() != 2)
    throw Error(Code::kInvalidRequest, "--compare: want two files, found {}", options.compare.size());
  const NamedResult a = read_result(options.compare[0]), b = read_result(options.compare[1]);
  const ResultComparison comparison =
      compare_results(a, b, options.allow_mismatch ? Mismatch::kAllow : Mismatch::kRefuse);
  Terminal terminal(options.output);
  if (options.output.json || options.format == BenchFormat::kJson) {
    terminal.print_json(comparison_json(comparison, a, b));
  } else {
    terminal.print(comparison_text(comparison, a, b));
  }
  return kExitOk;
}

}  // namespace nibble::app

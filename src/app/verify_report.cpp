#include "app/verify_report.h"

#include "app/report_page.h"
#include "app/verify_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble::app {
std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass: return "pass";
    case Verdict::kFail: return "FAIL";
    case Verdict::kSkipped: return "skipped";
  }
  return "?";
}

void VerifyChecks::add(std::string name, bool holds, std::string found) {
  checks_.push_back({level_, std::move(name), holds ? Verdict::kPass : Verdict::kFail, std::move(found)});
}

void VerifyChecks::skip(std::string name, std::string why) {
  checks_.push_back({level_, std::move(name), Verdict::kSkipped, std::move(why)});
}

bool VerifyChecks::failed() const {
  return std::ranges::any_of(checks_, [](const VerifyCheck& c) { return c.verdict == Verdict::kFail; });
}

bool VerifyChecks::failed(VerifyLevel level) const {
  return std::ranges::any_of(checks_,
                             [level](const VerifyCheck& c) { return c.level == level && c.verdict == Verdict::kFail; });
}

std::string verify_table(std::span<const VerifyCheck> checks) {
  size_t width = 5;
  for (const VerifyCheck& check : checks) width = std::max(width, check.name.size());
  std::string out = fmt::format("| level | {:<{}} | verdict | found |\n| :---- | :{:-<{}} | :------ | :---- |\n",
                                "check", width, "", width - 1);
  for (const VerifyCheck& check : checks)
    out += fmt::format("| {:<5} | {:<{}} | {:<7} | {} |\n", name_of(check.level), check.name, width,
                       name_of(check.verdict), markdown_cell(check.found));
  return out;
}

std::string verify_summary(std::span<const VerifyCheck> checks) {
  const auto count = [&](Verdict verdict) { return std::ranges::count(checks, verdict, &VerifyCheck::verdict); };
  return fmt::format("{} passed, {} failed, {} skipped", count(Verdict::kPass), count(Verdict::kFail),
                     count(Verdict::kSkipped));
}

nlohmann::ordered_json verify_json(std::span<const VerifyCheck> checks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const VerifyCheck& check : checks)
    json.push_back({{"level", name_of(check.level)},
                    {"check", check.name},
                    {"verdict", check.verdict == Verdict::kFail ? "fail" : name_of(check.verdict)},
                    {"found", check.found}});
  return json;
}

std::string verify_page(std::span<const VerifyCheck> checks, const nlohmann::ordered_json& metadata) {
  return fmt::format("# nibble verify: {}\n\n{}\n{}", verify_summary(checks), verify_table(checks),
                     metadata_section(metadata));
}

}  // namespace nibble::app

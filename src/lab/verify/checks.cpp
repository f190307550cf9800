#include "lab/results/metadata.h"
#include "lab/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace nibble::app {
namespace {

constexpr int kNameWidth = 57;  // of "activation=auto mxfp4-layers=none kv=bf16 speculation=off"

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass: return "pass";
    case Verdict::kFail: return "FAIL";
    case Verdict::kSkipped: return "skipped";
  }
  return "?";
}

void VerifyChecks::add(std::string name, bool holds, std::string found) {
  put({level_, std::move(name), holds ? Verdict::kPass : Verdict::kFail, std::move(found)});
}

void VerifyChecks::add_unless(std::string name, std::string wrong, std::string found) {
  const bool holds = wrong.empty();
  add(std::move(name), holds, holds ? std::move(found) : std::move(wrong));
}

void VerifyChecks::skip(std::string name, std::string why) {
  put({level_, std::move(name), Verdict::kSkipped, std::move(why)});
}

void VerifyChecks::put(VerifyCheck check) {
  const auto now = std::chrono::steady_clock::now();
  check.seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  checks_.push_back(std::move(check));
  if (watch_) watch_(checks_.back());
}

bool VerifyChecks::failed() const {
  return std::ranges::any_of(checks_, [](const VerifyCheck& c) { return c.verdict == Verdict::kFail; });
}

bool VerifyChecks::failed(VerifyLevel level) const {
  return std::ranges::any_of(checks_,
                             [level](const VerifyCheck& c) { return c.level == level && c.verdict == Verdict::kFail; });
}

std::string check_head() {
  return fmt::format(
      "| level | {:<{}} | verdict | seconds | found |\n| :---- | :{:-<{}} | :------ | ------: | :---- |\n", "check",
      kNameWidth, "", kNameWidth - 1);
}

std::string check_row_of(const VerifyCheck& check) {
  return fmt::format("| {:<5} | {:<{}} | {:<7} | {:>7.1f} | {} |\n", name_of(check.level), check.name, kNameWidth,
                     name_of(check.verdict), check.seconds, markdown_cell(check.found));
}

std::string verify_summary(std::span<const VerifyCheck> checks) {
  const auto count = [&](Verdict verdict) { return std::ranges::count(checks, verdict, &VerifyCheck::verdict); };
  return fmt::format("{} passed, {} failed, {} skipped", count(Verdict::kPass), count(Verdict::kFail),
                     count(Verdict::kSkipped));
}

std::string verify_times(std::span<const VerifyCheck> checks) {
  std::map<VerifyLevel, double> of_level;
  double all = 0;
  for (const VerifyCheck& check : checks) {
    of_level[check.level] += check.seconds;
    all += check.seconds;
  }
  std::string out;
  for (const auto& [level, seconds] : of_level)
    out += fmt::format("{}level {} {:.1f} s", out.empty() ? "" : ", ", name_of(level), seconds);
  return fmt::format("{:.1f} s: {}", all, out);
}

nlohmann::ordered_json verify_json(std::span<const VerifyCheck> checks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const VerifyCheck& check : checks)
    json.push_back({{"level", name_of(check.level)},
                    {"check", check.name},
                    {"verdict", check.verdict == Verdict::kFail ? "fail" : name_of(check.verdict)},
                    {"found", check.found},
                    {"seconds", check.seconds}});
  return json;
}

std::string verify_page(std::span<const VerifyCheck> checks, std::string_view state) {
  std::string out = fmt::format("# nibble verify: {}{}\n\n{}", verify_summary(checks), state, check_head());
  for (const VerifyCheck& check : checks) out += check_row_of(check);
  return out + fmt::format("\nIt took {}.\n", verify_times(checks));
}

}  // namespace nibble::app

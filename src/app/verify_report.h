#pragma once
// What `nibble verify` checked and found: a table, JSON, or a Markdown page that stands alone. Pure.

#include "app/options.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

enum class Verdict : uint8_t { kPass, kFail, kSkipped };
[[nodiscard]] std::string_view name_of(Verdict verdict);

struct VerifyCheck {
  VerifyLevel level;
  std::string name;
  Verdict verdict;
  std::string found;  // figures, or why it was skipped or failed
};

class VerifyChecks {
 public:
  // Checks added from here on belong to this level.
  void begin(VerifyLevel level) { level_ = level; }
  void add(std::string name, bool holds, std::string found);
  void skip(std::string name, std::string why);
  [[nodiscard]] const std::vector<VerifyCheck>& all() const { return checks_; }
  [[nodiscard]] bool failed() const;
  [[nodiscard]] bool failed(VerifyLevel level) const;

 private:
  VerifyLevel level_ = VerifyLevel::kSmoke;
  std::vector<VerifyCheck> checks_;
};

// Benchmarks say nothing about a configuration if other kernels ran than expected.
inline constexpr std::string_view kInvalid = "INVALID: level 1.5 failed; ";

[[nodiscard]] std::string verify_table(std::span<const VerifyCheck> checks);
[[nodiscard]] std::string verify_summary(std::span<const VerifyCheck> checks);  // "23 passed, 1 failed, 2 skipped"
[[nodiscard]] nlohmann::ordered_json verify_json(std::span<const VerifyCheck> checks);
// `metadata`: result_metadata.h's.
[[nodiscard]] std::string verify_page(std::span<const VerifyCheck> checks, const nlohmann::ordered_json& metadata);

}  // namespace nibble::app

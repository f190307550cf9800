#pragma once
// What `nibble verify` checked and found: a table, JSON, or a Markdown page that stands alone. Pure.

#include "app/options/options.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
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
  std::string found;   // figures, or why it was skipped or failed
  double seconds = 0;  // since the check before it
};

class VerifyChecks {
 public:
  // `watch` sees each check as it ends.
  using Watch = std::function<void(const VerifyCheck&)>;
  explicit VerifyChecks(Watch watch = {}) : watch_(std::move(watch)) {}

  // Checks added from here on belong to this level.
  void begin(VerifyLevel level) { level_ = level; }
  void add(std::string name, bool holds, std::string found);
  void skip(std::string name, std::string why);
  [[nodiscard]] const std::vector<VerifyCheck>& all() const { return checks_; }
  [[nodiscard]] bool failed() const;
  [[nodiscard]] bool failed(VerifyLevel level) const;

 private:
  void put(VerifyCheck check);

  Watch watch_;
  VerifyLevel level_ = VerifyLevel::kSmoke;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::vector<VerifyCheck> checks_;
};

// Benchmarks say nothing about a configuration if other kernels ran than expected.
inline constexpr std::string_view kInvalid = "INVALID: level 1.5 failed; ";

// A table in Markdown can be printed row by row: its columns are as wide as what checks are mostly called.
[[nodiscard]] std::string check_head();
[[nodiscard]] std::string check_row_of(const VerifyCheck& check);
[[nodiscard]] std::string verify_table(std::span<const VerifyCheck> checks);
[[nodiscard]] std::string verify_summary(std::span<const VerifyCheck> checks);  // "23 passed, 1 failed, 2 skipped"
[[nodiscard]] std::string verify_times(std::span<const VerifyCheck> checks);    // "80 s: level 1 3 s, level 2 77 s"
[[nodiscard]] nlohmann::ordered_json verify_json(std::span<const VerifyCheck> checks);
// `metadata`: result_metadata.h's. `state`: what stands behind the numbers in the title.
[[nodiscard]] std::string verify_page(std::span<const VerifyCheck> checks, const nlohmann::ordered_json& metadata,
                                      std::string_view state = {});

}  // namespace nibble::app

#include "app/verify_options.h"

#include "app/model_options.h"
#include "app/option_parts.h"
#include "app/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace nibble::app {
namespace {

constexpr std::array<std::pair<VerifyLevel, std::string_view>, 5> kLevels = {{{VerifyLevel::kSmoke, "1"},
                                                                              {VerifyLevel::kPaths, "1.5"},
                                                                              {VerifyLevel::kCorrectness, "2"},
                                                                              {VerifyLevel::kStress, "3"},
                                                                              {VerifyLevel::kPerformance, "4"}}};

std::vector<VerifyLevel> levels_of(const std::string& text) {
  std::vector<VerifyLevel> levels;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto known = std::ranges::find(kLevels, word, &std::pair<VerifyLevel, std::string_view>::second);
    if (known == kLevels.end() && word != "all")
      refuse_value("--level", fmt::format("want 1, 1.5, 2, 3 or 4, several with commas, or all; found {}", word));
    for (const auto& [level, name] : kLevels)
      if (word == "all" || word == name) levels.push_back(level);
    begin = end + 1;
  }
  std::ranges::sort(levels);
  levels.erase(std::ranges::unique(levels).begin(), levels.end());
  return levels;
}

}  // namespace

std::string_view name_of(VerifyLevel level) { return kLevels[static_cast<size_t>(level)].second; }

void add_verify_flags(Flags flags, VerifyOptions& o) {
  o.levels = levels_of("all");
  add_model_name(flags, o.model.model, "; with --load-format dummy also tiny; default: the small one that comes along");
  add_load_format(flags, o.model.load_format);
  add_pull(flags, o.model.when_absent);
  flags
      .take(
          "--level", [&o](const std::string& text) { o.levels = levels_of(text); },
          "1: it runs; 1.5: by which kernels; 2: right; 3: under stress; 4: how fast, in short; several: 1,1.5")
      .type("LIST")
      .usual("all");
  flags.value("--base-url", o.base_url, "A server instead, any of OpenAI's API: levels 1, 3 and 4").not_empty();
  flags.value("--served-model", o.served_model, "The name to ask it for; default: the first that it lists").not_empty();
  flags.value("--api-key", o.api_key, "Sent to it as a bearer token; default: OPENAI_API_KEY").not_empty();
  flags.value("--report", o.report, "Markdown file to write").not_empty();
  add_backend(flags, o.model);
  add_runtime(flags, o.model);
  add_print_config(flags, o.model.settings);
  add_limits(flags, o.model, {"8192", ""});
}

}  // namespace nibble::app

#include "app/options/feature_options.h"
#include "app/options/model_options.h"
#include "app/options/option_parts.h"
#include "app/options/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace nibble::app {
namespace {

constexpr std::array<std::pair<VerifyLevel, std::string_view>, 7> kLevels = {{{VerifyLevel::kSmoke, "1"},
                                                                              {VerifyLevel::kPaths, "1.5"},
                                                                              {VerifyLevel::kCorrectness, "2"},
                                                                              {VerifyLevel::kStress, "3"},
                                                                              {VerifyLevel::kPerformance, "4"},
                                                                              {VerifyLevel::kRegression, "5"},
                                                                              {VerifyLevel::kFeatures, "6"}}};

std::vector<VerifyLevel> levels_of(const std::string& text) {
  std::vector<VerifyLevel> levels;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto known = std::ranges::find(kLevels, word, &std::pair<VerifyLevel, std::string_view>::second);
    if (known == kLevels.end() && word != "all")
      refuse_value("--level", fmt::format("want 1, 1.5, 2, 3, 4, 5 or 6, several with commas, or all; found {}", word));
    for (const auto& [level, name] : kLevels)
      if (word == "all" || word == name) levels.push_back(level);
    begin = end + 1;
  }
  std::ranges::sort(levels);
  levels.erase(std::ranges::unique(levels).begin(), levels.end());
  return levels;
}

// For level 5.
void add_baselines(Flags flags, VerifyOptions& o, Flag base_url) {
  flags.group(HelpGroup::kExpert);
  flags
      .value("--baseline", o.baseline,
             "Level 5: the run to compare with; default: the one that comes with nibble for this device, model "
             "and settings")
      .not_empty()
      .type("FILE")
      .excludes(base_url);
  flags.value("--save-baseline", o.save_baseline, "Level 5: keep this run, to compare later ones with")
      .not_empty()
      .type("FILE")
      .excludes(base_url);
  flags.group(HelpGroup::kCommon);
}

// Chooses the levels that the flags of single levels imply.
void settle_levels(VerifyOptions& o, bool given) {
  const bool regression = !o.baseline.empty() || !o.save_baseline.empty();
  const bool features = !o.presets.empty();
  if (given && regression && std::ranges::find(o.levels, VerifyLevel::kRegression) == o.levels.end())
    refuse_value("--level",
                 fmt::format("want 5 with {}, found none", o.baseline.empty() ? "--save-baseline" : "--baseline"));
  if (given || (!regression && !features)) return;
  o.levels.clear();
  if (regression) o.levels.push_back(VerifyLevel::kRegression);
  if (features) o.levels.push_back(VerifyLevel::kFeatures);
}

// For level 6.
void add_feature_choice(Flags flags, VerifyOptions& o) {
  flags.group(HelpGroup::kExpert);
  Flag features = flags
                      .value("--features", o.features,
                             "Level 6: features whose combinations are tried (nibble features), one with some of its "
                             "values as kv=bf16/fp8; default: by the backend")
                      .not_empty()
                      .type("LIST");
  flags.value("--max-combinations", o.most_combinations, "Level 6: most combinations that are run")
      .whole(1, 4096)
      .usual(fmt::format("{}", o.most_combinations));
  flags
      .value("--rounds", o.rounds,
             "Level 6: times that combinations are measured in turn; 0: 5 where the model loads in no time, else 1")
      .whole(0, 100)
      .usual("0");
  add_presets(flags, o.presets, "Level 6 alone, of these instead: B1 to C4 of nibble features --markdown")
      .excludes(features);
  flags.group(HelpGroup::kCommon);
}

}  // namespace

std::string_view name_of(VerifyLevel level) { return kLevels[static_cast<size_t>(level)].second; }

void add_verify_flags(Flags flags, VerifyOptions& o) {
  o.levels = levels_of("all");
  add_model_name(flags, o.model.model,
                 "; with --load-format dummy also tiny; default: the small one that comes with nibble");
  add_load_format(flags, o.model.load_format);
  add_pull(flags, o.model.when_absent);
  const Flag level = flags
                         .take(
                             "--level", [&o](const std::string& text) { o.levels = levels_of(text); },
                             "1: it runs; 1.5: by which kernels; 2: right; 3: under stress; 4: how fast; 5: beside a "
                             "baseline; 6: features together; several: 1,1.5")
                         .type("LIST")
                         .usual("all");
  add_feature_choice(flags, o);
  flags.then([&o, level] { settle_levels(o, level.given()); });
  const Flag base_url =
      flags.value("--base-url", o.base_url, "Verify a server instead, any with OpenAI's API: levels 1, 3 and 4")
          .not_empty();
  add_baselines(flags, o, base_url);
  flags.value("--served-model", o.served_model, "The name to ask it for; default: the first that it lists").not_empty();
  flags.value("--api-key", o.api_key, "Sent to it as a bearer token; default: OPENAI_API_KEY").not_empty();
  flags.group(HelpGroup::kExpert);
  add_trust(flags, o.cacert, o.insecure);
  flags.group(HelpGroup::kCommon);
  add_report(flags, o.report);
  add_backend(flags, o.model);
  add_runtime(flags, o.model);
  add_print_config(flags, o.model.settings);
  add_limits(flags, o.model, {"8192", ""});
}

}  // namespace nibble::app

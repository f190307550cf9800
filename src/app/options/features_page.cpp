#include "app/options/feature_options.h"
#include "app/options/features.h"
#include "app/options/settings.h"
#include "app/options/vllm.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

const FlagFacts& declared_as(const CommandFacts& flags, std::string_view name) {
  const auto it = std::ranges::find_if(
      flags.flags, [name](const FlagFacts& flag) { return std::ranges::find(flag.names, name) != flag.names.end(); });
  check(it != flags.flags.end(), "a feature's flag is declared");
  return *it;
}

// Our variable, and others' that mean it.
std::vector<std::string> variables_of(const Feature& feature) {
  std::vector<std::string> names = {variable_of(std::string(feature.flag))};
  for (const ForeignRow& row : vllm_table()) {
    if (row.becomes != Becomes::kFlag || row.text != feature.flag || row.names.starts_with("-")) continue;
    const std::string name(row.names);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string values_of(const Feature& feature, const FlagFacts& facts) {
  if (facts.value.find('|') != std::string::npos || facts.value.empty()) {
    std::string words;
    for (const FeatureValue& value : feature.values)
      words += fmt::format("{}{}", words.empty() ? "" : ", ", value.word);
    return words;
  }
  return facts.value == "LIST" ? "a list of " + values_of(feature, {}) : facts.value;
}

std::string quoted(std::string_view text) { return text.empty() ? "" : fmt::format("`{}`", text); }

// What a value needs, in its own words.
std::string beside(const FeatureValue& value) {
  std::string text = quoted(value.with);
  if (!value.with_on_cards.empty())
    text += fmt::format("{}on a card {}", text.empty() ? "" : ", ", quoted(value.with_on_cards));
  return text;
}

std::string effects_of(const Feature& feature) {
  std::string text;
  for (const Effect effect : {Effect::kUnrounded, Effect::kRounded, Effect::kAsChosen}) {
    if (std::ranges::find(feature.values, effect, &FeatureValue::effect) == feature.values.end()) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(effect));
  }
  return text;
}

constexpr std::string_view kHead = R"(# Features

Every choice of how a model is run: its flag, its values, and where each value runs. `nibble features` prints the list.
To measure them alone and together: level 6 of [`nibble verify`](verify.md#features-alone-and-together). Reviews of
single features: [features/](features/TEMPLATE.md).

`nibble features --markdown` makes this page from the table in `src/app/options/features.cpp` and the flags; a test compares.

| | |
|---|---|
| exact | nothing is rounded beyond the weights' own formats |
| lossy | something is |
| as chosen | depends on what it becomes, or on the flags beside it |
| yes | accepted, and has run there |
| as values | accepted, and has run there: rounded, then multiplied as if exact, so not faster |
| not run | accepted, compiled, compared with the reference on a host; has never run there |
| – | refused |

"Every card" is the kernels for every card from Ampere on. They have run on H100s, also as an A100 would run them
([cards.md](cards.md)). "SM90" is Hopper, "SM121" is GB10.
)";

}  // namespace

std::string features_page(const CommandFacts& flags) {
  std::string out(kHead);
  out +=
      "\n## Flags\n| feature | flag | default | values | variables | needs or excludes | effect |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const Feature& f : features()) {
    std::string variables;
    for (const std::string& name : variables_of(f))
      variables += fmt::format("{}`{}`", variables.empty() ? "" : ", ", name);
    out += fmt::format("| {} | `{}` | {} | {} | {} | {} | {} |\n", f.name, f.flag, f.usual,
                       values_of(f, declared_as(flags, f.flag)), variables, f.needs, effects_of(f));
  }
  out +=
      "\n## Values, and where they run\n| feature | value | numbers | CPU | every card | SM90 | SM121 | with |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const Feature& f : features())
    for (const FeatureValue& v : f.values)
      out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", f.name, v.word, name_of(v.effect),
                         name_of(v.on.cpu), name_of(v.on.neutral), name_of(v.on.sm90), name_of(v.on.sm121), beside(v));
  out += "\n## Known issues\n| feature | issue |\n|---|---|\n";
  for (const Feature& f : features())
    if (!f.issues.empty()) out += fmt::format("| {} | {} |\n", f.name, f.issues);
  out +=
      "\n## Refused\nWith gpt-oss-20b's shapes, in the validator's words.\n\n| backend | flags | answer |\n|---|---|---|\n";
  for (const Refusal& r : refusals())
    out += fmt::format("| {}{} | `{}` | {} |\n", r.backend, r.card.empty() ? "" : fmt::format(" ({})", r.card), r.words,
                       refusal_of(r));
  out +=
      "\n## Presets\n`nibble serve --preset C2`, `nibble verify --preset B1,C1,C2`. Flags that you give count before them. Sinks are on in all: gpt-oss was "
      "trained with them.\n\n| preset | flags | |\n|---|---|---|\n";
  for (const Preset& p : presets()) out += fmt::format("| {} | `{}` | {} |\n", p.name, p.words, p.what);
  return out;
}

std::string features_text(const CommandFacts& flags) {
  std::string out;
  for (const Feature& f : features())
    out += fmt::format("{:<17}{:<26}{:<10}{}\n", f.name, f.flag, f.usual, values_of(f, declared_as(flags, f.flag)));
  return out;
}

Json features_json(const CommandFacts& flags) {
  Json all = Json::array();
  for (const Feature& f : features()) {
    Json values = Json::array();
    for (const FeatureValue& v : f.values)
      values.push_back({{"value", v.word},
                        {"effect", name_of(v.effect)},
                        {"with", v.with},
                        {"with_on_cards", v.with_on_cards},
                        {"cpu", name_of(v.on.cpu)},
                        {"neutral", name_of(v.on.neutral)},
                        {"sm90", name_of(v.on.sm90)},
                        {"sm121", name_of(v.on.sm121)}});
    all.push_back({{"name", f.name},
                   {"flag", f.flag},
                   {"default", f.usual},
                   {"takes", declared_as(flags, f.flag).value},
                   {"variables", variables_of(f)},
                   {"values", values},
                   {"needs", f.needs},
                   {"issues", f.issues}});
  }
  Json shown = Json::array();
  for (const Preset& p : presets()) shown.push_back({{"name", p.name}, {"flags", p.words}, {"what", p.what}});
  return {{"features", all}, {"presets", shown}, {"other_flags", flags_of_no_feature()}};
}

}  // namespace nibble::app

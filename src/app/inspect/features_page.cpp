// What nibble tells of itself as a whole: its features, its manual, its completions.
#include "app/options/command_line.h"
#include "app/options/features.h"
#include "app/options/foreign.h"
#include "app/options/help.h"
#include "app/options/settings.h"
#include "app/setup/commands.h"
#include "app/setup/backend_choice.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

// As --help shows the value.
std::string taken_by(const Option& feature) {
  const CommandFacts serve = facts_of(CommandId::kServe);
  return std::ranges::find_if(serve.flags,
                              [&feature](const FlagFacts& flag) {
                                return std::ranges::find(flag.names, feature.name()) != flag.names.end();
                              })
      ->value;
}

// Our variable, and others' that mean it.
std::vector<std::string> variables_of(const Option& feature) {
  std::vector<std::string> names = foreign_variables(feature);
  names.insert(names.begin(), variable_of(feature.name()));
  return names;
}

std::string values_of(const Option& feature) {
  std::string words;
  for (const Word& value : feature.range.words) words += fmt::format("{}{}", words.empty() ? "" : ", ", value.word);
  const std::string taken = taken_by(feature);
  if (taken == "LIST") return "a list of " + words;
  return taken.empty() || feature.range.kind == Range::Kind::kWords ? words : taken;
}

std::string quoted(std::string_view text) { return text.empty() ? "" : fmt::format("`{}`", text); }

// What a value needs, in its own words.
std::string beside(const Word& value) {
  std::string text = quoted(value.with);
  if (!value.with_on_cards.empty())
    text += fmt::format("{}on a card {}", text.empty() ? "" : ", ", quoted(value.with_on_cards));
  return text;
}

std::string effects_of(const Option& feature) {
  std::string text;
  for (const Effect effect : {Effect::kUnrounded, Effect::kRounded, Effect::kAsChosen}) {
    if (std::ranges::find(feature.range.words, effect, &Word::effect) == feature.range.words.end()) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(effect));
  }
  return text;
}

constexpr std::string_view kHead =
#include "app/inspect/features_head.txt"
    ;

std::string features_page() {
  std::string out(kHead);
  out +=
      "\n## Flags\n| feature | flag | default | values | variables | needs or excludes | effect |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const Option* const f : features()) {
    std::string variables;
    for (const std::string& name : variables_of(*f))
      variables += fmt::format("{}`{}`", variables.empty() ? "" : ", ", name);
    const FeatureFacts& facts = f->traits.feature;
    out += fmt::format("| {} | `{}` | {} | {} | {} | {} | {} |\n", facts.name, f->name(), f->usual(), values_of(*f),
                       variables, facts.needs, effects_of(*f));
  }
  out +=
      "\n## Values, and where they run\n| feature | value | numbers | CPU | every card | SM90 | SM121 | with |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const Option* const f : features())
    for (const Word& v : f->range.words)
      out +=
          fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", f->traits.feature.name, v.word, name_of(v.effect),
                      name_of(v.on.cpu), name_of(v.on.neutral), name_of(v.on.sm90), name_of(v.on.sm121), beside(v));
  out += "\n## Known issues\n| feature | issue |\n|---|---|\n";
  for (const Option* const f : features())
    if (const FeatureFacts& facts = f->traits.feature; !facts.issues.empty())
      out += fmt::format("| {} | {} |\n", facts.name, facts.issues);
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

std::string features_text() {
  std::string out;
  for (const Option* const f : features())
    out += fmt::format("{:<20} {:<26} {:<9} {}\n", f->traits.feature.name, f->name(), f->usual(), values_of(*f));
  return out;
}

Json features_json() {
  Json all = Json::array();
  for (const Option* const f : features()) {
    Json values = Json::array();
    for (const Word& v : f->range.words)
      values.push_back({{"value", v.word},
                        {"effect", name_of(v.effect)},
                        {"with", v.with},
                        {"with_on_cards", v.with_on_cards},
                        {"cpu", name_of(v.on.cpu)},
                        {"neutral", name_of(v.on.neutral)},
                        {"sm90", name_of(v.on.sm90)},
                        {"sm121", name_of(v.on.sm121)}});
    all.push_back({{"name", f->traits.feature.name},
                   {"flag", f->name()},
                   {"default", f->usual()},
                   {"takes", taken_by(*f)},
                   {"variables", variables_of(*f)},
                   {"values", values},
                   {"needs", f->traits.feature.needs},
                   {"issues", f->traits.feature.issues}});
  }
  Json shown = Json::array();
  for (const Preset& p : presets()) shown.push_back({{"name", p.name}, {"flags", p.words}, {"what", p.what}});
  Json others = Json::array();  // that say how much there is of something, or what is shown
  for (const Option& option : option_table()) {
    const bool asked = option.group == HelpGroup::kPerformance || option.group == HelpGroup::kExpert;
    if (asked && !option.is_feature() && option.commands.has(CommandId::kServe)) others.push_back(option.name());
  }
  return {{"features", all}, {"presets", shown}, {"other_flags", others}};
}

}  // namespace

int execute(const FeaturesOptions& options) {
  Terminal({}).print(options.json       ? features_json().dump(2) + "\n"
                     : options.markdown ? features_page()
                                        : features_text());
  return kExitOk;
}

int execute(const ManOptions& /*options*/) {
  Terminal({}).print(man_page_text());
  return kExitOk;
}

int execute(const CompletionOptions& options) {
  Terminal({}).print(completion_text(options.shell));
  return kExitOk;
}

}  // namespace nibble::app

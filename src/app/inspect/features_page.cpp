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

std::string values_of(const Option& feature) {
  std::string words;
  for (const Word& value : feature.range.words) words += fmt::format("{}{}", words.empty() ? "" : ", ", value.word);
  const std::string taken = taken_by(feature);
  if (taken == "LIST") return "a list of " + words;
  return taken.empty() || feature.range.kind == Range::Kind::kWords ? words : taken;
}

// A row of a table; neighbours that differ in their item alone are shown as one.
struct Row {
  std::string group, item, rest;
};

std::string shown(const std::vector<Row>& rows) {
  std::string out;
  for (size_t i = 0; i < rows.size();) {
    const Row& row = rows[i];
    std::string items = row.item;
    while (++i < rows.size() && rows[i].group == row.group && rows[i].rest == row.rest) items += ", " + rows[i].item;
    out += fmt::format("| {} | {}{} |\n", row.group, items, row.rest);
  }
  return out;
}

// What must stand beside a value.
std::string beside(const Word& value) { return value.with.empty() ? "" : fmt::format(" with `{}`", value.with); }

// What the validator wants, of its words.
std::string wanted(const std::string& answer) {
  const size_t want = answer.find("want ");
  return want == answer.npos ? answer : answer.substr(want + 5, answer.find(", found") - want - 5);
}

constexpr std::string_view kHead =
#include "app/inspect/features_head.txt"
    ;

std::string features_page() {
  std::string out(kHead);
  out += "\n## Flags\n| feature | flag | default | needs or excludes |\n|---|---|---|---|\n";
  std::vector<Row> values;
  for (const Option* const f : features()) {
    const FeatureFacts& facts = f->traits.feature;
    const std::string taken = f->range.kind == Range::Kind::kWords || f->is_switch() ? "" : " " + taken_by(*f);
    out += fmt::format("| {} | `{}{}` | {} | {} |\n", facts.name, f->name(), taken, f->usual(), facts.needs);
    for (const Word& v : f->range.words)
      values.push_back({std::string(facts.name), std::string(v.word),
                        fmt::format("{} | {} | {} | {} | {}", beside(v), name_of(v.effect), name_of(v.on.cpu),
                                    name_of(v.on.neutral), name_of(v.on.sm90))});
  }
  out +=
      "\n## Values, and where they run\n| feature | values | numbers | CPU | every card | SM90 |\n"
      "|---|---|---|---|---|---|\n" +
      shown(values) + "\n## Known issues\n| feature | issue |\n|---|---|\n";
  for (const Option* const f : features())
    if (const FeatureFacts& facts = f->traits.feature; !facts.issues.empty())
      out += fmt::format("| {} | {} |\n", facts.name, facts.issues);
  std::vector<Row> refused;
  for (const Refusal& r : refusals())
    if (r.card.empty())
      refused.push_back({std::string(r.backend), fmt::format("`{}`", r.words), " | " + wanted(refusal_of(r))});
  out += "\n## Refused\nWith gpt-oss-20b's shapes.\n\n| backend | flags | wanted |\n|---|---|---|\n" + shown(refused);
  out +=
      "\n## Presets\n`nibble serve --preset C2`, `nibble verify --preset B1,C1,C2`. Flags that you give count before "
      "them.\n\n| preset | flags | |\n|---|---|---|\n";
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
    std::vector<std::string> variables = foreign_variables(*f);
    variables.insert(variables.begin(), variable_of(f->name()));
    Json values = Json::array();
    for (const Word& v : f->range.words)
      values.push_back({{"value", v.word},
                        {"effect", name_of(v.effect)},
                        {"with", v.with},
                        {"cpu", name_of(v.on.cpu)},
                        {"neutral", name_of(v.on.neutral)},
                        {"sm90", name_of(v.on.sm90)},
                        {"sm121", name_of(v.on.sm121)}});
    all.push_back({{"name", f->traits.feature.name},
                   {"flag", f->name()},
                   {"default", f->usual()},
                   {"takes", taken_by(*f)},
                   {"variables", variables},
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

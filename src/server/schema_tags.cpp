// Structural tags → a grammar (text/grammar_rules.h): text in which parts of a stated form stand.

#include "server/schema_parts.h"
#include "text/grammar_rules.h"
#include "text/json_grammar.h"
#include "text/raw_grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

constexpr size_t kMostFormats = 256;    // in one request, tags included
constexpr size_t kMostMarkBytes = 256;  // of a trigger or an excluded text

using Texts = std::vector<std::string>;

// Writes rules; an expression is the name of one, or a literal.
class TagWriter {
 public:
  std::string write(Fields& tag) {
    const bool older = tag.find("structures") != nullptr;  // of {begin, schema, end}
    tag.only("type", "structural_tag", "it says what this is");
    std::string whole;
    if (older) {
      whole = triggered(tag, "structures", {});
    } else {
      Fields inner(tag.required("format", "an object, or structures and triggers"), tag.path("format"));
      whole = format(inner, {});
    }
    return fmt::format("root ::= {}\n{}", whole, rules_);
  }

 private:
  struct Tag {
    std::string begin, rest;  // rest: content and end, as an expression
  };

  // One format. `ends`: texts that its free text may not hold, since they end it.
  std::string format(Fields& fields, const Texts& ends);
  std::string triggered(Fields& fields, std::string_view tags, const Texts& ends);
  std::string separated(Fields& fields);
  Tag tag(Fields& fields);
  std::vector<Tag> tags(Fields& fields, std::string_view name);
  static Texts texts(Fields& fields, std::string_view name);
  static Texts excluded(Fields& fields, const Texts& ends);
  static void expect_apart(const Fields& fields, const Texts& marks);
  std::string content_of(Fields& fields, const Texts& ends) {
    Fields inner(fields.required("content", "a format"), fields.path("content"));
    return format(inner, ends);
  }

  std::string rule(std::string_view body) {
    std::string name = fmt::format("f{}", next_++);
    rules_ += fmt::format("{} ::= {}\n", name, body);
    return name;
  }
  // A grammar of its own, as a part of this one.
  std::string part(const std::string& grammar, const std::string& path) {
    const std::string prefix = fmt::format("g{}_", next_++);
    rules_ += text::prefixed(grammar, prefix);
    if (rules_.size() > text::kMaxGrammarBytes)
      throw invalid_value(path, "want parts whose grammar takes at most {} bytes together", text::kMaxGrammarBytes);
    return prefix + "root";
  }
  void spend(const Fields& fields) {
    if (++formats_ > kMostFormats) throw invalid_value(fields.path("type"), "want at most {} formats", kMostFormats);
  }

  std::string rules_;
  size_t next_ = 0, formats_ = 0;
};

// The excluded texts, and those that end the text.
Texts TagWriter::excluded(Fields& fields, const Texts& ends) {
  Texts out = texts(fields, "excludes");
  for (const std::string& end : ends)
    if (!end.empty() && std::ranges::find(out, end) == out.end()) out.push_back(end);
  return out;
}

// A text, or several.
Texts TagWriter::texts(Fields& fields, std::string_view name) {
  const Json* value = fields.find(name);
  const std::string path = fields.path(name);
  Texts out;
  if (value == nullptr) return out;
  if (value->is_string()) return {value->get<std::string>()};
  for (const Json& text : array_of(*value, path)) out.push_back(string_of(text, path));
  return out;
}

// That no place in a text could be the end of two marks.
void TagWriter::expect_apart(const Fields& fields, const Texts& marks) {
  for (size_t i = 0; i < marks.size(); ++i) {
    if (marks[i].empty() || marks[i].size() > kMostMarkBytes)
      throw invalid_value(fields.path("triggers"), "want triggers and excluded texts of 1 to {} bytes, found {}",
                          kMostMarkBytes, marks[i].size());
    for (size_t j = 0; j < marks.size(); ++j)
      if (i != j && marks[i].find(marks[j]) != std::string::npos)
        throw invalid_value(fields.path("triggers"),
                            "want triggers, excluded texts and ends none of which holds another, found {} and {}",
                            to_text(Json(marks[i])), to_text(Json(marks[j])));
  }
}

std::string dispatch(const Texts& triggers, const Texts& rules, const Texts& excludes, bool once) {
  Texts arguments, quoted;
  for (size_t i = 0; i < triggers.size(); ++i)
    arguments.push_back(fmt::format("({}, {})", text::literal(triggers[i]), rules[i]));
  for (const std::string& text : excludes) quoted.push_back(text::literal(text));
  arguments.push_back(fmt::format("loop_after_dispatch={}", !once));
  if (!quoted.empty()) arguments.push_back(fmt::format("excludes=({})", fmt::join(quoted, ", ")));
  return fmt::format("TagDispatch({})", fmt::join(arguments, ", "));
}

TagWriter::Tag TagWriter::tag(Fields& fields) {
  spend(fields);
  fields.only("type", "tag", "it is one");
  Tag out{fields.required_string("begin"), {}};
  const Texts ends = texts(fields, "end");
  Texts quoted;
  for (const std::string& end : ends) quoted.push_back(text::literal(end));
  if (quoted.empty()) throw invalid_value(fields.path("end"), "want a text");
  std::string content;
  if (const Json* schema = fields.find("schema"))
    content = part(grammar_of(text::json_schema_grammar, *schema, fields.path("schema")), fields.path("schema"));
  else
    content = content_of(fields, ends);
  fields.done();
  out.rest = rule(fmt::format("{} ({})", content, fmt::join(quoted, " | ")));
  return out;
}

std::vector<TagWriter::Tag> TagWriter::tags(Fields& fields, std::string_view name) {
  std::vector<Tag> out;
  const std::string path = fields.path(name);
  for_each_object(array_of(fields.required(name, "tags"), path), {path}, [&](Fields& one) { out.push_back(tag(one)); });
  if (out.empty()) throw invalid_value(path, "want at least one tag");
  return out;
}

std::string TagWriter::triggered(Fields& fields, std::string_view name, const Texts& ends) {
  const Texts triggers = texts(fields, "triggers");
  std::vector<Texts> begun(triggers.size());
  for (const Tag& one : tags(fields, name)) {
    const auto begins = [&](const std::string& trigger) { return one.begin.starts_with(trigger); };
    const auto trigger = std::ranges::find_if(triggers, begins);
    if (trigger == triggers.end())
      throw invalid_value(fields.path("triggers"), "want one with which {} begins", to_text(Json(one.begin)));
    begun[static_cast<size_t>(trigger - triggers.begin())].push_back(
        fmt::format("{} {}", text::literal(std::string_view(one.begin).substr(trigger->size())), one.rest));
  }
  const Texts excludes = excluded(fields, ends);
  Texts marks = triggers, rules, first;
  marks.insert(marks.end(), excludes.begin(), excludes.end());
  expect_apart(fields, marks);
  for (size_t i = 0; i < triggers.size(); ++i) {
    if (begun[i].empty())
      throw invalid_value(fields.path("triggers"), "no tag begins with {}", to_text(Json(triggers[i])));
    rules.push_back(rule(fmt::format("{}", fmt::join(begun[i], " | "))));
    first.push_back(fmt::format("{} {}", text::literal(triggers[i]), rules.back()));
  }
  const bool at_least_one = fields.boolean("at_least_one").value_or(false);
  const bool once = fields.boolean("stop_after_first").value_or(false);
  const std::string start = at_least_one ? rule(fmt::format("{}", fmt::join(first, " | "))) : "";
  if (at_least_one && once) return start;
  const std::string text = rule(dispatch(triggers, rules, excludes, once));
  return at_least_one ? rule(start + " " + text) : text;
}

std::string TagWriter::separated(Fields& fields) {
  Texts all;
  for (const Tag& one : tags(fields, "tags")) all.push_back(fmt::format("{} {}", text::literal(one.begin), one.rest));
  const std::string any = rule(fmt::format("{}", fmt::join(all, " | ")));
  const std::string separator = text::literal(fields.required_string("separator"));
  const bool once = fields.boolean("stop_after_first").value_or(false);
  const std::string some = once ? any : rule(fmt::format("{} ({} {})*", any, separator, any));
  return fields.boolean("at_least_one").value_or(false) ? some : rule(some + "?");
}

std::string TagWriter::format(Fields& fields, const Texts& ends) {
  const std::string type = fields.required_string("type");
  std::string out;
  if (type == "tag") {
    const Tag one = tag(fields);
    return rule(fmt::format("{} {}", text::literal(one.begin), one.rest));
  }
  spend(fields);
  const auto part_of = [&](const auto& make, const auto& value, const char* name) {
    return part(grammar_of(make, value, fields.path(name)), fields.path(name));
  };
  if (type == "const_string") {
    out = rule(text::literal(fields.required_string("value")));
  } else if (type == "json_schema") {
    fields.only("style", "json", "gpt-oss was trained on JSON");
    out = part_of(text::json_schema_grammar, fields.required("json_schema", "a schema"), "json_schema");
  } else if (type == "regex") {
    out = part_of(text::regex_grammar, fields.required_string("pattern"), "pattern");
  } else if (type == "grammar") {
    out = part_of(text::raw_grammar, fields.required_string("grammar"), "grammar");
  } else if (type == "any_text") {
    const Texts excludes = excluded(fields, ends);
    expect_apart(fields, excludes);
    out = rule(excludes.empty() ? text::raw_pattern("[^]*", type).expression : dispatch({}, {}, excludes, false));
  } else if (type == "sequence" || type == "or") {
    Texts elements;
    const std::string path = fields.path("elements");
    for_each_object(array_of(fields.required("elements", "formats"), path), {path},
                    [&](Fields& one) { elements.push_back(format(one, ends)); });
    if (elements.empty()) throw invalid_value(path, "want at least one format");
    out = rule(fmt::format("{}", fmt::join(elements, type == "or" ? " | " : " ")));
  } else if (type == "optional" || type == "plus" || type == "star") {
    out = rule(content_of(fields, ends) + (type == "optional" ? "?" : type == "plus" ? "+" : "*"));
  } else if (type == "triggered_tags") {
    out = triggered(fields, "tags", ends);
  } else if (type == "tags_with_separator") {
    out = separated(fields);
  } else {
    throw unsupported_value(fields.path("type"),
                            "want const_string, json_schema, regex, grammar, any_text, sequence, or, optional, plus, "
                            "star, tag, triggered_tags or tags_with_separator, found {}",
                            type);
  }
  fields.done();
  return out;
}

}  // namespace

std::string read_structural_tag(Fields& tag) { return TagWriter().write(tag); }

}  // namespace nibble::server

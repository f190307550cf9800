// Structural tags → a grammar (text/grammar_rules.h): text in which parts of a stated form stand.

#include "server/schema_parts.h"
#include "text/grammar_rules.h"
#include "text/json_grammar.h"
#include "text/raw_grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

constexpr size_t kMostFormats = 256;    // in one request, tags included
constexpr size_t kMostMarkBytes = 256;  // of a trigger or an excluded text

using Texts = std::vector<std::string>;

Texts quoted(Texts texts) {
  for (std::string& text : texts) text = text::literal(text);
  return texts;
}

// Throws ApiError if a place in a text could be the end of two marks.
void expect_apart(const std::string& path, const Texts& marks) {
  for (const std::string& mark : marks) {
    if (mark.empty() || mark.size() > kMostMarkBytes)
      throw invalid_value(path, "want texts of 1 to {} bytes, found {}", kMostMarkBytes, mark.size());
    for (const std::string& other : marks)
      if (&mark != &other && mark.find(other) != std::string::npos)
        throw invalid_value(path, "want triggers, excluded texts and ends none of which holds another, found {} and {}",
                            to_text(Json(mark)), to_text(Json(other)));
  }
}

// Each format becomes a rule; functions return its name. `ends`: texts that free text may not hold, since they end it.
class TagWriter {
 public:
  explicit TagWriter(Leniency* told) : told_(told) {}
  std::string write(Fields& tag) {
    tag.only("type", "structural_tag", "it says what this is");
    const std::string whole =
        tag.find("structures") != nullptr ? triggered(tag, "structures", {}) : format_in(tag, "format", {});
    return fmt::format("root ::= {}\n{}", whole, rules_);
  }

 private:
  struct Tag {
    std::string begin, rest;  // rest: the rule of content and end
  };

  std::string format(Fields& fields, const Texts& ends) {
    const std::string type = fields.required_string("type");
    if (++formats_ > kMostFormats) throw invalid_value(fields.path("type"), "want at most {} formats", kMostFormats);
    const auto text_part = [&](const auto& make, const char* name) {
      return part(make, fields.required_string(name), fields.path(name));
    };
    std::string out;
    if (type == "tag") {
      const Tag one = tag(fields);
      out = rule(text::literal(one.begin) + " " + one.rest);
    } else if (type == "const_string") {
      out = rule(text::literal(fields.required_string("value")));
    } else if (type == "json_schema") {
      fields.only("style", "json", "gpt-oss was trained on JSON");
      out = schema_part(fields.required("json_schema", "a schema"), fields.path("json_schema"));
    } else if (type == "regex") {
      out = text_part(text::regex_grammar, "pattern");
    } else if (type == "grammar") {
      out = text_part(text::raw_grammar, "grammar");
    } else if (type == "sequence" || type == "or") {
      Texts elements;
      const std::string path = fields.path("elements");
      for_each_object(fields.required("elements", "formats"), {path},
                      [&](Fields& one) { elements.push_back(format(one, ends)); });
      if (elements.empty()) throw invalid_value(path, "want at least one format");
      out = rule(elements, type == "or" ? " | " : " ");
    } else if (type == "optional" || type == "plus" || type == "star") {
      out = rule(format_in(fields, "content", ends) + (type == "optional" ? "?" : type == "plus" ? "+" : "*"));
    } else if (type == "any_text") {
      out = free_text(fields, ends, {}, {});
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

  // Text that is free until a trigger; a tag that begins with it must follow.
  std::string triggered(Fields& fields, std::string_view name, const Texts& ends) {
    const Texts triggers = read_strings(fields, "triggers");
    std::vector<Texts> begun(triggers.size());
    for (const Tag& one : tags(fields, name)) {
      const auto trigger =
          std::ranges::find_if(triggers, [&](const std::string& text) { return one.begin.starts_with(text); });
      if (trigger == triggers.end())
        throw invalid_value(fields.path("triggers"), "want one with which {} begins", to_text(Json(one.begin)));
      begun[static_cast<size_t>(trigger - triggers.begin())].push_back(
          fmt::format("{} {}", text::literal(one.begin.substr(trigger->size())), one.rest));
    }
    Texts first, arguments;
    for (size_t i = 0; i < triggers.size(); ++i) {
      if (begun[i].empty())
        throw invalid_value(fields.path("triggers"), "no tag begins with {}", to_text(Json(triggers[i])));
      const std::string then = rule(begun[i], " | "), trigger = text::literal(triggers[i]);
      first.push_back(trigger + " " + then);
      arguments.push_back(fmt::format("({}, {})", trigger, then));
    }
    const bool at_least_one = fields.boolean("at_least_one").value_or(false);
    const bool once = fields.boolean("stop_after_first").value_or(false);
    arguments.push_back(fmt::format("loop_after_dispatch={}", !once));
    const std::string text = free_text(fields, ends, triggers, std::move(arguments));
    if (!at_least_one) return text;
    const std::string start = rule(first, " | ");
    return once ? start : rule(start + " " + text);
  }

  // Any text without what is excluded, and without triggers but where `arguments` say what follows them.
  std::string free_text(Fields& fields, const Texts& ends, const Texts& triggers, Texts arguments) {
    const Texts listed = read_strings(fields, "excludes");
    std::set<std::string> excluded(listed.begin(), listed.end());
    excluded.insert(ends.begin(), ends.end());
    excluded.erase("");  // an end that may be nothing excludes nothing
    const Texts excludes(excluded.begin(), excluded.end());
    Texts marks = triggers;
    marks.insert(marks.end(), excludes.begin(), excludes.end());
    expect_apart(fields.path("triggers"), marks);
    if (!excludes.empty()) arguments.push_back(fmt::format("excludes=({})", fmt::join(quoted(excludes), ", ")));
    return rule(fmt::format("TagDispatch({})", fmt::join(arguments, ", ")));
  }

  std::string separated(Fields& fields) {
    Texts all;
    for (const Tag& one : tags(fields, "tags")) all.push_back(fmt::format("{} {}", text::literal(one.begin), one.rest));
    const std::string any = rule(all, " | "), separator = text::literal(fields.required_string("separator"));
    const bool once = fields.boolean("stop_after_first").value_or(false);
    const std::string some = once ? any : rule(fmt::format("{} ({} {})*", any, separator, any));
    return fields.boolean("at_least_one").value_or(false) ? some : rule(some + "?");
  }

  std::vector<Tag> tags(Fields& fields, std::string_view name) {
    std::vector<Tag> out;
    const std::string path = fields.path(name);
    for_each_object(fields.required(name, "tags"), {path}, [&](Fields& one) { out.push_back(tag(one)); });
    if (out.empty() || (formats_ += out.size()) > kMostFormats)
      throw invalid_value(path, "want a tag, and at most {} formats in all", kMostFormats);
    return out;
  }

  Tag tag(Fields& fields) {
    fields.only("type", "tag", "it is one");
    Tag out{fields.required_string("begin"), {}};
    const Texts ends = read_strings(fields, "end");
    if (ends.empty()) throw invalid_value(fields.path("end"), "want a text");
    const Json* schema = fields.find("schema");  // of a structure
    const std::string content =
        schema != nullptr ? schema_part(*schema, fields.path("schema")) : format_in(fields, "content", ends);
    fields.done();
    out.rest = rule(fmt::format("{} ({})", content, fmt::join(quoted(ends), " | ")));
    return out;
  }

  std::string format_in(Fields& fields, std::string_view name, const Texts& ends) {
    Fields inner(fields.required(name, "a format"), fields.path(name));
    return format(inner, ends);
  }
  std::string rule(std::string_view body) {
    rules_ += fmt::format("f{} ::= {}\n", next_, body);
    return fmt::format("f{}", next_++);
  }
  std::string rule(const Texts& parts, std::string_view between) {
    return rule(fmt::format("{}", fmt::join(parts, between)));
  }
  // The grammar that `make` makes of the field.
  template <class Make, class Value>
  std::string part(const Make& make, const Value& value, const std::string& path) {
    const std::string prefix = fmt::format("g{}_", next_++);
    rules_ += text::prefixed(grammar_of(make, value, path), prefix);
    if (rules_.size() > text::kMaxGrammarBytes)
      throw invalid_value(path, "want parts whose grammar takes at most {} bytes together", text::kMaxGrammarBytes);
    return prefix + "root";
  }

  std::string schema_part(const Json& schema, const std::string& path) {
    const auto make = [this](const Json& of, std::string_view where) {
      text::JsonGrammar made = text::json_schema_grammar(of, where);
      for (const std::string& pointer : made.widened)
        if (told_ != nullptr) told_->ignore(fmt::format("{}{}", where, pointer));
      return std::move(made.text);
    };
    return part(make, schema, path);
  }

  Leniency* told_;
  std::string rules_;
  size_t next_ = 0, formats_ = 0;
};

}  // namespace

std::string read_structural_tag(Fields& tag, Leniency* told) { return TagWriter(told).write(tag); }

}  // namespace nibble::server

#include "text/grammar_rules.h"

#include "base/ascii.h"
#include "text/json_grammar.h"

#include <algorithm>

namespace nibble::text {
namespace {

constexpr int kMaxIndentation = 48;

struct Alternative {
  size_t rule;
  GrammarRules::Rules needs;
};
// Whether each rule has an alternative whose needs are settled themselves, and so on.
std::vector<bool> settled_by(std::vector<Alternative> alternatives, size_t rules) {
  std::vector<GrammarRules::Rules> used_by(rules);
  std::vector<size_t> open;  // needs of each alternative
  std::vector<bool> settled(rules, false);
  GrammarRules::Rules order;
  const auto settle = [&](size_t rule) {
    if (!settled[rule]) order.push_back(rule);
    settled[rule] = true;
  };
  for (size_t i = 0; i < alternatives.size(); ++i) {
    for (const size_t target : alternatives[i].needs) used_by[target].push_back(i);
    open.push_back(alternatives[i].needs.size());
    if (open[i] == 0) settle(alternatives[i].rule);
  }
  for (size_t next = 0; next < order.size(); ++next)
    for (const size_t user : used_by[order[next]])
      if (--open[user] == 0) settle(alternatives[user].rule);
  return settled;
}

}  // namespace

std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7F)
      out += fmt::format("\\u{:04X}", byte);
    else
      out += c;
  }
  return out + "\"";
}

std::string shared_rules() {
  std::string out = fmt::format("ws ::= \" \"? | \"\\n\" [ \\t]{{0,{}}}\n", kMaxIndentation);
  // One regular expression per string: the compiler then knows for each of its states which tokens stay inside. No
  // look-ahead assertions: where a rule stands in one place only, xgrammar takes a necessary one as sufficient.
  out += fmt::format("string ::= Regex({})\n", literal(fmt::format("\"{}*\"", any_character_expression())));
  out += fmt::format("number ::= {}\n", any_number_expression());
  out += "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n";
  out += "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)* ws)? \"}\"\n";
  out += "array ::= \"[\" ws (value (\",\" ws value)* ws)? \"]\"\n";
  return out;
}

std::string repetition(int64_t least, std::optional<int64_t> most) {
  return most ? fmt::format("{{{},{}}}", least, *most) : fmt::format("{{{},}}", least);
}

std::string list_of(std::string_view item, int64_t least, std::optional<int64_t> most) {
  if (most && *most == 0) return "\"\"";
  const std::optional<int64_t> more = most ? std::optional(*most - 1) : std::nullopt;
  const std::string list =
      fmt::format("{} (\",\" ws {}){} ws", item, item, repetition(std::max<int64_t>(0, least - 1), more));
  return least == 0 ? fmt::format("({})?", list) : list;
}

std::string prefixed(std::string_view grammar, std::string_view prefix) {
  std::string out;
  char close = '\0';  // of the string, the class or the attributes that are open
  for (size_t at = 0; at < grammar.size();) {
    const size_t from = at++;
    const char c = grammar[from];
    if (close == '\0' && (is_letter(c) || c == '_')) {
      while (at < grammar.size() && is_word_char(grammar[at], "_-.")) ++at;
      if (grammar.substr(from, at - from) != "Regex") out += prefix;
    } else if (close == '\0') {
      close = c == '"' ? '"' : c == '[' ? ']' : '\0';
    } else if (c == '\\') {
      ++at;
    } else if (c == close) {
      close = '\0';
    }
    out += grammar.substr(from, at - from);
  }
  return out;
}

std::optional<std::string> GrammarRules::helper_of(std::string_view attributes, std::string_view body, int64_t cost) {
  std::string key = fmt::format("{} {}", attributes, body);
  if (const auto it = helper_of_body_.find(key); it != helper_of_body_.end()) return fmt::format("h{}", it->second);
  if (!spend(cost)) return std::nullopt;
  helper_of_body_[std::move(key)] = helpers_;
  std::string name = new_helper();
  emit(fmt::format("{}{}", name, attributes), body);
  return name;
}

void GrammarRules::emit(std::string_view name, std::string_view body) {
  text_ += fmt::format("{} ::= {}\n", name, body);
  if (++emitted_ * text_.size() > kMaxGrammarWork)
    document_.fail(document_.root(), "it has too many parts: compiling it would take too long");
  if (text_.size() > kMaxGrammarBytes)
    document_.fail(document_.root(),
                   fmt::format("it is too large: its grammar takes more than {} bytes", kMaxGrammarBytes));
}

size_t GrammarRules::rule_of(const SchemaSet& set) {
  const auto [it, is_new] = rule_of_set_.try_emplace(set.key(), rules_.size());
  if (is_new) rules_.push_back({.set = set, .needs = {}, .aliases = {}});
  return it->second;
}

bool GrammarRules::spend(int64_t cost) {
  if (cost_ + cost > kMaxCompileCost) return false;
  cost_ += cost;
  return true;
}

void GrammarRules::add_alias(size_t rule, size_t target) {
  rules_[rule].needs.push_back({target});
  rules_[rule].aliases.push_back(target);
}

void GrammarRules::expect_finite() const {
  std::vector<Alternative> aliases, all;
  for (size_t i = 0; i < rules_.size(); ++i) {
    aliases.push_back({i, rules_[i].aliases});
    for (const Rules& needs : rules_[i].needs) all.push_back({i, needs});
  }
  const auto expect = [this](std::vector<Alternative> alternatives, std::string_view otherwise) {
    const std::vector<bool> settled = settled_by(std::move(alternatives), rules_.size());
    const auto open = static_cast<size_t>(std::ranges::find(settled, false) - settled.begin());
    if (open < settled.size()) document_.fail(rules_[open].set.begin, otherwise);
  };
  expect(std::move(aliases), "it refers to itself with nothing in between");  // through alternatives alone
  expect(std::move(all), "no finite document satisfies it: it always contains itself");
}

}  // namespace nibble::text

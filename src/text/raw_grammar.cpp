#include "text/raw_grammar.h"

#include "text/grammar_rules.h"
#include "text/text_stream.h"

#include "base/ascii.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace nibble::text {
namespace {

constexpr size_t kMaxDefinitionBytes = size_t{64} << 10;
constexpr int kMaxNesting = 32;
constexpr int64_t kMaxRepetitions = 120;

// What Lark's library of common terminals says (lark/grammars/common.lark), as far as tools use it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kCommon = {
    {{"CR", "\\r"},
     {"LF", "\\n"},
     {"NEWLINE", "(\\r?\\n)+"},
     {"WS", "[ \\t\\f\\r\\n]+"},
     {"WS_INLINE", "[ \\t]+"},
     {"DIGIT", "[0-9]"},
     {"HEXDIGIT", "[0-9A-Fa-f]"},
     {"INT", "[0-9]+"},
     {"LCASE_LETTER", "[a-z]"},
     {"UCASE_LETTER", "[A-Z]"},
     {"LETTER", "[A-Za-z]"},
     {"WORD", "[A-Za-z]+"},
     {"CNAME", "[A-Za-z_][0-9A-Za-z_]*"}}};

struct Node {
  enum class Kind { kText, kRule, kSequence, kChoice, kRepeat } kind;
  std::string text{};  // kText: its expression; kRule: its name
  std::vector<Node> of{};
  int64_t least = 0;              // kRepeat
  std::optional<int64_t> most{};  // kRepeat; none: no limit
  int64_t cost = 1;
  bool can_be_empty = false;  // kText
};

class GrammarReader : TextReader {
 public:
  enum class Notation { kLark, kEbnf };
  GrammarReader(std::string_view definition, std::string_view where, Notation notation)
      : TextReader(definition), where_(where), lark_(notation == Notation::kLark) {}

  std::string write() {
    if (text_.size() > kMaxDefinitionBytes)
      fail(fmt::format("want at most {} bytes, found {}", kMaxDefinitionBytes, text_.size()));
    if (valid_utf8_prefix(text_) < text_.size() || text_.find('\0') != std::string_view::npos)
      fail("want UTF-8 without a zero byte");
    for (skip(true); !done(); skip(true))
      if (lark_ && take("%import"))
        import();
      else if (lark_ && peek() == '%')
        fail("of the lines that begin with %, only %import is supported");
      else
        rule();
    const char* const whole = lark_ ? "start" : "root";
    if (!rules_.contains(whole)) fail(fmt::format("want a rule called {}", whole));
    for (const auto& [of, from] : used_) {
      at_ = from;
      if (!rules_.contains(of)) fail(fmt::format("{} is not defined", of));
    }
    const Names finite = rules_that_take(Text::kFinite);
    for (const auto& [of, body] : rules_)
      if (!finite.contains(of)) fail(fmt::format("no finite text matches {}", of));
    expect_no_circle();
    std::string out = fmt::format("root ::= r_{}\n", whole);
    for (const auto& [regex, index] : terminals_) out += fmt::format("t{} ::= {}\n", index, regex);
    for (const auto& [of, body] : rules_) out += fmt::format("r_{} ::= {}\n", of, expression(body));
    return out;
  }

 private:
  [[nodiscard]] std::string place() const {
    const std::string_view before = text_.substr(0, at_);
    return fmt::format("{}: line {}", where_, std::count(before.begin(), before.end(), '\n') + 1);
  }
  [[noreturn]] void fail(std::string_view what) const { throw Error(Code::kInvalidRequest, "{}: {}", place(), what); }
  [[noreturn]] void fail_here() const {
    std::string found = done() ? "the end" : fmt::format("'{}'", text_.substr(at_, std::min<size_t>(1, text_.size())));
    fail(fmt::format("want a rule, a string, a {} or an operator of {}, found {}",
                     lark_ ? "regular expression" : "class of characters", lark_ ? "Lark" : "EBNF", found));
  }
  // Over spaces and comments; inside brackets and between rules also over line ends.
  void skip(bool lines) {
    while (!done())
      if (text_.substr(at_).starts_with(lark_ ? "//" : "#"))
        at_ = std::min(text_.find('\n', at_), text_.size());
      else if (peek() == ' ' || peek() == '\t' || ((lines || !lark_) && (peek() == '\n' || peek() == '\r')))
        ++at_;
      else
        return;
  }

  std::string name() {
    const size_t from = at_;
    while (is_word_char(peek(), "_") || (!lark_ && at_ > from && (peek() == '-' || peek() == '.'))) ++at_;
    if (at_ == from || is_digit(text_[from])) fail_here();
    return std::string(text_.substr(from, at_ - from));
  }

  // of EBNF: at `NAME ::=`, where no alternative goes on
  [[nodiscard]] bool at_rule() {
    const size_t from = at_;
    const bool is_name = is_word_char(peek(), "_") && !is_digit(peek());
    if (is_name) static_cast<void>(name());
    skip(true);
    const bool is_rule = is_name && take("::=");
    at_ = from;
    return is_rule;
  }

  int64_t number() {
    skip(false);
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0 || value > kMaxRepetitions)
      fail(fmt::format("want a number from 0 to {} after {}", kMaxRepetitions, lark_ ? "~" : "{"));
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  // What stands behind a \ in a string.
  void escaped(std::string& out) {
    constexpr std::string_view kNames = "nrtf\"\\/'[]", kMeans = "\n\r\t\f\"\\/'[]", kHex = "xuU";
    const size_t known = kNames.find(peek()), hex = kHex.find(peek());
    const std::string_view digits =
        text_.substr(std::min(++at_, text_.size()), hex < kHex.size() ? size_t{2} << hex : 0);
    if (known < kNames.size()) return out.push_back(kMeans[known]);
    uint32_t c = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), c, 16);
    if (hex == std::string_view::npos || end != digits.data() + (size_t{2} << hex) || c == 0 || c > 0x10FFFF ||
        (c >= 0xD800 && c < 0xE000))
      fail("want \\n, \\r, \\t, \\f, \\\", \\\\, or a character by \\x12, \\u1234 or \\U00012345 in a string");
    at_ += digits.size();
    append_character(out, c);
  }

  // A string in quotes, without them.
  std::string string() {
    if (!take("\"")) fail_here();
    std::string out;
    while (!take("\"")) {
      if (done() || peek() == '\n') fail("want a \" that closes the string");
      if (take("\\"))
        escaped(out);
      else
        out += text_[at_++];
    }
    if (lark_ && peek() == 'i') fail("strings without regard to case are not supported");
    return out;
  }

  void import() {
    skip(false);
    if (!take("common.")) fail("only %import common.NAME is supported");
    const std::string from = name();
    const auto* known = std::ranges::find(kCommon, from, &std::pair<std::string_view, std::string_view>::first);
    if (known == kCommon.end()) fail(fmt::format("common.{} is not supported", from));
    skip(false);
    std::string as = from;
    if (take("->")) {
      skip(false);
      as = name();
    }
    rules_.insert_or_assign(as, pattern(known->second));
  }

  void rule() {
    while (lark_ && (take("?") || take("!"))) {
    }
    const std::string of = name();
    if (lark_ && take(".")) static_cast<void>(number());  // a priority
    skip(false);
    if (lark_ && peek() == '{') fail("templates are not supported");
    if (!take(lark_ ? ":" : "::=")) fail_here();
    if (rules_.contains(of)) fail(fmt::format("{} is defined twice", of));
    Node body = choice(0);
    if (!done() && (lark_ ? peek() != '\n' : !at_rule())) fail_here();
    spend(cost_ += body.cost);
    rules_.emplace(of, std::move(body));
  }

  Node choice(int depth) {
    if (depth > kMaxNesting) fail(fmt::format("want at most {} nested groups", kMaxNesting));
    Node out{.kind = Node::Kind::kChoice};
    for (;;) {
      out.of.push_back(sequence(depth));
      out.cost += out.of.back().cost;
      const size_t before = at_;
      skip(true);  // the next alternative may stand in a line of its own
      if (take("|")) continue;
      if (depth == 0) at_ = before;
      return out;
    }
  }

  Node sequence(int depth) {
    Node out{.kind = Node::Kind::kSequence};
    for (;;) {
      skip(depth > 0);
      if (done() || std::string_view("|)]\n\r").find(peek()) != std::string_view::npos) {
        if (peek() == '\r') ++at_;
        return out;
      }
      if (!lark_ && at_rule()) return out;
      if (lark_ && take("->")) {
        skip(false);
        static_cast<void>(name());  // of a tree that nobody builds
        continue;
      }
      out.of.push_back(repeated(item(depth)));
      out.cost += out.of.back().cost;
    }
  }

  Node item(int depth) {
    for (const auto& [open, close] : {std::pair("(", ")"), std::pair("[", "]")}) {
      if ((!lark_ && open[0] == '[') || !take(open)) continue;
      Node inner = choice(depth + 1);
      if (!take(close)) fail(fmt::format("want {}", close));
      return open[0] == '[' ? repeat(std::move(inner), 0, 1) : std::move(inner);
    }
    if (peek() == (lark_ ? '/' : '[')) return regex(lark_ ? '/' : ']');
    if (!lark_ && take(".")) return pattern("[^]");
    if (peek() == '"') {
      const std::string first = string();
      skip(false);
      if (!lark_ || !take(".."))
        return {.kind = Node::Kind::kText, .text = literal(first), .can_be_empty = first.empty()};
      skip(false);
      const std::string last = string();
      size_t a = 0, b = 0;
      if (first.empty() || last.empty()) fail("want one character at each end of a range");
      const uint32_t from = next_character(first, a), to = next_character(last, b);
      if (a < first.size() || b < last.size() || from > to) fail("want one character at each end of a range");
      return pattern(fmt::format("[\\u{{{:X}}}-\\u{{{:X}}}]", from, to));
    }
    Node out{.kind = Node::Kind::kRule};
    const size_t from = at_;
    out.text = name();
    if (lark_ && peek() == '{') fail("templates are not supported");
    used_.emplace(out.text, from);
    return out;
  }

  Node repeated(Node node) {
    skip(false);
    const auto times = counts();
    if (!times) return node;
    Node out = repeat(std::move(node), times->first, times->second);
    spend(out.cost);
    return out;
  }

  Node pattern(std::string_view regex) {
    const RawPattern raw = raw_pattern(regex, place());
    const auto [it, is_new] = terminals_.emplace(raw.expression, terminals_.size());
    return {.kind = Node::Kind::kText,
            .text = fmt::format("t{}", it->second),
            .cost = is_new ? raw.cost : 1,
            .can_be_empty = raw.can_be_empty};
  }

  // Lark's /…/, or a class in EBNF
  Node regex(char close) {
    const size_t from = at_++;
    for (; peek() != close; at_ += peek() == '\\' ? 2 : 1)
      if (done() || peek() == '\n') fail(fmt::format("want a {} that closes the regular expression", close));
    ++at_;
    if (close == ']') return pattern(text_.substr(from, at_ - from));
    if (is_word_char(peek(), "_")) fail("flags of a regular expression are not supported");
    return pattern(text_.substr(from + 1, at_ - from - 2));
  }

  std::optional<std::pair<int64_t, std::optional<int64_t>>> counts() {
    using Counts = std::pair<int64_t, std::optional<int64_t>>;
    if (take("?")) return Counts(0, 1);
    if (take("*")) return Counts(0, std::nullopt);
    if (take("+")) return Counts(1, std::nullopt);
    if (!take(lark_ ? "~" : "{")) return std::nullopt;
    Counts out(number(), std::nullopt);
    skip(false);
    const bool is_range = take(lark_ ? ".." : ",");
    skip(false);
    if (!is_range)
      out.second = out.first;
    else if (lark_ || peek() != '}')
      out.second = number();
    skip(false);
    if (!lark_ && !take("}")) fail("want } after the numbers of a repetition");
    if (out.second && *out.second < out.first) fail("a repetition of at least n and at most m with n more than m");
    return out;
  }

  static Node repeat(Node node, int64_t least, std::optional<int64_t> most) {
    Node out{.kind = Node::Kind::kRepeat, .least = least, .most = most};
    out.cost = node.cost * std::max<int64_t>(1, most.value_or(least + 1));
    out.of.push_back(std::move(node));
    return out;
  }

  void spend(int64_t cost) const {
    if (cost > kMaxCompileCost) fail("the grammar is too large once its repetitions are written out");
  }
  using Names = std::set<std::string>;
  // Whether some finite text matches, or the empty one, if that is so for the rules that are `known`.
  enum class Text { kFinite, kEmpty };

  static bool takes(Text which, const Node& node, const Names& known) {
    const auto inner_takes = [&](const Node& inner) { return takes(which, inner, known); };
    switch (node.kind) {
      case Node::Kind::kText: return which == Text::kFinite || node.can_be_empty;
      case Node::Kind::kRule: return known.contains(node.text);
      case Node::Kind::kSequence: return std::ranges::all_of(node.of, inner_takes);
      case Node::Kind::kChoice: return std::ranges::any_of(node.of, inner_takes);
      case Node::Kind::kRepeat: return node.least == 0 || inner_takes(node.of[0]);
    }
    return false;
  }

  [[nodiscard]] Names rules_that_take(Text which) const {
    Names known;
    for (size_t before = rules_.size() + 1; before != known.size();) {
      before = known.size();
      for (const auto& [of, body] : rules_)
        if (takes(which, body, known)) known.insert(of);
    }
    return known;
  }

  // The rules that may be all that the node stands for; those of `empty` may be nothing.
  static void add_alone(const Node& node, const Names& empty, Names& out) {
    if (node.kind == Node::Kind::kRule) out.insert(node.text);
    const auto must_stand = [&](const Node& inner) { return !takes(Text::kEmpty, inner, empty); };
    const bool all = node.kind == Node::Kind::kSequence, again = node.kind == Node::Kind::kRepeat && node.least > 1;
    const auto standing = all ? std::ranges::count_if(node.of, must_stand) : again && must_stand(node.of[0]) ? 2 : 0;
    for (const Node& inner : node.of)
      if (standing == 0 || (standing == 1 && must_stand(inner))) add_alone(inner, empty, out);
  }

  // A rule that may be itself alone matches each text in endless ways, which the engine would follow for every token.
  void expect_no_circle() const {
    const Names empty = rules_that_take(Text::kEmpty);
    std::map<std::string, Names> alone;  // of the rules that may be on a circle, or lead to one
    for (const auto& [of, body] : rules_) add_alone(body, empty, alone[of]);
    const auto is_open = [&](const std::string& name) { return alone.contains(name); };
    while (std::erase_if(alone, [&](const auto& rule) { return std::ranges::none_of(rule.second, is_open); }) > 0) {
    }
    if (alone.empty()) return;
    std::string name = alone.begin()->first;
    for (size_t i = 0; i < alone.size(); ++i) name = *std::ranges::find_if(alone[name], is_open);
    fail(fmt::format("{} may stand for itself with nothing beside it", name));
  }

  [[nodiscard]] std::string expression(const Node& node) const {
    if (node.kind == Node::Kind::kText) return node.text;
    if (node.kind == Node::Kind::kRule) return "r_" + node.text;
    if (node.kind == Node::Kind::kRepeat)
      return node.most == 0 ? "\"\"" : fmt::format("({}){}", expression(node.of[0]), repetition(node.least, node.most));
    if (node.of.empty()) return "\"\"";
    std::vector<std::string> parts;
    for (const Node& inner : node.of) parts.push_back(expression(inner));
    return fmt::format("({})", fmt::join(parts, node.kind == Node::Kind::kChoice ? " | " : " "));
  }

  std::string_view where_;
  bool lark_;
  int64_t cost_ = 0;
  std::map<std::string, Node> rules_;
  std::map<std::string, size_t> used_;       // names of rules, and where one is first used
  std::map<std::string, size_t> terminals_;  // regular expressions, each a rule of its own
};

}  // namespace

std::string lark_grammar(std::string_view definition, std::string_view where) {
  return GrammarReader(definition, where, GrammarReader::Notation::kLark).write();
}

std::string ebnf_grammar(std::string_view definition, std::string_view where) {
  return GrammarReader(definition, where, GrammarReader::Notation::kEbnf).write();
}

std::string raw_grammar(std::string_view definition, std::string_view where) {
  for (size_t from = 0; from < definition.size();) {
    const std::string_view line = definition.substr(from, definition.find('\n', from) - from);
    const size_t first = line.find_first_not_of(" \t\r"), colon = line.find(':');
    from += line.size() + 1;
    if (colon == std::string_view::npos || std::string_view("#/%").find(line[first]) != std::string_view::npos)
      continue;
    return line.substr(colon).starts_with("::=") ? ebnf_grammar(definition, where) : lark_grammar(definition, where);
  }
  throw Error(Code::kInvalidRequest,
              "{}: want a grammar of Lark (start: \"a\") or of EBNF or GBNF (root ::= \"a\"), found no rule", where);
}

std::string regex_grammar(std::string_view pattern, std::string_view where) {
  return fmt::format("root ::= {}\n", raw_pattern(pattern, where).expression);
}

std::string choice_grammar(const std::vector<std::string>& texts, std::string_view where) {
  std::vector<std::string> choices;
  size_t bytes = 0;
  for (const std::string& text : texts) {
    if (text.find('\0') != std::string::npos)
      throw Error(Code::kInvalidRequest, "{}: want texts without a zero byte", where);
    choices.push_back(literal(text));
    bytes += text.size();
  }
  if (texts.empty() || bytes > kMaxDefinitionBytes)
    throw Error(Code::kInvalidRequest, "{}: want at least one text and at most {} bytes together, found {} and {}",
                where, kMaxDefinitionBytes, texts.size(), bytes);
  return fmt::format("root ::= {}\n", fmt::join(choices, " | "));
}

}  // namespace nibble::text

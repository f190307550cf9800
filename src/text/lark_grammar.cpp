#include "text/lark_grammar.h"

#include "text/grammar_rules.h"
#include "text/text_stream.h"

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

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

struct Node {
  enum class Kind { kText, kRule, kSequence, kChoice, kRepeat } kind;
  std::string text{};  // kText: its expression; kRule: its name
  std::vector<Node> of{};
  int64_t least = 0;              // kRepeat
  std::optional<int64_t> most{};  // kRepeat; none: no limit
  int64_t cost = 1;
};

class LarkReader : TextReader {
 public:
  LarkReader(std::string_view definition, std::string_view where) : TextReader(definition), where_(where) {}
  std::string write();

 private:
  [[nodiscard]] std::string place() const {
    const std::string_view before = text_.substr(0, at_);
    return fmt::format("{}: line {}", where_, std::count(before.begin(), before.end(), '\n') + 1);
  }
  [[noreturn]] void fail(std::string_view what) const { throw Error(Code::kInvalidRequest, "{}: {}", place(), what); }
  [[noreturn]] void fail_here() const {
    std::string found = done() ? "the end" : fmt::format("'{}'", text_.substr(at_, std::min<size_t>(1, text_.size())));
    fail(fmt::format("want a rule, a string, a regular expression or an operator of Lark, found {}", found));
  }
  // Over spaces and comments; inside brackets and between rules also over line ends.
  void skip(bool lines);
  std::string name();
  int64_t number();
  std::string string();
  void import();
  void rule();
  Node choice(int depth);
  Node sequence(int depth);
  Node item(int depth);
  Node repeated(Node node);
  Node pattern(std::string_view regex);
  Node regex();
  static Node repeat(Node node, int64_t least, std::optional<int64_t> most);
  void spend(int64_t cost) const {
    if (cost > kMaxCompileCost) fail("the grammar is too large once its repetitions are written out");
  }
  // Whether some finite text matches, by the rules of which that is known.
  [[nodiscard]] bool can_end(const Node& node) const;
  [[nodiscard]] std::string expression(const Node& node) const;

  std::string_view where_;
  int64_t cost_ = 0;
  std::map<std::string, Node> rules_;
  std::map<std::string, size_t> used_;       // names of rules, and where one is first used
  std::map<std::string, size_t> terminals_;  // regular expressions, each a rule of its own
  std::set<std::string> ending_;
};

void LarkReader::skip(bool lines) {
  while (!done()) {
    if (text_.substr(at_).starts_with("//"))
      at_ = std::min(text_.find('\n', at_), text_.size());
    else if (peek() == ' ' || peek() == '\t' || (lines && (peek() == '\n' || peek() == '\r')))
      ++at_;
    else
      return;
  }
}

std::string LarkReader::name() {
  const size_t from = at_;
  while (is_word_char(peek())) ++at_;
  if (at_ == from || (text_[from] >= '0' && text_[from] <= '9')) fail_here();
  return std::string(text_.substr(from, at_ - from));
}

int64_t LarkReader::number() {
  skip(false);
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (error != std::errc() || value < 0 || value > kMaxRepetitions)
    fail(fmt::format("want a number from 0 to {} after ~", kMaxRepetitions));
  at_ = static_cast<size_t>(end - text_.data());
  return value;
}

// A string in quotes, without them.
std::string LarkReader::string() {
  if (!take("\"")) fail_here();
  std::string out;
  for (;;) {
    if (done() || peek() == '\n') fail("want a \" that closes the string");
    if (take("\"")) break;
    const char c = text_[at_++];
    if (c != '\\') {
      out += c;
      continue;
    }
    constexpr std::string_view kNames = "nrtf\"\\/", kMeans = "\n\r\t\f\"\\/";
    const size_t known = kNames.find(peek());
    if (done() || known == std::string_view::npos) fail("want \\n, \\r, \\t, \\f, \\\" or \\\\ in a string");
    out += kMeans[known];
    ++at_;
  }
  if (peek() == 'i') fail("strings without regard to case are not supported");
  return out;
}

void LarkReader::import() {
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

void LarkReader::rule() {
  while (take("?") || take("!")) {
  }
  const std::string of = name();
  if (take(".")) static_cast<void>(number());  // a priority
  skip(false);
  if (peek() == '{') fail("templates are not supported");
  if (!take(":")) fail_here();
  if (rules_.contains(of)) fail(fmt::format("{} is defined twice", of));
  Node body = choice(0);
  if (!done() && peek() != '\n') fail_here();
  spend(cost_ += body.cost);
  rules_.emplace(of, std::move(body));
}

Node LarkReader::choice(int depth) {
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

Node LarkReader::sequence(int depth) {
  Node out{.kind = Node::Kind::kSequence};
  for (;;) {
    skip(depth > 0);
    if (done() || std::string_view("|)]\n\r").find(peek()) != std::string_view::npos) {
      if (peek() == '\r') ++at_;
      return out;
    }
    if (take("->")) {
      skip(false);
      static_cast<void>(name());  // of a tree that nobody builds
      continue;
    }
    out.of.push_back(repeated(item(depth)));
    out.cost += out.of.back().cost;
  }
}

Node LarkReader::item(int depth) {
  for (const auto& [open, close] : {std::pair("(", ")"), std::pair("[", "]")}) {
    if (!take(open)) continue;
    Node inner = choice(depth + 1);
    if (!take(close)) fail(fmt::format("want {}", close));
    return open[0] == '[' ? repeat(std::move(inner), 0, 1) : std::move(inner);
  }
  if (peek() == '/') return regex();
  if (peek() == '"') {
    const std::string first = string();
    skip(false);
    if (!take("..")) return {.kind = Node::Kind::kText, .text = literal(first)};
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
  if (peek() == '{') fail("templates are not supported");
  used_.emplace(out.text, from);
  return out;
}

Node LarkReader::repeat(Node node, int64_t least, std::optional<int64_t> most) {
  Node out{.kind = Node::Kind::kRepeat, .least = least, .most = most};
  out.cost = node.cost * std::max<int64_t>(1, most.value_or(least + 1));
  out.of.push_back(std::move(node));
  return out;
}

Node LarkReader::repeated(Node node) {
  skip(false);
  if (take("?")) return repeat(std::move(node), 0, 1);
  if (take("*")) return repeat(std::move(node), 0, std::nullopt);
  if (take("+")) return repeat(std::move(node), 1, std::nullopt);
  if (!take("~")) return node;
  const int64_t least = number();
  const int64_t most = take("..") ? number() : least;
  if (most < least) fail("~n..m with n more than m");
  Node out = repeat(std::move(node), least, most);
  spend(out.cost);
  return out;
}

Node LarkReader::pattern(std::string_view regex) {
  const RawPattern raw = raw_pattern(regex, place());
  const auto [it, is_new] = terminals_.emplace(raw.expression, terminals_.size());
  return {.kind = Node::Kind::kText, .text = fmt::format("t{}", it->second), .cost = is_new ? raw.cost : 1};
}

Node LarkReader::regex() {
  const size_t from = ++at_;
  for (; peek() != '/'; at_ += peek() == '\\' ? 2 : 1)
    if (done() || peek() == '\n') fail("want a / that closes the regular expression");
  const std::string_view inside = text_.substr(from, at_ - from);
  ++at_;
  if (is_word_char(peek())) fail("flags of a regular expression are not supported");
  return pattern(inside);
}

bool LarkReader::can_end(const Node& node) const {
  const auto ends = [this](const Node& inner) { return can_end(inner); };
  switch (node.kind) {
    case Node::Kind::kText: return true;
    case Node::Kind::kRule: return ending_.contains(node.text);
    case Node::Kind::kSequence: return std::ranges::all_of(node.of, ends);
    case Node::Kind::kChoice: return std::ranges::any_of(node.of, ends);
    case Node::Kind::kRepeat: return node.least == 0 || can_end(node.of[0]);
  }
  return false;
}

std::string LarkReader::expression(const Node& node) const {
  if (node.kind == Node::Kind::kText) return node.text;
  if (node.kind == Node::Kind::kRule) return "r_" + node.text;
  if (node.kind == Node::Kind::kRepeat)
    return node.most == 0 ? "\"\"" : fmt::format("({}){}", expression(node.of[0]), repetition(node.least, node.most));
  if (node.of.empty()) return "\"\"";
  std::vector<std::string> parts;
  for (const Node& inner : node.of) parts.push_back(expression(inner));
  return fmt::format("({})", fmt::join(parts, node.kind == Node::Kind::kChoice ? " | " : " "));
}

std::string LarkReader::write() {
  if (text_.size() > kMaxDefinitionBytes)
    fail(fmt::format("want at most {} bytes, found {}", kMaxDefinitionBytes, text_.size()));
  if (valid_utf8_prefix(text_) < text_.size() || text_.find('\0') != std::string_view::npos)
    fail("want UTF-8 without a zero byte");
  for (skip(true); !done(); skip(true)) {
    if (take("%import"))
      import();
    else if (peek() == '%')
      fail("of the lines that begin with %, only %import is supported");
    else
      rule();
  }
  if (!rules_.contains("start")) fail("want a rule called start");
  for (const auto& [of, from] : used_) {
    at_ = from;
    if (!rules_.contains(of)) fail(fmt::format("{} is not defined", of));
  }
  for (size_t known = rules_.size() + 1; known != ending_.size();) {
    known = ending_.size();
    for (const auto& [of, body] : rules_)
      if (can_end(body)) ending_.insert(of);
  }
  for (const auto& [of, body] : rules_)
    if (!ending_.contains(of)) fail(fmt::format("no finite text matches {}", of));
  std::string out = "root ::= r_start\n";
  for (const auto& [regex, index] : terminals_) out += fmt::format("t{} ::= {}\n", index, regex);
  for (const auto& [of, body] : rules_) out += fmt::format("r_{} ::= {}\n", of, expression(body));
  return out;
}

}  // namespace

std::string lark_grammar(std::string_view definition, std::string_view where) {
  return LarkReader(definition, where).write();
}

std::string regex_grammar(std::string_view pattern, std::string_view where) {
  return fmt::format("root ::= {}\n", raw_pattern(pattern, where).expression);
}

}  // namespace nibble::text

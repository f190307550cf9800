#include "text/raw_grammar.h"

#include "text/grammar.h"
#include "base/error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace nibble::text {
namespace {

class RawGrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer = std::make_unique<Tokenizer>(
        Tokenizer::from_file(std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny/"
                                                                        "tokenizer.json"));
    compiler = std::make_unique<GrammarCompiler>(*tokenizer);
  }
  static void TearDownTestSuite() {
    compiler.reset();
    tokenizer.reset();
  }
  static Grammar compiled(const std::string& grammar) {
    return compiler->content({.kind = ContentRule::Kind::kGrammar, .grammar = grammar, .where = "test"}, {end()});
  }
  static int32_t end() { return *tokenizer->special_id("<|return|>"); }
  // Whether every token of the text may come when its turn is, and then the end.
  static bool takes(const Grammar& grammar, std::string_view text) {
    GrammarMatcher matcher = grammar.matcher();
    std::vector<uint32_t> mask(static_cast<size_t>(tokenizer->max_id()) / 32 + 1);
    std::vector<int32_t> tokens = tokenizer->encode(text);
    tokens.push_back(end());
    for (const int32_t token : tokens) {
      matcher.fill(mask);
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0 || !matcher.accept(token)) return false;
    }
    return matcher.finished();
  }
  static bool lark_takes(std::string_view definition, std::string_view text) {
    return takes(compiled(lark_grammar(definition, "test")), text);
  }
  static std::string refusal(std::string_view definition) {
    try {
      static_cast<void>(compiled(lark_grammar(definition, "test")));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kInvalidRequest);
      return e.what();
    }
    return "none";
  }

  static std::unique_ptr<Tokenizer> tokenizer;
  static std::unique_ptr<GrammarCompiler> compiler;
};
std::unique_ptr<Tokenizer> RawGrammarTest::tokenizer;
std::unique_ptr<GrammarCompiler> RawGrammarTest::compiler;

// Constructs as agents send them.
constexpr std::string_view kPatch = R"(start: begin part+ fin
begin: "** open **" LF
fin: "** close **" LF?

part: add | drop | edit
add: "add " name LF added+
drop: "drop " name LF
edit: "edit " name LF moved? change?
name: /(.+)/
added: "+" /(.*)/ LF -> line
moved: "to " name LF
change: (mark | line)+ last?
mark: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF
last: "** last **" LF

%import common.LF
)";

TEST_F(RawGrammarTest, a_patch_language_takes_patches_and_nothing_else) {
  const Grammar grammar = compiled(lark_grammar(kPatch, "test"));
  for (const std::string_view good :
       {"** open **\nadd a.txt\n+x\n+\n** close **\n", "** open **\ndrop a b/ü.txt\n** close **",
        "** open **\nedit f\nto g\n@@ x\n-old\n+new\n kept\n** last **\ndrop h\n** close **\n",
        "** open **\nedit f\n** close **"})
    EXPECT_TRUE(takes(grammar, good)) << good;
  for (const std::string_view bad :
       {"", "** open **\n** close **\n", "** open **\nadd a.txt\n** close **\n", "** open **\nadd \n+x\n** close **\n",
        "{\"input\": \"x\"}", "** open **\nadd a\n+x\n** close **\n\n", "** open **\nadd a\nx\n** close **\n"})
    EXPECT_FALSE(takes(grammar, bad)) << bad;
}

// A reader of the patch language of its own, line by line.
bool is_patch(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos && text != "** close **") return false;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (lines.size() < 3 || lines.front() != "** open **" || lines.back() != "** close **") return false;
  lines.pop_back();
  const auto starts = [&](size_t i, std::string_view with) { return i < lines.size() && lines[i].starts_with(with); };
  const auto names = [&](size_t i, std::string_view with) { return starts(i, with) && lines[i].size() > with.size(); };
  for (size_t i = 1; i < lines.size();) {
    if (names(i, "drop ")) {
      ++i;
    } else if (names(i, "add ") && starts(i + 1, "+")) {
      for (++i; starts(i, "+");) ++i;
    } else if (names(i, "edit ")) {
      if (names(++i, "to ")) ++i;
      const size_t first = i;
      while (starts(i, "+") || starts(i, "-") || starts(i, " ") || (starts(i, "@@") && lines[i] == "@@") ||
             names(i, "@@ "))
        ++i;
      if (i > first && starts(i, "** last **") && lines[i] == "** last **") ++i;
    } else {
      return false;
    }
  }
  return true;
}

TEST_F(RawGrammarTest, whatever_is_drawn_under_the_grammar_is_a_patch) {
  const Grammar grammar = compiled(lark_grammar(kPatch, "test"));
  std::mt19937 random(42);
  int whole = 0;
  for (int i = 0; i < 100; ++i) {
    GrammarMatcher matcher = grammar.matcher();
    std::vector<uint32_t> mask(static_cast<size_t>(tokenizer->max_id()) / 32 + 1);
    std::string text;
    for (int step = 0; step < 300 && !matcher.finished(); ++step) {
      matcher.fill(mask);
      std::vector<int32_t> ends, all;
      for (int32_t token = 0; token <= tokenizer->max_id(); ++token) {
        if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
        all.push_back(token);
        if (token == end() || tokenizer->token_bytes(token) == "\n") ends.push_back(token);
      }
      const std::vector<int32_t>& among = !ends.empty() && random() % 3 != 0 ? ends : all;
      const int32_t token = among[random() % among.size()];
      ASSERT_TRUE(matcher.accept(token));
      if (token != end()) text += tokenizer->token_bytes(token);
    }
    if (!matcher.finished()) continue;
    ++whole;
    EXPECT_TRUE(is_patch(text)) << text;
  }
  EXPECT_GT(whole, 10);
}

TEST_F(RawGrammarTest, terminals_ranges_counts_and_imports_mean_what_lark_says) {
  EXPECT_TRUE(
      lark_takes("start: noted | plain\nnoted: NOTE NEWLINE BODY\nplain: BODY\n\nNOTE: /[ \\t]*# note:[^\\r\\n]*/\n"
                 "NEWLINE: /\\r?\\n/\nBODY: /[\\s\\S]+/\n",
                 "# note: x\r\nprint('é')\n\n"));
  constexpr std::string_view kSeveral =
      "?start.2: (\"a\"..\"c\")~2..3 [INT] // a comment\n   | \"\\\"\\n\"\n"
      "%import common.INT\n%import common.WORD -> W\n";
  for (const char* good : {"ab", "abc", "cc42", "\"\n"}) EXPECT_TRUE(lark_takes(kSeveral, good)) << good;
  for (const char* bad : {"a", "abca", "ad", "42", "\""}) EXPECT_FALSE(lark_takes(kSeveral, bad)) << bad;
  EXPECT_TRUE(lark_takes("start: start \"a\" |", "aaa"));  // left recursion, and nothing
  EXPECT_TRUE(lark_takes("start: start \"a\" |", ""));
}

TEST_F(RawGrammarTest, what_is_not_served_is_named_with_its_line) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", "want a rule called start"},
      {"start: x", "line 1: x is not defined"},
      {"start: \"a\"\nb: start b", "no finite text matches b"},
      {"start: \"a\"\nstart: \"b\"", "line 2: start is defined twice"},
      {"start: \"a\"i", "without regard to case"},
      {"start: /a/s", "flags"},
      {"start: /(?=a)/", "look-around"},
      {"start: \"a\"\n%ignore \" \"", "line 2: of the lines that begin with %"},
      {"%import common.SQL_COMMENT\nstart: \"a\"", "line 1: common.SQL_COMMENT is not supported"},
      {"start: x{\"a\"}\nx{y}: y", "templates"},
      {"start: \"a", "closes the string"},
      {"start: /a", "closes the regular expression"},
      {"start: (\"a\"", "want )"},
      {"start: \"a\"~200", "from 0 to 120"},
      {"start: ((((/[a-z]/~100)~100)~100)~100)", "too large"},
      {"start: \"\\q\"", "in a string"},
      {"start \"a\"", "found '\"'"},
      {"start: \"a\" )", "found ')'"},
      {"start: \"bc\"..\"d\"", "one character"},
  };
  for (const auto& [definition, words] : cases)
    EXPECT_NE(refusal(definition).find(words), std::string::npos) << definition << ": " << refusal(definition);
  EXPECT_NE(refusal(std::string(70'000, ' ')).find("65536 bytes"), std::string::npos);
  EXPECT_NE(refusal("start: " + std::string(1000, '(')).find("nested"), std::string::npos);
}

// An expression over a, b and line ends, and a matcher of its own: the places that a match from a place may end at.
struct Random {
  enum class Kind { kLetters, kSequence, kChoice, kRepeat, kRule } kind = Kind::kLetters;
  std::string letters{};
  std::vector<Random> of{};
  int least = 0, most = 0;  // most -1: no limit
  size_t rule = 0;
};
using Ends = std::set<size_t>;

class Matcher {
 public:
  Matcher(const std::vector<Random>& rules, std::string_view text) : rules_(rules), text_(text) {}
  Ends ends(const Random& of, size_t from) {
    switch (of.kind) {
      case Random::Kind::kLetters:
        return from < text_.size() && of.letters.find(text_[from]) != std::string::npos ? Ends{from + 1} : Ends{};
      case Random::Kind::kRule: return ends(rules_[of.rule], from);  // rules only name later ones
      case Random::Kind::kSequence: {
        Ends at{from};
        for (const Random& part : of.of) at = after(part, at);
        return at;
      }
      case Random::Kind::kChoice: {
        Ends all;
        for (const Random& part : of.of) all.merge(ends(part, from));
        return all;
      }
      case Random::Kind::kRepeat: {
        Ends at{from};
        for (int i = 0; i < of.least; ++i) at = after(of.of[0], at);
        Ends all = at;
        for (int i = of.least; (of.most < 0 && i < of.least + 40) || i < of.most; ++i) {
          at = after(of.of[0], at);
          all.insert(at.begin(), at.end());
        }
        return all;
      }
    }
    return {};
  }
  bool matches(const Random& of) { return ends(of, 0).contains(text_.size()); }

 private:
  Ends after(const Random& of, const Ends& places) {
    Ends all;
    for (const size_t place : places) all.merge(ends(of, place));
    return all;
  }
  const std::vector<Random>& rules_;
  std::string_view text_;
};

Random random_expression(std::mt19937& random, int depth, size_t rule, size_t rules) {
  const auto draw = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  if (rule + 1 < rules && draw(4) == 0)
    return {.kind = Random::Kind::kRule,
            .rule = rule + 1 + static_cast<size_t>(draw(static_cast<int>(rules - rule - 1)))};
  if (depth == 0 || draw(3) == 0) {
    constexpr const char* kLetters[] = {"a", "b", "\n", "ab", "a\n", "ab\n"};
    return {.letters = kLetters[draw(6)]};
  }
  Random out{.kind = static_cast<Random::Kind>(1 + draw(3))};
  const int parts = out.kind == Random::Kind::kRepeat ? 1 : 1 + draw(3);
  for (int i = 0; i < parts; ++i) out.of.push_back(random_expression(random, depth - 1, rule, rules));
  out.least = draw(3);
  out.most = draw(2) == 0 ? -1 : out.least + draw(3);
  return out;
}

std::string counts_of(const Random& of) {
  if (of.most < 0 && of.least < 2) return of.least == 0 ? "*" : "+";
  return of.most < 0 ? fmt::format("{{{},}}", of.least) : fmt::format("{{{},{}}}", of.least, of.most);
}

std::string regex_of(const Random& of) {
  std::string out;
  switch (of.kind) {
    case Random::Kind::kLetters:
      for (const char c : of.letters) out += c == '\n' ? "\\n" : std::string(1, c);
      return of.letters == "ab" ? "." : of.letters.size() > 1 ? "[" + out + "]" : out;
    case Random::Kind::kRepeat: return fmt::format("({}){}", regex_of(of.of[0]), counts_of(of));
    case Random::Kind::kRule: return "";
    default: break;
  }
  for (size_t i = 0; i < of.of.size(); ++i)
    out += (i > 0 && of.kind == Random::Kind::kChoice ? "|" : "") + regex_of(of.of[i]);
  return "(" + out + ")";
}

std::string lark_of(const Random& of) {
  std::string out;
  switch (of.kind) {
    case Random::Kind::kLetters:
      if (of.letters.size() > 1) return "/" + regex_of(of) + "/";
      return of.letters == "\n" ? "\"\\n\"" : "\"" + of.letters + "\"";
    case Random::Kind::kRepeat:
      if (of.most < 0)
        return fmt::format("({}){}", lark_of(of.of[0]),
                           of.least == 0   ? "*"
                           : of.least == 1 ? "+"
                                           : fmt::format("~{0} ({1})*", of.least, lark_of(of.of[0])));
      return fmt::format("({})~{}..{}", lark_of(of.of[0]), of.least, of.most);
    case Random::Kind::kRule: return fmt::format("rule{}", of.rule);
    default: break;
  }
  for (size_t i = 0; i < of.of.size(); ++i)
    out += (i > 0 ? of.kind == Random::Kind::kChoice ? " | " : " " : "") + lark_of(of.of[i]);
  return "(" + out + ")";
}

TEST_F(RawGrammarTest, random_expressions_take_what_a_plain_matcher_takes) {
  std::mt19937 random(20261129);
  int taken = 0;
  for (int i = 0; i < 600; ++i) {
    const bool is_regex = i % 3 != 0;
    std::vector<Random> rules;
    const size_t count = is_regex ? 1 : 3;
    for (size_t r = 0; r < count; ++r) rules.push_back(random_expression(random, 3, r, count));
    std::string definition;
    for (size_t r = 0; r < count; ++r)
      definition += fmt::format("{}: {}\n", r == 0 ? "start" : fmt::format("rule{}", r), lark_of(rules[r]));
    const std::string regex = regex_of(rules[0]);
    const Grammar grammar = compiled(is_regex ? regex_grammar(regex, "test") : lark_grammar(definition, "test"));
    for (int j = 0; j < 12; ++j) {
      std::string text;
      for (int n = static_cast<int>(random() % 7); n > 0; --n) text += "ab\n"[random() % 3];
      const bool wanted = Matcher(rules, text).matches(rules[0]);
      taken += wanted ? 1 : 0;
      EXPECT_EQ(takes(grammar, text), wanted) << (is_regex ? regex : definition) << "\n"
                                              << ::testing::PrintToString(text);
    }
  }
  EXPECT_GT(taken, 300);
}

TEST_F(RawGrammarTest, a_regex_takes_whole_texts) {
  const Grammar grammar = compiled(regex_grammar(R"(^(?P<month>Jan|Feb) \d{1,2}$)", "test"));
  EXPECT_TRUE(takes(grammar, "Feb 7"));
  EXPECT_FALSE(takes(grammar, "Feb 7!"));
  EXPECT_FALSE(takes(grammar, "on Feb 7"));
}

}  // namespace
}  // namespace nibble::text

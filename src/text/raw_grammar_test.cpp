#include "text/raw_grammar.h"

#include "text/grammar.h"
#include "base/error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
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
      static_cast<void>(compiled(definition.find("::=") == std::string_view::npos ? lark_grammar(definition, "test")
                                                                                  : ebnf_grammar(definition, "test")));
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
  EXPECT_TRUE(lark_takes("start: start start | \"a\"", "aaa"));  // in many ways, but not in endless ones
}

TEST_F(RawGrammarTest, what_is_not_served_is_named_with_its_line) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", "want a rule called start"},
      {"start: x", "line 1: x is not defined"},
      {"start: \"a\"\nb: start b", "no finite text matches b"},
      {"start: b?\nb: \"\" c [start] /a*/\nc: b | \"x\"", "may stand for itself"},
      {"start: start*", "start may stand for itself"},
      {"start: start~2 | /a?/", "start may stand for itself"},
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

// An expression over a, b, 1 and line ends, and a matcher of its own: the places that a match from a place may end at.
// What rules match grows until it is all there, so that rules may name each other, and themselves.
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
  Matcher(const std::vector<Random>& rules, std::string_view text)
      : rules_(rules), text_(text), known_(rules.size(), std::vector<Ends>(text.size() + 1)) {
    for (bool grows = true; std::exchange(grows, false);)
      for (size_t rule = 0; rule < rules.size(); ++rule)
        for (size_t from = 0; from <= text.size(); ++from) {
          Ends now = ends(rules[rule], from);
          grows |= now != known_[rule][from];
          known_[rule][from] = std::move(now);
        }
  }
  Ends ends(const Random& of, size_t from) {
    switch (of.kind) {
      case Random::Kind::kLetters:
        return from < text_.size() && of.letters.find(text_[from]) != std::string::npos ? Ends{from + 1} : Ends{};
      case Random::Kind::kRule: return known_[of.rule][from];
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
  bool matches() { return known_[0][0].contains(text_.size()); }

 private:
  Ends after(const Random& of, const Ends& places) {
    Ends all;
    for (const size_t place : places) all.merge(ends(of, place));
    return all;
  }
  const std::vector<Random>& rules_;
  std::string_view text_;
  std::vector<std::vector<Ends>> known_;  // of each rule and place
};

Random random_expression(std::mt19937& random, int depth, size_t rules) {
  const auto draw = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  if (rules > 1 && draw(4) == 0)
    return {.kind = Random::Kind::kRule, .rule = static_cast<size_t>(draw(static_cast<int>(rules)))};
  if (depth == 0 || draw(3) == 0) {
    constexpr const char* kLetters[] = {"a", "b", "\n", "1", "ab", "a\n", "ab1", "b\n1", "a1", "ab\n1"};
    return {.letters = kLetters[draw(10)]};
  }
  Random out{.kind = static_cast<Random::Kind>(1 + draw(3))};
  const int parts = out.kind == Random::Kind::kRepeat ? 1 : 1 + draw(3);
  for (int i = 0; i < parts; ++i) out.of.push_back(random_expression(random, depth - 1, rules));
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
      for (const char c : of.letters) out += c == '\n' ? "\\n" : c == '1' ? "\\d" : std::string(1, c);
      if (of.letters == "ab1") return ".";
      if (of.letters == "b\n1") return "[^a]";
      return of.letters == "ab\n1" ? "[\\s\\S]" : of.letters.size() > 1 ? "[" + out + "]" : out;
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
    case Random::Kind::kRule: return of.rule == 0 ? "start" : fmt::format("rule{}", of.rule);
    default: break;
  }
  for (size_t i = 0; i < of.of.size(); ++i)
    out += (i > 0 ? of.kind == Random::Kind::kChoice ? " | " : " " : "") + lark_of(of.of[i]);
  return "(" + out + ")";
}

// EBNF as xgrammar's users write it (lines that go on), or GBNF as llama.cpp's do (dashes, escapes by number, `.`).
enum class Ebnf { kXgrammar, kLlama };

std::string ebnf_name(size_t rule, Ebnf as) {
  return rule == 0 ? "root" : fmt::format("rule{}{}", as == Ebnf::kLlama ? "-" : "_", rule);
}

std::string ebnf_of(const Random& of, Ebnf as) {
  const bool llama = as == Ebnf::kLlama;
  std::string out;
  switch (of.kind) {
    case Random::Kind::kLetters:
      if (of.letters == "ab\n1") return llama ? "." : "[^c-\\U0010FFFF]";
      if (of.letters == "ab1") return "[^\\n]";
      if (of.letters == "b\n1") return "[^a]";
      for (const char c : of.letters) out += c == '\n' ? "\\n" : llama && c == 'a' ? "\\x61" : std::string(1, c);
      return of.letters.size() > 1 ? "[" + out + "]" : '"' + out + '"';
    case Random::Kind::kRepeat: return fmt::format("({}){}", ebnf_of(of.of[0], as), counts_of(of));
    case Random::Kind::kRule: return ebnf_name(of.rule, as);
    default: break;
  }
  const std::string_view between = of.kind == Random::Kind::kSequence ? " " : llama ? "|" : "\n  | ";
  for (size_t i = 0; i < of.of.size(); ++i) out += std::string(i > 0 ? between : "") + ebnf_of(of.of[i], as);
  return "(" + out + ")";
}

// More of them: --gtest_shuffle --gtest_repeat=N.
TEST_F(RawGrammarTest, random_expressions_take_what_a_plain_matcher_takes) {
  std::mt19937 random(20261129U + static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()));
  int taken = 0, endless = 0, ambiguous = 0;
  for (int i = 0; i < 240; ++i) {
    std::vector<Random> rules;
    const size_t count = i % 3 != 0 ? 1 : 3;
    for (size_t r = 0; r < count; ++r) rules.push_back(random_expression(random, 3, count));
    std::string lark, ebnf, gbnf = "# of llama.cpp\n";
    for (size_t r = 0; r < count; ++r) {
      lark += fmt::format("{}: {}\n", r == 0 ? "start" : fmt::format("rule{}", r), lark_of(rules[r]));
      ebnf += fmt::format("{} ::=\n  {}\n", ebnf_name(r, Ebnf::kXgrammar), ebnf_of(rules[r], Ebnf::kXgrammar));
      gbnf += fmt::format("{} ::= {} # rule\n", ebnf_name(r, Ebnf::kLlama), ebnf_of(rules[r], Ebnf::kLlama));
    }
    const std::string why = count > 1 ? refusal(lark) : "none";
    if (why != "none") {  // it holds itself always, or alone
      ++endless;
      EXPECT_NE(refusal(ebnf), "none") << ebnf;
      EXPECT_TRUE(why.find("no finite text") != std::string::npos || why.find("for itself") != std::string::npos)
          << why;
      continue;
    }
    std::vector<std::pair<std::string, Grammar>> grammars;
    if (count == 1) grammars.emplace_back(regex_of(rules[0]), compiled(regex_grammar(regex_of(rules[0]), "test")));
    if (count == 1 && i % 5 != 0) lark.clear();  // as many of each
    if (!lark.empty())
      for (const std::string& definition : {lark, ebnf, gbnf})
        grammars.emplace_back(definition, compiled(raw_grammar(definition, "test")));
    for (int j = 0; j < 12; ++j) {
      std::string text;
      for (int n = static_cast<int>(random() % 7); n > 0; --n) text += "ab\n1"[random() % 4];
      const bool wanted = Matcher(rules, text).matches();
      taken += wanted ? 1 : 0;
      for (const auto& [definition, grammar] : grammars) try {
          EXPECT_EQ(takes(grammar, text), wanted) << definition << "\n" << ::testing::PrintToString(text);
        } catch (const Error& error) {  // a mask has a limit of steps
          EXPECT_THAT(error.what(), ::testing::HasSubstr("too ambiguous"));
          ++ambiguous;
        }
    }
  }
  EXPECT_LT(ambiguous, 200);
  EXPECT_GT(taken, 150);
  EXPECT_LT(endless, 60);
}

TEST_F(RawGrammarTest, ebnf_and_gbnf_mean_what_their_authors_say) {
  const auto ebnf_takes = [](std::string_view definition, std::string_view text) {
    return takes(compiled(raw_grammar(definition, "test")), text);
  };
  constexpr std::string_view kSql =
      "root ::= select_statement\n\nselect_statement ::= \"SELECT \" column \" from \" table \" where \" condition\n"
      "column ::= \"col_1 \" | \"col_2 \"\ntable ::= \"table_1 \" | \"table_2 \"\n"
      "condition ::= column \"= \" number\nnumber ::= \"1 \" | \"2 \"";
  EXPECT_TRUE(ebnf_takes(kSql, "SELECT col_1  from table_2  where col_2 = 1 "));
  EXPECT_FALSE(ebnf_takes(kSql, "SELECT col_3  from table_2  where col_2 = 1 "));
  constexpr std::string_view kJson = R"(# JSON, as llama.cpp's grammars write it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x01-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # the quotes as well
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)";
  for (const char* good : {"{}", R"({"a": [1, -2.5e3, "\\ \u00e9 é"], "b":{}})"})
    EXPECT_TRUE(ebnf_takes(kJson, good)) << good;
  for (const char* bad : {"", "{a:1}", R"({"a":"\x"})", "[1]"}) EXPECT_FALSE(ebnf_takes(kJson, bad)) << bad;
  EXPECT_TRUE(ebnf_takes(R"(root ::= "\x41\u00E9\U0001F600" [\]\-a] [\U0001F600-\U0001F64F]{2,})", "Aé😀]😀🙏"));
  EXPECT_FALSE(ebnf_takes(R"(root ::= [^\]])", "]"));
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"root = \"a\"", "want a grammar of Lark"},
      {"", "want a grammar of Lark"},
      {"a ::= \"a\"", "want a rule called root"},
      {"root ::= b", "line 1: b is not defined"},
      {"root ::= root", "no finite text matches root"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: root is defined twice"},
      {"root ::= [a", "want a ] that closes"},
      {"root ::= \"a", "closes the string"},
      {"root ::= \"\\uD800\"", "or a character by"},
      {"root ::= [\\U00110000]", "a character class that nothing matches"},
      {"root ::= \"a\" (=\"b\")", "found '='"},
      {"root ::= <think>", "found '<'"},
      {"root ::= Regex(\"a\")", "Regex is not defined"},
      {"root ::= \"a\"{2,1}", "with n more than m"},
      {"root ::= \"a\"{2", "want } after"},
      {"root ::= \"a\"{500}", "from 0 to 120"},
      {"root ::= /a/", "found '/'"},
  };
  for (const auto& [definition, words] : cases) {
    std::string found = "none";
    try {
      static_cast<void>(compiled(raw_grammar(definition, "test")));
    } catch (const Error& e) {
      found = e.what();
    }
    EXPECT_NE(found.find(words), std::string::npos) << definition << ": " << found;
  }
}

TEST_F(RawGrammarTest, a_choice_is_one_of_its_texts) {
  const Grammar grammar = compiled(choice_grammar({"yes", "no \"way\"\n", "no", ""}, "test"));
  for (const char* good : {"yes", "no \"way\"\n", "no", ""}) EXPECT_TRUE(takes(grammar, good)) << good;
  for (const char* bad : {"yesno", "no \"way\"", "maybe"}) EXPECT_FALSE(takes(grammar, bad)) << bad;
  EXPECT_THROW(static_cast<void>(choice_grammar({}, "test")), Error);
  EXPECT_THROW(static_cast<void>(choice_grammar({std::string("a\0", 2)}, "test")), Error);
}

TEST_F(RawGrammarTest, a_regex_takes_whole_texts) {
  const Grammar grammar = compiled(regex_grammar(R"(^(?P<month>Jan|Feb) \d{1,2}$)", "test"));
  EXPECT_TRUE(takes(grammar, "Feb 7"));
  EXPECT_FALSE(takes(grammar, "Feb 7!"));
  EXPECT_FALSE(takes(grammar, "on Feb 7"));
}

}  // namespace
}  // namespace nibble::text

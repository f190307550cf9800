// Structural tags against a plain matcher, and what is refused by name.

#include "server/json_fields.h"
#include "server/schema_parts.h"
#include "text/grammar.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace nibble::server {
namespace {

using Ends = std::set<size_t>;  // places where a match from a place may end
using Marks = std::vector<std::string>;

class Tags : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokenizer = std::make_unique<text::Tokenizer>(
        text::Tokenizer::from_file(std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny/tokenizer.json"));
    compiler = std::make_unique<text::GrammarCompiler>(*tokenizer);
  }
  static void TearDownTestSuite() {
    compiler.reset();
    tokenizer.reset();
  }
  static text::Grammar compiled(const Json& tag) {
    Fields fields(tag, "tag");
    const std::string grammar = read_structural_tag(fields, nullptr);
    fields.done();
    return compiler->content({.kind = text::ContentRule::Kind::kGrammar, .grammar = grammar, .where = "tag"}, {end()});
  }
  static text::Grammar compiled_format(const Json& format) {
    return compiled({{"type", "structural_tag"}, {"format", format}});
  }
  static int32_t end() { return *tokenizer->special_id("<|return|>"); }
  static bool takes(const text::Grammar& grammar, std::string_view text) {
    text::GrammarMatcher matcher = grammar.matcher();
    std::vector<uint32_t> mask(static_cast<size_t>(tokenizer->max_id()) / 32 + 1);
    std::vector<int32_t> tokens = tokenizer->encode(text);
    tokens.push_back(end());
    for (const int32_t token : tokens) {
      matcher.fill(mask);
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0 || !matcher.accept(token)) return false;
    }
    return matcher.finished();
  }
  static std::string refused(const Json& tag) {
    try {
      static_cast<void>(compiled(tag));
    } catch (const ApiError& e) {
      return e.param() + " " + e.what();
    }
    return "none";
  }

  static std::unique_ptr<text::Tokenizer> tokenizer;
  static std::unique_ptr<text::GrammarCompiler> compiler;
};
std::unique_ptr<text::Tokenizer> Tags::tokenizer;
std::unique_ptr<text::GrammarCompiler> Tags::compiler;

class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}
  bool matches(const Json& format) { return ends(format, 0, {}).contains(text_.size()); }

 private:
  bool is_free(size_t from, size_t to, const Marks& of) const {
    return std::ranges::none_of(
        of, [&](const std::string& t) { return text_.substr(from, to - from).find(t) != std::string_view::npos; });
  }
  bool stands(const std::string& t, size_t from) const { return text_.substr(from).starts_with(t); }
  Ends after(const Json& format, const Ends& places, const Marks& stops) {
    Ends all;
    for (const size_t place : places) all.merge(ends(format, place, stops));
    return all;
  }
  Ends tag(const Json& tag, size_t from) {
    const std::string begin = tag["begin"], end = tag["end"];
    Ends all;
    if (!stands(begin, from)) return all;
    for (const size_t place : ends(tag["content"], from + begin.size(), {end}))
      if (stands(end, place)) all.insert(place + end.size());
    return all;
  }
  Ends any_tag(const Json& tags, size_t from) {
    Ends all;
    for (const Json& one : tags) all.merge(tag(one, from));
    return all;
  }
  // Free text from `from`, and at the first trigger a tag.
  Ends triggered(const Json& f, size_t from, const Marks& stops) {
    Ends all;
    const Marks triggers = f["triggers"];
    for (size_t to = from; to <= text_.size() && is_free(from, to, stops); ++to) {
      if (is_free(from, to, triggers)) {
        all.insert(to);
        continue;
      }
      for (const std::string& trigger : triggers) {
        if (to < from + trigger.size() || !stands(trigger, to - trigger.size())) continue;
        for (const size_t place : any_tag(f["tags"], to - trigger.size()))
          all.merge(f["stop_after_first"] == true ? Ends{place} : triggered(f, place, stops));
      }
      break;
    }
    return all;
  }
  Ends ends(const Json& f, size_t from, const Marks& stops) {
    const std::string type = f["type"];
    Ends all;
    if (type == "const_string")
      return stands(f["value"], from) ? Ends{from + f["value"].get<std::string>().size()} : all;
    if (type == "tag") return tag(f, from);
    if (type == "sequence") {
      all = {from};
      for (const Json& one : f["elements"]) all = after(one, all, stops);
    } else if (type == "or") {
      for (const Json& one : f["elements"]) all.merge(ends(one, from, stops));
    } else if (type == "optional" || type == "star" || type == "plus") {
      Ends at = ends(f["content"], from, stops);
      all = at;
      if (type != "plus") all.insert(from);
      for (size_t i = 0; type != "optional" && i < text_.size(); ++i)
        all.merge(Ends(at = after(f["content"], at, stops)));
    } else if (type == "any_text") {
      for (size_t to = from; to <= text_.size() && is_free(from, to, stops); ++to) all.insert(to);
    } else if (type == "regex") {  // [ab]+1?
      for (size_t to = from; to < text_.size() && (text_[to] == 'a' || text_[to] == 'b'); ++to) {
        all.insert(to + 1);
        if (stands("1", to + 1)) all.insert(to + 2);
      }
    } else if (type == "json_schema") {  // 1 or 11
      for (const std::string one : {"1", "11"})
        if (stands(one, from)) all.insert(from + one.size());
    } else if (type == "grammar") {  // as many b as a
      for (size_t n = 0; from + 2 * n <= text_.size(); ++n)
        if (stands(std::string(n, 'a') + std::string(n, 'b'), from)) all.insert(from + 2 * n);
    } else if (type == "triggered_tags") {
      if (f["at_least_one"] == false) return triggered(f, from, stops);
      for (const size_t place : any_tag(f["tags"], from))
        all.merge(f["stop_after_first"] == true ? Ends{place} : triggered(f, place, stops));
    } else if (type == "tags_with_separator") {
      Ends at = any_tag(f["tags"], from);
      all = at;
      if (f["at_least_one"] == false) all.insert(from);
      for (size_t i = 0; f["stop_after_first"] == false && i < text_.size(); ++i) {
        Ends next;
        for (const size_t place : at)
          if (stands(f["separator"], place))
            next.merge(any_tag(f["tags"], place + f["separator"].get<std::string>().size()));
        all.merge(Ends(at = next));
      }
    } else {
      ADD_FAILURE() << type;
    }
    return all;
  }

  std::string_view text_;
};

Json random_format(std::mt19937& random, int depth);

Json random_tag(std::mt19937& random, int depth, const std::string& begin) {
  const char* const ends[] = {">", "b>", ">>", "bab"};
  return {{"type", "tag"},
          {"begin", begin + (random() % 2 == 0 ? "" : "a")},
          {"content", random_format(random, depth)},
          {"end", ends[random() % 4]}};
}

Json random_format(std::mt19937& random, int depth) {
  const auto draw = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const char* const leaves[] = {R"({"type":"const_string","value":"ab"})",
                                R"({"type":"const_string","value":""})",
                                R"({"type":"regex","pattern":"[ab]+1?"})",
                                R"({"type":"grammar","grammar":"root ::= \"a\" root \"b\" | \"\""})",
                                R"({"type":"json_schema","json_schema":{"enum":[1,11]}})",
                                R"({"type":"any_text"})"};
  if (depth == 0 || draw(4) == 0) return parse_json(leaves[draw(6)]);
  switch (draw(5)) {
    case 0: return random_tag(random, depth - 1, "<");
    case 1: {
      Json out = {{"type", draw(2) == 0 ? "sequence" : "or"}, {"elements", Json::array()}};
      for (int i = 1 + draw(3); i > 0; --i) out["elements"].push_back(random_format(random, depth - 1));
      return out;
    }
    case 2: {
      const char* const types[] = {"optional", "plus", "star"};
      return {{"type", types[draw(3)]}, {"content", random_format(random, depth - 1)}};
    }
    default: break;
  }
  const bool triggered = draw(3) != 0;
  Json out = {{"type", triggered ? "triggered_tags" : "tags_with_separator"}, {"tags", Json::array()}};
  for (const char* begin : {"<", "1"})
    if (begin[0] == '<' || draw(2) == 0) {
      for (int i = draw(2); i >= 0; --i) out["tags"].push_back(random_tag(random, depth - 1, begin));
      if (triggered) out["triggers"].push_back(begin);
    }
  if (!triggered) out["separator"] = draw(2) == 0 ? "a" : "";
  out["at_least_one"] = draw(2) == 0;
  out["stop_after_first"] = draw(2) == 0;
  return out;
}

// More of them: --gtest_shuffle --gtest_repeat=N.
TEST_F(Tags, random_formats_take_what_a_plain_matcher_takes) {
  std::mt19937 random(42U + static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()));
  int taken = 0, refused_ones = 0;
  for (int i = 0; i < 400; ++i) {
    const Json format = random_format(random, 3);
    if (refused({{"format", format}}) != "none") {
      ++refused_ones;  // a trigger may not stand in an end
      continue;
    }
    const text::Grammar grammar = compiled_format(format);
    for (int j = 0; j < 20; ++j) {
      const char* const pieces[] = {"a", "b", "<", ">", "1", "<a", "ab", "b>"};
      std::string text;
      for (int n = static_cast<int>(random() % 8); n > 0; --n) text += pieces[random() % 8];
      const bool wanted = Matcher(text).matches(format);
      taken += wanted ? 1 : 0;
      EXPECT_EQ(takes(grammar, text), wanted) << to_text(format) << "\n" << text;
    }
  }
  EXPECT_GT(taken, 800);
  EXPECT_LT(refused_ones, 200);
}

TEST_F(Tags, text_is_free_until_a_trigger) {
  const Json older = parse_json(R"({"type":"structural_tag","triggers":["<function="],"structures":[
      {"begin":"<function=add>","schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},"end":"</function>"},
      {"begin":"<function=now>","schema":{"type":"object","maxProperties":0},"end":"</function>"}]})");
  const text::Grammar grammar = compiled(older);
  for (const char* good :
       {"", "Hello <b> you.", "It is <function=now>{}</function> or <function=add>{\"a\": 3}</function>.",
        "A start: <funct"})
    EXPECT_TRUE(takes(grammar, good)) << good;
  for (const char* bad : {"<function=sub>{}</function>", "<function=add>{\"a\": \"x\"}</function>", "<function=now>{}"})
    EXPECT_FALSE(takes(grammar, bad)) << bad;
}

TEST_F(Tags, what_is_not_served_is_named) {
  const auto of = [](const std::string& format) { return R"({"format":)" + format + "}"; };
  const std::pair<std::string, std::string> cases[] = {
      {"{}", "tag.format "},
      {R"({"type":"regex"})", "tag.type "},
      {of(R"({"type":"qwen_xml_parameter","json_schema":{}})"), "tag.format.type "},
      {of(R"({"type":"const_string"})"), "tag.format.value "},
      {of(R"({"type":"any_text","excluded":["a"]})"), "tag.format.excluded "},
      {of(R"x({"type":"regex","pattern":"(?=a)"})x"), "tag.format.pattern "},
      {of(R"({"type":"grammar","grammar":"x"})"), "tag.format.grammar "},
      {of(R"({"type":"json_schema","json_schema":{"type":5}})"), "tag.format.json_schema "},
      {of(R"({"type":"json_schema","json_schema":{},"style":"qwen_xml"})"), "tag.format.style "},
      {of(R"({"type":"sequence","elements":[]})"), "tag.format.elements "},
      {of(R"({"type":"tag","begin":"a","content":{"type":"any_text"},"end":[]})"), "tag.format.end "},
      {of(R"({"type":"triggered_tags","triggers":["<"],"tags":[{"begin":"a","content":{"type":"any_text"},"end":"b"}]})"),
       "tag.format.triggers "},
      {of(R"({"type":"triggered_tags","triggers":["<","<a"],"tags":[{"begin":"<a","content":{"type":"any_text"},"end":"b"}]})"),
       "tag.format.triggers "},
      {of(R"({"type":"triggered_tags","triggers":["a","b"],"tags":[{"begin":"a","content":{"type":"any_text"},"end":"b"}]})"),
       "tag.format.triggers "},
      {R"({"structures":[{"begin":"a","schema":{},"end":"b"}]})", "tag.triggers "}};
  for (const auto& [tag, words] : cases)
    EXPECT_TRUE(refused(parse_json(tag)).starts_with(words)) << tag << ": " << refused(parse_json(tag));
  Leniency told;
  const Json widened = parse_json(of(R"({"type":"json_schema","json_schema":{"not":{}}})"));
  Fields fields(widened, "tag");
  static_cast<void>(read_structural_tag(fields, &told));
  EXPECT_EQ(told.ignored, std::vector<std::string>{"tag.format.json_schema#/not"});
  std::string many = R"({"type":"const_string","value":"a"})";
  for (int i = 0; i < 8; ++i) many = R"({"type":"or","elements":[)" + many + "," + many + "]}";
  EXPECT_NE(refused(parse_json(of(many))).find("at most 256 formats"), std::string::npos);
}

}  // namespace
}  // namespace nibble::server

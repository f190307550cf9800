#include "text/grammar.h"

#include "text/harmony_parse.h"
#include "text/json_grammar.h"
#include "text/raw_grammar.h"
#include "base/error.h"
#include "base/random.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

class GrammarTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_tokenizer = std::make_unique<Tokenizer>(Tokenizer::o200k_harmony());
    shared_compiler = std::make_unique<GrammarCompiler>(*shared_tokenizer);
  }
  static void TearDownTestSuite() {
    shared_compiler.reset();
    shared_tokenizer.reset();
  }

  static int32_t id(std::string_view special) { return *shared_tokenizer->special_id(special); }
  static Grammar of_schema(std::string_view schema) {
    return shared_compiler->content(
        {.kind = ContentRule::Kind::kJsonSchema, .schema = Json::parse(schema), .where = "test"}, {id("<|return|>")});
  }

  static bool may_come(GrammarMatcher& matcher, int32_t token) {
    std::vector<uint32_t> mask(static_cast<size_t>(shared_tokenizer->max_id()) / 32 + 1);
    matcher.fill(mask);
    return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }
  // Every token may come when its turn is, and so may the end.
  static bool takes(const Grammar& grammar, const std::vector<int32_t>& tokens) {
    return takes(grammar.matcher(), tokens);
  }
  static bool takes(GrammarMatcher matcher, const std::vector<int32_t>& tokens) {
    return std::all_of(tokens.begin(), tokens.end(),
                       [&](int32_t token) { return may_come(matcher, token) && matcher.accept(token); }) &&
           matcher.finished();
  }
  static bool takes_document(std::string_view schema, std::string_view document) {
    std::vector<int32_t> tokens = shared_tokenizer->encode(document);
    tokens.push_back(id("<|return|>"));
    return takes(of_schema(schema), tokens);
  }
  static std::vector<int32_t> turn_tokens(std::string_view text) {
    return shared_tokenizer->encode(text, SpecialTokens::kAllowed);
  }

  // Draws among the tokens that may come, mostly those that close something, so that documents end. Empty: not in time.
  static std::string sample(const Grammar& grammar, uint64_t seed, int limit = 400);

  static std::string message_of(std::string_view schema) {
    try {
      (void)json_schema_grammar(Json::parse(schema), "test");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      return error.what();
    }
    return "no error";
  }

 protected:
  static std::unique_ptr<Tokenizer> shared_tokenizer;
  static std::unique_ptr<GrammarCompiler> shared_compiler;
};
std::unique_ptr<Tokenizer> GrammarTest::shared_tokenizer;
std::unique_ptr<GrammarCompiler> GrammarTest::shared_compiler;

std::string GrammarTest::sample(const Grammar& grammar, uint64_t seed, int limit) {
  GrammarMatcher matcher = grammar.matcher();
  std::vector<uint32_t> mask(static_cast<size_t>(shared_tokenizer->max_id()) / 32 + 1);
  std::string out;
  for (int step = 0; step < limit; ++step) {
    matcher.fill(mask);
    EXPECT_FALSE(matcher.failed()) << out;
    std::vector<int32_t> open, closing;
    for (int32_t token = 0; token <= shared_tokenizer->max_id(); ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
      const std::string_view bytes = shared_tokenizer->token_bytes(token);
      const bool closes =
          shared_tokenizer->is_special(token) || std::string_view("\"]}").find(bytes.front()) != std::string_view::npos;
      (closes ? closing : open).push_back(token);
    }
    const Philox4 draw = philox(seed, static_cast<uint64_t>(step));
    const bool close = open.empty() || (!closing.empty() && uniform_float(draw[0]) < 0.6F);
    const std::vector<int32_t>& among = close ? closing : open;
    const int32_t token = among[draw[1] % among.size()];
    EXPECT_TRUE(matcher.accept(token)) << out << " then " << token;
    if (matcher.finished()) return out;
    if (matcher.failed()) return "";
    out += shared_tokenizer->token_bytes(token);
  }
  return "";
}

TEST_F(GrammarTest, takes_documents_of_the_schema_and_no_others) {
  const std::string_view person =
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},
      "tags":{"type":"array","items":{"enum":["a","b",1,null]},"maxItems":2}},"required":["name","age"]})";
  EXPECT_TRUE(takes_document(person, R"({"name":"Zoë \"Z\" 日本 😀 \u00e9 \ud83d\ude00","age":42})"));
  EXPECT_TRUE(takes_document(person, "{\n  \"name\": \"x\",\n  \"age\": 0,\n  \"tags\": [\n    \"a\",\n    1\n  ]\n}"));
  EXPECT_FALSE(takes_document(person, R"({"age":42,"name":"x"})"));                    // order
  EXPECT_FALSE(takes_document(person, R"({"name":"x"})"));                             // required
  EXPECT_FALSE(takes_document(person, R"({"name":"x","age":-1})"));                    // minimum
  EXPECT_FALSE(takes_document(person, R"({"name":"x","age":1,"tags":["a","b",1]})"));  // maxItems
  EXPECT_FALSE(takes_document(person, R"({"name":"x","age":1,"tags":["c"]})"));        // enum
  EXPECT_FALSE(takes_document(person, R"({"name":"x","age":1,"more":1})"));            // not named
  EXPECT_FALSE(takes_document(person, R"({"name":"\ud83d","age":1})"));                // half of a pair
  EXPECT_FALSE(takes_document(person, R"({"name":"x","age":1} )"));
}

TEST_F(GrammarTest, keeps_every_kind_of_keyword) {
  struct Case {
    std::string_view schema, yes, no;
  };
  for (
      const Case& c : std::vector<Case>{
          {R"({"type":"string","minLength":2,"maxLength":3})", R"("äöü")", R"("a")"},
          {R"({"type":"string","minLength":2,"maxLength":3})", R"("ab")", R"("abcd")"},
          {R"({"type":"string","pattern":"^[A-Z]{2,4}-\\d+$"})", R"("AB-17")", R"("A-17")"},
          {R"({"type":"string","pattern":"b+"})", R"("a \"bb\" c")", R"("aac")"},
          {R"({"type":"string","pattern":"^[^\"a]$"})", R"("\\")", R"("\"")"},
          {R"({"type":"string","format":"date"})", R"("2024-12-31")", R"("2024-06-31")"},
          {R"({"type":"string","format":"uuid"})", R"("6b2cfa7d-0fb3-4a4c-8d34-9b7d5f8a2e11")", R"("6b2cfa7d")"},
          {R"({"type":"number","minimum":-1.5,"exclusiveMaximum":2.75})", "2.74", "2.75"},
          {R"({"type":"number","minimum":-1.5,"exclusiveMaximum":2.75})", "-1.5", "-1.51"},
          {R"({"type":"number","multipleOf":0.01})", "3.14", "3.141"},
          {R"({"type":"integer","exclusiveMinimum":9,"maximum":1000})", "1000", "9"},
          {R"({"type":["string","null"]})", "null", "1"},
          {R"({"const":{"a":[1,true]}})", R"({"a":[1,true]})", R"({"a":[1]})"},
          {R"({"anyOf":[{"type":"boolean"},{"type":"array","items":{"type":"number"},"minItems":1}]})", "[1.5e3]",
           "[]"},
          {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},
                         {"type":"object","properties":{"k":{"const":"b"},"v":{"type":"integer"}},"required":["k"]}]})",
           R"({"k":"b","v":1})", R"({"k":"a","v":1})"},
          {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"boolean"},"minItems":1})",
           R"([1, "x", true, false])", R"([1, "x", 2])"},
          {R"({"type":"object","additionalProperties":{"type":"integer"},"propertyNames":{"pattern":"^k"},"minProperties":1})",
           R"({"k1": 1, "k2": 2})", R"({"k1": 1, "j": 2})"},
          {R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
           R"({"ab": 1, "abc": "x", "a": "y"})", R"({"abc": "x", "ab": "y"})"},
          {R"({"type":"object","properties":{"next":{"$ref":"#"},"v":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"null"}}})",
           R"({"next": {"next": {}, "v": null}})", R"({"next": {"next": 1}})"},
          {R"({"type":"object","required":["z"]})", R"({"z": 1, "y": [{}]})", R"({"y": 1})"},
          {"true", R"({"a": [1, -2.5e-3, null, "x"]})", "{a}"},
          // What stands together is kept together.
          {R"({"type":"string","pattern":"^a+$","maxLength":3})", R"("aaa")", R"("aaaa")"},
          {R"({"type":"string","pattern":"^a+$","minLength":2})", R"("aa")", R"("a")"},
          {R"({"type":"string","pattern":"^(ab)+c$","maxLength":5})", R"("ababc")", R"("abababc")"},
          {R"({"type":"string","format":"date","pattern":"^2"})", R"("2024-12-31")", R"("1999-12-31")"},
          {R"x({"type":"string","pattern":"^(?!.*--)(?=.*\\d)[a-z\\d-]+$"})x", R"("a-1")", R"("a--1")"},
          {R"x({"type":"string","pattern":"^(?!.*--)(?=.*\\d)[a-z\\d-]+$"})x", R"("1")", R"("a")"},
          {R"({"enum":["a","b",1],"type":"string","pattern":"[bc]"})", R"("b")", R"("a")"},
          {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                        {"properties":{"a":{"minimum":3},"b":{"type":"null"}}}]})",
           R"({"a": 3, "b": null})", R"({"a": 2})"},
          {R"({"$ref":"#/$defs/n","maximum":4,"$defs":{"n":{"type":"integer","minimum":3}}})", "4", "2"},
          {R"({"$ref":"#/$defs/n","maximum":4,"$defs":{"n":{"type":"integer","minimum":3}}})", "3", "5"},
          {R"({"anyOf":[{"type":"string"},{"type":"null"}],"minLength":3})", R"("abc")", R"("ab")"},
          {R"({"oneOf":[{"type":"string"},{"type":"integer"}],"maximum":3})", "3", "4"},
          {R"({"type":"object","propertyNames":{"$ref":"#/$defs/k"},"additionalProperties":{"type":"integer"},
              "$defs":{"k":{"enum":["x","y"],"type":"string"}}})",
           R"({"x": 1, "y": 2})", R"({"z": 1})"},
          {R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":1})", R"({"b": 1})", "{}"},
          {R"({"type":"object","properties":{"a":{},"b":{}},"maxProperties":1})", R"({"b": 1})", R"({"a": 1, "b": 1})"},
          {R"({"type":"object","properties":{"a":{}},"additionalProperties":true,"minProperties":2})",
           R"({"a": 1, "z": 1})", R"({"z": 1, "z": 2})"},
          {R"({"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false})",
           R"({"x1": 1})", R"({"y": 1})"},
          {R"({"type":"object","properties":{"a":{"type":"null"},"b":false}})", R"({"a": null})", R"({"b": 1})"},
          {R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":2})", R"(["c", "a"])",
           R"(["c", "c"])"},
          {R"({"type":"array","items":{"type":["boolean","null"]},"uniqueItems":true})", "[null, true, false]",
           "[true, true]"},
          {R"({"type":"array","items":[{"type":"null"}],"additionalItems":false})", "[null]", "[null, 1]"},
          {R"({"type":"number","exclusiveMinimum":1.1})", "1.2", "1.100000000000000001"},
          {R"({"type":"number","exclusiveMaximum":11})", "10.5", "10."},
          {R"({"type":"integer","minimum":0,"maximum":18446744073709551615})", "7", "-7"},
          {R"({"type":"number","maximum":1e300})", "7.5", R"("a")"},
      }) {
    EXPECT_TRUE(takes_document(c.schema, c.yes)) << c.schema << " " << c.yes;
    EXPECT_FALSE(takes_document(c.schema, c.no)) << c.schema << " " << c.no;
  }
}

// Also of a tool whose unit stays an enum, whatever zod 4 and editors add beside it.
TEST_F(GrammarTest, keeps_schemas_as_zod_and_pydantic_write_them) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/data/schemas.json");
  const Json cases = Json::parse(file);
  ASSERT_GE(cases.size(), 20U);
  for (const Json& c : cases) {
    const std::string schema = c.at("schema").dump();
    const Grammar grammar = of_schema(schema);
    std::vector<std::string> widened;
    for (const Json& pointer : c.at("widened")) widened.push_back("test" + pointer.get<std::string>());
    EXPECT_EQ(grammar.widened(), widened) << c.at("name");
    for (const bool good : {true, false}) {
      for (const Json& document : c.at(good ? "valid" : "invalid")) {
        std::vector<int32_t> tokens = shared_tokenizer->encode(document.dump());
        tokens.push_back(id("<|return|>"));
        EXPECT_EQ(takes(grammar, tokens), good) << c.at("name") << document;
      }
    }
  }
}

TEST_F(GrammarTest, long_texts_have_their_least_length) {
  const auto text = [](size_t length) { return '"' + std::string(length, 'a') + '"'; };
  for (const size_t least : {41, 200, 333}) {
    const std::string schema = fmt::format(R"({{"type":"string","minLength":{}}})", least);
    EXPECT_THAT(of_schema(schema).widened(), ::testing::IsEmpty());
    EXPECT_TRUE(takes_document(schema, text(least)) && takes_document(schema, text(least + 7)));
    EXPECT_FALSE(takes_document(schema, text(least - 1)));
  }
}

TEST_F(GrammarTest, no_overlong_characters) {
  const Grammar grammar = of_schema(R"({"type":"string"})");
  for (const auto& [bytes, good] : std::vector<std::pair<std::string, bool>>{{"\xF0\x9F\x98\x80", true},
                                                                             {"\xF0\x8F\xBF\xBF", false},
                                                                             {"\xE0\x80\x80", false},
                                                                             {"\xF4\x90\x80\x80", false},
                                                                             {"\xED\xA0\x80", false}}) {
    GrammarMatcher matcher = grammar.matcher();
    bool taken = matcher.accept(*shared_tokenizer->id_of("\""));
    for (const char byte : bytes) taken = taken && matcher.accept(*shared_tokenizer->id_of(std::string(1, byte)));
    EXPECT_EQ(taken, good) << bytes;
  }
}

TEST_F(GrammarTest, sampled_documents_are_json_of_the_schema) {
  const Grammar grammar = of_schema(
      R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer","minimum":-5,"maximum":12},
      "list":{"type":"array","items":{"type":"string","maxLength":40},"maxItems":3},"any":true},"required":["s","n"],
      "additionalProperties":false})");
  int finished = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const std::string text = sample(grammar, seed);
    if (text.empty()) continue;
    ++finished;
    const Json document = Json::parse(text, nullptr, false);
    ASSERT_TRUE(document.is_object()) << text;
    EXPECT_TRUE(document.at("s").is_string());
    EXPECT_TRUE(document.at("n") >= -5 && document.at("n") <= 12) << text;
    for (const auto& entry : document.items())
      EXPECT_THAT((std::vector<std::string>{"s", "n", "list", "any"}), ::testing::Contains(entry.key()));
  }
  EXPECT_GE(finished, 8);
}

TEST_F(GrammarTest, refuses_by_name_what_is_no_schema_or_allows_nothing) {
  EXPECT_THAT(message_of(R"({"type":"text"})"), HasSubstr("found text"));
  EXPECT_THAT(message_of(R"({"type":5})"), HasSubstr("type: want"));
  EXPECT_THAT(message_of(R"({"type":"object","properties":{"größe":{"type":"grün"}}})"),
              HasSubstr("test: the schema at #/properties/größe: type: want null, boolean, integer, number, string, "
                        "array or object, found grün"));
  EXPECT_THAT(message_of(R"({"type":"object","properties":{},"required":["größe"],"additionalProperties":false})"),
              HasSubstr("required: größe"));
  EXPECT_THAT(message_of(R"({"type":"integer","minimum":3,"maximum":2})"), HasSubstr("no number"));
  EXPECT_THAT(message_of(R"({"allOf":[{"type":"integer","minimum":3},{"maximum":2}]})"), HasSubstr("no number"));
  EXPECT_THAT(message_of(R"({"type":"string","pattern":"^a+$","maxLength":0})"), HasSubstr("no text"));
  EXPECT_THAT(message_of(R"x({"type":"string","pattern":"a)"})x"), HasSubstr("a ) without ("));
  EXPECT_THAT(message_of(R"({"allOf":[{"type":"string"},{"type":"null"}]})"), HasSubstr("no type"));
  EXPECT_THAT(message_of(R"({"enum":["a",2],"minLength":2,"type":"string"})"), HasSubstr("no value of enum"));
  EXPECT_THAT(message_of(R"({"anyOf":[false,{"enum":[1],"type":"string"}]})"), HasSubstr("none of the schemas"));
  EXPECT_THAT(message_of(R"({"type":"object","properties":{"a":{}},"minProperties":2})"), HasSubstr("minProperties"));
  EXPECT_THAT(message_of(R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true,"minItems":3})"),
              HasSubstr("uniqueItems"));
  EXPECT_THAT(message_of(R"({"$ref":"#/a"})"), HasSubstr("there is nothing there"));
  EXPECT_THAT(message_of("[]"), HasSubstr("want an object"));
  EXPECT_THAT(message_of("false"), HasSubstr("nothing"));
}

TEST_F(GrammarTest, widens_only_the_part_that_it_cannot_keep) {
  struct Case {
    std::string_view schema, yes, no, widened;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})", "[1, 1]", R"(["a"])", "#/uniqueItems"},
           {R"({"type":"object","properties":{"a/b":{"not":{"minLength":3},"type":"string"}},"required":["a/b"]})",
            R"({"a/b": "long"})", R"({"a/b": 1})", "#/properties/a~1b/not"},
           {R"({"type":"number","multipleOf":0.75,"minimum":2})", "2.01", "1.5", "#/multipleOf"},
           {R"({"type":"string","format":"colour","maxLength":3})", R"("abc")", R"("abcd")", "#/format"},
           {R"x({"type":"string","pattern":"^(a(?=b)|b)+$","minLength":2})x", R"("xy")", R"("x")", "#/pattern"},
           {R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})", R"("a")", "1", "#/oneOf"},
           {R"({"$ref":"http://x/y","type":"integer"})", "1", R"("a")", "#/$ref"},
           {R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":2})", R"({"a":null,"b":null})",
            "{}", "#/minProperties"},
           {R"({"type":"object","properties":{"a":{"const":1}},"if":{},"then":false})", R"({"a":1})", R"({"a":2})",
            "#/then"},
           {R"({"type":"integer","maximum":3,"markdownDescription":"unknown keywords say nothing"})", "3", "4", ""},
       }) {
    EXPECT_TRUE(takes_document(c.schema, c.yes)) << c.schema << " " << c.yes;
    EXPECT_FALSE(takes_document(c.schema, c.no)) << c.schema << " " << c.no;
    const Grammar grammar = of_schema(c.schema);
    const std::string told = grammar.widened().empty() ? "" : grammar.widened().front();
    EXPECT_EQ(told, c.widened.empty() ? "" : "test" + std::string(c.widened));
    EXPECT_LE(grammar.widened().size(), 1U);
  }
}

TEST_F(GrammarTest, refuses_schemas_without_end) {
  EXPECT_THAT(message_of(R"({"anyOf":[{"$ref":"#"},{"type":"string"}]})"), HasSubstr("refers to itself"));
  EXPECT_THAT(message_of(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"),
              HasSubstr("no finite document"));
  EXPECT_THAT(message_of(R"({"$ref":"#"})"), HasSubstr("refers to itself"));
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
  EXPECT_THAT(message_of(deep + "true" + std::string(5000, '}')), HasSubstr("nests deeper"));
  Json many = {{"enum", Json::array()}};
  for (int i = 0; i < 30000; ++i) many["enum"].push_back(i);
  EXPECT_THAT(message_of(many.dump()), HasSubstr("values"));
}

TEST_F(GrammarTest, bounds_what_compiling_takes) {
  Json same = {{"type", "object"}, {"properties", Json::object()}}, different = same, numbers = same;
  for (int i = 0; i < 300; ++i) {
    const std::string name = fmt::format("p{}", i);
    same["properties"][name] = {{"type", "string"}, {"maxLength", 255}};
    different["properties"][name] = {{"type", "string"}, {"maxLength", i + 1}};
    numbers["properties"][name] = {{"type", "number"}, {"minimum", i * 0.37}, {"maximum", i * 1003.5}};
  }
  const auto widened = [](const Json& schema) { return json_schema_grammar(schema, "test").widened; };
  EXPECT_THAT(widened(same), ::testing::IsEmpty());
  EXPECT_THAT(widened(different), ::testing::IsEmpty());  // a budget of characters is cheap
  EXPECT_THAT(widened(numbers), ::testing::Contains("#/properties/p299/minimum"));
  EXPECT_THAT(widened(Json::parse(R"({"minLength":99999999999})")), ::testing::Contains("#/minLength"));
  EXPECT_THAT(widened(Json::parse(R"({"pattern":"((a{100}){100}){100}"})")), ::testing::ElementsAre("#/pattern"));
  // Too many to keep their order, but not to keep their schemas.
  Json optional = {{"type", "object"}, {"properties", Json::object()}, {"required", {"p7"}}};
  for (int i = 0; i < 2000; ++i) optional["properties"][fmt::format("p{}", i)] = {{"type", "null"}};
  EXPECT_THAT(widened(optional), ::testing::IsEmpty());
  EXPECT_TRUE(takes_document(optional.dump(), R"({"p7": null, "p9": null, "p8": null})"));
  EXPECT_FALSE(takes_document(optional.dump(), R"({"p9": null})"));
  EXPECT_FALSE(takes_document(optional.dump(), R"({"p7": null, "p9": 1})"));
  Json parts = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 1000; ++i) {
    const std::string name = fmt::format("p{}", i);
    parts["properties"][name] = Json::parse(R"({"type":"object","properties":{"a":{},"b":{}},"required":["a","b"]})");
    parts["required"].push_back(name);
  }
  EXPECT_THAT(message_of(parts.dump()), HasSubstr("too many parts"));
}

TEST_F(GrammarTest, a_turn_thinks_and_then_answers_in_json) {
  const Grammar turn = shared_compiler->turn(
      {.answer = ContentRule{
           .kind = ContentRule::Kind::kJsonSchema, .schema = Json::parse(R"({"type":"integer"})"), .where = "answer"}});
  for (const std::string_view header :
       {"<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"}) {
    EXPECT_TRUE(
        takes(turn, turn_tokens(fmt::format(
                        "<|channel|>analysis<|message|>Say }}{{ 7.<|end|><|start|>assistant{}7<|return|>", header))));
    EXPECT_TRUE(takes(turn, turn_tokens(fmt::format("{}7<|return|>", header))));
  }
  for (const std::string_view bad :
       {"<|channel|>final<|message|>x<|return|>", "<|channel|>final<|message|>7<|end|>",
        "<|channel|>finale<|message|>7<|return|>", "<|channel|>analysis<|message|>x<|return|>",
        "<|channel|>analysis<|message|>x<|call|>", "7<|return|>", "<|channel|>analysis<|message|>a<|channel|>b<|end|>",
        "<|channel|>analysis<|message|>a<|end|><|start|>user<|message|>"}) {
    EXPECT_FALSE(takes(turn, turn_tokens(bad))) << bad;
  }
}

TEST_F(GrammarTest, a_turn_must_call_one_of_the_functions) {
  const auto arguments = [](std::string_view name) {
    return ContentRule{
        .kind = ContentRule::Kind::kJsonSchema,
        .schema = Json{{"type", "object"}, {"properties", {{name, {{"type", "string"}}}}}, {"required", {name}}},
        .where = std::string(name)};
  };
  const Grammar turn = shared_compiler->turn({.answer = std::nullopt,
                                              .calls = {{"functions.get_weather", arguments("city")},
                                                        {"functions.get_time", arguments("zone")},
                                                        {"python", {}}},
                                              .preamble = false});
  for (
      const std::string_view good :
      {R"(<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>)",
       R"( to=functions.get_time<|channel|>commentary <|constrain|>json<|message|>{"zone":"CET"}<|call|>)",
       R"(<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_time json<|message|>{"zone": ""}<|call|>)",
       R"(<|channel|>analysis to=python code<|message|>print(1)<|call|>)"}) {
    EXPECT_TRUE(takes(turn, turn_tokens(good))) << good;
  }
  for (
      const std::string_view bad :
      {R"(<|channel|>final<|message|>No.<|return|>)",
       R"(<|channel|>commentary to=functions.get_weather<|message|>{"zone": "x"}<|call|>)",
       R"(<|channel|>commentary to=functions.get<|message|>{}<|call|>)",
       R"(<|channel|>commentary<|message|>Now.<|end|><|start|>assistant<|channel|>commentary to=functions.get_time<|message|>{"zone": "x"}<|call|>)",
       R"(<|channel|>analysis to=functions.get_time<|message|>{"zone": "x"}<|call|>)"}) {
    EXPECT_FALSE(takes(turn, turn_tokens(bad))) << bad;
  }
}

TEST_F(GrammarTest, bounded_reasoning_is_one_analysis_and_one_preamble) {
  const std::string analysis = "<|channel|>analysis<|message|>a b c<|end|><|start|>assistant",
                    preamble = "<|channel|>commentary<|message|>Now.<|end|><|start|>assistant",
                    call = "<|channel|>commentary to=functions.f<|message|>{}<|call|>";
  const std::vector<CallRule> calls = {{"functions.f", {.kind = ContentRule::Kind::kJsonObject}}};
  const Grammar turn = shared_compiler->turn({.answer = std::nullopt, .calls = calls});
  for (const auto& [before, may] : std::vector<std::pair<std::string, bool>>{{"", true},
                                                                             {analysis, true},
                                                                             {preamble, true},
                                                                             {analysis + preamble, true},
                                                                             {analysis + analysis, false},
                                                                             {preamble + preamble, false},
                                                                             {preamble + analysis, false}}) {
    EXPECT_TRUE(takes(turn.matcher(), turn_tokens(before + call))) << before;
    EXPECT_EQ(takes(turn.matcher({.reasoning = 100}), turn_tokens(before + call)), may) << before;
    EXPECT_EQ(takes(turn.matcher({.reasoning = 0}), turn_tokens(before + call)), before.empty()) << before;
  }
}

TEST_F(GrammarTest, spent_reasoning_ends_where_it_stands_and_the_call_follows) {
  const std::vector<CallRule> calls = {{"functions.f", {.kind = ContentRule::Kind::kJsonObject}}};
  const Grammar turn = shared_compiler->turn({.answer = std::nullopt, .calls = calls});
  const int32_t end = id("<|end|>"), word = turn_tokens(" a")[0];
  for (const std::string_view channel : {"analysis", "commentary"}) {
    for (const int64_t budget : {1, 7}) {
      GrammarMatcher matcher = turn.matcher({.reasoning = budget});
      for (const int32_t token : turn_tokens(fmt::format("<|channel|>{}<|message|>", channel)))
        ASSERT_TRUE(matcher.accept(token));
      for (int64_t i = 0; i < budget; ++i) {
        EXPECT_TRUE(may_come(matcher, word) && may_come(matcher, end));
        ASSERT_TRUE(matcher.accept(word));
      }
      EXPECT_FALSE(may_come(matcher, word));
      EXPECT_TRUE(may_come(matcher, end));
      ASSERT_TRUE(matcher.accept(end));
      for (const int32_t token : turn_tokens("<|start|>assistant<|channel|>")) ASSERT_TRUE(matcher.accept(token));
      EXPECT_FALSE(may_come(matcher, turn_tokens("analysis")[0]));
      for (const int32_t token : turn_tokens("commentary")) ASSERT_TRUE(matcher.accept(token));
      EXPECT_FALSE(may_come(matcher, id("<|message|>")));
      for (const int32_t token : turn_tokens(" to=functions.f<|message|>{}<|call|>"))
        ASSERT_TRUE(matcher.accept(token));
      EXPECT_TRUE(matcher.finished());
    }
  }
}

TEST(SmallGrammarTest, no_end_comes_inside_the_text_of_a_call) {
  const Tokenizer tokenizer = Tokenizer::from_file(NIBBLE_SOURCE_DIR "/models/nibble-tiny/tokenizer.json");
  const GrammarCompiler compiler(tokenizer);
  const auto schema = Json::parse(
      R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string","maxLength":9}},"required":["a","b"]})");
  const ContentRule arguments{.kind = ContentRule::Kind::kJsonSchema, .schema = schema, .where = "test"};
  const Grammar turn = compiler.turn({.answer = std::nullopt, .calls = {{"functions.f", arguments}}});
  std::vector<uint32_t> mask(static_cast<size_t>(tokenizer.max_id()) / 32 + 1);
  for (const std::string_view begun : {R"({"a": "b)", R"({"a": "b", "b": "c)"}) {
    GrammarMatcher matcher = turn.matcher();
    const std::string text = "<|channel|>commentary to=functions.f<|message|>" + std::string(begun);
    for (const int32_t token : tokenizer.encode(text, SpecialTokens::kAllowed)) ASSERT_TRUE(matcher.accept(token));
    matcher.fill(mask);
    for (int32_t id = 0; id <= tokenizer.max_id(); ++id) {
      const bool may_come = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
      EXPECT_FALSE(may_come && tokenizer.is_special(id)) << begun << tokenizer.token_bytes(id);
    }
  }
}

TEST_F(GrammarTest, any_sampled_turn_parses_without_repairs) {
  const HarmonyIds ids =
      HarmonyIds::from_names([](std::string_view name) { return shared_tokenizer->special_id(name); });
  const Grammar turn = shared_compiler->turn({.calls = {{"functions.f", {.kind = ContentRule::Kind::kJsonObject}}}});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    GrammarMatcher matcher = turn.matcher();
    HarmonyParser parser;
    std::vector<uint32_t> mask(static_cast<size_t>(shared_tokenizer->max_id()) / 32 + 1);
    for (int step = 0; step < 60 && !matcher.finished(); ++step) {
      matcher.fill(mask);
      std::vector<int32_t> plain, special;
      for (int32_t token = 0; token <= shared_tokenizer->max_id(); ++token) {
        if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
        (shared_tokenizer->is_special(token) ? special : plain).push_back(token);
      }
      const Philox4 draw = philox(seed, static_cast<uint64_t>(step));
      const auto& among = plain.empty() || (!special.empty() && uniform_float(draw[0]) < 0.4F) ? special : plain;
      const int32_t token = among[draw[1] % among.size()];
      ASSERT_TRUE(matcher.accept(token));
      if (const auto formatting = ids.special_of(token))
        (void)parser.push(*formatting);
      else
        (void)parser.push(shared_tokenizer->token_bytes(token));
    }
    EXPECT_EQ(parser.repairs(), 0) << "seed " << seed;
  }
}

// Draws tokens that may come, none of which closes anything while another may, until the limit leads to the end.
struct Drawn {
  std::string text;
  int64_t tokens = 0;
  bool finished = false, cut = false;
};
Drawn drawn_within(const Tokenizer& tokenizer, GrammarMatcher matcher, uint64_t seed, int64_t limit) {
  std::vector<uint32_t> mask(static_cast<size_t>(tokenizer.max_id()) / 32 + 1);
  Drawn out;
  for (; out.tokens < limit && !matcher.finished(); ++out.tokens) {
    matcher.fill(mask);
    std::vector<int32_t> plain, special;
    for (int32_t token = 0; token <= tokenizer.max_id(); ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
      (tokenizer.is_special(token) ? special : plain).push_back(token);
    }
    const std::vector<int32_t>& among = plain.empty() ? special : plain;
    const int32_t token = matcher.take(among[philox(seed, static_cast<uint64_t>(out.tokens))[0] % among.size()]);
    EXPECT_FALSE(matcher.failed()) << out.text;
    if (!tokenizer.is_special(token)) out.text += tokenizer.token_bytes(token);
  }
  out.finished = matcher.finished();
  out.cut = matcher.cut();
  return out;
}

TEST_F(GrammarTest, an_answer_ends_within_the_limit_wherever_that_cuts_it) {
  struct Case {
    std::string_view schema, shortest;
  };
  for (const auto& [schema, shortest] : std::vector<Case>{
           {R"({"type":"string"})", "\"\""},
           {R"({"type":"string","minLength":30})", "\"                              \""},
           {R"({"type":"object","properties":{"name":{"type":"string"},"of":{"type":"array","minItems":2,
               "items":{"type":"object","properties":{"first":{"type":"number"},"second":{"enum":["left","right"]}},
               "required":["first","second"]}}},"required":["name","of"]})",
            R"({"name":"","of":[{"first":0,"second":"left"},{"first":0,"second":"left"}]})"},
           {R"({"type":"array","items":{"type":"array","items":{"type":"integer"}}})", "[]"},
           {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"value":{"type":"boolean"},
               "next":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}},"required":["value","next"]}}})",
            R"({"value":true,"next":null})"}}) {
    const Grammar grammar = of_schema(schema);
    const int64_t least = std::ssize(shared_tokenizer->encode(shortest)) + 1;
    for (int64_t limit = least + 2; limit < least + 30; limit += 9) {
      const auto seed = static_cast<uint64_t>(limit);
      const Drawn drawn = drawn_within(*shared_tokenizer, grammar.matcher({.all = limit}), seed, limit);
      EXPECT_TRUE(drawn.finished && drawn.tokens <= limit) << schema << " within " << limit << ": " << drawn.text;
      EXPECT_TRUE(Json::accept(drawn.text)) << drawn.text;
      EXPECT_TRUE(takes_document(schema, drawn.text)) << drawn.text;
    }
    const Drawn hopeless = drawn_within(*shared_tokenizer, grammar.matcher({.all = 1}), 1, 1);
    EXPECT_FALSE(hopeless.finished || hopeless.cut) << schema;
  }
}

TEST_F(GrammarTest, a_call_ends_within_the_limit_only_where_one_must_come) {
  const std::vector<CallRule> calls = {{"functions.f", {.kind = ContentRule::Kind::kJsonObject}}};
  const std::vector<int32_t> header = turn_tokens("<|channel|>commentary to=functions.f<|message|>");
  for (const bool forced : {true, false}) {
    const Grammar turn =
        shared_compiler->turn({.answer = forced ? std::nullopt : std::optional(ContentRule{}), .calls = calls});
    GrammarMatcher matcher = turn.matcher({.all = std::ssize(header) + 12});
    for (const int32_t token : header) ASSERT_EQ(matcher.take(token), token);
    const Drawn drawn = drawn_within(*shared_tokenizer, std::move(matcher), 7, 12);
    EXPECT_EQ(drawn.finished, forced) << drawn.text;
    EXPECT_EQ(drawn.cut, forced);
    EXPECT_EQ(Json::accept(drawn.text), forced) << drawn.text;
  }
}

TEST_F(GrammarTest, the_way_to_the_end_is_undone_like_any_token) {
  const Grammar grammar = of_schema(R"({"type":"array","items":{"type":"string"}})");
  GrammarMatcher matcher = grammar.matcher({.all = 8});
  const int32_t open = turn_tokens("[")[0], quote = turn_tokens("\"")[0], word = turn_tokens(" a")[0];
  for (const int32_t token : {open, quote, word, word, word}) ASSERT_EQ(matcher.take(token), token);
  const int32_t end = turn_tokens("\"]")[0];
  EXPECT_EQ(matcher.take(word), word);  // "] and the end are left
  EXPECT_EQ(matcher.take(word), end);
  EXPECT_TRUE(matcher.cut());
  EXPECT_FALSE(may_come(matcher, word));
  matcher.undo(2);
  EXPECT_FALSE(matcher.cut());
  EXPECT_TRUE(may_come(matcher, word));
  for (const int32_t token : {word, end, id("<|return|>")}) ASSERT_EQ(matcher.take(token), token);
  EXPECT_TRUE(matcher.finished());
  EXPECT_FALSE(matcher.cut());
}

// Alone each would be 20 MB.
TEST_F(GrammarTest, grammars_share_what_is_equal_in_them) {
  std::vector<Grammar> kept = {of_schema(R"({"type":"object","properties":{"first":{"type":"integer"}}})")};
  const int64_t before = shared_compiler->cached_bytes();
  for (int i = 0; i < 20; ++i) {
    const std::string name = fmt::format("name{}", i);
    kept.push_back(of_schema(fmt::format(R"({{"type":"object","properties":{{"{}":{{"type":"integer"}}}}}})", name)));
    EXPECT_TRUE(takes(kept.back(), turn_tokens(fmt::format(R"({{"{}": 1}}<|return|>)", name))));
  }
  EXPECT_LT(shared_compiler->cached_bytes() - before, 20 << 20);
}

TEST_F(GrammarTest, serves_large_bounds) {
  std::string many = "[0";
  for (int i = 1; i < 300; ++i) many += fmt::format(", {}", i);
  const std::string_view schema = R"({"type":"array","items":{"type":"integer"},"minItems":200,"maxItems":300})";
  EXPECT_TRUE(takes_document(schema, many + "]"));
  EXPECT_FALSE(takes_document(schema, many + ", 300]"));
  EXPECT_FALSE(takes_document(schema, "[1, 2, 3]"));
  EXPECT_TRUE(takes_document(R"({"type":"array","maxItems":1000000})", R"([1, "x"])"));
  EXPECT_TRUE(takes_document(R"({"type":"string","maxLength":1000000})", R"("It was the best of times.")"));
}

// At each token of documents and turns: some go on otherwise, or as they should, and are taken back.
TEST_F(GrammarTest, what_is_undone_never_came) {
  const Grammar turn = shared_compiler->turn(
      {.answer = ContentRule{.kind = ContentRule::Kind::kJsonSchema,
                             .schema = Json::parse(R"({"type":"object","properties":{"a":{"type":"array",
                                 "items":{"type":"integer"}}},"required":["a"]})"),
                             .where = "test"}});
  const std::string thought = "<|channel|>analysis<|message|>So it is.<|end|><|start|>assistant";
  const std::string answer = "<|channel|>final<|message|>{\"a\":[1,22,333]}<|return|>";
  const size_t words = static_cast<size_t>(shared_tokenizer->max_id()) / 32 + 1;
  for (const std::optional<int64_t> reasoning : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    const std::vector<int32_t> tokens =
        turn_tokens(reasoning ? "<|channel|>analysis<|message|>So it<|end|><|start|>assistant" + answer
                              : thought + thought + answer);
    GrammarMatcher plain = turn.matcher({.reasoning = reasoning}), tried = turn.matcher({.reasoning = reasoning});
    std::vector<uint32_t> want(words), got(words);
    for (size_t i = 0; i < tokens.size(); ++i) {
      plain.fill(want);
      for (const size_t ahead : {size_t{1}, size_t{3}, size_t{28}}) {
        int taken = 0;
        for (size_t k = i; k < std::min(tokens.size(), i + ahead); ++k, ++taken) {
          tried.fill(got);
          tried.accept(tokens[k]);
        }
        for (const int32_t wrong : {tokens[0], tokens[tokens.size() / 2], id("<|call|>")}) {
          tried.accept(wrong);
          tried.fill(got);
          ++taken;
        }
        tried.undo(std::min(taken, 3));
        tried.undo(taken - std::min(taken, 3));
        EXPECT_FALSE(tried.failed());
        EXPECT_FALSE(tried.finished());
        tried.fill(got);
        ASSERT_EQ(got, want) << "token " << i;
      }
      ASSERT_TRUE(plain.accept(tokens[i]));
      ASSERT_TRUE(tried.accept(tokens[i])) << i;
    }
    EXPECT_TRUE(tried.finished());
  }
}

TEST_F(GrammarTest, ends_after_a_token_that_could_not_come) {
  GrammarMatcher matcher = of_schema(R"({"type":"boolean"})").matcher();
  EXPECT_FALSE(matcher.accept(id("<|call|>")));
  EXPECT_TRUE(matcher.failed());
  EXPECT_TRUE(may_come(matcher, id("<|return|>")));
  EXPECT_TRUE(matcher.accept(id("<|return|>")));
  EXPECT_TRUE(matcher.finished());
}

TEST_F(GrammarTest, a_mask_that_takes_too_many_steps_ends_its_request) {
  GrammarMatcher matcher = shared_compiler
                               ->content({.kind = ContentRule::Kind::kGrammar,
                                          .grammar = raw_grammar("start: start start start start | /[a-z ]+/", "test"),
                                          .where = "test"},
                                         {id("<|return|>")})
                               .matcher();
  const int32_t token = shared_tokenizer->encode("abc").front();
  std::string why;
  for (int taken = 0; taken < 40 && why.empty(); ++taken) try {
      EXPECT_TRUE(may_come(matcher, token));
      matcher.accept(token);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      why = error.what();
    }
  EXPECT_THAT(why, HasSubstr("too ambiguous"));
}

TEST_F(GrammarTest, refuses_names_that_no_header_can_hold) {
  for (const std::string_view name : {"", "functions.a b", "functions.<|call|>"})
    EXPECT_THROW((void)shared_compiler->turn({.calls = {{std::string(name), {}}}}), Error) << name;
  EXPECT_THROW((void)shared_compiler->turn({.calls = {{"functions.f", {}}, {"functions.f", {}}}}), Error);
  EXPECT_THROW((void)shared_compiler->turn({.answer = std::nullopt}), Error);
}

}  // namespace
}  // namespace nibble::text

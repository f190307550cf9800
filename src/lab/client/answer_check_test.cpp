#include "lab/client/workload.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::client {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kSchema = R"({"$defs":{"name":{"type":"string","minLength":2,"maxLength":4}},
  "type":"object","required":["a"],"additionalProperties":{"type":"boolean"},"properties":{
    "a":{"type":["integer","null"],"minimum":0,"exclusiveMaximum":10},"b":{"enum":["x",1,null]},"c":{"const":[1,2]},
    "d":{"type":"array","items":{"$ref":"#/$defs/name"},"minItems":1,"maxItems":2},
    "e":{"anyOf":[{"type":"string"},{"type":"object","required":["f"]}]},"g":false,
    "h":{"type":"number","exclusiveMinimum":0,"maximum":1}}})";

std::string unmet(const std::string& value) { return schema_unmet(Json::parse(kSchema), Json::parse(value)); }

TEST(SchemaCheck, takes_what_meets_the_schema) {
  expect_checkable(Json::parse(kSchema), "s");
  for (const char* value : {R"({"a":0})", R"({"a":null,"b":null})", R"({"a":9.0,"b":"x","z":true})",
                            R"({"a":1,"c":[1,2],"d":["ab","äöüß"]})", R"({"a":1,"e":"s"})", R"({"a":1,"e":{"f":0}})",
                            R"({"a":1,"h":1})", R"({"a":1,"h":0.5})"})
    EXPECT_EQ(unmet(value), "") << value;
  EXPECT_EQ(schema_unmet(Json::object(), Json::parse("[1]")), "");
}

TEST(SchemaCheck, says_what_does_not_and_where) {
  for (const auto& [value, where] : {std::pair{"[]", "$: want object, found array"},
                                     {R"({})", "$: no a"},
                                     {R"({"a":"1"})", "$.a: want [\"integer\",\"null\"], found \"1\""},
                                     {R"({"a":1.5})", "$.a: want"},
                                     {R"({"a":-1})", "$.a: minimum is 0, found -1"},
                                     {R"({"a":10})", "$.a: exclusiveMaximum is 10, found 10"},
                                     {R"({"a":1,"b":"y"})", "$.b: want one of its enum"},
                                     {R"({"a":1,"c":[2,1]})", "$.c: want array"},
                                     {R"({"a":1,"d":[]})", "$.d: items: want at least 1, found 0"},
                                     {R"({"a":1,"d":["ab","ab","ab"]})", "$.d: items: want at most 2, found 3"},
                                     {R"({"a":1,"d":["ab","ä"]})", "$.d[1]: characters: want at least 2, found 1"},
                                     {R"({"a":1,"d":["abcde"]})", "$.d[0]: characters: want at most 4, found 5"},
                                     {R"({"a":1,"e":{}})", "$.e: meets none of anyOf"},
                                     {R"({"a":1,"g":1})", "$.g: want nothing here"},
                                     {R"({"a":1,"h":0})", "$.h: exclusiveMinimum is 0, found 0"},
                                     {R"({"a":1,"h":1.01})", "$.h: maximum is 1, found 1.01"},
                                     {R"({"a":1,"z":1})", "$.z: want boolean, found 1"}})
    EXPECT_THAT(unmet(value), HasSubstr(where)) << value;
  EXPECT_EQ(schema_unmet(Json::parse(R"({"additionalProperties":false})"), Json::parse(R"({"k":1})")),
            "$: \"k\" is not in the schema");
}

TEST(SchemaCheck, refuses_what_it_would_not_check) {
  for (const auto& [schema, words] : {std::pair{R"({"pattern":"a"})", "#/pattern: want a keyword"},
                                      {R"({"properties":{"a":{"oneOf":[]}}})", "#/properties/a/oneOf"},
                                      {R"({"items":3})", "#/items: want a schema, an object, found 3"},
                                      {R"({"anyOf":[]})", "#/anyOf"},
                                      {R"({"type":7})", "#/type"},
                                      {R"({"minItems":-1})", "#/minItems"},
                                      {R"({"required":[1]})", "#/required"},
                                      {R"({"$ref":"http://a"})", "#/$ref"},
                                      {R"({"$ref":"#/$defs/none"})", "#/$ref"},
                                      {R"({"$ref":"#no pointer"})", "#/$ref"}}) {
    try {
      expect_checkable(Json::parse(schema), "there");
      ADD_FAILURE() << schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidRequest);
      EXPECT_THAT(error.what(), HasSubstr(std::string("there: ") + words));
    }
  }
}

TEST(SchemaCheck, nothing_is_too_deep_for_it) {
  constexpr size_t kDeep = 100000;
  const Json loop = Json::parse(R"({"$ref":"#"})");
  expect_checkable(loop, "s");
  EXPECT_THAT(schema_unmet(loop, 1), HasSubstr("nested too deep"));
  const Json list = Json::parse(R"({"items":{"$ref":"#"}})");
  EXPECT_THAT(schema_unmet(list, Json::parse(std::string(kDeep, '[') + std::string(kDeep, ']'))),
              HasSubstr("nested too deep"));
  std::string schema = "{}";
  for (int i = 0; i < 200; ++i) schema = "{\"items\":" + schema + "}";
  EXPECT_THROW(expect_checkable(Json::parse(schema), "s"), Error);
}

using testing::HasSubstr;

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"add","parameters":{"type":"object","required":["a"]}}},
        {"type":"function","function":{"name":"now"}}])";

Outcome answer(const std::string& text, const std::vector<ToolCall>& calls = {}) {
  Outcome o;
  o.ended = true;
  o.finish_reason = "stop";
  o.text = text;
  o.calls = calls;
  return o;
}

Outcome judged(const Workload& workload, Outcome outcome) {
  AnswerCheck(workload).judge(outcome);
  return outcome;
}

TEST(AnswerCheck, calls_are_of_tools_that_were_offered_with_arguments_of_their_schema) {
  const Workload w{.api = Api::kChat, .tools = kTools};
  const auto kind = [&](const std::vector<ToolCall>& calls) { return judged(w, answer("", calls)).kind(); };
  EXPECT_EQ(kind({{"1", "add", R"({"a":1})"}, {"2", "now", ""}}), "none");
  EXPECT_EQ(kind({}), "no tool call");
  EXPECT_EQ(kind({{"1", "subtract", "{}"}}), "unknown tool");
  EXPECT_EQ(kind({{"1", "now", "{}"}, {"2", "add", R"({"a":)"}}), "invalid JSON");
  EXPECT_EQ(kind({{"1", "add", "{}"}}), "schema not met");
  EXPECT_THAT(judged(w, answer("", {{"1", "add", "{}"}})).message, HasSubstr("arguments of add: $: no a"));
  EXPECT_FALSE(judged(w, answer("", {})).ok());
}

TEST(AnswerCheck, no_call_is_no_failure_where_none_was_forced) {
  const Workload w{.api = Api::kChat, .tools = kTools, .must_call = false};
  EXPECT_TRUE(judged(w, answer("hello")).ok());
  EXPECT_EQ(judged(w, answer("", {{"1", "add", "{}"}})).failure, Failure::kSchemaUnmet);
}

TEST(AnswerCheck, an_answer_is_json_of_its_schema) {
  const Workload w{.api = Api::kChat, .json_schema = R"({"type":"object","required":["a"]})"};
  EXPECT_TRUE(judged(w, answer(R"( {"a":1})")).ok());
  EXPECT_EQ(judged(w, answer(R"({"b":1})")).failure, Failure::kSchemaUnmet);
  const Outcome cut = judged(w, answer(R"({"a":)"));
  EXPECT_EQ(cut.failure, Failure::kInvalidJson);
  EXPECT_THAT(cut.message, HasSubstr("ended by stop: {\"a\":"));
}

TEST(AnswerCheck, what_has_failed_or_was_asked_nothing_stays_as_it_is) {
  EXPECT_TRUE(judged({}, answer("{")).ok());
  Outcome failed = answer("");
  failed.failure = Failure::kTimeout;
  EXPECT_EQ(judged({.api = Api::kChat, .tools = kTools}, failed).failure, Failure::kTimeout);
}

TEST(AnswerCheck, refuses_tools_and_schemas_that_are_none) {
  for (const char* tools : {"{", "{}", "[]", "[1]", R"([{"type":"function"}])", R"([{"function":{"name":1}}])",
                            R"([{"function":{"name":"a"}},{"function":{"name":"a"}}])",
                            R"([{"function":{"name":"a","parameters":{"pattern":"x"}}}])"})
    EXPECT_THROW(AnswerCheck({.tools = tools}), Error) << tools;
  for (const char* schema : {"{", "[]", "true", R"({"not":{}})"})
    EXPECT_THROW(AnswerCheck({.json_schema = schema}), Error) << schema;
}

}  // namespace
}  // namespace nibble::client

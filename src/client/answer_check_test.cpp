#include "client/answer_check.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::client {
namespace {

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

#include "lab/client/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace nibble::client {
namespace {

using Json = nlohmann::json;

TEST(Workload, lengths_are_uniform_between_the_ratio_and_the_most) {
  const Workload w{.isl = 100, .osl = 10};
  int64_t sum = 0;
  std::set<int64_t> prompts, outputs;
  for (uint64_t i = 0; i < 4000; ++i) {
    const Lengths l = lengths_of(w, i);
    sum += l.prompt;
    prompts.insert(l.prompt);
    outputs.insert(l.output);
  }
  EXPECT_EQ(*prompts.begin(), 80);
  EXPECT_EQ(*prompts.rbegin(), 100);
  EXPECT_EQ(prompts.size(), 21U);
  EXPECT_EQ(outputs, (std::set<int64_t>{8, 9, 10}));
  EXPECT_NEAR(static_cast<double>(sum) / 4000, 90, 0.5);
  EXPECT_EQ(lengths_of({.isl = 7, .osl = 1, .range_ratio = 1}, 3).prompt, 7);
  EXPECT_EQ(lengths_of({.isl = 1, .osl = 1, .range_ratio = 0}, 3).output, 1);
}

TEST(Workload, a_completion_has_as_many_ids_as_its_length) {
  const Workload w{.model = "a \"b\"", .isl = 50, .osl = 9, .vocab_size = 1000};
  std::set<int64_t> seen;
  for (uint64_t i = 0; i < 50; ++i) {
    const Json body = Json::parse(body_of(w, i));
    const auto ids = body["prompt"].get<std::vector<int64_t>>();
    EXPECT_EQ(std::ssize(ids), lengths_of(w, i).prompt);
    EXPECT_EQ(body["max_tokens"], lengths_of(w, i).output);
    for (const int64_t id : ids) EXPECT_TRUE(id >= 0 && id < 1000);
    seen.insert(ids.begin(), ids.end());
    EXPECT_EQ(body["model"], "a \"b\"");
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
  }
  EXPECT_GT(seen.size(), 800U);
  EXPECT_FALSE(Json::parse(body_of({.ignore_eos = false}, 0)).contains("ignore_eos"));
}

TEST(Workload, requests_share_their_prefix_and_nothing_else) {
  const Workload w{.isl = 64, .osl = 9, .range_ratio = 1, .prefix_len = 10, .vocab_size = 1 << 20};
  const auto ids = [&](uint64_t i) { return Json::parse(body_of(w, i))["prompt"].get<std::vector<int64_t>>(); };
  const auto a = ids(0), b = ids(1);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 10, b.begin()));
  for (size_t i = 10; i < a.size(); ++i) EXPECT_NE(a[i], b[i]) << i;
  EXPECT_EQ(a, ids(0));
  Workload other = w;
  other.seed = 2;
  EXPECT_NE(Json::parse(body_of(other, 0))["prompt"].get<std::vector<int64_t>>(), a);
}

TEST(Workload, a_chat_is_told_in_words) {
  const Workload w{.api = Api::kChat, .isl = 20, .osl = 9};
  const auto text = Json::parse(body_of(w, 3))["messages"][0]["content"].get<std::string>();
  EXPECT_EQ(std::ranges::count(text, ' ') + 1, lengths_of(w, 3).prompt);
  const Workload completion{.form = PromptForm::kText, .isl = 20, .osl = 9};
  EXPECT_EQ(Json::parse(body_of(completion, 3))["prompt"], text);
}

TEST(Workload, chats_offer_tools_or_ask_for_a_form) {
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"a"}}])");
  Json body = Json::parse(body_of({.api = Api::kChat, .tools = tools.dump()}, 0));
  EXPECT_EQ(body["tools"], tools);
  EXPECT_EQ(body["tool_choice"], "required");
  EXPECT_EQ(Json::parse(body_of({.api = Api::kChat, .tools = tools.dump(), .must_call = false}, 0))["tool_choice"],
            "auto");
  body = Json::parse(body_of({.api = Api::kChat, .json_schema = R"({"type":"object"})"}, 0));
  EXPECT_EQ(body["response_format"]["type"], "json_schema");
  EXPECT_EQ(body["response_format"]["json_schema"]["schema"], Json::parse(R"({"type":"object"})"));
  EXPECT_FALSE(body.contains("tools"));
}

TEST(Workload, users_think_as_long_as_asked_on_average) {
  double sum = 0;
  for (uint64_t i = 0; i < 20000; ++i) sum += think_seconds(3, i, 0.5);
  EXPECT_NEAR(sum / 20000, 0.5, 0.02);
  EXPECT_EQ(think_seconds(3, 1, 0), 0);
  EXPECT_NE(think_seconds(3, 1, 1), think_seconds(3, 2, 1));
}

TEST(Workload, arrivals_have_the_rate_and_the_spread_of_poissons) {
  const std::vector<double> at = poisson_arrivals(20001, 50, 3);
  EXPECT_EQ(at.front(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(at));
  EXPECT_NEAR(at.back() / 20000, 0.02, 0.0005);
  double squares = 0;
  for (size_t i = 1; i < at.size(); ++i) squares += (at[i] - at[i - 1] - 0.02) * (at[i] - at[i - 1] - 0.02);
  EXPECT_NEAR(std::sqrt(squares / 20000), 0.02, 0.001);  // of exponential gaps it is their mean
}

using Json = nlohmann::json;

Outcome said(const std::string& text) {
  Outcome o;
  o.ended = true;
  o.text = text;
  return o;
}

Json messages(const Conversations& conversations, size_t request) {
  return Json::parse(conversations.body(request))["messages"];
}

TEST(Conversations, every_answer_is_part_of_the_next_prompt) {
  const Workload w{.api = Api::kChat, .isl = 20, .prefix_len = 5, .turns = 3};
  Conversations conversations(w, 100, 6);
  const Json first = messages(conversations, 3);
  ASSERT_EQ(first.size(), 1U);
  Outcome o = said("one \"quoted\"");
  conversations.ended(3, o);
  EXPECT_EQ(o.text, "");
  const Json second = messages(conversations, 4);
  ASSERT_EQ(second.size(), 3U);
  EXPECT_EQ(second[0], first[0]);
  EXPECT_EQ(second[1], Json({{"role", "assistant"}, {"content", "one \"quoted\""}}));
  EXPECT_EQ(second[2]["role"], "user");
  EXPECT_NE(second[2], first[0]);
  o = said("two");
  conversations.ended(4, o);
  const Json third = messages(conversations, 5);
  ASSERT_EQ(third.size(), 5U);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), third.begin()));
  EXPECT_EQ(third[3]["content"], "two");
  o = said("three");
  conversations.ended(5, o);
  EXPECT_EQ(messages(conversations, 5).size(), 1U);  // it is over
  EXPECT_EQ(messages(conversations, 0).size(), 1U);  // others know nothing of it
  // Only beginnings share their prefix.
  const auto words = [](const Json& message) { return message["content"].get<std::string>().substr(0, 12); };
  EXPECT_EQ(words(messages(conversations, 0)[0]), words(first[0]));
  EXPECT_NE(words(second[2]), words(first[0]));
}

TEST(Conversations, calls_of_tools_are_answered) {
  const Workload w{.api = Api::kChat, .isl = 9, .turns = 2, .tools = "[]"};
  Conversations conversations(w, 0, 2);
  Outcome o = said("");
  o.calls = {{"a", "add", "{}"}, {"b", "now", "{\"x\":1}"}};
  conversations.ended(0, o);
  EXPECT_TRUE(o.calls.empty());
  const Json all = messages(conversations, 1);
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[1]["tool_calls"][1]["function"], Json({{"name", "now"}, {"arguments", "{\"x\":1}"}}));
  EXPECT_EQ(all[2], Json({{"role", "tool"}, {"tool_call_id", "a"}, {"content", "done"}}));
  EXPECT_EQ(all[3]["tool_call_id"], "b");
  EXPECT_EQ(all[4]["role"], "user");
}

TEST(Conversations, one_that_failed_is_forgotten) {
  const Workload w{.api = Api::kChat, .isl = 9, .turns = 2};
  Conversations conversations(w, 0, 2);
  Outcome o = said("x");
  o.failure = Failure::kTimeout;
  conversations.ended(0, o);
  EXPECT_EQ(messages(conversations, 1).size(), 1U);
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

TEST(AnswerCheck, calls_are_of_tools_that_were_offered_with_arguments_in_json) {
  const Workload w{.api = Api::kChat, .tools = kTools};
  const auto kind = [&](const std::vector<ToolCall>& calls) { return judged(w, answer("", calls)).kind(); };
  EXPECT_EQ(kind({{"1", "add", R"({"a":1})"}, {"2", "now", ""}}), "none");
  EXPECT_EQ(kind({}), "no tool call");
  EXPECT_EQ(kind({{"1", "subtract", "{}"}}), "unknown tool");
  EXPECT_EQ(kind({{"1", "now", "{}"}, {"2", "add", R"({"a":)"}}), "invalid JSON");
  EXPECT_THAT(judged(w, answer("", {{"1", "add", "["}})).message, HasSubstr("arguments of add, ended by stop: ["));
  EXPECT_FALSE(judged(w, answer("", {})).ok());
}

TEST(AnswerCheck, no_call_is_no_failure_where_none_was_forced) {
  const Workload w{.api = Api::kChat, .tools = kTools, .must_call = false};
  EXPECT_TRUE(judged(w, answer("hello")).ok());
  EXPECT_EQ(judged(w, answer("", {{"1", "add", "["}})).failure, Failure::kInvalidJson);
}

TEST(AnswerCheck, an_answer_is_json) {
  const Workload w{.api = Api::kChat, .json_schema = R"({"type":"object","required":["a"]})"};
  EXPECT_TRUE(judged(w, answer(R"( {"a":1})")).ok());
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
                            R"([{"function":{"name":"a"}},{"function":{"name":"a"}}])"})
    EXPECT_THROW(AnswerCheck({.tools = tools}), Error) << tools;
  for (const char* schema : {"{", "[]", "true"}) EXPECT_THROW(AnswerCheck({.json_schema = schema}), Error) << schema;
}

}  // namespace
}  // namespace nibble::client

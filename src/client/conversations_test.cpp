#include "client/conversations.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace nibble::client {
namespace {

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

}  // namespace
}  // namespace nibble::client

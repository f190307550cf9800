#include "lab/client/answer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::client {
namespace {

using testing::ElementsAre;

std::vector<std::string> events(std::string_view bytes, size_t piece) {
  EventStream stream;
  std::vector<std::string> found;
  for (size_t at = 0; at < bytes.size(); at += piece)
    EXPECT_TRUE(stream.take(bytes.substr(at, piece), [&](std::string_view data) { found.emplace_back(data); }));
  return found;
}

TEST(EventStream, finds_the_same_events_however_the_bytes_are_cut) {
  const std::string_view bytes =
      ": hello\n\ndata: {\"a\":1}\n\nevent: x\nid: 7\ndata:two\ndata: lines\n\ndata\n\n\n\nretry: 3\n\ndata: [DONE]\n\ndata: cut";
  for (size_t piece = 1; piece <= bytes.size(); ++piece)
    EXPECT_THAT(events(bytes, piece), ElementsAre("{\"a\":1}", "two\nlines", "", "[DONE]")) << piece;
}

TEST(EventStream, takes_both_line_ends) {
  for (size_t piece = 1; piece < 12; ++piece) {
    EXPECT_THAT(events("data: a\r\n\r\ndata: b\r\n\r\n", piece), ElementsAre("a", "b")) << piece;
    EXPECT_THAT(events("data: a\r\n\ndata: b\n\r\n", piece), ElementsAre("a", "b")) << piece;
  }
}

TEST(EventStream, an_event_without_end_is_refused) {
  EventStream stream;
  const std::string much(1 << 20, 'x');
  const auto ignore = [](std::string_view) {};
  bool took = stream.take("data: ", ignore);
  for (int i = 0; i < 17 && took; ++i) took = stream.take(much, ignore);
  EXPECT_FALSE(took);
}

using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;

constexpr const char* kEvents = "text/event-stream; charset=utf-8";

// The events at 1, 2, 3 … seconds.
Outcome read(const std::vector<std::string>& events, const AnswerOptions& options = {}) {
  Outcome outcome;
  AnswerReader reader(outcome, options);
  reader.head(200, kEvents);
  double now = 0;
  for (const std::string& event : events) reader.body("data: " + event + "\n\n", ++now);
  reader.end();
  return outcome;
}

TEST(AnswerReader, times_the_events_that_have_tokens_of_completions) {
  const Outcome o = read({R"({"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":null})",
                          R"({"choices":[{"index":0,"text":"","finish_reason":null}]})",
                          R"({"choices":[{"index":0,"text":"b","finish_reason":null}]})",
                          R"({"choices":[{"index":0,"text":"","finish_reason":"length"}]})",
                          R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}})", "[DONE]"},
                         {.keep_answer = true});
  EXPECT_EQ(o.failure, Failure::kNone) << o.message;
  EXPECT_EQ(o.events, 3);
  EXPECT_EQ(o.first, 1);
  EXPECT_EQ(o.last, 3);
  EXPECT_THAT(o.gaps, ElementsAre(FloatEq(1), FloatEq(1)));
  EXPECT_EQ(o.finish_reason, "length");
  EXPECT_EQ(o.prompt_tokens, 7);
  EXPECT_EQ(o.tokens(), 4);
  EXPECT_EQ(o.text, "ab");
}

TEST(AnswerReader, a_role_is_no_token_of_a_chat) {
  const Outcome o =
      read({R"({"choices":[{"delta":{"role":"assistant","content":""}}]})",
            R"({"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm"}}]})",
            R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})", R"({"choices":[{"delta":{"content":"x"}}]})",
            R"({"choices":[{"delta":{},"finish_reason":"stop"}]})", "[DONE]"},
           {.keep_answer = true});
  EXPECT_EQ(o.failure, Failure::kNone) << o.message;
  EXPECT_EQ(o.events, 3);
  EXPECT_EQ(o.first, 2);
  EXPECT_EQ(o.tokens(), 3);  // nobody else counted
  EXPECT_EQ(o.text, "x");    // without its reasoning
}

TEST(AnswerReader, joins_the_pieces_of_calls) {
  const auto calls = [](const std::string& pieces) {
    return R"({"choices":[{"delta":{"tool_calls":)" + pieces + "}}]}";
  };
  const std::vector<std::string> events = {
      calls(R"([{"index":0,"id":"c1","function":{"name":"add","arguments":"{\"a\""}}])"),
      calls(R"([{"index":1,"id":"c2","function":{"name":"now","arguments":""}}])"),
      calls(R"([{"index":0,"function":{"arguments":":1}"}},{"index":1,"function":{"arguments":"{}"}}])"),
      R"({"choices":[{"delta":{},"finish_reason":"tool_calls"}]})", "[DONE]"};
  const Outcome o = read(events, {.keep_answer = true});
  EXPECT_EQ(o.failure, Failure::kNone) << o.message;
  ASSERT_EQ(o.calls.size(), 2U);
  EXPECT_EQ(o.calls[0].id + o.calls[0].name + o.calls[0].arguments, "c1add{\"a\":1}");
  EXPECT_EQ(o.calls[1].id + o.calls[1].name + o.calls[1].arguments, "c2now{}");
  EXPECT_TRUE(read(events).calls.empty());
  for (const char* pieces : {"7", "[7]", R"([{"index":-1}])", R"([{"index":"0"}])", R"([{"index":1000000000}])"})
    EXPECT_EQ(read({calls(pieces), "[DONE]"}, {.keep_answer = true}).failure, Failure::kMalformed) << pieces;
}

TEST(AnswerReader, names_what_went_wrong) {
  const std::string token = R"({"choices":[{"text":"a"}]})";
  EXPECT_EQ(read({token}).failure, Failure::kTruncated);
  EXPECT_EQ(read({}).failure, Failure::kTruncated);
  EXPECT_EQ(read({"[DONE]"}).failure, Failure::kEmpty);
  EXPECT_EQ(read({token, "[DONE]"}).failure, Failure::kCutOff);
  for (const char* event : {"", "{", "[]", "7", "{}", R"({"choices":{}})", R"({"choices":[7]})", R"({"choices":[{}]})",
                            R"({"choices":[{"text":3}]})"}) {
    EXPECT_EQ(read({token, event, "[DONE]"}).failure, Failure::kMalformed) << event;
  }
  const Outcome told = read({token, R"({"error":{"message":"no pages"}})", "[DONE]"});
  EXPECT_EQ(told.failure, Failure::kReported);
  EXPECT_EQ(told.message, "no pages");
  EXPECT_EQ(short_text("a\x1b[31m\u009b31m\n\u00e9"), "a [31m  31m \u00e9") << "nothing that controls a terminal";
  const std::string brackets = std::string(100'000, '[') + std::string(100'000, ']');  // would exhaust the stack
  EXPECT_EQ(read({R"({"error":)" + brackets + "}"}).failure, Failure::kReported);
}

TEST(AnswerReader, a_refusal_says_why) {
  for (const auto& [body, why] :
       {std::pair<std::string, std::string>{R"({"error":{"message":"too long","type":"x"}})", "too long"},
        {R"({"error":"no"})", "no"},
        {R"({"detail":"gone"})", "gone"},
        {R"({"message":"m"})", "m"},
        {"<html>\n502</html>", "<html> 502</html>"},
        {"", ""}}) {
    Outcome o;
    AnswerReader reader(o, {});
    reader.head(429, "application/json");
    reader.body(body, 1);
    reader.end();
    EXPECT_EQ(o.failure, Failure::kStatus);
    EXPECT_EQ(o.kind(), "HTTP 429");
    EXPECT_EQ(o.message, why);
  }
}

TEST(AnswerReader, an_answer_that_is_no_stream_is_malformed) {
  Outcome o;
  AnswerReader reader(o, {});
  reader.head(200, "application/json");
  EXPECT_TRUE(reader.over());
  EXPECT_EQ(o.failure, Failure::kMalformed);
  EXPECT_THAT(o.message, HasSubstr("application/json"));
}

TEST(AnswerReader, is_left_after_as_many_events_as_asked) {
  const std::string token = R"({"choices":[{"text":"a"}]})";
  const Outcome o = read({token, token, token, "[DONE]"}, {.close_after = 2});
  EXPECT_TRUE(o.cancelled);
  EXPECT_EQ(o.events, 2);
  EXPECT_EQ(o.failure, Failure::kNone);
}

}  // namespace
}  // namespace nibble::client

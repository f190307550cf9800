#include "server/presenter.h"

#include "server/json_fields.h"
#include "server/testing/scripted_engine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::server {
namespace {

constexpr std::string_view kWholeAnswer =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes, it is.<|return|>";
constexpr std::string_view kCall =
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": [1<|call|>";  // short by two brackets

// Plays a turn; the JSON of every event.
std::vector<Json> play(Presenter& presenter, std::string_view harmony,
                       engine::FinishReason reason = engine::FinishReason::kStop) {
  std::vector<Json> events;
  std::string text;
  presenter.begin();
  for (const int32_t token : testing::tokens(harmony))
    if (!presenter.token(0, {.token = token, .logprobs = engine::TokenLogprobs{.value = -1, .top = {}}})) break;
  presenter.finished(0, {.reason = reason, .prompt_tokens = 9, .cached_tokens = 4});
  presenter.end();
  text = presenter.take();
  for (size_t at = 0; (at = text.find("data: ", at)) != std::string::npos; at += 6) {
    const std::string line = text.substr(at + 6, text.find("\n\n", at) - at - 6);
    if (line != "[DONE]") events.push_back(parse_json(line));
  }
  return events;
}

const AnswerId kId{.id = "id", .model = "tiny", .created = 1};

TurnRequest turn(std::string_view fields) {
  return parse_chat(parse_json(R"({"messages":[{"role":"user","content":"hi"}])" + std::string(fields) + "}"));
}
constexpr std::string_view kTools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";

TEST(chunk_template, filled_is_the_chunk_with_the_text) {
  const auto chunk = [](std::string_view text) {
    return Json{{"id", "a\"b"}, {"delta", {{"reasoning", text}, {"content", text}}}, {"end", nullptr}};
  };
  const ChunkTemplate filling(chunk(ChunkTemplate::kHole));
  const std::string_view texts[] = {"", "word", "\"quoted\" \\ \n", std::string_view("\0", 1), "\xff no UTF-8", "é"};
  for (const std::string_view text : texts) EXPECT_EQ(filling.filled(text), to_text(chunk(text)));
}

TEST(present_chat, a_whole_answer_has_reasoning_content_and_usage) {
  const ServedModel model = testing::model();
  const auto presenter = present_chat(model, kId, turn(""));
  play(*presenter, kWholeAnswer);
  const Json json = presenter->body();
  const Json& message = json["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Yes, it is.");
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(json["usage"]["completion_tokens"], testing::tokens(kWholeAnswer).size());
}

TEST(present_chat, a_call_that_is_no_json_is_a_call_all_the_same) {
  const ServedModel model = testing::model();
  const auto presenter = present_chat(model, kId, turn(kTools));
  play(*presenter, kCall);
  const Json choice = presenter->body()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": [1");
}

TEST(present_chat, a_stream_carries_the_same_text_and_ends_with_the_usage) {
  const ServedModel model = testing::model();
  const auto presenter =
      present_chat(model, kId, turn(R"(,"stream":true,"stream_options":{"include_usage":true},"logprobs":true)"));
  const std::vector<Json> events = play(*presenter, kWholeAnswer);
  std::string content, tokens, reasoning;
  for (const Json& e : events) {
    for (const Json& c : e["choices"]) {
      content += c["delta"].value("content", "");
      reasoning += c["delta"].value("reasoning", "");
      if (!c["logprobs"].is_null())
        for (const Json& entry : c["logprobs"]["content"]) tokens += entry["token"].get<std::string>();
    }
  }
  EXPECT_EQ(content, "Yes, it is.");
  EXPECT_EQ(tokens, content);
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "stop");
}

TEST(present_chat, logprobs_end_where_a_stop_string_cut) {
  const ServedModel model = testing::model();
  const auto presenter = present_chat(model, kId, turn(R"(,"stop":", it","logprobs":true)"));
  play(*presenter, kWholeAnswer);
  const Json choice = presenter->body()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Yes");
  std::string tokens;
  for (const Json& entry : choice["logprobs"]["content"]) tokens += entry["token"].get<std::string>();
  EXPECT_EQ(tokens, "Yes");
}

TEST(present_chat, logprobs_stay_beside_their_text_where_a_header_was_text) {
  const ServedModel model = testing::model();
  for (const std::string_view stream : {"", R"(,"stream":true)"}) {
    const auto presenter = present_chat(model, kId, turn(R"(,"stop":" so","logprobs":true)" + std::string(stream)));
    const std::vector<Json> events =
        play(*presenter, "<|channel|>final of all this text<|message|> and this so it ends<|return|>");
    std::string text, tokens;
    const auto read = [&](const Json& said, const Json& logprobs) {
      text += said.value("content", "");
      if (logprobs.is_null()) return;
      for (const Json& entry : logprobs["content"]) tokens += entry["token"].get<std::string>();
    };
    for (const Json& e : events) read(e["choices"][0]["delta"], e["choices"][0]["logprobs"]);
    if (events.empty()) {
      const Json choice = presenter->body()["choices"][0];
      read(choice["message"], choice["logprobs"]);
    }
    EXPECT_EQ(text, "of all this text and this") << stream;
    EXPECT_EQ(tokens, " all this text and this") << stream;  // "of" became text with the next token
  }
}

TEST(present_chat, a_turn_cut_by_the_limit_says_length) {
  const ServedModel model = testing::model();
  for (const std::string_view script : {kWholeAnswer, kCall}) {
    const auto presenter = present_chat(model, kId, turn(kTools));
    play(*presenter, script.substr(0, script.size() - 10), engine::FinishReason::kLength);
    EXPECT_EQ(presenter->body()["choices"][0]["finish_reason"], "length");
  }
}

TEST(present_response, events_are_numbered_and_the_call_is_whole) {
  const ServedModel model = testing::model();
  const auto none = [](const std::string&) { return StoredTurn(); };
  const auto request =
      parse_responses(parse_json(R"({"input":"hi","stream":true,"tools":[{"type":"function","name":"f"}]})"), none);
  size_t kept = 0;
  const auto presenter = present_response(
      model, kId, request, [&](const Json& response, const std::vector<text::Message>& added, const CallNames& calls) {
        kept = added.size();
        EXPECT_EQ(response["status"], "completed");
        EXPECT_EQ(calls.size(), 1);
      });
  const std::vector<Json> events =
      play(*presenter, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + std::string(kCall));
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  EXPECT_EQ(kept, 2);
  const Json& call = events.back()["response"]["output"][1];
  EXPECT_EQ(call["arguments"], "{\"a\": [1");
  EXPECT_EQ(call["status"], "completed");
  const Json& input = events.back()["response"]["usage"]["input_tokens_details"];
  EXPECT_EQ(input, (Json{{"cached_tokens", 4}, {"cache_write_tokens", 0}}));
}

TEST(present_response, a_part_begins_without_the_logprobs_of_the_message_before) {
  const ServedModel model = testing::model();
  const auto none = [](const std::string&) { return StoredTurn(); };
  const auto request =
      parse_responses(parse_json(R"({"input":"hi","stream":true,"include":["message.output_text.logprobs"]})"), none);
  const auto presenter = present_response(model, kId, request, {});
  int parts = 0;
  for (const Json& e : play(*presenter,
                            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final"
                            "<|message|>Yes.<|return|>")) {
    EXPECT_EQ(e["type"] == "response.output_text.done", e.contains("text") && !e["logprobs"].empty());
    if (e["type"] != "response.content_part.added") continue;
    ++parts;
    EXPECT_EQ(e["part"]["text"], "");
    EXPECT_EQ(e["part"]["logprobs"], Json::array());
  }
  EXPECT_EQ(parts, 2);
}

TEST(present_completion, half_characters_wait_and_bad_ones_are_replaced) {
  const ServedModel model = testing::model();
  const auto presenter =
      present_completion(model, kId, parse_completion(parse_json(R"({"prompt":"a","max_tokens":100})")));
  play(*presenter, "日本 \xff!");
  EXPECT_EQ(presenter->body()["choices"][0]["text"], "日本 \uFFFD!");
}

TEST(present_completion, offsets_count_special_tokens_only_where_they_are_shown) {
  const ServedModel model = testing::model();
  for (const std::string_view skip : {"true", "false"}) {
    const std::string fields = R"({"prompt":"a","max_tokens":100,"logprobs":0,"skip_special_tokens":)";
    const auto presenter =
        present_completion(model, kId, parse_completion(parse_json(fields + std::string(skip) + "}")));
    play(*presenter, "<|channel|>final<|message|>Yes");
    const Json choice = presenter->body()["choices"][0];
    const auto text = choice["text"].get<std::string>();
    const Json& logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["tokens"][1], "final");
    EXPECT_EQ(logprobs["text_offset"][1], text.find("final")) << text;
    EXPECT_EQ(logprobs["text_offset"][3], text.find("Yes")) << text;
  }
}

TurnRequest message_turn(std::string_view fields) {
  return parse_messages(
      parse_json(R"({"max_tokens":99,"messages":[{"role":"user","content":"hi"}])" + std::string(fields) + "}"),
      MessagesFor::kAnswer);
}
constexpr std::string_view kMessageTool = R"(,"tools":[{"name":"f","input_schema":{}}])";
constexpr std::string_view kNoThinking = R"(,"thinking":{"type":"disabled"})";

TEST(present_message, thinking_is_a_block_unless_it_is_unwanted) {
  const ServedModel model = testing::model();
  for (const bool thinking : {false, true}) {
    const auto presenter = present_message(model, kId, message_turn(thinking ? "" : kNoThinking));
    play(*presenter, kWholeAnswer);
    const Json json = presenter->body();
    const Json text = {{"type", "text"}, {"text", "Yes, it is."}};
    EXPECT_EQ(json["content"].size(), thinking ? 2 : 1);
    EXPECT_EQ(json["content"].back(), text);
    if (thinking) EXPECT_EQ(json["content"][0]["thinking"], "Hm.");
    EXPECT_EQ(json["stop_reason"], "end_turn");
    const Json usage = json["usage"];
    EXPECT_EQ(usage["input_tokens"], 5);  // 9, of which 4 were cached
    EXPECT_EQ(usage["cache_read_input_tokens"], 4);
    EXPECT_EQ(usage["output_tokens"], testing::tokens(kWholeAnswer).size());
    EXPECT_EQ(usage["output_tokens_details"]["thinking_tokens"], 4);
  }
}

TEST(present_message, a_turn_says_why_it_ended) {
  const ServedModel model = testing::model();
  using enum engine::FinishReason;
  const std::string call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": [1]}<|call|>";
  for (const auto& [fields, script, reason, said] :
       {std::tuple{std::string(R"(,"stop_sequences":["zz",", it"])"), std::string(kWholeAnswer), kStop,
                   "stop_sequence"},
        {"", std::string(kWholeAnswer), kLength, "max_tokens"},
        {"", std::string(kWholeAnswer), kContext, "model_context_window_exceeded"},
        {std::string(kMessageTool), call, kStop, "tool_use"},
        {std::string(kMessageTool), std::string(kCall), kLength, "max_tokens"}}) {
    const auto presenter = present_message(model, kId, message_turn(fields));
    play(*presenter, script, reason);
    const Json json = presenter->body();
    EXPECT_EQ(json["stop_reason"], said);
    EXPECT_EQ(json["stop_sequence"], std::string_view(said) == "stop_sequence" ? Json(", it") : Json());
    if (script == call) EXPECT_EQ(json["content"][0]["input"], (Json{{"a", {1}}}));
    if (script == kCall) EXPECT_EQ(json["content"][0]["input"], Json::object());  // cut short: no JSON
  }
}

TEST(present_message, a_stream_numbers_its_blocks_and_carries_the_call_as_it_is_written) {
  const ServedModel model = testing::model();
  const auto presenter = present_message(model, kId, message_turn(std::string(kMessageTool) + R"(,"stream":true)"));
  std::string types, arguments;
  int64_t index = -1;
  for (const Json& e :
       play(*presenter, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + std::string(kCall))) {
    const auto type = e["type"].get<std::string>();
    if (type == "content_block_start") ++index;
    if (e.contains("index")) EXPECT_EQ(e["index"], index);
    if (type == "content_block_delta")
      arguments += e["delta"].value("partial_json", "");
    else
      types += type + " ";
    if (type == "message_delta") {
      EXPECT_EQ(e["delta"]["stop_reason"], "tool_use");
      EXPECT_EQ(e["usage"]["input_tokens"], 5);
    }
  }
  EXPECT_EQ(
      types,
      "message_start ping content_block_start content_block_stop content_block_start content_block_stop message_delta "
      "message_stop ");
  EXPECT_EQ(arguments, "{\"a\": [1");
}

}  // namespace
}  // namespace nibble::server

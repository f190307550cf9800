// Ollama's chats and texts, from the body to the lines of the stream.

#include "server/api.h"
#include "server/json_fields.h"
#include "server/testing/scripted_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

TurnRequest ollama_chat(const std::string& fields) {
  return parse_ollama(parse_json(R"({"model":"tiny",)" + fields + "}"), OllamaFor::kChat);
}
std::string ollama_refusal(const std::string& fields) {
  try {
    static_cast<void>(ollama_chat(fields));
  } catch (const ApiError& e) {
    return e.what();
  }
  return "";
}

TEST(ollama, results_belong_to_calls_by_id_by_name_or_by_order) {
  const TurnRequest turn =
      ollama_chat(R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"I look.",
      "thinking":"Hm.","tool_calls":[{"function":{"name":"a","arguments":{"x":1}}},{"function":{"name":"b"}},
      {"id":"7","function":{"name":"c"}},{"id":"8","function":{"name":"c"}}]},
      {"role":"tool","tool_name":"b","content":"of b"},{"role":"tool","content":"of a"},
      {"role":"tool","tool_call_id":"8","content":"of 8"},{"role":"tool","tool_name":"c","content":"of 7"}])");
  std::string told;
  for (const text::Message& m : turn.history)
    told += m.name + ">" + m.recipient.value_or("") + ":" + std::get<std::string>(m.content[0]) + " ";
  EXPECT_EQ(told,
            ">:q >:Hm. >:I look. >functions.a:{\"x\":1} >functions.b:{} >functions.c:{} >functions.c:{} "
            "functions.b>assistant:of b functions.a>assistant:of a functions.c>assistant:of 8 "
            "functions.c>assistant:of 7 ");
  EXPECT_EQ(turn.history[2].channel, text::kCommentaryChannel);
  EXPECT_THAT(ollama_refusal(R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"a"}}]},
      {"role":"tool","content":""},{"role":"tool","tool_name":"a","content":""}])"),
              HasSubstr("messages[2].role: no earlier message calls a"));
}

TEST(ollama, options_become_the_sampling_of_all_endpoints) {
  const TurnRequest turn =
      ollama_chat(R"("options":{"num_predict":7,"temperature":0.5,"top_k":3,"top_p":0.4,"min_p":0.1,
      "seed":5,"stop":"x","repeat_penalty":1.5,"presence_penalty":1,"frequency_penalty":-1,"num_ctx":100})");
  const auto& sampling = turn.generation.request.sampling;
  EXPECT_EQ(turn.generation.max_tokens, 7);
  EXPECT_EQ(turn.generation.context, 100);
  EXPECT_EQ(turn.generation.seed, 5);
  EXPECT_EQ(turn.generation.stop, std::vector<std::string>{"x"});
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_k, 3);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty, -1.0f);
  const TurnRequest open =
      ollama_chat(R"("options":{"num_predict":-1,"seed":-1,"repeat_last_n":64,"penalize_newline":false})");
  EXPECT_FALSE(open.generation.max_tokens || open.generation.seed);
  EXPECT_TRUE(open.generation.stream);
  EXPECT_EQ(ollama_refusal(R"("options":{"temperature":-1})").substr(0, 20), "options.temperature:");
}

TEST(ollama, thinking_is_an_effort_or_a_switch) {
  EXPECT_EQ(ollama_chat(R"("think":"high")").effort, text::ReasoningEffort::kHigh);
  EXPECT_EQ(ollama_chat(R"("think":true)").effort, text::ReasoningEffort::kMedium);
  const TurnRequest off = ollama_chat(R"("think":false)");
  EXPECT_EQ(off.effort, text::ReasoningEffort::kLow);
  EXPECT_FALSE(off.include_reasoning);
  EXPECT_TRUE(ollama_chat(R"("think":true)").include_reasoning);
}

TEST(ollama, a_format_is_json_or_a_schema) {
  using Kind = OutputFormat::Kind;
  EXPECT_EQ(ollama_chat(R"("format":"")").format.kind, Kind::kText);
  EXPECT_EQ(ollama_chat(R"("format":"json")").format.kind, Kind::kJsonObject);
  const OutputFormat schema = ollama_chat(R"("format":{"type":"object"})").format;
  EXPECT_EQ(schema.kind, Kind::kJsonSchema);
  EXPECT_EQ(schema.schema.schema, (Json{{"type", "object"}}));
  EXPECT_THAT(ollama_refusal(R"("format":"yaml")"), HasSubstr("format: want \"json\" or a schema"));
}

class OllamaTest : public ::testing::Test {
 protected:
  void start(const std::string& script) {
    engine_ = std::make_unique<testing::ScriptedEngine>(std::vector{script});
    api_ =
        std::make_unique<Api>(ApiOptions{.date = [] { return std::string("2026-11-21"); }, .log = [](const Json&) {}});
    api_->publish(testing::model(), engine_->port());
  }
  std::string ask(const std::string& path, const std::string& body) {
    const auto call = api_->handle({.method = "POST", .path = path, .body = body}, [] {});
    Call::Output out;
    std::string text;
    do {
      out = call->poll();
      if (out.head) head_ = *out.head;
      text += out.body;
      if (!out.done) std::this_thread::yield();
    } while (!out.done);
    return text;
  }
  // What the lines of a stream say.
  std::string lines(const std::string& path, const std::string& body) {
    const std::string text = ask(path, body);
    std::string told;
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      const Json line = parse_json(text.substr(at, text.find('\n', at) - at));
      const Json part = line.value("message", line);
      told += part.value("thinking", "") + "/" + part.value("content", part.value("response", "")) + "/" +
              (part.contains("tool_calls") ? to_text(part["tool_calls"]) : "") + line.value("done_reason", "") +
              line.value("error", "") + " ";
    }
    return told;
  }

  HttpHead head_;
  std::unique_ptr<testing::ScriptedEngine> engine_;
  std::unique_ptr<Api> api_;
};

constexpr const char* kOneTool = R"("tools":[{"type":"function","function":{"name":"f"}}])";

TEST_F(OllamaTest, a_stream_has_a_line_for_each_piece_and_a_call_is_whole) {
  start(
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
      "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>");
  const std::string body = R"({"model":"tiny","messages":[{"role":"user","content":"q"}],)" + std::string(kOneTool);
  EXPECT_EQ(lines("/api/chat", body + "}"),
            "H// m// .// \n\n// So// .// //[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}] //stop ");
  EXPECT_EQ(head_.content_type, "application/x-ndjson");
  const Json whole = parse_json(ask("/api/chat", body + R"(,"stream":false})"));
  EXPECT_EQ(whole["message"], (Json{{"role", "assistant"},
                                    {"content", ""},
                                    {"thinking", "Hm.\n\nSo."},
                                    {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}}}}));
  EXPECT_EQ(whole["done"], true);
}

TEST_F(OllamaTest, a_failure_in_a_stream_is_a_line_and_before_it_a_status) {
  start("<|channel|>final<|message|>one!");
  const std::string body = R"({"model":"tiny","prompt":"q")";
  const std::string told = lines("/api/generate", body + "}");
  EXPECT_EQ(head_.status, 200);
  EXPECT_THAT(told, HasSubstr("//generation failed: "));
  const Json whole = parse_json(ask("/api/generate", body + R"(,"stream":false})"));
  EXPECT_EQ(head_.status, 500);
  EXPECT_THAT(whole["error"].get<std::string>(), HasSubstr("generation failed"));
  EXPECT_EQ(ask("/api/generate", R"({"model":"x","prompt":"q"})"), R"({"error":"model 'x' not found"})");
  EXPECT_EQ(head_.status, 404);
  ask("/api/generate", body + R"(,"options":{"num_ctx":2001}})");
  EXPECT_EQ(head_.status, 400);
  ask("/api/generate", body + R"(,"options":{"num_ctx":2000}})");
  EXPECT_EQ(head_.status, 200);
}

TEST_F(OllamaTest, nothing_to_say_computes_nothing) {
  start("<|channel|>final<|message|>Yes.<|return|>");
  EXPECT_EQ(lines("/api/generate", R"({"model":"tiny","system":"s"})"), "//load ");
  EXPECT_EQ(lines("/api/chat", R"({"model":"tiny:latest"})"), "//load ");
  EXPECT_TRUE(engine_->requests.empty());
  EXPECT_EQ(lines("/api/generate", R"({"model":"tiny","prompt":"q"})"), "/Yes/ /./ //stop ");
}

TEST(reply, only_a_stream_of_events_is_pinged) {
  for (const auto& [type, ping] : {std::pair(kEventStream, ": \n\n"), {kLines, ""}}) {
    ReadyCall call({.content_type = std::string(type), .headers = {}, .stream = true}, "");
    Reply reply(call, {.keep_alive = true, .chunked = false}, /*is_head=*/false);
    static_cast<void>(reply.next());
    EXPECT_EQ(reply.ping(), ping);
  }
}

}  // namespace
}  // namespace nibble::server

// What agents send beyond plain chats: namespaces, raw text, loaded tools, pictures, unknown fields.

#include "server/api.h"
#include "server/json_fields.h"
#include "server/testing/scripted_engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

const std::string kAgentTools = R"("tools":[
  {"type":"function","name":"run","strict":false,"parameters":{"type":"object"}},
  {"type":"namespace","name":"mcp__tiny","description":"Small.","tools":[
    {"type":"function","name":"add","description":"Adds.","parameters":{"type":"object"}},
    {"type":"custom","name":"note"}]},
  {"type":"custom","name":"patch","format":{"type":"grammar","syntax":"lark","definition":"start: \"a\" /.+/"}},
  {"type":"tool_search","execution":"client","description":"Finds.","parameters":{"type":"object"}},
  {"type":"web_search","external_web_access":false},{"type":"image_generation"}])";

ResponsesRequest responses(const std::string& fields, const RequestDefaults& defaults = {}) {
  return parse_responses(parse_json("{" + fields + "}"), {}, defaults);
}

template <class Parse>
ApiError what_is_refused(const Parse& parse) {
  try {
    static_cast<void>(parse());
  } catch (const ApiError& e) {
    return e;
  }
  return {"", ""};
}

// "role/channel/recipient/text" of each message; of told tools their names.
std::string told(const std::vector<text::Message>& history) {
  std::string out;
  for (const text::Message& m : history) {
    const auto* text = std::get_if<std::string>(&m.content.at(0));
    const auto* developer = std::get_if<text::DeveloperOptions>(&m.content.at(0));
    std::string said = text != nullptr ? *text : "";
    if (developer != nullptr)
      for (const text::ToolSpec& tool : developer->tools) said += "+" + tool.space.name + "." + tool.name;
    out += fmt::format("{}/{}/{}/{}{} ", name_of(m.role), m.channel.value_or(""), m.recipient.value_or(m.name), said,
                       m.content_type ? "/" + m.content_type->name : "");
  }
  return out;
}

TEST(agents, tools_of_every_kind_are_read_and_offers_are_left_out) {
  const TurnRequest turn = responses(R"("input":"hi",)" + kAgentTools).turn;
  std::string names;
  for (const Tool& tool : turn.tools)
    names += tool.callee().recipient() + fmt::format("/{} ", static_cast<int>(tool.kind));
  EXPECT_EQ(names, "functions.run/0 mcp__tiny.add/0 mcp__tiny.note/1 functions.patch/1 functions.tool_search/2 ");
  EXPECT_EQ(turn.tools[1].spec.space.description, "Small.");
  EXPECT_EQ(turn.generation.leniency.ignored,
            (std::vector<std::string>{"tools[].web_search", "tools[].image_generation"}));
  EXPECT_TRUE(turn.tools[3].strict);
  EXPECT_NE(turn.tools[3].grammar.find("root ::="), std::string::npos);
}

TEST(agents, what_no_tool_can_be_is_named) {
  for (
      const auto& [tool, param] :
      {std::pair{R"({"type":"file_search"})", "tools[0].type"},
       {R"({"type":"namespace","name":"browser","tools":[]})", "tools[0].name"},
       {R"({"type":"namespace","name":"a.b","tools":[]})", "tools[0].name"},
       {R"({"type":"namespace","name":"a","tools":[{"type":"namespace","name":"b","tools":[]}]})",
        "tools[0].tools[0].type"},
       {R"({"type":"tool_search","execution":"server"})", "tools[0].execution"},
       {R"({"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark","definition":"start: x"}})",
        "tools[0].format.definition"},
       {R"({"type":"custom","name":"c","format":{"type":"grammar","syntax":"regex","definition":"a{2,1}"}})",
        "tools[0].format.definition"},
       {R"({"type":"function","name":"f"},{"type":"namespace","name":"functions","tools":[{"type":"function","name":"f"}]})",
        "tools[1].tools[0].name"}})
    EXPECT_EQ(what_is_refused([&] { return responses(fmt::format(R"("input":"a","tools":[{}])", tool)); }).param(),
              param)
        << tool;
  EXPECT_EQ(what_is_refused([&] {
              return responses(R"("input":"a","tool_choice":{"type":"web_search"},)" + kAgentTools);
            }).param(),
            "tool_choice.type");
  const TurnRequest named =
      responses(R"("input":"a","tool_choice":{"type":"function","name":"add","namespace":"mcp__tiny"},)" + kAgentTools)
          .turn;
  EXPECT_EQ(named.named_tool.recipient(), "mcp__tiny.add");
  EXPECT_EQ(what_is_refused([&] {
              return responses(R"("input":"a","tool_choice":{"type":"function","name":"add"},)" + kAgentTools);
            }).param(),
            "tool_choice");
}

TEST(agents, calls_of_every_kind_come_back_as_they_were_made) {
  const TurnRequest turn = responses(R"("input":[{"role":"user","content":"q"},
      {"type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"I look."}]},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},
      {"type":"function_call","call_id":"1","name":"add","namespace":"mcp__tiny","arguments":"{}"},
      {"type":"custom_tool_call","call_id":"2","name":"patch","input":"a b"},
      {"type":"function_call_output","call_id":"1","output":"3"},
      {"type":"custom_tool_call_output","call_id":"2","output":[{"type":"input_text","text":"ok"}]},
      {"type":"message","role":"assistant","phase":"final_answer","content":"Done."},
      {"type":"tool_search_call","call_id":"3","execution":"client","arguments":{"query":"x"}},
      {"type":"tool_search_output","call_id":"3","execution":"client","tools":[
        {"type":"namespace","name":"found","tools":[{"type":"function","name":"it","defer_loading":true,"parameters":{}}]},
        {"type":"function","name":"run","parameters":{"type":"object"}}]}],)" +
                                     kAgentTools)
                               .turn;
  EXPECT_EQ(told(turn.history),
            "user///q assistant/commentary//I look. assistant/analysis//Hm. "
            "assistant/commentary/mcp__tiny.add/{}/json assistant/commentary/functions.patch/a b "
            "tool/commentary/assistant/3 tool/commentary/assistant/ok assistant/final//Done. "
            "assistant/commentary/functions.tool_search/{\"query\":\"x\"}/json "
            "tool/commentary/assistant/Loaded: found.it, functions.run developer///+found.it ");
  EXPECT_EQ(turn.tools.back().callee().recipient(), "found.it");
  EXPECT_EQ(turn.tools.back().told, Tool::Told::kInHistory);
}

TEST(agents, a_text_before_reasoning_and_a_call_is_a_preamble_by_itself) {
  const TurnRequest turn = responses(R"("input":[{"role":"user","content":"q"},{"role":"assistant","content":"I look."},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},
      {"type":"custom_tool_call","call_id":"2","name":"patch","input":"a b"}])")
                               .turn;
  EXPECT_EQ(turn.history[1].channel, text::kCommentaryChannel);
}

TEST(agents, additional_tools_at_the_beginning_are_told_there) {
  const TurnRequest turn = responses(R"("input":[{"type":"additional_tools","role":"developer","tools":[
      {"type":"namespace","name":"functions","tools":[{"type":"function","name":"run"}]}]},
      {"role":"user","content":"q"}],"reasoning":{"context":"all_turns"})")
                               .turn;
  EXPECT_EQ(told(turn.history), "user///q ");
  ASSERT_EQ(turn.tools.size(), 1);
  EXPECT_EQ(turn.tools[0].told, Tool::Told::kAtStart);
}

TEST(agents, pictures_leave_a_text_or_are_refused) {
  const std::string body = R"("input":[{"role":"user","content":[{"type":"input_text","text":"Look: "},
      {"type":"input_image","image_url":"data:,","detail":"high"},{"type":"input_image","image_url":"data:,"}]}])";
  const TurnRequest turn = responses(body).turn;
  EXPECT_NE(told(turn.history).find("Look: [image 1: left out"), std::string::npos);
  EXPECT_EQ(turn.generation.leniency.images_left_out, 2);
  EXPECT_EQ(turn.generation.leniency.ignored, std::vector<std::string>{"input[].content[].input_image"});
  EXPECT_EQ(what_is_refused([&] { return responses(body, {.leniency = {.images = false}}); }).param(),
            "input[0].content[1].type");
  const Json file = parse_json(R"({"messages":[{"role":"user","content":[{"type":"file"}]}]})");
  EXPECT_EQ(what_is_refused([&] { return parse_chat(file); }).param(), "messages[0].content[0].type");
}

TEST(agents, unknown_fields_are_noted_and_wishes_are_still_refused) {
  const Json body = parse_json(R"({"frobnicate":1,"messages":[{"role":"user","content":"a","id":"x"},
      {"role":"assistant","content":"b","parsed":null,"mood":"?"},{"role":"user","content":"c","id":"y"}],
      "max_tokens":-1,"response_format":{"type":"json_object","schema":{"type":"integer"}}})");
  const TurnRequest turn = parse_chat(body);
  EXPECT_EQ(turn.generation.leniency.ignored,
            (std::vector<std::string>{"messages[].id", "messages[].mood", "frobnicate"}));
  EXPECT_FALSE(turn.generation.max_tokens);
  EXPECT_EQ(turn.format.schema.schema.dump(), R"({"type":"integer"})");
  EXPECT_EQ(what_is_refused([&] { return parse_chat(body, {.leniency = {.unknown_fields = false}}); }).param(),
            "messages[0].id");
  for (const auto& [fields, param] : {std::pair{R"("bad_words":["a"])", "bad_words"},
                                      {R"("chat_template_kwargs":{"mood":1})", "chat_template_kwargs.mood"},
                                      {R"("structured_outputs":{"mood":1})", "structured_outputs.mood"},
                                      {R"("max_tokens":0)", "max_tokens"}})
    EXPECT_EQ(
        what_is_refused([&] {
          return parse_chat(parse_json(fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],{}}})", fields)));
        }).param(),
        param);
}

TEST(agents, a_wish_under_another_endpoints_name_is_refused) {
  for (const char* name : {"max_tokens", "messages", "response_format", "reasoning_effort"})
    EXPECT_EQ(what_is_refused([&] { return responses(fmt::format(R"("input":"a","{}":[1])", name)); }).param(), name);
  EXPECT_EQ(what_is_refused([&] { return responses(R"("input":"a","n":2)"); }).param(), "n");
  EXPECT_EQ(what_is_refused([] { return parse_completion(parse_json(R"({"prompt":"a","tools":[1]})")); }).param(),
            "tools");
}

TEST(agents, no_items_are_enough_where_instructions_say_something) {
  EXPECT_EQ(responses(R"("input":[],"instructions":"Greet.")").turn.instructions.size(), 1);
  EXPECT_EQ(what_is_refused([] { return responses(R"("input":[])"); }).param(), "input");
}

TEST(agents, deferred_tools_are_told_once_a_result_names_them) {
  const auto parse = [](const std::string& content) {
    return parse_messages(parse_json(R"({"max_tokens":9,"tools":[{"name":"Search","input_schema":{"type":"object"}},
        {"name":"late","input_schema":{"type":"object"},"defer_loading":true}],"messages":[{"role":"user","content":"q"},
        {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"Search","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":)" +
                                     content + "}]}]}"),
                          MessagesFor::kAnswer);
  };
  EXPECT_EQ(parse("\"nothing\"").tools[1].told, Tool::Told::kNotYet);
  const TurnRequest turn = parse(R"([{"type":"tool_reference","tool_name":"late"}])");
  EXPECT_EQ(turn.tools[1].told, Tool::Told::kInHistory);
  EXPECT_NE(told(turn.history).find("Loaded: late developer///+functions.late"), std::string::npos);
  EXPECT_EQ(what_is_refused([&] { return parse(R"([{"type":"tool_reference","tool_name":"x"}])"); }).param(),
            "messages[2].content[0].content[0].tool_name");
}

// Events of a turn that a model plays, by type; the JSON of all.
struct Played {
  std::string types;
  std::vector<Json> events;
};

class AgentsTest : public ::testing::Test {
 protected:
  void start(std::vector<std::string> scripts, ApiOptions options = {}) {
    engine_ = std::make_unique<testing::ScriptedEngine>(std::move(scripts));
    options.log = [this](const Json& line) { log_.push_back(line); };
    options.date = [] { return std::string("2026-11-29"); };
    api_ = std::make_unique<Api>(std::move(options));
    api_->publish(testing::model(), engine_->port());
  }
  std::string ask(const std::string& path, const std::string& body, const std::string& method = "POST") {
    const auto call = api_->handle({.method = method, .path = path, .body = body}, [] {});
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
  Played play(const std::string& path, const std::string& body) {
    const std::string text = ask(path, body);
    Played out;
    for (size_t at = 0; (at = text.find("data: ", at)) != std::string::npos; at += 6) {
      out.events.push_back(parse_json(text.substr(at + 6, text.find("\n\n", at) - at - 6)));
      const auto type = out.events.back()["type"].get<std::string>();
      if (!type.ends_with("delta")) out.types += type.substr(type.find('.') + 1) + " ";
    }
    return out;
  }
  std::string header(std::string_view name) {
    for (const auto& [key, value] : head_.headers)
      if (key == name) return value;
    return "";
  }

  HttpHead head_;
  std::vector<Json> log_;
  std::unique_ptr<testing::ScriptedEngine> engine_;
  std::unique_ptr<Api> api_;
};

TEST_F(AgentsTest, what_a_grammar_does_not_keep_of_a_schema_is_told) {
  const std::string answer = "<|channel|>final<|message|>Yes.<|return|>";
  start({answer, answer, answer});
  const std::string schema = R"({"type":"object","properties":{"unit":{"enum":["C","F"]},"a b":{"type":"string",
      "not":{"pattern":"x"}}},"required":["unit"],"additionalProperties":false})";
  const auto told = [&](const std::string& fields) {
    ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
    return header("X-Nibble-Ignored");
  };
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f","parameters":)";
  EXPECT_EQ(told(tool + schema + R"(,"strict":true}}])"), "tool f#/properties/a b/not");
  EXPECT_EQ(told(tool + R"({"type":5}}}])"), "tool f#");
  EXPECT_EQ(told(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":)" +
                 schema + "}}"),
            "response_format#/properties/a b/not");
}

TEST_F(AgentsTest, a_stream_has_codexs_items_and_what_was_ignored_in_its_head) {
  start(
      {"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=mcp__tiny.add "
       "<|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary "
       "to=functions.patch<|message|>abc<|call|><|start|>assistant<|channel|>commentary "
       "to=functions.tool_search<|message|>{\"query\":\"x\"}<|call|><|start|>assistant<|channel|>final<|message|>Yes."
       "<|return|>"});
  const Played played = play("/v1/responses", R"({"stream":true,"mood":1,"input":"hi",)" + kAgentTools + "}");
  EXPECT_EQ(header("X-Nibble-Ignored"), "tools[].web_search, tools[].image_generation, mood");
  EXPECT_EQ(played.types,
            "created in_progress output_item.added content_part.added output_text.done content_part.done "
            "output_item.done output_item.added function_call_arguments.done output_item.done output_item.added "
            "custom_tool_call_input.done output_item.done output_item.added output_item.done output_item.added "
            "content_part.added output_text.done content_part.done output_item.done completed ");
  for (size_t i = 0; i < played.events.size(); ++i) EXPECT_EQ(played.events[i]["sequence_number"], i);
  Json items = played.events.back()["response"]["output"];
  for (Json& item : items) {
    EXPECT_EQ(item["status"], "completed");
    for (const char* name : {"id", "call_id", "status", "content", "role"}) item.erase(name);
  }
  EXPECT_EQ(items, (Json{{{"type", "message"}, {"phase", "commentary"}},
                         {{"type", "function_call"}, {"name", "add"}, {"namespace", "mcp__tiny"}, {"arguments", "{}"}},
                         {{"type", "custom_tool_call"}, {"name", "patch"}, {"input", "abc"}},
                         {{"type", "tool_search_call"}, {"execution", "client"}, {"arguments", {{"query", "x"}}}},
                         {{"type", "message"}, {"phase", "final_answer"}}}));
  EXPECT_NE(played.events.back()["response"]["usage"]["input_tokens"], 0);
  ask("/v1/responses", R"({"mood":1,"input":"hi"})");
  int told = 0;
  for (const Json& line : log_) told += line["event"] == "ignored" ? 1 : 0;
  EXPECT_EQ(told, 1);  // once
}

TEST_F(AgentsTest, the_mask_allows_a_custom_tools_text_and_loaded_tools) {
  start({"<|channel|>final<|message|>Yes.<|return|>"});
  const auto allows = [this](std::string_view harmony) {
    std::vector<uint32_t> mask(static_cast<size_t>(testing::model().vocab) / 32 + 1);
    engine::TokenMask& of = *engine_->requests.back().mask;
    for (const int32_t token : testing::tokens(harmony)) {
      of.fill(mask);
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) return false;
      of.accept(token);
    }
    return true;
  };
  const auto allowed = [&](std::string_view harmony) {
    ask("/v1/responses", R"({"input":[{"role":"user","content":"q"},
        {"type":"tool_search_call","call_id":"3","arguments":{}},{"type":"tool_search_output","call_id":"3","tools":[
        {"type":"namespace","name":"found","tools":[{"type":"function","name":"it"}]}]}],)" +
                             kAgentTools + "}");
    return allows(harmony);
  };
  EXPECT_TRUE(allowed("<|channel|>commentary to=functions.patch<|message|>abc<|call|>"));
  EXPECT_FALSE(allowed("<|channel|>commentary to=functions.patch<|message|>bc<|call|>"));
  EXPECT_FALSE(allowed("<|channel|>commentary to=functions.patch <|constrain|>json<|message|>"));
  EXPECT_TRUE(allowed("<|channel|>commentary to=mcp__tiny.note<|message|>any\n{<|call|>"));
  EXPECT_TRUE(allowed("<|channel|>commentary to=mcp__tiny.add <|constrain|>json<|message|>{}<|call|>"));
  EXPECT_TRUE(allowed("<|channel|>commentary to=found.it<|message|>{}<|call|>"));
  EXPECT_FALSE(allowed("<|channel|>commentary to=functions.add<|message|>{}<|call|>"));
  EXPECT_TRUE(
      allowed("<|channel|>commentary to=mcp__tiny.note <|constrain|>json<|message|>{\"input\": \"a\\n\"}<|call|>"));
  EXPECT_FALSE(allowed("<|channel|>commentary to=mcp__tiny.note <|constrain|>json<|message|>{\"input\": 1"));
}

TEST_F(AgentsTest, the_mask_holds_a_grammar_to_the_answer_alone) {
  start({"<|channel|>final<|message|>Yes.<|return|>"});
  const auto allowed = [this](const std::string& fields, std::string_view harmony) {
    ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"q"}],)" + fields + "}");
    EXPECT_EQ(head_.status, 200);
    std::vector<uint32_t> mask(static_cast<size_t>(testing::model().vocab) / 32 + 1);
    engine::TokenMask& of = *engine_->requests.back().mask;
    for (const int32_t token : testing::tokens(harmony)) {
      of.fill(mask);
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) return false;
      of.accept(token);
    }
    return true;
  };
  for (const std::string fields :
       {R"("guided_choice":["ab","b"])", R"("grammar":"root ::= \"a\"? \"b\"")", R"("guided_regex":"a?b")",
        R"("response_format":{"type":"structural_tag","format":{"type":"const_string","value":"ab"}})"}) {
    EXPECT_TRUE(allowed(fields,
                        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>ab"
                        "<|return|>"));
    EXPECT_FALSE(allowed(fields, "<|channel|>final<|message|>aa"));
    EXPECT_FALSE(allowed(fields, "<|channel|>final <|constrain|>json<|message|>"));
    EXPECT_FALSE(allowed(fields, "<|channel|>commentary<|message|>"));
    EXPECT_TRUE(allowed(fields + R"(,"tools":[{"type":"custom","custom":{"name":"note"}}])",
                        "<|channel|>commentary to=functions.note<|message|>any<|call|>"));
  }
}

TEST_F(AgentsTest, a_chat_has_custom_tools) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"run"}},{"type":"custom","custom":{"name":"note",
      "description":"Notes."}},{"type":"custom","custom":{"name":"patch","format":{"type":"grammar","grammar":{
      "syntax":"regex","definition":"a+"}}}}])";
  const TurnRequest turn = parse_chat(parse_json(R"({"tool_choice":{"type":"custom","custom":{"name":"patch"}},
      "messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[
      {"type":"custom","id":"1","custom":{"name":"patch","input":"a b"}}]},
      {"role":"tool","tool_call_id":"1","content":"ok"}],)" +
                                                 tools + "}"));
  EXPECT_EQ(told(turn.history), "user///q assistant/commentary/functions.patch/a b tool/commentary/assistant/ok ");
  EXPECT_EQ(turn.tools[2].kind, ToolKind::kCustom);
  EXPECT_TRUE(turn.tools[2].strict);
  EXPECT_EQ(turn.named_tool.name, "patch");
  for (
      const auto& [tool, param] :
      {std::pair{R"({"type":"custom"})", "tools[0].custom"},
       {R"({"type":"custom","custom":{"name":"p","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"x"}}}})",
        "tools[0].custom.format.grammar.definition"}})
    EXPECT_EQ(what_is_refused([&] {
                return parse_chat(
                    parse_json(fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],"tools":[{}]}})", tool)));
              }).param(),
              param);

  start(
      {"<|channel|>commentary to=functions.note <|constrain|>json<|message|>{\"input\": \"a\\nb\"}<|call|>"
       "<|start|>assistant<|channel|>commentary to=functions.patch<|message|>aa<|call|>"
       "<|start|>assistant<|channel|>commentary to=functions.run<|message|>{}<|call|>"});
  const std::string body = R"({"messages":[{"role":"user","content":"q"}],)" + tools;
  Json calls = parse_json(ask("/v1/chat/completions", body + "}"))["choices"][0]["message"]["tool_calls"];
  const auto without_ids = [](Json list) {
    for (Json& call : list) EXPECT_TRUE(call.erase("id") == 1);
    return list;
  };
  const Json wanted = {{{"type", "custom"}, {"custom", {{"name", "note"}, {"input", "a\nb"}}}},
                       {{"type", "custom"}, {"custom", {{"name", "patch"}, {"input", "aa"}}}},
                       {{"type", "function"}, {"function", {{"name", "run"}, {"arguments", "{}"}}}}};
  EXPECT_EQ(without_ids(calls), wanted);
  Json streamed = Json::array();
  const std::string text = ask("/v1/chat/completions", body + R"(,"stream":true})");
  for (size_t at = 0; (at = text.find("data: {", at)) != std::string::npos; at += 6) {
    const Json delta = parse_json(text.substr(at + 6, text.find("\n\n", at) - at - 6))["choices"][0]["delta"];
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      const size_t index = call["index"];
      if (call.contains("id")) {
        streamed.push_back(call);
        streamed.back().erase("index");
        continue;
      }
      for (const auto& [type, field] : {std::pair{"custom", "input"}, {"function", "arguments"}})
        if (call.contains(type)) {
          Json& so_far = streamed[index][type][field];
          so_far = so_far.get<std::string>() + call[type][field].get<std::string>();
        }
    }
  }
  EXPECT_EQ(without_ids(streamed), wanted);
}

TEST_F(AgentsTest, json_around_a_custom_tools_text_comes_off_as_it_streams_and_stays_off) {
  start({"<|channel|>commentary to=mcp__tiny.note <|constrain|>json<|message|>{\"x\": \"a b\\u00e9 c d\"}<|call|>",
         "<|channel|>final<|message|>Yes.<|return|>"});
  const Played played = play("/v1/responses", R"({"stream":true,"input":"hi",)" + kAgentTools + "}");
  std::string input;
  int deltas = 0;
  for (const Json& event : played.events)
    if (event["type"] == "response.custom_tool_call_input.delta") ++deltas, input += event["delta"].get<std::string>();
  EXPECT_EQ(input, "a bé c d");
  EXPECT_GT(deltas, 3);
  const Json& call = played.events.back()["response"]["output"][0];
  EXPECT_EQ(call["input"], "a bé c d");
  ask("/v1/responses",
      fmt::format(R"({{"previous_response_id":{},"input":[{{"type":"custom_tool_call_output",
      "call_id":{},"output":"1"}}],{}}})",
                  to_text(played.events.back()["response"]["id"]), to_text(call["call_id"]), kAgentTools));
  const std::vector<int32_t> kept =
      testing::tokens(" to=mcp__tiny.note<|channel|>commentary<|message|>a bé c d<|call|>");
  const std::vector<int32_t>& prompt = engine_->requests.back().prompt;
  EXPECT_NE(std::search(prompt.begin(), prompt.end(), kept.begin(), kept.end()), prompt.end());
}

TEST_F(AgentsTest, names_that_miss_are_repaired_and_counted) {
  for (const auto& [to, name] : {std::pair{"functions.mcp__tiny.add", "mcp__tiny.add"},
                                 {"functions.mcp__tiny__add", "mcp__tiny.add"},
                                 {"functions.add", "mcp__tiny.add"},
                                 {"run", "functions.run"},
                                 {"functions.unknown", "functions.unknown"}}) {
    start({fmt::format("<|channel|>commentary to={}<|message|>{{}}<|call|>", to)});
    const Json item = parse_json(ask("/v1/responses", R"({"input":"hi","min_tokens":1,)" + kAgentTools + "}"));
    ASSERT_TRUE(item.contains("error")) << item;  // min_tokens goes with no strict tool
    const std::string loose = R"("tools":[{"type":"function","name":"run"},
        {"type":"namespace","name":"mcp__tiny","tools":[{"type":"function","name":"add"}]}])";
    const Json call = parse_json(ask("/v1/responses", R"({"input":"hi","min_tokens":1,)" + loose + "}"))["output"][0];
    EXPECT_NE(header("X-Nibble-Ignored").find("tool "), std::string::npos);  // its arguments are any text
    EXPECT_EQ(call.value("namespace", "functions") + "." + call["name"].get<std::string>(), name);
    EXPECT_EQ(log_.back()["repairs"], std::string_view(to).ends_with("unknown") ? 0 : 1) << to;
  }
}

TEST_F(AgentsTest, a_prompt_that_is_too_long_ends_a_stream_of_responses_and_refuses_others) {
  start({"<|channel|>final<|message|>Yes.<|return|>"});
  std::string text;
  for (int i = 0; i < 3000; ++i) text += " a b";
  const Played played = play("/v1/responses", R"({"stream":true,"input":")" + text + "\"}");
  EXPECT_EQ(head_.status, 200);
  EXPECT_EQ(played.types, "created in_progress failed ");
  const Json& failed = played.events.back()["response"];
  EXPECT_EQ(failed["error"]["code"], "context_length_exceeded");
  EXPECT_GT(failed["usage"]["input_tokens"], 2000);
  ask("/v1/responses", R"({"input":")" + text + "\"}");
  EXPECT_EQ(head_.status, 400);
  const std::string message =
      ask("/v1/messages", R"({"stream":true,"max_tokens":9,"messages":[{"role":"user","content":")" + text + "\"}]}");
  EXPECT_EQ(head_.status, 400);
  EXPECT_NE(message.find("prompt is too long: "), std::string::npos);
  EXPECT_NE(message.find(" tokens > 1999 maximum"), std::string::npos) << message;
}

TEST_F(AgentsTest, a_message_goes_on_with_the_text_that_its_answer_began_with) {
  start({" 4.<|return|>"});
  const std::string body = R"("max_tokens":9,"messages":[{"role":"user","content":"2+2?"},
      {"role":"assistant","content":"It is"}]})";
  const Json answer = parse_json(ask("/v1/messages", "{" + body));
  EXPECT_EQ(answer["content"][0]["text"], " 4.");
  const std::vector<int32_t> end = testing::tokens("<|start|>assistant<|channel|>final<|message|>It is");
  const std::vector<int32_t>& prompt = engine_->requests.back().prompt;
  EXPECT_TRUE(std::equal(end.rbegin(), end.rend(), prompt.rbegin()));
  ask("/v1/messages", R"({"tool_choice":{"type":"any"},"tools":[{"name":"f","input_schema":{}}],)" + body);
  EXPECT_EQ(head_.status, 400);
}

TEST_F(AgentsTest, names_of_claude_are_answered_by_the_served_model_unless_that_is_off) {
  const auto status = [this](const std::string& model) {
    ask("/v1/messages", R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],"model":")" + model + "\"}");
    return head_.status;
  };
  start({"<|channel|>final<|message|>Yes.<|return|>"});
  EXPECT_EQ(status("claude-sonnet-5"), 200);
  EXPECT_EQ(status("gpt-5"), 404);
  start({"<|channel|>final<|message|>Yes.<|return|>"}, {.other_names = std::nullopt});
  EXPECT_EQ(status("claude-sonnet-5"), 404);
  start({"<|channel|>final<|message|>Yes.<|return|>"}, {.other_names = ""});
  EXPECT_EQ(status("gpt-5"), 200);
}

TEST_F(AgentsTest, models_are_listed_as_each_client_reads_them) {
  start({""});
  const Json json = parse_json(ask("/v1/models", "", "GET"));
  EXPECT_EQ(json["data"][0]["type"], "model");
  EXPECT_EQ(json["data"][0]["display_name"], "tiny");
  EXPECT_EQ(json["data"][0]["created_at"].get<std::string>().size(), 20);
  EXPECT_EQ(json["models"][0]["slug"], "tiny");
  EXPECT_EQ(json["models"][0]["apply_patch_tool_type"], "freeform");
  EXPECT_EQ(json["models"][0]["context_window"], 2000);
  EXPECT_EQ(parse_json(ask("/api/tags", "", "GET"))["models"][0]["name"], "tiny");
  EXPECT_EQ(parse_json(ask("/v1/responses/input_tokens", R"({"input":"hi"})"))["object"], "response.input_tokens");
}

TEST_F(AgentsTest, a_loaded_tool_stays_in_a_kept_conversation) {
  start({"<|channel|>commentary to=found.it<|message|>{}<|call|>", "<|channel|>final<|message|>Yes.<|return|>"});
  const Json first = parse_json(ask("/v1/responses", R"({"input":[{"role":"user","content":"q"},
      {"type":"tool_search_call","call_id":"3","arguments":{}},{"type":"tool_search_output","call_id":"3","tools":[
      {"type":"namespace","name":"found","tools":[{"type":"function","name":"it"}]}]}]})"));
  EXPECT_EQ(first["output"][0]["namespace"], "found");
  const std::string id = first["id"], call = first["output"][0]["call_id"];
  ask("/v1/responses", fmt::format(R"({{"previous_response_id":"{}","tool_choice":{{"type":"function","name":"it",
      "namespace":"found"}},"input":[{{"type":"function_call_output","call_id":"{}","output":"1"}}]}})",
                                   id, call));
  EXPECT_EQ(head_.status, 200);
}

}  // namespace
}  // namespace nibble::server

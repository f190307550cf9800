#include "server/schema.h"

#include "server/json_fields.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

// Nothing unknown passes.
RequestDefaults strict() { return {.leniency = {.unknown_fields = false, .images = false}}; }

TurnRequest chat(std::string_view fields) {
  return parse_chat(parse_json(R"({"messages":[{"role":"user","content":"hi"}])" + std::string(fields) + "}"),
                    strict());
}

// What it throws; nothing wrong, with no words, if it throws nothing.
template <class Parse>
ApiError refusal_of(const Parse& parse) {
  try {
    static_cast<void>(parse());
  } catch (const ApiError& e) {
    return e;
  }
  return {"", ""};
}

// The field that is refused; empty: none is.
std::string refused(const std::string& fields) {
  return refusal_of([&] { return chat(fields); }).param();
}

TEST(schema, a_refusal_has_openais_code) {
  const auto code = [](const std::string& fields) -> std::string {
    return refusal_of([&] { return chat(fields); }).json()["error"]["code"];
  };
  EXPECT_EQ(code(R"(,"frobnicate":1)"), "unknown_parameter");
  EXPECT_EQ(code(R"(,"audio":{"voice":"x"})"), "unsupported_parameter");
  EXPECT_EQ(code(R"(,"modalities":["audio"])"), "unsupported_value");
  EXPECT_EQ(code(R"(,"temperature":"hot")"), "invalid_type");
  EXPECT_EQ(code(R"(,"temperature":-1)"), "invalid_value");
  EXPECT_EQ(code(R"(,"reasoning_effort":"extreme")"), "invalid_value");
  EXPECT_EQ(code(R"(,"stop":[""])"), "invalid_value");
  EXPECT_EQ(code(R"(,"tools":[{"type":"function"}])"), "missing_required_parameter");
  EXPECT_EQ(code(R"(,"response_format":{})"), "missing_required_parameter");
}

TEST(schema, what_cannot_go_on_is_refused) {
  EXPECT_EQ(refused(R"(,"continue_final_message":true)"), "continue_final_message");
  EXPECT_EQ(refused(R"(,"add_generation_prompt":false)"), "add_generation_prompt");
  EXPECT_EQ(refused(R"(,"background":true)"), "background");
  EXPECT_EQ(refused(R"(,"background":true,"stream":true,"logprobs":true)"), "background");
  EXPECT_EQ(refused(R"(,"background":true,"stream":true)"), "");
  EXPECT_EQ(refused(R"(,"return_progress":true)"), "return_progress");
  const std::string open = R"(,{"role":"assistant","content":"{"}],"continue_final_message":true)";
  const auto goes_on = [&](const std::string& fields) {
    const std::string body = R"({"messages":[{"role":"user","content":"hi"})" + open + fields + "}";
    return refusal_of([&] { return parse_chat(parse_json(body), strict()); }).param();
  };
  EXPECT_EQ(goes_on(""), "");
  EXPECT_EQ(goes_on(R"(,"add_generation_prompt":true)"), "add_generation_prompt");
  EXPECT_EQ(goes_on(R"(,"response_format":{"type":"json_object"})"), "continue_final_message");
}

TEST(schema, sampling_fields_reach_the_request) {
  const TurnRequest turn = chat(R"(,"temperature":0.5,"top_p":0,"top_k":-1,"min_p":0.1,"presence_penalty":1,
      "frequency_penalty":-1,"repetition_penalty":1.1,"logit_bias":{"5":-100},"seed":-3,"n":2,"stop":"x",
      "stop_token_ids":[7],"min_tokens":3,"max_completion_tokens":9,"max_tokens":8,"logprobs":true,"top_logprobs":4,
      "ignore_eos":true,"priority":-6,"reasoning_effort":"high")");
  const GenerationFields& g = turn.generation;
  EXPECT_FLOAT_EQ(g.request.sampling.temperature, 0.5f);
  EXPECT_GT(g.request.sampling.top_p, 0);
  EXPECT_EQ(g.request.sampling.top_k, 0);
  EXPECT_FLOAT_EQ(g.request.sampling.min_p, 0.1f);
  EXPECT_EQ(g.request.sampling.logit_bias.at(0), (std::pair<int32_t, float>(5, -100)));
  EXPECT_EQ(g.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(g.n, 2);
  EXPECT_EQ(g.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(g.request.stop_ids, std::vector<int32_t>{7});
  EXPECT_EQ(g.request.min_tokens, 3);
  EXPECT_EQ(g.request.priority, -6);
  EXPECT_EQ(g.max_tokens, 9);
  EXPECT_EQ(g.request.logprobs, 4);
  EXPECT_TRUE(g.ignore_eos);
  EXPECT_EQ(turn.effort, text::ReasoningEffort::kHigh);
}

TEST(schema, efforts_that_gpt_oss_lacks_are_the_nearest_that_it_has) {
  using E = text::ReasoningEffort;
  for (const auto& [name, effort] : {std::pair("none", E::kLow),
                                     {"minimal", E::kLow},
                                     {"low", E::kLow},
                                     {"medium", E::kMedium},
                                     {"high", E::kHigh},
                                     {"xhigh", E::kHigh},
                                     {"max", E::kHigh}}) {
    const std::string field = fmt::format(R"("reasoning_effort":"{}")", name);
    EXPECT_EQ(chat("," + field).effort, effort);
    EXPECT_EQ(chat(R"(,"chat_template_kwargs":{)" + field + "}").effort, effort);
    const Json body = parse_json(fmt::format(R"({{"input":"hi","reasoning":{{"effort":"{}"}}}})", name));
    EXPECT_EQ(parse_responses(body, {}).turn.effort, effort);
  }
}

TEST(schema, what_a_template_is_told_is_honoured_or_named) {
  using E = text::ReasoningEffort;
  const TurnRequest turn = chat(R"(,"chat_template_kwargs":{"model_identity":"You are Bo.","enable_thinking":true})");
  EXPECT_EQ(turn.identity, "You are Bo.");
  EXPECT_EQ(turn.effort, E::kMedium);
  const std::string off = R"(,"chat_template_kwargs":{"enable_thinking":false})";
  EXPECT_EQ(chat(off).effort, E::kLow);
  EXPECT_EQ(chat(off + R"(,"reasoning_effort":"none")").effort, E::kLow);
  for (const auto& [fields, param] :
       {std::pair(off + R"(,"reasoning_effort":"high")", "chat_template_kwargs.enable_thinking"),
        {R"(,"chat_template_kwargs":{"reasoning_effort":"low"},"reasoning_effort":"high")",
         "chat_template_kwargs.reasoning_effort"},
        {R"(,"chat_template_kwargs":{"builtin_tools":["python"]})", "chat_template_kwargs.builtin_tools"},
        {R"(,"chat_template_kwargs":{"enable_thinking":"no"})", "chat_template_kwargs.enable_thinking"}})
    EXPECT_EQ(refused(fields), param) << fields;
}

TEST(schema, verbosity_is_the_last_line_of_the_instructions) {
  const auto lines = [](const std::string& field) {
    return parse_chat(
               parse_json(R"({"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hi"}])" +
                          field + "}"))
        .instructions;
  };
  EXPECT_EQ(lines(R"(,"verbosity":"medium")"), std::vector<std::string>{"Be kind."});
  for (const std::string word : {"low", "high"}) {
    const std::vector<std::string> said = lines(fmt::format(R"(,"verbosity":"{}")", word));
    ASSERT_EQ(said.size(), 2) << word;
    EXPECT_EQ(said[0], "Be kind.");
    const Json body = parse_json(fmt::format(
        R"({{"instructions":"A","input":[{{"role":"system","content":"B"}},{{"role":"user","content":"hi"}}],"text":{{"verbosity":"{}"}}}})",
        word));
    EXPECT_EQ(parse_responses(body, {}).turn.instructions, (std::vector<std::string>{"A", "B", said[1]}));
  }
  EXPECT_EQ(refused(R"(,"verbosity":"loud")"), "verbosity");
}

TEST(schema, numbers_of_draws_have_their_ranges) {
  for (const backend::SamplingField& field : backend::kSamplingFields) {
    SCOPED_TRACE(field.name);
    const auto with = [&](double value) { return fmt::format(R"(,"{}":{})", field.name, value); };
    const auto read = [&](double value) { return field.of(chat(with(value)).generation.request.sampling); };
    const double least = field.request_least.value_or(field.range.least);
    EXPECT_EQ(read(field.range.most), field.range.most);
    EXPECT_TRUE(field.range.holds(read(least)));
    EXPECT_EQ(refused(with(least - 1)), field.name);
    EXPECT_EQ(refused(with(field.range.most + 1)), field.name);
    EXPECT_EQ(refused(fmt::format(R"(,"{}":"hot")", field.name)), field.name);
  }
}

TEST(schema, one_penalty_has_two_names) {
  const auto penalty = [](const char* fields) { return chat(fields).generation.request.sampling.repetition_penalty; };
  EXPECT_FLOAT_EQ(penalty(R"(,"repeat_penalty":1.1)"), 1.1f);
  EXPECT_FLOAT_EQ(penalty(R"(,"repeat_penalty":1.1,"repetition_penalty":1.1)"), 1.1f);
  EXPECT_EQ(refused(R"(,"repeat_penalty":1.1,"repetition_penalty":1.2)"), "repeat_penalty");
  EXPECT_EQ(refused(R"(,"repeat_penalty":-1)"), "repeat_penalty");
}

TEST(schema, a_prediction_promises_speed_only) {
  EXPECT_EQ(refused(R"(,"prediction":{"type":"content","content":"x"})"), "");
  EXPECT_EQ(refused(R"(,"prediction":{"type":"content","content":[{"type":"text","text":"x"}]})"), "");
  EXPECT_EQ(refused(R"(,"prediction":{"type":"content"})"), "prediction.content");
  EXPECT_EQ(refused(R"(,"prediction":{"type":"dream","content":"x"})"), "prediction.type");
  EXPECT_EQ(refused(R"(,"prediction":{"type":"content","content":"x","n":1})"), "prediction.n");
}

TEST(schema, a_conversation_becomes_harmony_messages) {
  const TurnRequest turn = parse_chat(parse_json(R"({"messages":[
      {"role":"system","content":"Be kind."}, {"role":"developer","content":[{"type":"text","text":"Be brief."}]},
      {"role":"user","content":"weather?"},
      {"role":"assistant","content":"I look.","reasoning":"Hm.","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"ok"}, {"role":"assistant","content":"Fine."}],
      "tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object"}}}]})"));
  EXPECT_EQ(turn.instructions, (std::vector<std::string>{"Be kind.", "Be brief."}));
  const auto& h = turn.history;
  ASSERT_EQ(h.size(), 6);
  EXPECT_EQ(h[1].channel, "analysis");
  EXPECT_EQ(h[2].channel, "commentary");  // a preamble
  EXPECT_EQ(h[3].recipient, "functions.f");
  EXPECT_EQ(h[4].name, "functions.f");
  EXPECT_EQ(h[4].role, text::Role::kTool);
  EXPECT_EQ(h[5].channel, "final");
  EXPECT_EQ(turn.tools.at(0).spec.name, "f");
  EXPECT_TRUE(turn.tools.at(0).strict);
}

TEST(schema, instructions_that_are_items_last_and_the_field_does_not) {
  using Texts = std::vector<std::string>;
  const auto parse = [](std::string_view fields, const StoredTurn& before) {
    return parse_responses(parse_json(fields), [&](const std::string&) { return before; });
  };
  const ResponsesRequest first = parse(
      R"({"instructions":"Now.","input":[{"role":"developer","content":"Always."},{"role":"user","content":"hi"}]})",
      {});
  EXPECT_EQ(first.turn.instructions, (Texts{"Now.", "Always."}));
  EXPECT_EQ(first.lasting, Texts{"Always."});
  const ResponsesRequest second =
      parse(R"({"previous_response_id":"r","instructions":"Then.","input":"more","text":{"verbosity":"low"}})",
            {.instructions = first.lasting, .history = first.turn.history, .calls = {}});
  ASSERT_EQ(second.turn.instructions.size(), 3);  // the last one is the verbosity's
  EXPECT_EQ(second.turn.instructions[0], "Then.");
  EXPECT_EQ(second.turn.instructions[1], "Always.");
  EXPECT_EQ(second.lasting, Texts{"Always."});
  EXPECT_EQ(second.turn.history.size(), 2);
}

TEST(schema, responses_items_become_the_same_messages) {
  StoredTurn before;
  before.calls["c0"] = "functions.g";
  before.history.resize(2);
  const auto previous = [&](const std::string& id) {
    EXPECT_EQ(id, "resp_1");
    return before;
  };
  const ResponsesRequest request =
      parse_responses(parse_json(R"({"previous_response_id":"resp_1","instructions":"Be kind.",
      "input":[{"type":"function_call_output","call_id":"c0","output":"ok"},
        {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},
        {"role":"assistant","content":[{"type":"output_text","text":"I look.","annotations":[]}]},
        {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"c1","output":"ok"}],
      "reasoning":{"effort":"low"},"store":false,"max_output_tokens":5})"),
                      previous);
  const auto& h = request.turn.history;
  ASSERT_EQ(h.size(), 7);
  EXPECT_EQ(h[2].name, "functions.g");
  EXPECT_EQ(h[3].channel, "analysis");
  EXPECT_EQ(h[4].channel, "commentary");
  EXPECT_EQ(h[5].recipient, "functions.f");
  EXPECT_FALSE(request.store);
  EXPECT_EQ(request.turn.generation.max_tokens, 5);
  EXPECT_EQ(request.turn.effort, text::ReasoningEffort::kLow);
  EXPECT_EQ(request.echoed["reasoning"]["effort"], "low");
}

TEST(schema, completions_take_prompts_of_every_kind) {
  const CompletionRequest request =
      parse_completion(parse_json(R"({"prompt":["a",[1,2]],"echo":true,"max_tokens":0})"));
  EXPECT_EQ(request.prompts.size(), 2);
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts[1]), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(parse_completion(parse_json(R"({"prompt":"a"})")).generation.max_tokens, 16);
  EXPECT_THROW(static_cast<void>(parse_completion(parse_json(R"({"prompt":[1,"a"]})"))), ApiError);
}

TEST(schema, too_many_stop_tokens_are_counted) {
  std::string ids = "7";
  for (int i = 1; i < 257; ++i) ids += ",7";
  const std::string text = R"({"prompt":"a","stop_token_ids":[)" + ids + "]}";
  EXPECT_STREQ(refusal_of([&] { return parse_completion(parse_json(text)); }).what(),
               "stop_token_ids: want at most 256 token ids, found 257");
}

TEST(schema, refusals_say_what_was_found) {
  for (const auto& [fields, told] :
       {std::pair(R"("logit_bias":{"5":101})", "found \"5\": 101"),
        {R"("logit_bias":{"x":1})", "found \"x\": 1"},
        {R"("logit_bias":{"5":"a"})", "logit_bias.5: want a number, found \"a\""},
        {R"("logit_bias":[1])", "logit_bias: want an object, found [1]"},
        {R"("best_of":2)", "want the value of n, 1, found 2"},
        {R"("n":128,"prompt":["a","a","a","a","a","a","a","a","a"])", "found 128 to each of 9"}}) {
    const std::string prompt =
        std::string_view(fields).find("prompt") == std::string_view::npos ? R"("prompt":"a",)" : "";
    const ApiError found = refusal_of([&] { return parse_completion(parse_json("{" + prompt + fields + "}")); });
    EXPECT_NE(std::string_view(found.what()).find(told), std::string_view::npos) << found.what();
  }
}

std::string refused_json(std::string_view text) {
  return refusal_of([&] { return parse_json(text); }).what();
}

TEST(json_fields, text_that_is_no_json_is_refused) {
  const std::string deep = std::string(100'000, '[');
  for (const std::string_view text :
       {"", "{", "nul", "{\"a\":1,}", "\"\xff\"", "\"\\ud800\"", "[1e999]", "{\"a\":1}x", "NaN"})
    EXPECT_NE(refused_json(text), "") << text;
  EXPECT_NE(refused_json(deep).find("deeper than 100"), std::string::npos);
  EXPECT_NE(refused_json(R"({"a":{"b":1,"b":2}})").find("twice"), std::string::npos);
  EXPECT_EQ(refused_json(R"({"a":{"b":1},"c":{"b":2}})"), "");
  EXPECT_EQ(refused_json(std::string(100, '[') + std::string(100, ']')), "");
}

TEST(json_fields, values_have_types_and_ranges) {
  const Json json = parse_json(R"({"i":5,"f":5.0,"h":5.5,"s":"x","b":true,"n":null,"big":18446744073709551615})");
  Fields fields(json, "");
  EXPECT_EQ(fields.integer("i", {0, 9}), 5);
  EXPECT_EQ(fields.integer("f", {0, 9}), 5);
  EXPECT_EQ(fields.number("h", {0, 9}), 5.5);
  EXPECT_EQ(fields.boolean("b"), true);
  EXPECT_EQ(fields.string("s"), "x");
  EXPECT_EQ(fields.string("n"), std::nullopt);
  EXPECT_EQ(fields.string("absent"), std::nullopt);
  EXPECT_THROW(static_cast<void>(fields.integer("h", {0, 9})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.integer("i", {6, 9})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.integer("big", {0, INT64_MAX})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.integer("s", {0, 9})), ApiError);
  EXPECT_THROW(static_cast<void>(fields.boolean("i")), ApiError);
  EXPECT_THROW(static_cast<void>(fields.array("s")), ApiError);
  EXPECT_THROW(static_cast<void>(fields.choice("s", {"y", "z"})), ApiError);
  EXPECT_NO_THROW(fields.done());
}

TEST(json_fields, what_nobody_read_is_named_with_its_path) {
  const Json json = parse_json(R"({"outer":{"known":1,"absent":null,"odd":2}})");
  Fields fields(json, "");
  auto outer = fields.object("outer");
  EXPECT_EQ(outer->integer("known", {0, 9}), 1);
  EXPECT_EQ(refusal_of([&] { return outer->done(), 0; }).param(), "outer.odd");
}

TEST(json_fields, refused_fields_may_be_empty) {
  const Json json = parse_json(R"({"a":null,"b":false,"c":[],"d":{},"e":"","f":0})");
  Fields fields(json, "");
  EXPECT_NO_THROW(fields.refuse({"a", "b", "c", "d", "e", "absent"}, "no"));
  EXPECT_THROW(fields.refuse({"f"}, "no"), ApiError);
}

TEST(schema, what_changes_no_answer_is_taken_everywhere) {
  const std::string harmless = R"(,"prompt_cache_options":{"mode":"explicit","ttl":"12h","prewarm":false},
      "session_id":"s","stream_interval":20,"moderation":null)";
  EXPECT_EQ(refused(harmless), "");
  EXPECT_NO_THROW(static_cast<void>(parse_completion(parse_json(R"({"prompt":"a")" + harmless + "}"))));
  EXPECT_NO_THROW(static_cast<void>(parse_responses(
      parse_json(R"({"skip_special_tokens":true,"input":[{"role":"user","content":[{"type":"input_text","text":"a",
      "prompt_cache_breakpoint":{"ttl":"30m"}}]}])" +
                 harmless + "}"),
      {})));
  for (const auto& [fields, param] :
       {std::pair{R"(,"prompt_cache_options":{"prewarm":true})", "prompt_cache_options.prewarm"},
        {R"(,"prompt_cache_options":{"mode":"none"})", "prompt_cache_options.mode"},
        {R"(,"prompt_cache_options":{"x":1})", "prompt_cache_options.x"},
        {R"(,"session_id":5)", "session_id"},
        {R"(,"stream_interval":0)", "stream_interval"},
        {R"(,"moderation":{"policy":{}})", "moderation"}})
    EXPECT_EQ(refused(fields), param) << fields;
}

TEST(schema, vllms_names_for_a_format_are_understood) {
  using Kind = OutputFormat::Kind;
  for (const std::string field :
       {R"("guided_json":{"type":"integer"})", R"("guided_json":"{\"type\":\"integer\"}")",
        R"("structured_outputs":{"json":{"type":"integer"},"regex":null,"disable_fallback":false})"}) {
    for (const OutputFormat& format :
         {chat("," + field).format, parse_completion(parse_json(R"({"prompt":"a",)" + field + "}")).format,
          parse_responses(parse_json(R"({"input":"a",)" + field + "}"), {}).turn.format}) {
      EXPECT_EQ(format.kind, Kind::kJsonSchema) << field;
      EXPECT_EQ(format.schema.schema.dump(), R"({"type":"integer"})");
    }
  }
  EXPECT_EQ(chat(R"(,"structured_outputs":{"json_object":true})").format.kind, Kind::kJsonObject);
  EXPECT_EQ(chat(R"(,"guided_json":{})").format.kind, Kind::kJsonSchema);  // of any JSON
  EXPECT_EQ(chat(R"(,"grammar":"","guided_choice":[],"structured_outputs":null)").format.kind, Kind::kText);
  for (const char* fields :
       {R"("structured_outputs":{"choice":["a","b"]})", R"("guided_choice":["a","b"])", R"("grammar":"root ::= \"a\"")",
        R"("guided_grammar":"start: \"a\"")", R"("guided_regex":"a|b")", R"("structured_outputs":{"regex":"a"})",
        R"("structured_outputs":{"grammar":"root ::= \"a\""})",
        R"("structural_tag":"{\"format\":{\"type\":\"any_text\"}}")",
        R"("structured_outputs":{"structural_tag":{"format":{"type":"any_text"}}})",
        R"("response_format":{"type":"structural_tag","format":{"type":"const_string","value":"a"}})"}) {
    const OutputFormat format = chat(std::string(",") + fields).format;
    EXPECT_EQ(format.kind, Kind::kGrammar) << fields;
    EXPECT_TRUE(format.grammar.starts_with("root ::= ")) << format.grammar;
  }
  EXPECT_EQ(chat(R"(,"json_schema":{"type":"integer"})").format.field, "json_schema");
  EXPECT_EQ(chat(R"(,"guided_decoding_backend":"xgrammar")").generation.leniency.ignored,
            std::vector<std::string>{"guided_decoding_backend"});
  for (const auto& [fields, param] :
       {std::pair{R"(,"structured_outputs":{"choice":["a",1]})", "structured_outputs.choice"},
        {R"(,"structured_outputs":{})", "structured_outputs"},
        {R"(,"structured_outputs":{"json_object":false})", "structured_outputs"},
        {R"(,"structured_outputs":{"choice":["a"],"regex":"a"})", "structured_outputs.choice"},
        {R"(,"structured_outputs":{"grammar":"x"})", "structured_outputs.grammar"},
        {R"(,"structured_outputs":{"structural_tag":"{}"})", "structured_outputs.structural_tag.format"},
        {R"(,"structured_outputs":{"json":{},"whitespace_pattern":"x"})", "structured_outputs.whitespace_pattern"},
        {R"(,"guided_whitespace_pattern":" ")", "guided_whitespace_pattern"},
        {R"(,"grammar":"root ::= \"a\"","json_schema":{})", "json_schema"},
        {R"(,"grammar":"root ::= \"a\"","grammar_lazy":true)", "grammar_lazy"},
        {R"(,"structured_outputs":{"xml":1})", "structured_outputs.xml"},
        {R"(,"structured_outputs":{"json":[1]})", "structured_outputs.json"},
        {R"(,"guided_json":{"type":"integer"},"response_format":{"type":"json_object"})", "guided_json"},
        {R"(,"structured_outputs":{"json":{"type":"integer"},"json_object":true})", "structured_outputs.json_object"},
        {R"(,"guided_json":"{no")", "guided_json"},
        {R"(,"guided_choice":"a")", "guided_choice"}})
    EXPECT_EQ(refused(fields), param) << fields;
  EXPECT_EQ(chat(R"(,"response_format":{"type":"text"},"guided_json":{"type":"integer"})").format.kind,
            Kind::kJsonSchema);
}

TEST(schema, what_a_request_does_not_say_is_the_servers) {
  using E = text::ReasoningEffort;
  RequestDefaults defaults;
  defaults.sampling.temperature = 0.25f;
  defaults.sampling.top_k = 7;
  defaults.effort = E::kHigh;
  defaults.include_usage = true;
  const auto check = [](const GenerationFields& generation, float temperature, int top_k) {
    EXPECT_EQ(generation.request.sampling.temperature, temperature);
    EXPECT_EQ(generation.request.sampling.top_k, top_k);
  };
  for (const std::string body :
       {R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5)", R"({"prompt":"hi")", R"({"input":"hi")"}) {
    for (const bool says : {false, true}) {
      const Json json = parse_json(body + (says ? R"(,"temperature":1,"top_k":-1})" : "}"));
      const float temperature = says ? 1.0f : 0.25f;
      const int top_k = says ? 0 : 7;
      if (body.find("prompt") != std::string::npos) {
        check(parse_completion(json, defaults).generation, temperature, top_k);
      } else if (body.find("input") != std::string::npos) {
        check(parse_responses(json, {}, defaults).turn.generation, temperature, top_k);
        EXPECT_EQ(parse_responses(json, {}, defaults).turn.effort, E::kHigh);
      } else {
        for (const TurnRequest& turn :
             {parse_chat(json, defaults), parse_messages(json, MessagesFor::kAnswer, defaults)}) {
          check(turn.generation, temperature, top_k);
          EXPECT_EQ(turn.effort, E::kHigh);
        }
      }
    }
  }
  const Json stream = parse_json(
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":false}})");
  EXPECT_TRUE(parse_chat(stream, defaults).generation.include_usage);
  EXPECT_FALSE(parse_chat(stream).generation.include_usage);
}

TurnRequest messages(const std::string& fields, std::string_view list = R"([{"role":"user","content":"hi"}])") {
  return parse_messages(parse_json(fmt::format(R"({{"max_tokens":9,"messages":{}{}}})", list, fields)),
                        MessagesFor::kAnswer, strict());
}

TEST(schema_messages, blocks_become_harmonys_messages) {
  const TurnRequest turn =
      messages(R"(,"system":[{"type":"text","text":"A","cache_control":{"type":"ephemeral"}},
      {"type":"text","text":"B"}],"stop_sequences":["x"],"top_k":5,"temperature":0)",
               R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"redacted_thinking","data":"x"},
        {"type":"text","text":"I look."},{"type":"tool_use","id":"1","name":"f","input":{"z":1,"a":[]}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"no"}],"is_error":true},
        {"type":"tool_result","tool_use_id":"1"},{"type":"text","text":"c"}]},
      {"role":"assistant","content":"d"},{"role":"system","content":"e"},{"role":"user","content":"f"}])");
  EXPECT_EQ(turn.instructions, (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(turn.generation.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(turn.generation.max_tokens, 9);
  EXPECT_EQ(turn.generation.request.sampling.top_k, 5);
  std::string said;
  for (const text::Message& m : turn.history) {
    const auto* text = std::get_if<std::string>(&m.content.at(0));
    said += fmt::format("{}/{}/{}/{} ", name_of(m.role), m.channel.value_or(""), m.recipient.value_or(""),
                        text != nullptr ? *text : "instructions");
  }
  EXPECT_EQ(said,
            "user///a\n\nb assistant/analysis//t assistant/commentary//I look. "
            "assistant/commentary/functions.f/{\"z\":1,\"a\":[]} tool/commentary/assistant/Error: no "
            "tool/commentary/assistant/ user///c assistant/final//d developer///instructions user///f ");
}

TEST(schema_messages, thinking_is_given_unless_it_is_unwanted) {
  using E = text::ReasoningEffort;
  EXPECT_TRUE(messages("").include_reasoning);
  EXPECT_EQ(messages("").effort, E::kMedium);
  const TurnRequest enabled = messages(R"(,"thinking":{"type":"enabled","budget_tokens":2000})");
  EXPECT_TRUE(enabled.include_reasoning);
  EXPECT_EQ(enabled.reasoning_tokens, 2000);
  const TurnRequest adaptive = messages(R"(,"thinking":{"type":"adaptive"},"output_config":{"effort":"max"})");
  EXPECT_TRUE(adaptive.include_reasoning);
  EXPECT_EQ(adaptive.effort, E::kHigh);
  EXPECT_FALSE(messages(R"(,"thinking":{"type":"adaptive","display":"omitted"})").include_reasoning);
  const TurnRequest disabled = messages(R"(,"thinking":{"type":"disabled"})");
  EXPECT_FALSE(disabled.include_reasoning);
  EXPECT_EQ(disabled.effort, E::kLow);
}

TEST(schema_messages, tools_and_formats_are_those_of_a_chat) {
  const std::string tool = R"(,"tools":[{"type":"custom","name":"f","description":"d","strict":true,
      "input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}])";
  const TurnRequest turn = messages(tool + R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true},
      "output_config":{"format":{"type":"json_schema","schema":{"type":"integer"}}},"metadata":{"user_id":null})");
  ASSERT_EQ(turn.tools.size(), 1);
  EXPECT_EQ(turn.tools[0].spec.parameters->dump(), R"({"type":"object"})");
  EXPECT_TRUE(turn.tools[0].strict);
  EXPECT_EQ(turn.tool_choice, ToolChoice::kRequired);
  EXPECT_FALSE(turn.parallel_tool_calls);
  EXPECT_EQ(turn.format.kind, OutputFormat::Kind::kJsonSchema);
  EXPECT_EQ(turn.format.schema.schema.dump(), R"({"type":"integer"})");
  EXPECT_EQ(messages(tool + R"(,"tool_choice":{"type":"tool","name":"f"})").named_tool.name, "f");
  EXPECT_EQ(messages(tool + R"(,"tool_choice":{"type":"none"})").tool_choice, ToolChoice::kNone);
}

TEST(schema_messages, what_is_not_served_is_named) {
  const auto param = [](const std::string& fields, std::string_view list = R"([{"role":"user","content":"hi"}])") {
    return refusal_of([&] { return messages(fields, list); }).param();
  };
  for (const auto& [fields, name] :
       {std::pair{R"(,"max_tokenz":1)", "max_tokenz"},
        {R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}])", "tools[0].type"},
        {R"(,"tools":[{"name":"f"}])", "tools[0].input_schema"},
        {R"(,"safeguards":[])", "safeguards"},
        {R"(,"tool_choice":{"type":"tool","name":"g"})", "tool_choice"},
        {R"(,"thinking":{"type":"enabled"})", "thinking.budget_tokens"},
        {R"(,"system":[{"type":"image"}])", "system[0].type"},
        {R"(,"stop_sequences":[""])", "stop_sequences"},
        {R"(,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]})",
         "context_management.edits[0].type"},
        {R"(,"mcp_servers":[{"url":"x"}])", "mcp_servers"},
        {R"(,"service_tier":"fast")", "service_tier"}})
    EXPECT_EQ(param(fields), name);
  for (const auto& [list, name] :
       {std::pair{R"([])", "messages"},
        {R"([{"role":"tool","content":"a"}])", "messages[0].role"},
        {R"([{"role":"user"}])", "messages[0].content"},
        {R"([{"role":"user","content":[{"type":"image","source":{}}]}])", "messages[0].content[0].type"},
        {R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"9"}]}])",
         "messages[0].content[0].tool_use_id"},
        {R"([{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"b"}]}])",
         "messages[1].content"},
        {R"([{"role":"user","content":"a","name":"b"}])", "messages[0].name"}})
    EXPECT_EQ(param("", list), name);
  const Json bare = parse_json(R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(refusal_of([&] { return parse_messages(bare, MessagesFor::kAnswer); }).param(), "max_tokens");
  EXPECT_FALSE(parse_messages(bare, MessagesFor::kCount).generation.max_tokens);
  EXPECT_EQ(param(R"(,"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]})"), "");
}

}  // namespace
}  // namespace nibble::server

#include "server/api.h"

#include "server/json_fields.h"
#include "server/testing/scripted_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace nibble::server {
namespace {

constexpr const char* kAnswer = "<|channel|>final<|message|>Yes.<|return|>";
constexpr const char* kChat = R"({"messages":[{"role":"user","content":"hi"}]})";

struct Answer {
  int status = 0;
  Json json;
  std::string text;
};

class ApiTest : public ::testing::Test {
 protected:
  void start(std::vector<std::string> scripts, ApiOptions options = {}, const ServedModel& model = testing::model()) {
    engine_ = std::make_unique<testing::ScriptedEngine>(std::move(scripts));
    options.date = [] { return std::string("2026-11-21"); };
    options.log = [this](const Json& line) { log_.push_back(line); };
    api_ = std::make_unique<Api>(std::move(options));
    api_->publish(model, engine_->port());
  }
  std::unique_ptr<Call> call(const std::string& path, std::string body, const std::string& method = "POST") {
    return api_->handle({.method = method, .path = path, .authorization = key_, .body = std::move(body)}, [] {});
  }
  Answer ask(const std::string& path, const std::string& body, const std::string& method = "POST") {
    const auto c = call(path, body, method);
    Call::Output out;
    while (!(out = c->poll()).done) std::this_thread::yield();  // what it cancelled ends, what takes long is made
    Answer reply{.status = out.head->status, .json = {}, .text = out.body};
    if (out.head->content_type == "application/json") reply.json = parse_json(out.body);
    return reply;
  }

  std::string key_;
  std::vector<Json> log_;
  std::unique_ptr<testing::ScriptedEngine> engine_;
  std::unique_ptr<Api> api_;
};

TEST_F(ApiTest, a_chat_goes_to_the_engine_and_back) {
  start({kAnswer});
  const Answer reply = ask("/v1/chat/completions", kChat);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json["choices"][0]["message"]["content"], "Yes.");
  EXPECT_EQ(reply.json["model"], "tiny");
  ASSERT_EQ(engine_->requests.size(), 1);
  EXPECT_FALSE(engine_->requests[0].stop_ids.empty());
  ASSERT_EQ(log_.size(), 1);
  EXPECT_EQ(log_[0]["reason"], "stop");
}

TEST_F(ApiTest, each_of_n_answers_has_its_own_seed) {
  start({kAnswer});
  ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"n":3,"seed":41})");
  ASSERT_EQ(engine_->requests.size(), 3);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(engine_->requests[i].sampling.seed, 41 + i);
}

TEST_F(ApiTest, a_client_that_goes_cancels_every_choice) {
  start({"<|channel|>final<|message|>Yes…"});
  {
    const auto c = call("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"n":2,"stream":true})");
    EXPECT_FALSE(c->poll().done);
    EXPECT_TRUE(engine_->cancelled.empty());
  }
  EXPECT_EQ(engine_->cancelled.size(), 2);
  EXPECT_EQ(log_.back()["reason"], "abort");
}

TEST_F(ApiTest, an_answer_in_the_background_goes_on_without_its_client) {
  start({"<|channel|>final<|message|>Yes…"});
  const auto visit = [this](const std::string& method, const std::string& path, const std::string& body = "") {
    return api_->handle({.method = method, .path = path, .client_id = "mine", .body = body}, [] {});
  };
  const std::string path = "/v1/chat/completions",
                    body = R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"background":true})";
  const std::string first = visit("POST", path, body)->poll().body;
  EXPECT_NE(first.find("Yes"), std::string::npos);
  EXPECT_TRUE(engine_->cancelled.empty());
  EXPECT_EQ(visit("POST", path, body)->poll().head->status, 409);
  const Call::Output again = visit("GET", path + "/mine")->poll();
  EXPECT_EQ(again.head->status, 200);
  EXPECT_EQ(again.body, first);
  EXPECT_FALSE(again.done);
  EXPECT_EQ(visit("POST", path + "/mine")->poll().head->status, 405);
  EXPECT_EQ(visit("GET", path + "/other")->poll().head->status, 404);
  EXPECT_EQ(visit("DELETE", path + "/mine")->poll().head->status, 200);
  EXPECT_EQ(engine_->cancelled, (std::vector<engine::RequestId>{2, 1}));  // 2: the one that was refused
  EXPECT_EQ(log_.back()["reason"], "abort");
  EXPECT_EQ(visit("DELETE", path + "/mine")->poll().head->status, 404);
}

TEST_F(ApiTest, an_answer_goes_on_where_it_was_stopped) {
  start({" it is.<|return|>"});
  const Answer reply = ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"},
      {"role":"assistant","reasoning_content":"Hm.","content":"Yes,"},{"role":"user","content":"Is it?"},
      {"role":"assistant","reasoning_content":"So.","content":"Yes,"}],
      "continue_final_message":true,"add_generation_prompt":false})");
  EXPECT_EQ(reply.json["choices"][0]["message"]["content"], " it is.");
  std::string prompt;  // Harmony leaves out the reasoning of earlier turns only
  for (const int32_t id : engine_->requests.at(0).prompt) prompt += testing::tokenizer().token_bytes(id);
  const std::string end =
      "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>final<|message|>Yes,<|end|>"
      "<|start|>user<|message|>Is it?<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
      "<|start|>assistant<|channel|>final<|message|>Yes,";
  EXPECT_TRUE(prompt.ends_with(end)) << prompt;
}

TEST_F(ApiTest, a_stream_tells_how_far_its_prompt_is) {
  start({kAnswer});
  const std::string asked = R"({"messages":[{"role":"user","content":"hi"}],"stream":true)";
  const std::string told = ask("/v1/chat/completions", asked + R"(,"return_progress":true})").text;
  const auto tokens = engine_->requests.at(0).prompt.size();
  EXPECT_NE(told.find("\"prompt_progress\":{\"total\":" + std::to_string(tokens) + ",\"cache\":0,\"processed\":1}"),
            std::string::npos)
      << told;
  EXPECT_EQ(ask("/v1/chat/completions", asked + "}").text.find("prompt_progress"), std::string::npos);
}

TEST_F(ApiTest, who_goes_before_the_first_token_does_not_count_among_its_times) {
  start({"…"});
  static_cast<void>(call("/v1/chat/completions", kChat));
  const std::string text = ask("/metrics", "", "GET").text;
  for (const char* line : {"time_to_first_token_seconds_count{model_name=\"tiny\",engine=\"0\"} 0\n",
                           "e2e_request_latency_seconds_count{model_name=\"tiny\",engine=\"0\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

TEST_F(ApiTest, what_is_cut_or_left_says_what_its_prompt_took) {
  start({"<|channel|>final<|message|>Yes…"});
  const std::string body = R"({"input":"hi","stream":true})";
  {
    const auto left = call("/v1/responses", body);
    static_cast<void>(left->poll());
  }
  const auto cut = call("/v1/responses", body);
  static_cast<void>(cut->poll());
  cut->cut();
  const std::string events = cut->poll().body;
  const auto took = static_cast<int64_t>(engine_->requests[0].prompt.size());
  ASSERT_GT(took, 0);
  EXPECT_NE(events.find(fmt::format(R"("usage":{{"input_tokens":{},)", took)), std::string::npos) << events;
  ASSERT_EQ(log_.size(), 2);
  for (const Json& line : log_) EXPECT_EQ(line["prompt_tokens"], took) << line;
  const std::string line = fmt::format("request_prompt_tokens_sum{{model_name=\"tiny\",engine=\"0\"}} {}\n", 2 * took);
  const std::string metrics = ask("/metrics", "", "GET").text;
  EXPECT_NE(metrics.find(line), std::string::npos) << metrics;
}

TEST_F(ApiTest, a_stop_string_cancels_and_is_a_stop) {
  start({"<|channel|>final<|message|>one two three…"});
  const Answer reply = ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stop":"two"})");
  EXPECT_EQ(reply.json["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(reply.json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply.json["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(engine_->cancelled.size(), 2);  // when there was enough, whatever was on its way, and at the end
}

TEST_F(ApiTest, what_goes_on_where_a_grammar_ends_cannot_go_with_one) {
  start({kAnswer});
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":9,)";
  for (const auto& [param, field] :
       {std::pair{"min_tokens", R"("min_tokens":1)"}, {"ignore_eos", R"("ignore_eos":true)"}}) {
    EXPECT_EQ(ask("/v1/chat/completions", chat + field + "}").status, 200) << param;
    const Answer reply = ask("/v1/chat/completions", chat + field + R"(,"response_format":{"type":"json_object"}})");
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json["error"]["param"], param);
  }
}

TEST_F(ApiTest, priority_goes_to_an_engine_that_goes_by_it_and_is_refused_by_others) {
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],"priority":)";
  start({kAnswer});
  EXPECT_EQ(ask("/v1/chat/completions", chat + "0}").status, 200);
  for (const auto& [path, body] : {std::pair<std::string, std::string>{"/v1/chat/completions", chat + "3}"},
                                   {"/v1/completions", R"({"prompt":"hi","priority":3})"},
                                   {"/v1/responses", R"({"input":"hi","priority":3})"}}) {
    const Answer reply = ask(path, body);
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_EQ(reply.json["error"]["param"], "priority");
    EXPECT_NE(reply.text.find("--scheduling-policy priority, found 3"), std::string::npos) << reply.text;
  }
  ServedModel model = testing::model();
  model.by_priority = true;
  start({kAnswer}, {}, model);
  EXPECT_EQ(ask("/v1/chat/completions", chat + "-3}").status, 200);
  EXPECT_EQ(engine_->requests.at(0).priority, -3);
}

TEST_F(ApiTest, a_failed_engine_is_a_500_or_an_error_event) {
  start({"<|channel|>final<|message|>one!"});
  EXPECT_EQ(ask("/v1/chat/completions", kChat).status, 500);
  const auto c = call("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
  const Call::Output out = c->poll();
  EXPECT_TRUE(out.done);
  EXPECT_NE(out.body.find("the device is lost"), std::string::npos);
  EXPECT_TRUE(out.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ApiTest, a_lost_rank_is_a_503_with_retry_after) {
  start({"<|channel|>final<|message|>one!"});
  engine_->fails_as = Code::kIo;
  const auto c = call("/v1/chat/completions", kChat);
  const Call::Output out = c->poll();
  EXPECT_EQ(out.head->status, 503);
  EXPECT_EQ(out.head->headers.back().first, "Retry-After");
  EXPECT_NE(out.body.find("the device is lost"), std::string::npos);
}

TEST_F(ApiTest, a_request_that_proves_wrong_while_it_runs_is_a_400) {
  start({"<|channel|>final<|message|>one!"});
  engine_->fails_as = Code::kInvalidRequest;
  EXPECT_EQ(call("/v1/chat/completions", kChat)->poll().head->status, 400);
}

TEST_F(ApiTest, the_log_says_how_far_a_long_prompt_is_read) {
  ServedModel roomy = testing::model();
  roomy.max_context = 100'000;
  start({kAnswer}, {}, roomy);
  const auto reading = [this](size_t words) {
    log_.clear();
    std::string text;
    for (size_t i = 0; i < words; ++i) text += " once";
    EXPECT_EQ(ask("/v1/chat/completions", Json{{"messages", {{{"role", "user"}, {"content", text}}}}}.dump()).status,
              200);
    const auto found = std::ranges::find(log_, "reading", [](const Json& line) { return line["event"]; });
    return found == log_.end() ? Json() : *found;
  };
  EXPECT_TRUE(reading(100).is_null());
  const Json told = reading(20'000);
  ASSERT_FALSE(told.is_null());
  EXPECT_GT(told["prompt_tokens"], 20'000);
  EXPECT_EQ(told["read"], 1);
}

TEST_F(ApiTest, a_full_queue_is_a_429_with_retry_after) {
  start({kAnswer});
  engine_->busy = true;
  const auto c = call("/v1/chat/completions", kChat);
  const Call::Output out = c->poll();
  EXPECT_EQ(out.head->status, 429);
  EXPECT_EQ(out.head->headers.back().first, "Retry-After");
}

TEST_F(ApiTest, keys_guard_the_api_and_not_the_health) {
  start({kAnswer}, {.api_keys = {"right", "also"}});
  EXPECT_EQ(ask("/health", "", "GET").status, 200);
  for (const char* wrong :
       {"", "Bearer ", "Bearer righ", "Bearer rightt", "Bearer wrong", "Basic right", "right", "Bearer"}) {
    key_ = wrong;
    EXPECT_EQ(ask("/v1/models", "", "GET").status, 401) << wrong;
    EXPECT_EQ(ask("/v1/responses/x", "", "GET").status, 401) << wrong;
  }
  for (const char* good : {"Bearer also", "bearer right"}) {  // a scheme's name has no case
    key_ = good;
    EXPECT_EQ(ask("/v1/models", "", "GET").status, 200) << good;
  }
}

TEST_F(ApiTest, before_the_model_is_there_only_health_speaks) {
  Api api({.date = [] { return std::string(); }, .log = [](const Json&) {}});
  api.loading("loading weights", 0.5);
  const auto status = [&api](const std::string& path) {
    return api.handle({.method = "GET", .path = path, .body = ""}, [] {})->poll();
  };
  const Call::Output health = status("/health");
  EXPECT_EQ(health.head->status, 503);
  EXPECT_EQ(parse_json(health.body)["percent"], 50);
  EXPECT_EQ(status("/v1/models").head->status, 503);
  EXPECT_EQ(status("/ping").head->status, 200);
  EXPECT_EQ(status("/metrics").head->status, 200);
}

TEST_F(ApiTest, health_sees_an_engine_that_ends_no_step) {
  start({kAnswer});
  engine_->turn_seconds = 599;
  EXPECT_EQ(ask("/health", "", "GET").status, 200);
  engine_->turn_seconds = 601;
  const Answer health = ask("/health", "", "GET");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json, parse_json(R"({"status":"stuck","seconds":601})"));
  EXPECT_EQ(ask("/ping", "", "GET").status, 200);
}

TEST_F(ApiTest, tools_and_schemas_come_with_a_mask) {
  start({kAnswer});
  const std::string head = R"({"messages":[{"role":"user","content":"hi"}],)";
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  ask("/v1/chat/completions", kChat);
  EXPECT_EQ(engine_->requests.back().mask, nullptr);
  for (const std::string& fields :
       {tool, tool + R"(,"tool_choice":"required")", std::string(R"("response_format":{"type":"json_object"})")}) {
    EXPECT_EQ(ask("/v1/chat/completions", head + fields + "}").status, 200);
    EXPECT_NE(engine_->requests.back().mask, nullptr) << fields;
  }
  ask("/v1/chat/completions", head + tool + R"(,"tool_choice":"none"})");
  EXPECT_EQ(engine_->requests.back().mask, nullptr);
  EXPECT_EQ(ask("/v1/chat/completions", head + R"("response_format":{"type":"json_object"},"ignore_eos":true})")
                .json["error"]["param"],
            "ignore_eos");
}

TEST_F(ApiTest, a_preamble_may_come_before_calls_and_not_before_json) {
  start({kAnswer});
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const std::string json = R"("response_format":{"type":"json_object"})";
  const std::vector<int32_t> preamble = testing::tokens("<|channel|>commentary<|message|>");
  for (const auto& [fields, may] : {std::pair(tool, true), {json, false}, {json + "," + tool, false}}) {
    ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
    engine::TokenMask& mask = *engine_->requests.back().mask;
    bool all_may = true;
    for (const int32_t id : preamble) {
      std::vector<uint32_t> bits(static_cast<size_t>(testing::tokenizer().max_id()) / 32 + 1);
      mask.fill(bits);
      all_may = all_may && ((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1U) != 0;
      mask.accept(id);
    }
    EXPECT_EQ(all_may, may) << fields;
  }
}

TEST_F(ApiTest, a_turn_that_must_end_in_json_reasons_within_its_budget) {
  start({kAnswer});
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])",
                    json = R"("response_format":{"type":"json_object"})",
                    forced = tool + R"(,"tool_choice":"required")",
                    named = tool + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})";
  const int32_t end = testing::tokens("<|end|>")[0], word = testing::tokens(" the")[0];
  // Tokens of an analysis that never ends by itself.
  const auto reasoned = [&](const std::string& fields) -> int64_t {
    ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
    engine::TokenMask& mask = *engine_->requests.back().mask;
    for (const int32_t id : testing::tokens("<|channel|>analysis<|message|>")) mask.accept(id);
    std::vector<uint32_t> bits(static_cast<size_t>(testing::tokenizer().max_id()) / 32 + 1);
    const auto may = [&bits](int32_t id) { return ((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1U) != 0; };
    int64_t tokens = 0;
    while (mask.fill(bits) && may(word) && tokens < 5000) {
      mask.accept(word);
      ++tokens;
    }
    EXPECT_TRUE(may(end)) << fields;
    return tokens;
  };
  const int64_t context = testing::model().max_context;
  for (const std::string& fields : {forced, named, json, json + "," + tool}) {
    EXPECT_EQ(reasoned(fields + R"(,"max_tokens":101)"), 50) << fields;
    EXPECT_EQ(reasoned(fields + R"(,"max_tokens":41)"), 41 - 3 - 20) << fields;  // the header, and what the rest needs
    const int64_t most = reasoned(fields);  // half of what the context holds beside the prompt
    EXPECT_EQ(most, (context - static_cast<int64_t>(engine_->requests.back().prompt.size())) / 2) << fields;
  }
  EXPECT_EQ(reasoned(tool), 5000);  // it may answer: its end is the model's
  for (const std::string& fields : {std::string(R"("seed":1)"), tool, forced, json})
    EXPECT_EQ(reasoned(fields + R"(,"thinking_token_budget":7)"), 7) << fields;
}

TEST_F(ApiTest, no_budget_is_no_reasoning) {
  start({kAnswer});
  ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"thinking_token_budget":0})");
  engine::TokenMask& mask = *engine_->requests.back().mask;
  mask.accept(testing::tokens("<|channel|>")[0]);
  std::vector<uint32_t> bits(static_cast<size_t>(testing::tokenizer().max_id()) / 32 + 1);
  mask.fill(bits);
  const auto may = [&bits](int32_t id) { return ((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1U) != 0; };
  EXPECT_TRUE(may(testing::tokens("final")[0]));
  EXPECT_FALSE(may(testing::tokens("analysis")[0]));
  const Answer reply = ask(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"thinking_token_budget":5,"ignore_eos":true,"max_tokens":9})");
  EXPECT_EQ(reply.json["error"]["param"], "ignore_eos");
}

TEST_F(ApiTest, the_prompt_tells_effort_identity_and_verbosity) {
  start({kAnswer});
  ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"verbosity":"low",
      "chat_template_kwargs":{"model_identity":"You are Bo, a bot.","enable_thinking":false}})");
  std::string prompt;
  for (const int32_t id : engine_->requests.back().prompt) prompt += testing::tokenizer().token_bytes(id);
  for (const char* text : {"system<|message|>You are Bo, a bot.\nKnowledge", "\nReasoning: low\n",
                           "# Instructions\n\nKeep the answer short"})
    EXPECT_NE(prompt.find(text), std::string::npos) << text << prompt;
}

// gpt-oss-safeguard's convention: the policy is the system message of a chat, or a response's instructions, which
// Harmony has as the developer's; what is judged is the user's message.
TEST_F(ApiTest, a_safeguards_policy_is_the_developers_message_and_what_it_judges_the_users) {
  start({kAnswer, kAnswer});
  const std::string policy =
      "# Spam\\n\\nAnswer VIOLATES (1) or SAFE (0).\\n\\n## Example\\n\\nContent: hi <|end|> Answer: 0";
  ask("/v1/chat/completions",
      R"({"messages":[{"role":"system","content":")" + policy + R"("},{"role":"user","content":"Buy now!"}]})");
  ask("/v1/responses", R"({"instructions":")" + policy + R"(","input":"Buy now!"})");
  for (const engine::Request& request : engine_->requests) {
    std::string prompt;
    for (const int32_t id : request.prompt) prompt += testing::tokenizer().token_bytes(id);
    for (const char* text :
         {"\nReasoning: medium\n",
          "<|start|>developer<|message|># Instructions\n\n# Spam\n\nAnswer VIOLATES (1) or SAFE (0).\n\n## Example\n\n"
          "Content: hi <|end|> Answer: 0<|end|><|start|>user<|message|>Buy now!<|end|><|start|>assistant"})
      EXPECT_NE(prompt.find(text), std::string::npos) << prompt;
    const int32_t end = *testing::tokenizer().special_id("<|end|>");  // the policy's is text
    EXPECT_EQ(std::count(request.prompt.begin(), request.prompt.end(), end), 3);
  }
}

TEST_F(ApiTest, a_schema_that_is_none_is_refused_with_openais_code) {
  start({kAnswer});
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],)",
                    schema = R"({"type":"object","properties":{"größe":{"type":5}}})";
  struct Case {
    std::string path, body, param, code;
  };
  for (const Case& c :
       {Case{"/v1/chat/completions",
             chat + R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)" + schema + "}}}",
             "response_format", "invalid_json_schema"},
        {"/v1/completions",
         R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)" + schema +
             "}}}",
         "response_format", "invalid_json_schema"},
        {"/v1/responses",
         R"({"input":"hi","text":{"format":{"type":"json_schema","name":"x","schema":)" + schema + "}}}", "text.format",
         "invalid_json_schema"},
        {"/v1/chat/completions",
         chat + R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)" + schema + "}}]}",
         "tools", "invalid_function_parameters"}}) {
    const Answer reply = ask(c.path, c.body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json["error"]["param"], c.param) << reply.text;
    EXPECT_EQ(reply.json["error"]["code"], c.code) << reply.text;
    const std::string message = reply.json["error"]["message"];
    EXPECT_NE(message.find("the schema at #/properties/größe: type: want"), std::string::npos) << message;
    EXPECT_EQ(message.find('['), std::string::npos) << message;
  }
}

// As part of the prompt it would be too long, too, which takes longer to find out.
TEST_F(ApiTest, a_schema_that_is_too_large_is_refused_before_the_prompt_tells_it) {
  start({kAnswer});
  std::string schema = R"({"type":"object","properties":{"a":{"enum":["a")";
  for (int i = 1; i < 30'000; ++i) schema += R"(,"a")";
  schema += "]}}}";
  const auto reply_to = [&](const std::string& fields) {
    return ask("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}");
  };
  const std::string function = R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + schema;
  for (const auto& [fields, code] :
       {std::pair(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)" + schema + "}}",
                  "invalid_json_schema"),
        std::pair(function + R"(,"strict":true}}])", "invalid_function_parameters")}) {
    const Answer reply = reply_to(fields);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json["error"]["code"], code);
    EXPECT_NE(reply.text.find("it holds more than 20000 values"), std::string::npos) << reply.text;
  }
  EXPECT_EQ(reply_to(function + "}}]").status, 200) << "its arguments may be any object";
}

TEST_F(ApiTest, a_refusal_does_not_repeat_a_large_request) {
  start({kAnswer}, {.defaults = {.leniency = {.unknown_fields = false}}});
  const std::string large = "\xC3\xA9" + std::string(100'000, 'a') + "\xC3\xA9";
  for (const std::string& body : {R"({"messages":[{"role":")" + large + R"("}]})",
                                  R"({"messages":[{"role":"user","content":"hi"}],")" + large + R"(":1})",
                                  R"({"model":")" + large + R"(","messages":[{"role":"user","content":"hi"}]})"}) {
    const Answer reply = ask("/v1/chat/completions", body);
    EXPECT_EQ(reply.status / 100, 4);
    EXPECT_LT(reply.text.size(), 3000);
    EXPECT_NE(reply.text.find("aaa…"), std::string::npos);
    EXPECT_LT(to_text(log_.back()).size(), 3000);
  }
}

TEST_F(ApiTest, responses_are_kept_bounded) {
  start({kAnswer}, {.stored_responses = 2});
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(ask("/v1/responses", R"({"input":"hi"})").json["id"]);
  EXPECT_EQ(ask("/v1/responses/" + ids[0], "", "GET").status, 404);
  EXPECT_EQ(ask("/v1/responses/" + ids[2], "", "GET").status, 200);
  const size_t first = engine_->requests.back().prompt.size();
  ask("/v1/responses", R"({"input":"more","previous_response_id":")" + ids[2] + R"("})");
  EXPECT_GT(engine_->requests.back().prompt.size(), first);
}

TEST_F(ApiTest, a_kept_response_remembers_the_instructions_among_its_items) {
  start({kAnswer});
  const std::string items = R"({"input":[{"role":"developer","content":"Always."},{"role":"user","content":"hi"}]})";
  std::string id = ask("/v1/responses", items).json["id"];
  const auto tokenizer = testing::model().tokenizer;
  for (int turn = 0; turn < 2; ++turn) {
    id = ask("/v1/responses", R"({"input":"more","previous_response_id":")" + id + "\"}").json["id"];
    std::string prompt;
    for (const int32_t token : engine_->requests.back().prompt) prompt += tokenizer->token_bytes(token);
    EXPECT_NE(prompt.find("Always."), std::string::npos) << prompt;
  }
}

TEST_F(ApiTest, a_response_larger_than_all_room_pushes_out_no_other) {
  start({kAnswer}, {.stored_bytes = 4500});
  const std::string small = ask("/v1/responses", R"({"input":"hi"})").json["id"];
  const Answer reply = ask("/v1/responses", R"({"input":")" + std::string(1800, ' ') + "\"}");
  ASSERT_EQ(reply.status, 200) << reply.text;
  const std::string large = reply.json["id"];
  EXPECT_EQ(ask("/v1/responses/" + large, "", "GET").status, 404);
  EXPECT_EQ(ask("/v1/responses/" + small, "", "GET").status, 200);
}

TEST_F(ApiTest, a_server_that_ends_says_so_in_what_it_cuts) {
  start({"<|channel|>final<|message|>Yes…"});
  const auto stream = call("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
  static_cast<void>(stream->poll());
  stream->cut();
  const Call::Output last = stream->poll();
  EXPECT_TRUE(last.done);
  EXPECT_NE(last.body.find(R"("message":"the server is shutting down")"), std::string::npos) << last.body;
  EXPECT_TRUE(last.body.ends_with("data: [DONE]\n\n"));
  const auto response = call("/v1/responses", R"({"input":"hi","stream":true})");
  response->cut();
  EXPECT_NE(response->poll().body.find("event: response.failed"), std::string::npos);
  const auto whole = call("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"n":2})");
  whole->cut();
  const Call::Output answer = whole->poll();
  EXPECT_TRUE(answer.done);
  EXPECT_EQ(answer.head->status, 503);
  EXPECT_EQ(answer.head->headers.back().first, "Retry-After");
  EXPECT_EQ(parse_json(answer.body)["error"]["code"], "shutting_down");
  ASSERT_EQ(log_.size(), 3);
  for (const Json& line : log_) {
    EXPECT_EQ(line["reason"], "shutdown");
    EXPECT_EQ(line["status"], 503);
  }
  const std::string text = ask("/metrics", "", "GET").text;
  for (const char* line : {"request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"shutdown\"} 4\n",
                           "{model_name=\"tiny\",engine=\"0\",route=\"/v1/chat/completions\",status=\"503\"} 2\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

TEST_F(ApiTest, what_was_whole_when_the_server_ended_goes_out_whole) {
  start({kAnswer});
  const auto c = call("/v1/chat/completions", kChat);
  c->cut();
  EXPECT_EQ(c->poll().head->status, 200);
  EXPECT_EQ(log_.back()["reason"], "stop");
}

TEST_F(ApiTest, metrics_stand_under_both_names) {
  start({kAnswer}, {.dropped_log_lines = [] { return 7; }});
  ask("/v1/chat/completions", kChat);
  const std::string text = ask("/metrics", "", "GET").text;
  for (const char* line : {"vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 3",
                           "nibble:log_lines_dropped_total{model_name=\"tiny\",engine=\"0\"} 7",
                           "nibble:kv_cache_usage_perc{model_name=\"tiny\",engine=\"0\"} 0.25",
                           // What the engine has done so far, whatever has finished.
                           "vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"} 430",
                           "vllm:generation_tokens_total{model_name=\"tiny\",engine=\"0\"} 500",
                           "nibble:screened_steps_total{model_name=\"tiny\",engine=\"0\"} 40",
                           "nibble:screened_tiles_total{model_name=\"tiny\",engine=\"0\"} 640",
                           "vllm:spec_decode_num_drafts_total{model_name=\"tiny\",engine=\"0\"} 20",
                           "vllm:spec_decode_num_draft_tokens_total{model_name=\"tiny\",engine=\"0\"} 70",
                           "vllm:spec_decode_num_accepted_tokens_total{model_name=\"tiny\",engine=\"0\"} 25",
                           "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"tiny\",engine=\"0\","
                           "position=\"1\"} 9",
                           "vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"stop\"} 1"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

TEST_F(ApiTest, messages_are_answered_and_refused_in_anthropics_form) {
  start({kAnswer, "<|channel|>final<|message|>one!"}, {.api_keys = {"right"}});
  const std::string body = R"("max_tokens":9,"messages":[{"role":"user","content":"hi"}]})";
  Answer reply = ask("/v1/messages", "{" + body);
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.json["error"]["type"], "authentication_error");
  key_ = "Bearer right";
  reply = ask("/v1/messages", "{" + body);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json["content"], (Json{{{"type", "text"}, {"text", "Yes."}}}));
  EXPECT_TRUE(reply.json["id"].get<std::string>().starts_with("msg_"));
  reply = ask("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(reply.json, (Json{{"input_tokens", engine_->requests.at(0).prompt.size()}}));
  for (const auto& [fields, status, type] :
       {std::tuple{R"({"model":"x",)", 404, "not_found_error"}, {R"({"top_k":"a",)", 400, "invalid_request_error"}}) {
    reply = ask("/v1/messages", fields + body);
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(reply.json["type"], "error");
    EXPECT_EQ(reply.json["error"]["type"], type);
    EXPECT_TRUE(reply.json["request_id"].is_string());
  }
  reply = ask("/v1/messages", "{" + body);  // the engine fails
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(reply.json["error"]["type"], "api_error");
  const Call::Output out = call("/v1/messages", R"({"stream":true,)" + body)->poll();
  EXPECT_NE(out.body.find("event: error\ndata: {\"type\":\"error\""), std::string::npos) << out.body;
  EXPECT_EQ(out.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(ask("/v1/messages", "", "GET").status, 405);
}

TEST_F(ApiTest, a_key_may_stand_in_a_header_of_its_own) {
  start({kAnswer}, {.api_keys = {"right"}});
  const auto status = [this](const std::string& key, const std::string& authorization) {
    const HttpRequest request{
        .method = "GET", .path = "/v1/models", .authorization = authorization, .api_key = key, .body = ""};
    return api_->handle(request, [] {})->poll().head->status;
  };
  EXPECT_EQ(status("right", ""), 200);
  EXPECT_EQ(status("wrong", ""), 401);
  EXPECT_EQ(status("", "right"), 401);
  EXPECT_EQ(status("right", "Bearer wrong"), 401);  // one of them counts
}

}  // namespace
}  // namespace nibble::server

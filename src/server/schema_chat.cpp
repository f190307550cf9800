// POST /v1/chat/completions and /v1/completions → structs.

#include "server/schema.h"
#include "server/schema_parts.h"

#include <utility>

namespace nibble::server {
namespace {

constexpr int64_t kMostAnswers = 128;
constexpr size_t kMostPrompts = 1024;
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default

void read_assistant(Fields& message, History& history) {
  auto reasoning = message.string("reasoning_content");
  if (auto other = message.string("reasoning"); !reasoning) reasoning = std::move(other);
  const Json* content = message.find("content");
  std::string text =
      content == nullptr ? "" : text_of(*content, message.place("content"), {"text", "output_text", "refusal"});
  const Json* calls = message.array("tool_calls");
  const bool calls_any = calls != nullptr && !calls->empty();
  history.reasoning(reasoning.value_or(""));
  if (!text.empty() || (!calls_any && content != nullptr)) history.answer(std::move(text), calls_any);
  if (calls_any) {
    for_each_object(*calls, message.place("tool_calls"), [&](Fields& call) {
      const bool custom = call.choice("type", {"function", "custom"}) == 1;
      static_cast<void>(call.integer("index", {0, INT64_MAX}));
      const std::string id = call.required_string("id");
      Fields called = call.required_object(custom ? "custom" : "function");
      const Callee callee{.name = called.required_string("name"),
                          .kind = custom ? ToolKind::kCustom : ToolKind::kFunction};
      history.call(id, callee, called.string(custom ? "input" : "arguments").value_or(""));
      called.done();
    });
  }
  message.refuse({"audio", "function_call"}, "use content and tool_calls");
  message.ignore_strings({"refusal", "reasoning_text"});
  message.ignore_arrays({"annotations", "reasoning_details", "thinking_blocks"});
  static_cast<void>(message.object("provider_specific_fields"));
}

void read_message(Fields& message, History& history) {
  const std::string role_name = message.required_string("role");
  const auto role = text::role_named(role_name);
  if (!role)
    throw invalid_value(message.path("role"), "want system, developer, user, assistant or tool, found {}", role_name);
  const auto name = message.string("name");
  static_cast<void>(message.choice("type", {"message", "text"}));  // clients add one or the other
  if (*role == text::Role::kAssistant) return read_assistant(message, history);
  std::string text = text_of(message.required("content", "a text"), message.place("content"), {"text", "input_text"});
  if (*role == text::Role::kTool) {
    history.result(history.called(message, "tool_call_id"), std::move(text));
  } else if (*role == text::Role::kUser) {
    if (name) check_name(message, *name);
    history.add(*role, std::move(text), name.value_or(""));
  } else {
    history.instructions(std::move(text));
  }
}

// reasoning_effort, and the arguments of a chat template: gpt-oss's own template has the effort and the identity.
void read_reasoning(Fields& fields, TurnRequest& into) {
  auto effort = read_effort(fields, "reasoning_effort");
  if (const Json* arguments = fields.find("chat_template_kwargs")) {
    std::optional<Fields> told(std::in_place, *arguments, "chat_template_kwargs");
    const auto agree = [&](std::string_view name, text::ReasoningEffort other) {
      if (effort && *effort != other) {
        const std::string path = told->path(name);
        throw invalid_value(path, "it asks for another effort than reasoning_effort; want one alone");
      }
      effort = other;
    };
    if (const auto other = read_effort(*told, "reasoning_effort")) agree("reasoning_effort", *other);
    // gpt-oss cannot switch thinking off; the lowest effort comes closest.
    if (!told->boolean("enable_thinking").value_or(true)) agree("enable_thinking", text::ReasoningEffort::kLow);
    into.identity = told->string("model_identity");
    told->done();
  }
  into.effort = effort.value_or(into.effort);
  into.reasoning_tokens = fields.integer("thinking_token_budget", {0, kMostTokens});  // vLLM's name
}

// A text that the answer will resemble. It could make the answer faster, and changes nothing in it.
void check_prediction(Fields& fields) {
  auto prediction = fields.object("prediction");
  if (!prediction) return;
  prediction->only("type", "content", "there is no other prediction");
  static_cast<void>(text_of(prediction->required("content", "a text"), prediction->place("content"), {"text"}));
  prediction->done();
}

void read_stream_options(Fields& fields, GenerationFields& into) {
  auto options = fields.object("stream_options");
  if (!options) return;
  if (!into.stream) throw invalid_value("stream_options", "want stream true as well");
  into.include_usage = options->boolean("include_usage").value_or(false) || into.include_usage;
  into.continuous_usage = into.include_usage && options->boolean("continuous_usage_stats").value_or(false);
  options->ignore_booleans({"include_obfuscation", "continuous_usage_stats"});
  options->done();
}

void read_background(Fields& fields, GenerationFields& into) {
  into.background = fields.boolean("background").value_or(false);
  into.request.progress = fields.boolean("return_progress").value_or(false);  // llama.cpp's name
  if (into.request.progress && !into.stream) throw invalid_value("return_progress", "want stream true as well");
  if (into.background && (!into.stream || into.request.logprobs >= 0))
    throw invalid_value("background", "want stream true as well, and no logprobs");
}

void read_prompts(Fields& fields, CompletionRequest& into) {
  const Json& prompt = fields.required("prompt", "a text or token ids");
  if (prompt.is_string()) {
    into.prompts.emplace_back(prompt.get<std::string>());
    return;
  }
  const Json& list = array_of(prompt, "prompt");
  if (list.empty()) throw invalid_value("prompt", "want a text or token ids, found an empty array");
  if (list[0].is_number()) {
    into.prompts.emplace_back(token_ids_of(list, "prompt"));
    return;
  }
  if (list.size() > kMostPrompts)
    throw invalid_value("prompt", "want at most {} in one request, found {}", kMostPrompts, list.size());
  for (const Json& item : list)
    if (item.is_string())
      into.prompts.emplace_back(item.get<std::string>());
    else
      into.prompts.emplace_back(token_ids_of(item, "prompt"));
}

}  // namespace

TurnRequest parse_chat(const Json& body, const RequestDefaults& defaults) {
  TurnRequest turn = turn_of(defaults);
  Fields fields(body, {"", &turn.generation.leniency});
  read_generation(fields, turn.generation);
  read_stream_options(fields, turn.generation);
  read_chat_logprobs(fields, turn.generation);
  read_background(fields, turn.generation);
  turn.generation.n = static_cast<int>(fields.integer("n", {1, kMostAnswers}).value_or(1));
  turn.generation.max_tokens = read_limit(fields, "max_completion_tokens");
  if (const auto older = read_limit(fields, "max_tokens"); !turn.generation.max_tokens)
    turn.generation.max_tokens = older;
  read_reasoning(fields, turn);
  turn.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  turn.format = read_format(fields, "response_format", Dialect::kChat);
  read_structured_outputs(fields, turn.format);
  const Json& messages = array_of(fields.required("messages", "at least one"), "messages");
  if (messages.empty()) throw invalid_value("messages", "want at least one, found none");
  CallNames calls;
  History history(turn, calls);
  for_each_object(messages, fields.place("messages"), [&](Fields& message) { read_message(message, history); });
  const bool goes_on = fields.boolean("continue_final_message").value_or(false);
  if (goes_on && !history.open_last())
    throw invalid_value("continue_final_message", "want a text of the assistant as the last message");
  if (turn.history.empty() && turn.instructions.empty())
    throw invalid_value("messages", "want one that says something, found none");
  read_verbosity(fields, turn);
  turn.tools = read_tools(fields, Dialect::kChat);
  read_tool_choice(fields, Dialect::kChat, turn);
  check_prefill(turn, "continue_final_message");
  check_prediction(fields);
  fields.ignore_booleans({"store"});
  fields.only("modalities", {"text"}, "gpt-oss writes text only");
  fields.only("skip_special_tokens", true, "Harmony's tokens are parsed, never shown");
  fields.only("add_generation_prompt", !goes_on, "a turn is opened unless continue_final_message goes on with one");
  fields.only("add_special_tokens", false, "Harmony's tokens are all there");
  fields.only("function_call", "none", "use tools and tool_choice");
  fields.only("web_search_options", nullptr, "there are no built-in tools");
  fields.refuse({"functions"}, "use tools");
  fields.refuse({"max_output_tokens"}, "use max_completion_tokens");
  fields.refuse({"audio", "echo", "chat_template", "documents", "mm_processor_kwargs", "best_of"},
                "gpt-oss has no such thing");
  fields.done();
  return turn;
}

CompletionRequest parse_completion(const Json& body, const RequestDefaults& defaults) {
  CompletionRequest request;
  GenerationFields& generation = request.generation;
  generation = generation_of(defaults);
  Fields fields(body, {"", &generation.leniency});
  read_generation(fields, generation);
  read_stream_options(fields, generation);
  read_prompts(fields, request);
  generation.n = static_cast<int>(fields.integer("n", {1, kMostAnswers}).value_or(1));
  const auto limit = fields.integer("max_tokens", {-1, kMostTokens}).value_or(kCompletionTokens);
  if (limit >= 0) generation.max_tokens = limit;
  generation.request.logprobs = static_cast<int>(fields.integer("logprobs", {0, kMostLogprobs}).value_or(-1));
  if (request.prompts.size() * static_cast<size_t>(generation.n) > kMostPrompts)
    throw invalid_value("n", "want at most {} answers to all prompts together, found {} to each of {}", kMostPrompts,
                        generation.n, request.prompts.size());
  request.echo = fields.boolean("echo").value_or(false);
  request.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  if (generation.max_tokens == 0 && !request.echo)
    throw invalid_value("max_tokens", "want at least 1 unless the prompt is echoed");
  if (const auto best = fields.integer("best_of", {1, kMostAnswers}); best && *best != generation.n)
    throw invalid_value("best_of", "want the value of n, {}, found {}", generation.n, *best);
  request.format = read_format(fields, "response_format", Dialect::kChat);
  read_structured_outputs(fields, request.format);
  fields.only("add_special_tokens", true, "gpt-oss adds none");
  fields.refuse({"messages", "tools"}, "use /v1/chat/completions");
  fields.refuse({"suffix"}, "gpt-oss was not trained to fill in the middle");
  fields.done();
  return request;
}

}  // namespace nibble::server

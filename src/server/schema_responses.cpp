// POST /v1/responses → a struct.

#include "server/schema.h"
#include "server/schema_parts.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace nibble::server {
namespace {

// Values of `include` for parts that no response has. Reasoning is given in plain text, and there are no built-in tools
// or images.
constexpr std::string_view kNeverThere[] = {"reasoning.encrypted_content",    "web_search_call.results",
                                            "web_search_call.action.sources", "file_search_call.results",
                                            "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
                                            "message.input_image.image_url"};

void read_message_item(Fields& item, bool before_call, History& history) {
  const std::string role_name = item.required_string("role");
  const auto role = text::role_named(role_name);
  if (!role || *role == text::Role::kTool)
    throw invalid_value(item.path("role"), "want system, developer, user or assistant, found {}", role_name);
  std::string text = text_of(item.required("content", "a text"), item.place("content"),
                             {"input_text", "output_text", "text", "refusal"});
  const std::string phase = item.string("phase").value_or("");
  if (phase == "commentary" || phase == "final_answer") before_call = phase == "commentary";
  history.say(*role, std::move(text), before_call);
}

// Whether a call comes next, reasoning apart.
bool call_follows(const Json& items, size_t i) {
  const auto is = [&](const char* type) { return items[i].is_object() && items[i].value("type", Json()) == type; };
  while (i < items.size() && is("reasoning")) ++i;
  return i < items.size() && (is("function_call") || is("custom_tool_call") || is("tool_search_call"));
}

void read_call(Fields& item, ToolKind kind, History& history) {
  const std::string id = item.required_string("call_id");
  if (kind == ToolKind::kSearch) {
    static_cast<void>(item.required_object("arguments"));
    history.call(id, {.name = "tool_search"}, to_text(*item.find("arguments")));
    return item.ignore_strings({"execution"});
  }
  Callee callee{.name = item.required_string("name"), .kind = kind};
  callee.space = item.string("namespace").value_or(callee.space);
  history.call(id, callee, item.string(kind == ToolKind::kCustom ? "input" : "arguments").value_or(""));
}

// What the client's search found: the model is told their names, and then what they are.
void read_found(Fields& item, History& history) {
  const std::string& recipient = history.called(item, "call_id");
  std::vector<Tool> tools = read_tools(item, Dialect::kResponses);
  std::string names;
  for (const Tool& tool : tools) names += (names.empty() ? "Loaded: " : ", ") + tool.callee().recipient();
  history.result(recipient, names.empty() ? "No tool was found." : names);
  history.load(std::move(tools));
  item.ignore_strings({"execution"});
}

void read_item(Fields& item, bool before_call, History& history) {
  const std::string type = item.string("type").value_or("message");
  if (type == "message") {
    read_message_item(item, before_call, history);
  } else if (type == "function_call") {
    read_call(item, ToolKind::kFunction, history);
  } else if (type == "custom_tool_call") {
    read_call(item, ToolKind::kCustom, history);
  } else if (type == "tool_search_call") {
    read_call(item, ToolKind::kSearch, history);
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    const std::string& recipient = history.called(item, "call_id");
    const Json& output = item.required("output", "a text");
    history.result(recipient, text_of(output, item.place("output"), {"input_text", "output_text", "text"}));
  } else if (type == "tool_search_output") {
    read_found(item, history);
  } else if (type == "additional_tools") {
    history.load(read_tools(item, Dialect::kResponses));
    item.ignore_strings({"role"});
  } else if (type == "reasoning") {
    if (const Json* content = item.array("content"))
      history.reasoning(text_of(*content, item.place("content"), {"reasoning_text", "text"}));
    item.ignore_arrays({"summary"});  // ours is empty, and so is
    item.ignore_strings({"encrypted_content"});
  } else {
    throw unsupported_value(item.path("type"),
                            "want message, reasoning, additional_tools, or the call or output of a function, a custom "
                            "tool or a search of tools, found {}",
                            type);
  }
  item.ignore_strings({"id", "status"});
}

void read_input(Fields& fields, ResponsesRequest& into) {
  History history(into.turn, into.calls);
  const Json& input = fields.required("input", "a text or an array of items");
  if (input.is_string()) return history.add(text::Role::kUser, input.get<std::string>());
  const Json& items = array_of(input, "input");
  size_t next = 1;
  for_each_object(items, fields.place("input"),
                  [&](Fields& item) { read_item(item, call_follows(items, next++), history); });
  if (into.turn.history.empty() && into.turn.instructions.empty())
    throw invalid_value("input", "want an item that says something, found none");
}

void read_text(Fields& fields, TurnRequest& into) {
  auto text = fields.object("text");
  if (!text) return;
  read_verbosity(*text, into);
  into.format = read_format(*text, "format", Dialect::kResponses);
  text->done();
}

void read_response_reasoning(Fields& fields, TurnRequest& into) {
  auto reasoning = fields.object("reasoning");
  if (!reasoning) return;
  into.effort = read_effort(*reasoning, "effort").value_or(into.effort);
  for (const char* name : {"summary", "generate_summary"})  // reasoning is given in full, never summarised
    static_cast<void>(reasoning->choice(name, {"auto", "concise", "detailed"}));
  reasoning->ignore_strings({"context"});  // Harmony decides what is kept
  reasoning->done();
}

void read_include(Fields& fields, GenerationFields& into) {
  const auto top = fields.integer("top_logprobs", {0, kMostLogprobs});
  if (top && *top > 0) into.request.logprobs = static_cast<int>(*top);
  const Json* include = fields.array("include");
  if (include == nullptr) return;
  for (const Json& item : *include) {
    const std::string what = string_of(item, "include");
    if (what == "message.output_text.logprobs")
      into.request.logprobs = static_cast<int>(top.value_or(0));
    else if (std::find(std::begin(kNeverThere), std::end(kNeverThere), what) == std::end(kNeverThere))
      throw unsupported_value("include", "{} is not supported", what);
  }
}

// The request's fields as the response object repeats them.
Json echo(const Json& body, const ResponsesRequest& request) {
  const auto or_default = [&body](const char* name, Json otherwise) {
    const auto it = body.find(name);
    return it == body.end() || it->is_null() ? otherwise : *it;
  };
  const auto& sampling = request.turn.generation.request.sampling;
  return {{"background", false},
          {"instructions", or_default("instructions", nullptr)},
          {"max_output_tokens", or_default("max_output_tokens", nullptr)},
          {"max_tool_calls", or_default("max_tool_calls", nullptr)},
          {"metadata", or_default("metadata", Json::object())},
          {"parallel_tool_calls", request.turn.parallel_tool_calls},
          {"previous_response_id", or_default("previous_response_id", nullptr)},
          {"reasoning", {{"effort", text::name_of(request.turn.effort)}, {"summary", nullptr}}},
          {"store", request.store},
          {"temperature", or_default("temperature", sampling.temperature)},
          {"text", or_default("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", or_default("tool_choice", "auto")},
          {"tools", or_default("tools", Json::array())},
          {"top_logprobs", or_default("top_logprobs", 0)},
          {"top_p", or_default("top_p", sampling.top_p)},
          {"truncation", "disabled"},
          {"user", or_default("user", nullptr)}};
}

}  // namespace

ResponsesRequest parse_responses(const Json& body, const PreviousResponse& previous, const RequestDefaults& defaults) {
  ResponsesRequest request;
  TurnRequest& turn = request.turn;
  turn = turn_of(defaults);
  Fields fields(body, {"", &turn.generation.leniency});
  turn.prompt_field = "input";
  auto instructions = fields.string("instructions");
  if (instructions) turn.instructions.push_back(*std::move(instructions));
  std::vector<Tool> loaded;
  if (const auto id = fields.string("previous_response_id")) {
    StoredTurn before = previous(*id);
    turn.instructions.insert(turn.instructions.end(), before.instructions.begin(), before.instructions.end());
    turn.history = std::move(before.history);
    request.calls = std::move(before.calls);
    loaded = std::move(before.loaded);
  }
  read_generation(fields, turn.generation);
  turn.generation.max_tokens = read_limit(fields, "max_output_tokens");
  read_response_reasoning(fields, turn);
  turn.tools = read_tools(fields, Dialect::kResponses);
  for (Tool& tool : loaded)
    if (find_tool(turn.tools, tool.callee()) == nullptr) turn.tools.push_back(std::move(tool));
  read_include(fields, turn.generation);
  read_input(fields, request);
  read_tool_choice(fields, Dialect::kResponses, turn);
  request.lasting.assign(turn.instructions.begin() + (instructions ? 1 : 0), turn.instructions.end());
  read_text(fields, turn);
  read_structured_outputs(fields, turn.format);
  request.store = fields.boolean("store").value_or(true);
  if (request.store) request.input = body["input"];
  check_texts(fields, "client_metadata");  // of Codex
  if (auto options = fields.object("stream_options")) {
    options->ignore_booleans({"include_obfuscation"});
    options->done();
  }
  fields.only("skip_special_tokens", true, "Harmony's tokens are parsed, never shown");
  fields.only("truncation", "disabled", "a conversation that is too long is refused");
  static_cast<void>(fields.integer("max_tool_calls", {1, kMostTokens}));  // of built-in tools, of which there are none
  fields.refuse({"max_tokens", "max_completion_tokens"}, "use max_output_tokens");
  fields.refuse({"messages", "response_format", "reasoning_effort", "logprobs"},
                "use input, text.format, reasoning.effort or include");
  fields.only("n", 1, "there is one answer");
  fields.refuse({"background", "conversation", "context_management", "prompt"}, "this server does not do it");
  if (turn.generation.return_token_ids) throw ApiError("return_token_ids", "return_token_ids is not supported here");
  fields.done();
  request.echoed = echo(body, request);
  return request;
}

}  // namespace nibble::server

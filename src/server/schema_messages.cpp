// POST /v1/messages, Anthropic's → a struct.

#include "server/schema.h"
#include "server/schema_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace nibble::server {
namespace {

std::string text_of_block(Fields& block, const std::string& type, std::string_view wanted) {
  return type == "text" ? text_of_part(block) : text_for(block, type, wanted);
}

// Texts of a string, or of an array of text blocks. A reference to a tool is one where `loaded` takes it.
std::vector<std::string> read_texts(const Json& content, const Place& place, std::vector<Tool>* loaded = nullptr,
                                    TurnRequest* turn = nullptr) {
  if (content.is_string()) return {content.get<std::string>()};
  std::vector<std::string> texts;
  for_each_object(content, place, [&](Fields& block) {
    const std::string type = block.required_string("type");
    if (type != "tool_reference" || loaded == nullptr) return texts.push_back(text_of_block(block, type, "text"));
    const std::string name = block.required_string("tool_name");
    const Tool* tool = find_tool(turn->tools, {.name = name});
    if (tool == nullptr) throw invalid_value(block.path("tool_name"), "there is no tool {}", name);
    loaded->push_back(*tool);
    texts.push_back("Loaded: " + name);
  });
  return texts;
}

std::string joined(const std::vector<std::string>& texts) { return fmt::format("{}", fmt::join(texts, "\n\n")); }

void read_user(const Json& content, const Place& place, TurnRequest& turn, History& history) {
  std::vector<std::string> texts;
  const auto add_texts = [&] {
    if (!texts.empty()) history.add(text::Role::kUser, joined(std::exchange(texts, {})));
  };
  if (content.is_string()) return history.add(text::Role::kUser, content.get<std::string>());
  for_each_object(content, place, [&](Fields& block) {
    const std::string type = block.required_string("type");
    if (type != "tool_result") return texts.push_back(text_of_block(block, type, "text or tool_result"));
    add_texts();
    const std::string& recipient = history.called(block, "tool_use_id");
    const Json* result = block.find("content");
    std::vector<Tool> loaded;
    std::string output = result == nullptr ? "" : joined(read_texts(*result, block.place("content"), &loaded, &turn));
    if (block.boolean("is_error").value_or(false)) output = "Error: " + output;  // Harmony has no field for it
    history.result(recipient, std::move(output));
    history.load(std::move(loaded));
    static_cast<void>(block.object("cache_control"));  // what can be cached is
  });
  add_texts();
}

// Whether the message is a text to go on with.
bool read_assistant(const Json& content, const Place& place, History& history) {
  if (content.is_string()) {
    history.answer(content.get<std::string>(), /*before_call=*/false);
    return true;
  }
  const Json& blocks = array_of(content, place.path);
  bool is_open = false;
  const auto is_call = [](const Json& block) { return block.is_object() && block.value("type", Json()) == "tool_use"; };
  const bool calls_any = std::any_of(blocks.begin(), blocks.end(), is_call);  // text is then a preamble
  for_each_object(blocks, place, [&](Fields& block) {
    const std::string type = block.required_string("type");
    is_open = type == "text" && !calls_any;
    if (type == "text") {
      std::string text = text_of_part(block);
      is_open = is_open && !text.empty();
      if (!text.empty()) history.answer(std::move(text), calls_any);
    } else if (type == "thinking") {
      history.reasoning(block.required_string("thinking"));
      block.ignore_strings({"signature"});
    } else if (type == "redacted_thinking") {  // of another model: nobody here can read it
      block.ignore_strings({"data"});
    } else if (type == "tool_use") {
      const std::string name = block.required_string("name"), id = block.required_string("id");
      static_cast<void>(block.required_object("input"));
      history.call(id, {.name = name}, to_text(*block.find("input")));
      static_cast<void>(block.object("caller"));  // who called: always the model itself
    } else {
      history.answer(text_for(block, type, "text, thinking or tool_use"), calls_any);
    }
    static_cast<void>(block.object("cache_control"));
  });
  return is_open;
}

void read_messages(const Json& messages, const Place& place, TurnRequest& into) {
  CallNames calls;
  History history(into, calls);
  size_t left = messages.size();
  for_each_object(messages, place, [&](Fields& message) {
    const size_t role = message.required_choice("role", {"user", "assistant", "system"});
    const Json& content = message.required("content", "a text or an array of blocks");
    const Place at = message.place("content");
    bool is_open = false;
    if (role == 0) read_user(content, at, into, history);
    if (role == 1) is_open = read_assistant(content, at, history);
    if (role == 2) history.instructions(joined(read_texts(content, at)));
    message.done();
    if (--left > 0 || role != 1) return;
    if (!is_open) throw invalid_value(at.path, "want a message of the user, or a text to go on with, at the end");
    static_cast<void>(history.open_last());
  });
}

// Reasoning is in the answer unless it is unwanted: gpt-oss always reasons, and needs it back to go on after a call.
void read_thinking(Fields& fields, TurnRequest& into) {
  auto thinking = fields.object("thinking");
  if (!thinking) return;
  const size_t type = thinking->required_choice("type", {"disabled", "enabled", "adaptive"});
  const auto display = thinking->choice("display", {"summarized", "omitted", "updates"});  // it is given in full
  into.include_reasoning = type != 0 && display != 1;
  if (type == 0) into.effort = text::ReasoningEffort::kLow;  // gpt-oss has no switch
  if (type == 1) {
    static_cast<void>(thinking->required("budget_tokens", "a number"));
    into.reasoning_tokens = thinking->integer("budget_tokens", {1, kMostTokens});
  }
  thinking->done();
}

void read_output_config(Fields& fields, TurnRequest& into) {
  auto config = fields.object("output_config");
  if (!config) return;
  into.effort = read_effort(*config, "effort").value_or(into.effort);
  if (auto format = config->object("format")) {
    format->only("type", "json_schema", "there is no other format");
    into.format = read_json_schema(*format);
    into.format.field = "output_config.format";
    format->done();
  }
  config->done();
}

// Claude Code asks to keep earlier reasoning. Harmony decides itself what it keeps.
void read_context_management(Fields& fields) {
  auto management = fields.object("context_management");
  if (!management) return;
  if (const Json* edits = management->array("edits")) {
    for (size_t i = 0; i < edits->size(); ++i) {  // whatever else an edit says
      Fields edit((*edits)[i], fmt::format("context_management.edits[{}]", i));
      if (const std::string type = edit.required_string("type"); !type.starts_with("clear_thinking_"))
        throw ApiError(edit.path("type"), fmt::format("{} is not supported: nothing is cut from a conversation", type),
                       400, "unsupported_value");
    }
  }
  management->done();
}

}  // namespace

TurnRequest parse_messages(const Json& body, MessagesFor what, const RequestDefaults& defaults) {
  TurnRequest turn = turn_of(defaults);
  Fields fields(body, {"", &turn.generation.leniency});
  read_model(fields, turn.generation);
  read_sampling(fields, turn.generation);
  turn.generation.stop = read_stops(fields, "stop_sequences");
  if (what == MessagesFor::kAnswer) static_cast<void>(fields.required("max_tokens", "a number"));
  turn.generation.max_tokens = read_limit(fields, "max_tokens");
  if (const Json* system = fields.find("system")) turn.instructions = read_texts(*system, fields.place("system"));
  turn.tools = read_tools(fields, Dialect::kMessages);
  const Json& messages = array_of(fields.required("messages", "at least one"), "messages");
  read_messages(messages, fields.place("messages"), turn);
  if (turn.history.empty()) throw invalid_value("messages", "want one that says something, found none");
  read_tool_choice(fields, Dialect::kMessages, turn);
  read_thinking(fields, turn);
  read_output_config(fields, turn);
  check_prefill(turn, "messages");
  read_context_management(fields);
  if (auto metadata = fields.object("metadata")) {
    metadata->ignore_strings({"user_id"});
    metadata->done();
  }
  static_cast<void>(fields.choice("service_tier", {"auto", "standard_only"}));
  static_cast<void>(fields.object("cache_control"));  // what can be cached is
  if (fields.find("safeguards") != nullptr)  // Claude Code asks for a judge, and has another way where there is none
    throw ApiError("safeguards", "there is no field safeguards", 400, "unsupported_parameter");
  if (fields.find("thread") != nullptr)  // its client then sends the whole conversation each time
    throw ApiError("thread", "thread: want the whole conversation in messages; none is kept here", 400,
                   "thread_unsupported_request");
  fields.refuse({"stop", "response_format", "reasoning_effort"},
                "use stop_sequences, output_config.format or output_config.effort");
  fields.only("n", 1, "there is one answer");
  fields.only("speed", "standard", "there is one");
  fields.refuse({"container", "mcp_servers"}, "there are no built-in tools");
  fields.done();
  return turn;
}

}  // namespace nibble::server

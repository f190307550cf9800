// POST /v1/messages, Anthropic's → a struct.

#include "server/schema.h"
#include "server/schema_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace nibble::server {
namespace {

constexpr std::string_view kBetweenBlocks = "\n\n";

[[noreturn]] void refuse_block(const Fields& block, std::string_view wanted, const std::string& found) {
  const std::string path = block.path("type");
  throw unsupported_value(path, "want {}, found {}; gpt-oss reads text only", wanted, found);
}

// The rest of any block: nothing else may stand in it.
void end_block(Fields& block) {
  static_cast<void>(block.object("cache_control"));  // what can be cached is
  block.done();
}

std::string text_of_block(Fields& block) {
  std::string text = block.required_string("text");
  block.ignore_arrays({"citations"});  // of answers that others gave; there are none in ours
  end_block(block);
  return text;
}

// Texts of a string, or of an array of text blocks.
std::vector<std::string> read_texts(const Json& content, const std::string& path) {
  if (content.is_string()) return {content.get<std::string>()};
  std::vector<std::string> texts;
  const Json& blocks = array_of(content, path);
  for (size_t i = 0; i < blocks.size(); ++i) {
    Fields block(blocks[i], fmt::format("{}[{}]", path, i));
    if (const std::string type = block.required_string("type"); type != "text") refuse_block(block, "text", type);
    texts.push_back(text_of_block(block));
  }
  return texts;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (size_t i = 0; i < texts.size(); ++i) all.append(i == 0 ? "" : kBetweenBlocks).append(texts[i]);
  return all;
}

class Reader {
 public:
  explicit Reader(TurnRequest& into) : into_(into) {}

  void read(const Json& messages) {
    for (size_t i = 0; i < messages.size(); ++i) {
      Fields message(messages[i], fmt::format("messages[{}]", i));
      const size_t role = message.required_choice("role", {"user", "assistant", "system"});
      const Json& content = message.required("content", "a text or an array of blocks");
      const std::string path = message.path("content");
      if (role == 0) read_user(content, path);
      if (role == 1) read_assistant(content, path);
      if (role == 2) add_instructions(joined(read_texts(content, path)), into_);
      message.done();
      if (role == 1 && i + 1 == messages.size())
        throw invalid_value(path, "want a message of the user at the end; gpt-oss does not go on with a text");
    }
  }

 private:
  void read_user(const Json& content, const std::string& path) {
    if (content.is_string()) return add_user({content.get<std::string>()});
    const Json& blocks = array_of(content, path);
    std::vector<std::string> texts;
    for (size_t i = 0; i < blocks.size(); ++i) {
      Fields block(blocks[i], fmt::format("{}[{}]", path, i));
      const std::string type = block.required_string("type");
      if (type == "text") {
        texts.push_back(text_of_block(block));
      } else if (type == "tool_result") {
        add_user(std::exchange(texts, {}));
        read_result(block);
      } else {
        refuse_block(block, "text or tool_result", type);
      }
    }
    add_user(texts);
  }

  void add_user(const std::vector<std::string>& texts) {
    if (!texts.empty()) into_.history.push_back(plain_message(text::Role::kUser, joined(texts)));
  }

  void read_result(Fields& block) {
    const std::string& function =
        called_function(calls_, block.required_string("tool_use_id"), block.path("tool_use_id"));
    const Json* content = block.find("content");
    std::string output = content == nullptr ? "" : joined(read_texts(*content, block.path("content")));
    if (block.boolean("is_error").value_or(false)) output = "Error: " + output;  // Harmony has no field for it
    into_.history.push_back(result_message(function, std::move(output)));
    end_block(block);
  }

  void read_assistant(const Json& content, const std::string& path) {
    if (content.is_string())
      return into_.history.push_back(assistant_message(text::kFinalChannel, content.get<std::string>()));
    const Json& blocks = array_of(content, path);
    const auto is_call = [](const Json& block) {
      return block.is_object() && block.value("type", Json()) == "tool_use";
    };
    const bool calls_any = std::any_of(blocks.begin(), blocks.end(), is_call);  // text is then a preamble
    for (size_t i = 0; i < blocks.size(); ++i) {
      Fields block(blocks[i], fmt::format("{}[{}]", path, i));
      const std::string type = block.required_string("type");
      if (type == "text") {
        add_assistant(calls_any ? text::kCommentaryChannel : text::kFinalChannel, text_of_block(block));
      } else if (type == "thinking") {
        add_assistant(text::kAnalysisChannel, block.required_string("thinking"));
        block.ignore_strings({"signature"});
        end_block(block);
      } else if (type == "redacted_thinking") {  // of another model: nobody here can read it
        block.ignore_strings({"data"});
        end_block(block);
      } else if (type == "tool_use") {
        read_call(block);
      } else {
        refuse_block(block, "text, thinking or tool_use", type);
      }
    }
  }

  void add_assistant(std::string_view channel, std::string text) {
    if (!text.empty()) into_.history.push_back(assistant_message(channel, std::move(text)));
  }

  void read_call(Fields& block) {
    const std::string name = block.required_string("name");
    calls_[block.required_string("id")] = name;
    static_cast<void>(block.required_object("input"));
    into_.history.push_back(call_message(name, to_text(*block.find("input"))));
    static_cast<void>(block.object("caller"));  // who called: always the model itself
    end_block(block);
  }

  TurnRequest& into_;
  CallNames calls_;
};

void read_message_tools(Fields& fields, TurnRequest& into) {
  if (const Json* tools = find_tools(fields)) {
    for (size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("tools[{}]", i));
      tool.only("type", "custom", "there are no built-in tools");
      static_cast<void>(tool.required_object("input_schema"));
      read_function(tool, "input_schema", into);
      tool.ignore_booleans({"eager_input_streaming"});  // arguments always come as they are made
      tool.only("defer_loading", false, "all tools are told at once");
      tool.only("allowed_callers", {"direct"}, "the model alone calls");
      tool.refuse({"input_examples"}, "put them into the description");
      end_block(tool);
    }
  }
  if (auto choice = fields.object("tool_choice")) {
    // in the order of ToolChoice
    into.tool_choice = static_cast<ToolChoice>(choice->required_choice("type", {"auto", "none", "any", "tool"}));
    if (into.tool_choice == ToolChoice::kNamed) into.named_tool = choice->required_string("name");
    into.parallel_tool_calls = !choice->boolean("disable_parallel_tool_use").value_or(false);
    choice->done();
  }
  check_named_tool(into);
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
    for (size_t i = 0; i < edits->size(); ++i) {
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
  Fields fields(body, "");
  TurnRequest turn = turn_of(defaults);
  read_sampling(fields, turn.generation);
  turn.generation.stop = read_stops(fields, "stop_sequences");
  if (what == MessagesFor::kAnswer) static_cast<void>(fields.required("max_tokens", "a number"));
  turn.generation.max_tokens = fields.integer("max_tokens", {1, kMostTokens});
  if (const Json* system = fields.find("system")) turn.instructions = read_texts(*system, "system");
  const Json& messages = array_of(fields.required("messages", "at least one"), "messages");
  Reader(turn).read(messages);
  if (turn.history.empty()) throw invalid_value("messages", "want one that says something, found none");
  read_message_tools(fields, turn);
  read_thinking(fields, turn);
  read_output_config(fields, turn);
  read_context_management(fields);
  if (auto metadata = fields.object("metadata")) {
    metadata->ignore_strings({"user_id"});
    metadata->done();
  }
  static_cast<void>(fields.choice("service_tier", {"auto", "standard_only"}));
  static_cast<void>(fields.object("cache_control"));  // what can be cached is
  fields.only("speed", "standard", "there is one");
  fields.refuse({"container", "mcp_servers"}, "there are no built-in tools");
  fields.done();
  return turn;
}

}  // namespace nibble::server

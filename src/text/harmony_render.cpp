#include "text/harmony_render.h"

#include "base/error.h"
#include "text/typescript_schema.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace nibble::text {
namespace {

// Every line as a comment. A line break at the end does not begin another line, and \r
//  is one break.
void append_comment(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    const bool broken = end < text.size();
    if (broken && line.ends_with('\r')) line.remove_suffix(1);
    out += fmt::format("// {}\n", line);
    text.remove_prefix(broken ? end + 1 : end);
  }
}

// The tools of each space; spaces in the order of their names.
std::map<std::string_view, std::vector<const ToolSpec*>> by_space(const std::vector<ToolSpec>& tools) {
  std::map<std::string_view, std::vector<const ToolSpec*>> spaces;
  for (const ToolSpec& tool : tools) spaces[tool.space.name].push_back(&tool);
  return spaces;
}

std::string space_section(std::string_view space, const std::vector<const ToolSpec*>& tools) {
  std::string out = fmt::format("## {}\n\n", space);
  const auto told = std::ranges::find_if(tools, [](const ToolSpec* tool) { return !tool->space.description.empty(); });
  if (told != tools.end()) append_comment((*told)->space.description, out);
  out += fmt::format("namespace {} {{\n\n", space);
  for (const ToolSpec* tool : tools) {
    append_comment(tool->description, out);
    const std::string arguments =
        tool->parameters ? "_: " + typescript_type(*tool->parameters, fmt::format("tool {}", tool->name)) : "";
    out += fmt::format("type {} = ({}) => any;\n\n", tool->name, arguments);
  }
  return out + fmt::format("}} // namespace {}", space);
}

std::string response_format_section(const ResponseFormat& format) {
  std::string out = fmt::format("## {}\n\n", format.name);
  append_comment(format.description, out);
  return out + compact_json(format.schema, fmt::format("response format {}", format.name));
}

FunctionTools functions_of(const Conversation& conversation) {
  for (const Message& message : conversation.messages)
    for (const Content& content : message.content) {
      const auto* developer = std::get_if<DeveloperOptions>(&content);
      if (developer != nullptr && by_space(developer->tools).contains(kFunctionsSpace)) return FunctionTools::kPresent;
    }
  return FunctionTools::kAbsent;
}

std::string content_text(const Content& content, Role role, size_t message_idx, FunctionTools functions) {
  if (const auto* plain = std::get_if<std::string>(&content)) return *plain;
  const auto* system = std::get_if<SystemOptions>(&content);
  const Role home = system != nullptr ? Role::kSystem : Role::kDeveloper;
  if (role != home)
    throw Error(Code::kInvalidRequest, "messages[{}]: {} options belong in a {} message, found in role {}", message_idx,
                name_of(home), name_of(home), name_of(role));
  return system != nullptr ? system_text(*system, functions) : developer_text(std::get<DeveloperOptions>(content));
}

// Appends the message; texts are segments of their own, and empty ones none.
void render(const Message& message, size_t message_idx, FunctionTools functions, std::vector<Segment>& out) {
  const auto text = [&out](std::string part) {
    if (!part.empty()) out.emplace_back(std::move(part));
  };
  const bool is_tool = message.role == Role::kTool;
  if (is_tool && message.name.empty())
    throw Error(Code::kInvalidRequest, "messages[{}]: a tool message must name its tool, e.g. functions.f",
                message_idx);
  out.emplace_back(Special::kStart);
  text(is_tool ? message.name : std::string(name_of(message.role)));
  if (!is_tool && !message.name.empty()) text(":" + message.name);
  if (message.recipient && *message.recipient != "all") text(" to=" + *message.recipient);
  if (message.channel) {
    out.emplace_back(Special::kChannel);
    text(*message.channel);
  }
  if (message.content_type && message.content_type->constrained) {
    text(" ");
    out.emplace_back(Special::kConstrain);
    text(message.content_type->name);
  } else if (message.content_type) {
    text(" " + message.content_type->name);
  }
  out.emplace_back(Special::kMessage);
  for (const Content& content : message.content) text(content_text(content, message.role, message_idx, functions));
  const bool is_call = message.role == Role::kAssistant && message.recipient.has_value();
  out.emplace_back(is_call ? Special::kCall : Special::kEnd);
}

bool is_final(const Message& message) { return message.channel == kFinalChannel; }

}  // namespace

Conversation conversation_of(SystemOptions system, DeveloperOptions developer, const std::vector<Message>& history) {
  Conversation out{{{.role = Role::kSystem, .content = {std::move(system)}}}};
  if (developer.instructions || !developer.tools.empty() || !developer.response_formats.empty())
    out.messages.push_back({.role = Role::kDeveloper, .content = {std::move(developer)}});
  out.messages.insert(out.messages.end(), history.begin(), history.end());
  return out;
}

std::vector<Segment> render_for_completion(const Conversation& conversation) {
  const std::vector<Message>& messages = conversation.messages;
  const auto last_assistant =
      std::find_if(messages.rbegin(), messages.rend(), [](const Message& m) { return m.role == Role::kAssistant; });
  const bool drop = last_assistant != messages.rend() && is_final(*last_assistant);
  const auto first_final = std::find_if(messages.begin(), messages.end(), is_final);
  const FunctionTools functions = functions_of(conversation);
  std::vector<Segment> out;
  for (auto it = messages.begin(); it != messages.end(); ++it) {
    if (drop && it < first_final && it->channel == kAnalysisChannel) continue;
    render(*it, static_cast<size_t>(it - messages.begin()), functions, out);
  }
  out.emplace_back(Special::kStart);
  out.emplace_back(std::string(name_of(Role::kAssistant)));
  return out;
}

std::string system_text(const SystemOptions& options, FunctionTools functions) {
  std::vector<std::string> top;
  if (options.identity) top.push_back(*options.identity);
  if (options.knowledge_cutoff) top.push_back("Knowledge cutoff: " + *options.knowledge_cutoff);
  if (options.current_date) top.push_back("Current date: " + *options.current_date);

  std::vector<std::string> sections;
  if (!top.empty()) sections.push_back(fmt::format("{}", fmt::join(top, "\n")));
  if (options.effort) sections.push_back(fmt::format("Reasoning: {}", name_of(*options.effort)));
  if (!options.valid_channels.empty()) {
    std::string channels = fmt::format("# Valid channels: {}.", fmt::join(options.valid_channels, ", "));
    if (options.channel_required) channels += " Channel must be included for every message.";
    if (functions == FunctionTools::kPresent)
      channels += "\nCalls to these tools must go to the commentary channel: 'functions'.";
    sections.push_back(std::move(channels));
  }
  return fmt::format("{}", fmt::join(sections, "\n\n"));
}

std::string developer_text(const DeveloperOptions& options) {
  std::vector<std::string> sections;
  if (options.instructions) {
    sections.emplace_back("# Instructions");
    sections.push_back(*options.instructions);
  }
  if (!options.tools.empty()) sections.emplace_back("# Tools");
  for (const auto& [space, tools] : by_space(options.tools)) sections.push_back(space_section(space, tools));
  if (!options.response_formats.empty()) sections.emplace_back("# Response Formats");
  for (const ResponseFormat& format : options.response_formats) sections.push_back(response_format_section(format));
  return fmt::format("{}", fmt::join(sections, "\n\n"));
}

}  // namespace nibble::text

#include "text/harmony_render.h"

#include "base/error.h"
#include "text/typescript_schema.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace nibble::text {

// The built-in tools' sections of the system message. gpt-oss was trained on these very bytes, so they are part of the
// wire format, not prose of ours: source openai/harmony 0.0.8, src/chat.rs (Apache-2.0), as its renderer prints them.

// clang-format off
constexpr std::string_view kBrowserToolSection = R"-(## browser

// Tool for browsing.
// The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
// Cite information from the tool using the following format:
// `【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.
// Do not quote more than 10 words directly from the tool output.
// sources=web (default: web)
namespace browser {

// Searches for information related to `query` and displays `topn` results.
type search = (_: {
query: string,
topn?: number, // default: 10
source?: string,
}) => any;

// Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, showing `num_lines` lines.
// Valid link ids are displayed with the formatting: `【{id}†.*】`.
// If `cursor` is not provided, the most recent page is implied.
// If `id` is a string, it is treated as a fully qualified URL associated with `source`.
// If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most relevant passage, if available.
// Use this function without `id` to scroll to a new location of an opened page.
type open = (_: {
id?: number | string, // default: -1
cursor?: number, // default: -1
loc?: number, // default: -1
num_lines?: number, // default: -1
view_source?: boolean, // default: false
source?: string,
}) => any;

// Finds exact matches of `pattern` in the current page, or the page given by `cursor`.
type find = (_: {
pattern: string,
cursor?: number, // default: -1
}) => any;

} // namespace browser)-";

constexpr std::string_view kPythonToolSection = R"-(## python

Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool should be used for internal reasoning, but not for code that is intended to be visible to the user (e.g. when creating plots, tables, or files).

When you send a message containing Python code to python, it will be executed in a stateful Jupyter notebook environment. python will respond with the output of the execution or time out after 120.0 seconds. The drive at '/mnt/data' can be used to save and persist user files. Internet access for this session is UNKNOWN. Depends on the cluster.)-";
// clang-format on

namespace {

std::string_view effort_name(ReasoningEffort effort) {
  switch (effort) {
    case ReasoningEffort::kLow: return "low";
    case ReasoningEffort::kMedium: return "medium";
    case ReasoningEffort::kHigh: return "high";
  }
  return "unknown";
}

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

std::string functions_section(const std::vector<ToolSpec>& functions) {
  std::string out = "## functions\n\nnamespace functions {\n\n";
  for (const ToolSpec& tool : functions) {
    append_comment(tool.description, out);
    const std::string arguments =
        tool.parameters ? "_: " + typescript_type(*tool.parameters, fmt::format("tool {}", tool.name)) : "";
    out += fmt::format("type {} = ({}) => any;\n\n", tool.name, arguments);
  }
  return out + "} // namespace functions";
}

std::string response_format_section(const ResponseFormat& format) {
  std::string out = fmt::format("## {}\n\n", format.name);
  append_comment(format.description, out);
  return out + compact_json(format.schema, fmt::format("response format {}", format.name));
}

class Renderer {
 public:
  explicit Renderer(const Conversation& conversation) {
    for (const Message& message : conversation.messages) {
      for (const Content& content : message.content) {
        const auto* developer = std::get_if<DeveloperOptions>(&content);
        if (developer != nullptr && !developer->functions.empty()) functions_ = FunctionTools::kPresent;
      }
    }
  }

  void render(const Message& message, size_t message_idx);
  void special(Special special) { segments_.emplace_back(special); }
  void text(std::string text) {
    if (!text.empty()) segments_.emplace_back(std::move(text));
  }
  std::vector<Segment>& segments() { return segments_; }

 private:
  void render_header(const Message& message, size_t message_idx);
  std::string content_text(const Content& content, Role role, size_t message_idx) const;

  FunctionTools functions_ = FunctionTools::kAbsent;
  std::vector<Segment> segments_;
};

void Renderer::render_header(const Message& message, size_t message_idx) {
  if (message.role == Role::kTool) {
    if (message.name.empty()) {
      throw Error(Code::kInvalidRequest, "messages[{}]: a tool message must name its tool, e.g. functions.f",
                  message_idx);
    }
    text(message.name);
  } else {
    text(std::string(name_of(message.role)));
    if (!message.name.empty()) text(":" + message.name);
  }
  if (message.recipient && *message.recipient != "all") text(" to=" + *message.recipient);
  if (message.channel) {
    special(Special::kChannel);
    text(*message.channel);
  }
  if (!message.content_type) return;
  if (message.content_type->constrained) {
    text(" ");
    special(Special::kConstrain);
    text(message.content_type->name);
  } else {
    text(" " + message.content_type->name);
  }
}

void Renderer::render(const Message& message, size_t message_idx) {
  special(Special::kStart);
  render_header(message, message_idx);
  special(Special::kMessage);
  for (const Content& content : message.content) text(content_text(content, message.role, message_idx));
  const bool is_call = message.role == Role::kAssistant && message.recipient.has_value();
  special(is_call ? Special::kCall : Special::kEnd);
}

std::string Renderer::content_text(const Content& content, Role role, size_t message_idx) const {
  if (const auto* plain = std::get_if<std::string>(&content)) return *plain;
  const auto* system = std::get_if<SystemOptions>(&content);
  const Role home = system != nullptr ? Role::kSystem : Role::kDeveloper;
  if (role != home) {
    throw Error(Code::kInvalidRequest, "messages[{}]: {} options belong in a {} message, found in role {}", message_idx,
                name_of(home), name_of(home), name_of(role));
  }
  return system != nullptr ? system_text(*system, functions_) : developer_text(std::get<DeveloperOptions>(content));
}

bool is_final(const Message& message) { return message.channel == kFinalChannel; }

}  // namespace

std::vector<Segment> render_for_completion(const Conversation& conversation) {
  const std::vector<Message>& messages = conversation.messages;
  const auto last_assistant =
      std::find_if(messages.rbegin(), messages.rend(), [](const Message& m) { return m.role == Role::kAssistant; });
  const bool drop = last_assistant != messages.rend() && is_final(*last_assistant);
  const auto first_final = std::find_if(messages.begin(), messages.end(), is_final);
  Renderer renderer(conversation);
  for (auto it = messages.begin(); it != messages.end(); ++it) {
    if (drop && it < first_final && it->channel == kAnalysisChannel) continue;
    renderer.render(*it, static_cast<size_t>(it - messages.begin()));
  }
  renderer.special(Special::kStart);
  renderer.text(std::string(name_of(Role::kAssistant)));
  return std::move(renderer.segments());
}

std::string system_text(const SystemOptions& options, FunctionTools functions) {
  std::vector<std::string> top;
  if (options.identity) top.push_back(*options.identity);
  if (options.knowledge_cutoff) top.push_back("Knowledge cutoff: " + *options.knowledge_cutoff);
  if (options.current_date) top.push_back("Current date: " + *options.current_date);

  std::vector<std::string> sections;
  if (!top.empty()) sections.push_back(fmt::format("{}", fmt::join(top, "\n")));
  if (options.effort) sections.push_back(fmt::format("Reasoning: {}", effort_name(*options.effort)));
  if (options.browser || options.python) sections.emplace_back("# Tools");
  if (options.browser) sections.emplace_back(kBrowserToolSection);
  if (options.python) sections.emplace_back(kPythonToolSection);
  if (!options.valid_channels.empty()) {
    std::string channels = fmt::format("# Valid channels: {}.", fmt::join(options.valid_channels, ", "));
    if (options.channel_required) channels += " Channel must be included for every message.";
    if (functions == FunctionTools::kPresent) {
      channels += "\nCalls to these tools must go to the commentary channel: 'functions'.";
    }
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
  if (!options.functions.empty()) {
    sections.emplace_back("# Tools");
    sections.push_back(functions_section(options.functions));
  }
  if (!options.response_formats.empty()) sections.emplace_back("# Response Formats");
  for (const ResponseFormat& format : options.response_formats) sections.push_back(response_format_section(format));
  return fmt::format("{}", fmt::join(sections, "\n\n"));
}

}  // namespace nibble::text

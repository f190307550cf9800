#pragma once
// A conversation as plain data: what the server builds from a request and what harmony_render turns into tokens.

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::text {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool };

constexpr std::string_view name_of(Role role) {
  constexpr std::string_view kNames[] = {"system", "developer", "user", "assistant", "tool"};
  return kNames[static_cast<size_t>(role)];
}

constexpr std::optional<Role> role_named(std::string_view name) {
  for (const Role role : {Role::kSystem, Role::kDeveloper, Role::kUser, Role::kAssistant, Role::kTool})
    if (name_of(role) == name) return role;
  return std::nullopt;
}

// The channels that gpt-oss was trained with.
inline constexpr std::string_view kAnalysisChannel = "analysis";      // reasoning, not for the end user
inline constexpr std::string_view kCommentaryChannel = "commentary";  // function calls and preambles to them
inline constexpr std::string_view kFinalChannel = "final";            // the answer

enum class ReasoningEffort { kLow, kMedium, kHigh };
constexpr std::string_view name_of(ReasoningEffort effort) {
  constexpr std::string_view kNames[] = {"low", "medium", "high"};
  return kNames[static_cast<size_t>(effort)];
}

inline constexpr std::string_view kFunctionsSpace = "functions";

// Where a tool is called: a recipient is SPACE.NAME. The first description that a tool of a space has is the space's.
struct ToolSpace {
  std::string name{kFunctionsSpace};
  std::string description = {};
};

// A function that the model may call. `parameters`: a JSON Schema of any shape from the user, in the user's key order;
// none: the function takes no arguments.
struct ToolSpec {
  std::string name, description;
  std::optional<nlohmann::ordered_json> parameters;
  ToolSpace space = {};
};

// A named JSON Schema that the answer should follow.
struct ResponseFormat {
  std::string name, description;
  nlohmann::ordered_json schema;
};

// Content of a system message. An empty optional or list leaves its line out.
struct SystemOptions {
  std::optional<std::string> identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::optional<std::string> knowledge_cutoff = "2024-06";
  std::optional<std::string> current_date;  // YYYY-MM-DD
  std::optional<ReasoningEffort> effort = ReasoningEffort::kMedium;
  std::vector<std::string> valid_channels = {"analysis", "commentary", "final"};
  bool channel_required = true;
};

// Content of a developer message.
struct DeveloperOptions {
  std::optional<std::string> instructions;
  std::vector<ToolSpec> tools;
  std::vector<ResponseFormat> response_formats;
};

// `json`, marked by <|constrain|> or not.
struct ContentType {
  std::string name;
  bool constrained = false;
  bool operator==(const ContentType&) const = default;
};

// SystemOptions stand only in system messages, DeveloperOptions only in developer messages.
using Content = std::variant<std::string, SystemOptions, DeveloperOptions>;

struct Message {
  Role role = Role::kUser;
  std::string name = {};  // of a tool, e.g. functions.f (required there); of a user or an assistant (optional)
  std::optional<std::string> recipient = {}, channel = {};
  std::optional<ContentType> content_type = {};
  std::vector<Content> content = {};  // parts: each is tokenised on its own
};

struct Conversation {
  std::vector<Message> messages;
};

}  // namespace nibble::text

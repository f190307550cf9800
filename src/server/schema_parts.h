#pragma once
// Fields that several endpoints have.

#include "server/json_fields.h"
#include "server/schema.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble::server {

// Requests that do not say anything yet.
[[nodiscard]] GenerationFields generation_of(const RequestDefaults& defaults);
[[nodiscard]] TurnRequest turn_of(const RequestDefaults& defaults);
// Reads model, stream, and how tokens are drawn.
void read_sampling(Fields& fields, GenerationFields& into);
// OpenAI's endpoints: also stop, and what all of them accept or refuse. Not read: token limits, n and logprobs, whose
// names differ.
void read_generation(Fields& fields, GenerationFields& into);

inline constexpr int64_t kMostTokens = int64_t{1} << 40;  // of a limit; the context ends earlier
inline constexpr int64_t kMostLogprobs = 20;              // per token

// Checks an object whose values must be texts.
void check_texts(Fields& fields, std::string_view name);
// Returns the name if it may stand in a Harmony header; otherwise throws ApiError.
const std::string& checked_name(const std::string& name, const std::string& path);
// A string, or an array of them.
[[nodiscard]] std::vector<std::string> read_stops(Fields& fields, std::string_view name);
// The field tools, if it is there.
[[nodiscard]] const Json* find_tools(Fields& fields);
// A function's {name, description, strict} and its parameters, whose field is called `schema`; added to the request.
void read_function(Fields& function, std::string_view schema, TurnRequest& into);
// Throws ApiError unless the function that must be called is one of the tools.
void check_named_tool(const TurnRequest& turn);
// Reads tools, parallel_tool_calls and tool_choice. Throws ApiError. A tool or choice holds its function in a field
// (chat completions), or is the function itself (responses).
enum class SchemaForm { kNested, kFlat };
void read_tools(Fields& fields, SchemaForm form, TurnRequest& into);

// The nearest of gpt-oss's three efforts.
[[nodiscard]] std::optional<text::ReasoningEffort> read_effort(Fields& fields, std::string_view name);
// Adds a line to the instructions, since gpt-oss has no setting for verbosity.
void read_verbosity(Fields& fields, TurnRequest& into);
// {name, description, schema, strict}
[[nodiscard]] OutputFormat read_json_schema(Fields& fields);
// The field `name`, {type}: a text, any JSON, or JSON of a schema, which is in a field of its own or the rest of this
// one.
[[nodiscard]] OutputFormat read_format(Fields& fields, std::string_view name, SchemaForm form);

// vLLM's names for a format: guided_json, and json or json_object in structured_outputs. A schema may be a text.
void read_structured_outputs(Fields& fields, OutputFormat& into);

// A string, or an array of parts of one of the types, joined. Throws ApiError naming the type for images, sound and
// files.
[[nodiscard]] std::string text_of(const Json& content, const std::string& path,
                                  std::initializer_list<std::string_view> types);

// Messages as Harmony has them.
[[nodiscard]] text::Message plain_message(text::Role role, std::string text);
[[nodiscard]] text::Message assistant_message(std::string_view channel, std::string text);
[[nodiscard]] text::Message call_message(const std::string& function, std::string arguments);
[[nodiscard]] text::Message result_message(const std::string& function, std::string output);

// In the middle of a conversation they stay where they are.
void add_instructions(std::string text, TurnRequest& into);

[[nodiscard]] const std::string& called_function(const CallNames& calls, const std::string& id, std::string_view path);

}  // namespace nibble::server

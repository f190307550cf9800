#pragma once
// Fields that several endpoints have.

#include "server/json_fields.h"
#include "server/schema.h"

#include <fmt/format.h>

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
// Throws ApiError unless the field holds a name that may stand in a Harmony header.
void check_name(const Fields& fields, const std::string& name);
// A string, or an array of them.
[[nodiscard]] std::vector<std::string> read_stops(Fields& fields, std::string_view name);
// Who wrote the request: OpenAI's two endpoints and Anthropic's name the same things differently.
enum class Dialect { kChat, kResponses, kMessages };
// Reads tools, tool_choice and whether calls may be parallel. Throws ApiError.
void read_tools(Fields& fields, Dialect dialect, TurnRequest& into);

// The nearest of gpt-oss's three efforts.
[[nodiscard]] std::optional<text::ReasoningEffort> read_effort(Fields& fields, std::string_view name);
// Adds a line to the instructions, since gpt-oss has no setting for verbosity.
void read_verbosity(Fields& fields, TurnRequest& into);
// {name, description, schema, strict}
[[nodiscard]] OutputFormat read_json_schema(Fields& fields);
// The field `name`, {type}: a text, any JSON, or JSON of a schema, which is in a field of its own or the rest of this
// one.
[[nodiscard]] OutputFormat read_format(Fields& fields, std::string_view name, Dialect dialect);

// vLLM's names for a format: guided_json, and json or json_object in structured_outputs. A schema may be a text.
void read_structured_outputs(Fields& fields, OutputFormat& into);

// Calls visit(Fields&) for each object of an array; each must have read all of it.
template <class Visit>
void for_each_object(const Json& array, const std::string& path, Visit&& visit) {
  for (size_t i = 0; i < array.size(); ++i) {
    Fields object(array[i], fmt::format("{}[{}]", path, i));
    visit(object);
    object.done();
  }
}

// The text of a part of a message, and what may stand beside it.
[[nodiscard]] std::string text_of_part(Fields& part, std::string_view name = "text");
// A string, or an array of parts of one of the types, joined. Throws ApiError naming the type for images, sound and
// files.
[[nodiscard]] std::string text_of(const Json& content, const std::string& path,
                                  std::initializer_list<std::string_view> types);

// A conversation while it is read: adds messages as Harmony has them to a turn.
class History {
 public:
  History(TurnRequest& into, CallNames& calls) : into_(into), calls_(calls) {}

  void add(text::Role role, std::string text, std::string name = {});
  void instructions(std::string text);  // in the middle of a conversation they stay where they are
  void reasoning(std::string text);     // no text: nothing
  void answer(std::string text, bool before_call);
  void call(const std::string& id, const std::string& function, std::string arguments);
  void result(const std::string& function, std::string output);
  // The function that the call with the id in this field called. Throws ApiError if there is no such call.
  [[nodiscard]] const std::string& called(Fields& fields, std::string_view name) const;

 private:
  TurnRequest& into_;
  CallNames& calls_;
};

}  // namespace nibble::server

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
// How tokens are drawn.
void read_sampling(Fields& fields, GenerationFields& into);
// Which model, and whether its answer is a stream.
void read_model(Fields& fields, GenerationFields& into);
// Chats' logprobs and top_logprobs.
void read_chat_logprobs(Fields& fields, GenerationFields& into);
// OpenAI's endpoints: both, stop, and what all of them accept or refuse. Not read: token limits, n and logprobs, whose
// names differ.
void read_generation(Fields& fields, GenerationFields& into);

inline constexpr int64_t kMostTokens = int64_t{1} << 40;  // of a limit; the context ends earlier
inline constexpr int64_t kMostLogprobs = 20;              // per token

// Checks an object whose values must be texts.
void check_texts(Fields& fields, std::string_view name);
// A limit of tokens; -1 is none, as where it is absent.
[[nodiscard]] std::optional<int64_t> read_limit(Fields& fields, std::string_view name);
// Throws ApiError unless the field holds a name that may stand in a Harmony header.
void check_name(const Fields& fields, const std::string& name);
// A string, or an array of them; none where it is absent.
[[nodiscard]] std::vector<std::string> read_strings(Fields& fields, std::string_view name);
// read_strings of stop strings, which have limits.
[[nodiscard]] std::vector<std::string> read_stops(Fields& fields, std::string_view name);
// Who wrote the request: OpenAI's two endpoints and Anthropic's name the same things differently.
enum class Dialect { kChat, kResponses, kMessages };
// The array `tools`. Offers that bind nobody (a search on the web) are noted and left out. Throws ApiError.
[[nodiscard]] std::vector<Tool> read_tools(Fields& fields, Dialect dialect);
// Reads tool_choice and whether calls may be parallel, once all tools are known. Throws ApiError.
void read_tool_choice(Fields& fields, Dialect dialect, TurnRequest& into);
// Throws ApiError for an answer that has begun and must be JSON or a call. `field`: what asks for it.
void check_prefill(const TurnRequest& turn, std::string_view field);

// The nearest of gpt-oss's three efforts.
[[nodiscard]] std::optional<text::ReasoningEffort> read_effort(Fields& fields, std::string_view name);
// Adds a line to the instructions, since gpt-oss has no setting for verbosity.
void read_verbosity(Fields& fields, TurnRequest& into);
// {name, description, schema, strict}
[[nodiscard]] OutputFormat read_json_schema(Fields& fields);
// The field `name`, {type}: a text, any JSON, or JSON of a schema, which is in a field of its own or the rest of this
// one.
[[nodiscard]] OutputFormat read_format(Fields& fields, std::string_view name, Dialect dialect);

// vLLM's and llama.cpp's names for a format: structured_outputs, guided_json and its like, grammar, json_schema. Throws
// ApiError unless there is one at most.
void read_structured_outputs(Fields& fields, OutputFormat& into);
// A structural tag, vLLM's and xgrammar's: {structures, triggers} or {format}. Returns the grammar of its text; what of
// its schemas that does not keep is noted (`told` may be null).
[[nodiscard]] std::string read_structural_tag(Fields& tag, Leniency* told);

// What `make` (of text/raw_grammar.h or text/json_grammar.h) makes of the value at `path`. Throws ApiError.
template <class Make, class Value>
std::string grammar_of(const Make& make, const Value& value, const std::string& path) {
  try {
    return make(value, path);
  } catch (const Error& e) {
    throw ApiError(path, e.what(), 400, "unsupported_value");
  }
}

// Calls visit(Fields&) for each object of an array; each must have read all of it. Throws ApiError for no array.
template <class Visit>
void for_each_object(const Json& array, const Place& place, Visit&& visit) {
  for (size_t i = 0; i < array_of(array, place.path).size(); ++i) {
    Fields object(array[i], place.item(i));
    visit(object);
    object.done();
  }
}

// The text of a part of a message, and what may stand beside it.
[[nodiscard]] std::string text_of_part(Fields& part, std::string_view name = "text");
// A part of another type: the text that stands for a picture. Throws ApiError naming the type for sound, files and, if
// they are refused, pictures.
[[nodiscard]] std::string text_for(Fields& part, std::string_view type, std::string_view wanted);
// A string, or an array of parts of one of the types, joined.
[[nodiscard]] std::string text_of(const Json& content, const Place& place,
                                  std::initializer_list<std::string_view> types);

// A conversation while it is read: adds messages as Harmony has them to a turn.
class History {
 public:
  History(TurnRequest& into, CallNames& calls) : into_(into), calls_(calls) {}

  void add(text::Role role, std::string text, std::string name = {});
  void say(text::Role role, std::string text, bool before_call);  // by anybody but a tool
  void instructions(std::string text);  // in the middle of a conversation they stay where they are
  void reasoning(std::string text);     // no text: nothing
  void answer(std::string text, bool before_call);
  void call(const std::string& id, const Callee& callee, std::string arguments);
  void result(const std::string& recipient, std::string output);
  // Tells tools where the conversation stands, unless it has told them: the model may call them from here on.
  void load(std::vector<Tool> tools);
  // Takes off the end a text of the assistant, with its reasoning, for the answer to begin with. False: there is none.
  [[nodiscard]] bool open_last();
  // The recipient of the call with the id in this field. Throws ApiError if there is no such call.
  [[nodiscard]] const std::string& called(Fields& fields, std::string_view name) const;

 private:
  TurnRequest& into_;
  CallNames& calls_;
};

}  // namespace nibble::server

#pragma once
// The API's requests as plain structs. Parsing is strict and needs only the JSON: every field is honoured, or listed in
// docs/api.md as harmless, or unknown and noted, or refused by an ApiError that names it.

#include "engine/request.h"
#include "server/api_error.h"
#include "server/json_fields.h"
#include "text/conversation.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::server {

// What all ways to generate have in common.
struct GenerationFields {
  std::string model;  // empty: whichever model is served
  bool stream = false;
  bool include_usage = false;         // stream: the last chunk has the usage
  bool continuous_usage = false;      // and every other chunk has the usage so far
  int n = 1;                          // answers per prompt
  std::optional<uint64_t> seed;       // none: a new one each time
  std::optional<int64_t> max_tokens;  // none: the endpoint's default
  std::optional<int64_t> context;     // tokens that the client counts on; none: whatever there is
  bool ignore_eos = false;
  bool background = false;        // a stream that goes on without its client
  bool return_token_ids = false;  // of generated tokens, with the text
  std::vector<std::string> stop;
  bool include_stop = false;  // the text ends after the stop string, not before it
  engine::Request request;    // sampling, min_tokens, stop_ids (the user's), logprobs
  Leniency leniency;          // and what was let pass
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

struct OutputFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema, kGrammar };
  Kind kind = Kind::kText;
  text::ResponseFormat schema{};          // kJsonSchema
  std::string grammar{};                  // kGrammar: of raw text (text/raw_grammar.h)
  std::string field = "response_format";  // the field's name in the request
};

// Recipients of calls, by the call's id.
using CallNames = std::map<std::string, std::string, std::less<>>;

enum class ToolKind {
  kFunction,  // takes JSON
  kCustom,    // takes a text
  kSearch,    // a function of the client's, which loads other tools
};

// Whom a call calls.
struct Callee {
  std::string space{text::kFunctionsSpace}, name{};
  ToolKind kind = ToolKind::kFunction;

  [[nodiscard]] std::string recipient() const { return space + '.' + name; }
};

struct Tool {
  text::ToolSpec spec;
  ToolKind kind = ToolKind::kFunction;
  bool strict = false;    // its arguments must follow the schema
  std::string grammar{};  // kCustom: of its text (text/raw_grammar.h); empty: any text
  enum class Told { kAtStart, kInHistory, kNotYet };
  Told told = Told::kAtStart;  // to the model, which may call it from then on

  [[nodiscard]] Callee callee() const { return {spec.space.name, spec.name, kind}; }
};
// Null: there is none.
[[nodiscard]] Tool* find_tool(std::vector<Tool>& tools, const Callee& callee);

// A turn of a conversation: /v1/chat/completions, /v1/responses, /v1/messages, /api/chat and /api/generate become one.
// One of Ollama's that says nothing asks whether the model is loaded.
struct TurnRequest {
  GenerationFields generation;
  std::string prompt_field = "messages";  // the field to name if the prompt is too long for the context
  std::vector<std::string> instructions;  // system and developer messages before everything else
  std::vector<text::Message> history;     // as Harmony has it
  std::optional<std::string> prefill;     // the answer begins with it
  std::string prefill_reasoning;          // which came of this
  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  Callee named_tool;  // kNamed
  bool parallel_tool_calls = true;
  text::ReasoningEffort effort = text::ReasoningEffort::kMedium;
  std::optional<int64_t> reasoning_tokens;  // at most; none: follows from the effort if the turn must end in JSON
  std::optional<std::string> identity;      // the identity told to the model; none: the one it was trained with
  bool include_reasoning = true;            // in the answer of a chat or of messages
  OutputFormat format;
};

// What a request gets where it does not say.
struct RequestDefaults {
  decltype(engine::Request::sampling) sampling{};
  text::ReasoningEffort effort = text::ReasoningEffort::kMedium;
  bool include_usage = false;  // every stream ends with the usage
  Leniency leniency{};
};

struct CompletionRequest {
  GenerationFields generation;
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;  // at least one
  bool echo = false;
  OutputFormat format;
  bool skip_special_tokens = true;  // leave them out of the text; false: they are spelt out
};

struct ResponsesRequest {
  TurnRequest turn;                  // its history begins with that of the previous response
  CallNames calls;                   // all calls in the history
  std::vector<std::string> lasting;  // the turn's instructions that are items: the next turn has them, too
  bool store = true;
  Json input;   // as it was sent, if it is stored
  Json echoed;  // fields that the response object repeats
};

// What a response leaves behind for the next one.
struct StoredTurn {
  std::vector<std::string> instructions;  // of items before everything else; the field `instructions` does not last
  std::vector<text::Message> history;
  CallNames calls;
  std::vector<Tool> loaded{};  // that the history tells
};
// Throws ApiError for an unknown id.
using PreviousResponse = std::function<StoredTurn(const std::string& id)>;

[[nodiscard]] TurnRequest parse_chat(const Json& body, const RequestDefaults& defaults = {});
[[nodiscard]] CompletionRequest parse_completion(const Json& body, const RequestDefaults& defaults = {});
// Anthropic's messages. Counting needs no max_tokens.
enum class MessagesFor { kAnswer, kCount };
[[nodiscard]] TurnRequest parse_messages(const Json& body, MessagesFor what, const RequestDefaults& defaults = {});
// Ollama's.
enum class OllamaFor { kChat, kGenerate };
inline constexpr std::string_view kOllamaPrompt = "prompt";  // prompt_field of kGenerate
[[nodiscard]] TurnRequest parse_ollama(const Json& body, OllamaFor what, const RequestDefaults& defaults = {});
[[nodiscard]] ResponsesRequest parse_responses(const Json& body, const PreviousResponse& previous,
                                               const RequestDefaults& defaults = {});

}  // namespace nibble::server

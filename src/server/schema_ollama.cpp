// POST /api/chat and /api/generate, Ollama's → a struct.

#include "server/schema.h"
#include "server/schema_parts.h"

#include <algorithm>
#include <utility>

namespace nibble::server {
namespace {

// Calls that have no result yet, in their order. Ollama's calls have no ids: results name the tool, or nothing.
using OpenCalls = std::vector<std::pair<std::string, std::string>>;  // id (empty: none) and name

void read_calls(Fields& message, History& history, OpenCalls& open) {
  const Json* calls = message.array("tool_calls");
  if (calls == nullptr) return;
  for_each_object(*calls, message.place("tool_calls"), [&](Fields& call) {
    const std::string id = call.string("id").value_or("");
    call.only("type", "function", "only functions are called");
    Fields function = call.required_object("function");
    const std::string name = function.required_string("name");
    const auto arguments = function.object("arguments");
    static_cast<void>(function.integer("index", {0, INT64_MAX}));
    history.call(id, {.name = name}, arguments ? to_text(*function.find("arguments")) : "{}");
    open.emplace_back(id, name);
    function.done();
  });
}

void read_result(Fields& message, std::string output, History& history, OpenCalls& open) {
  const auto id = message.string("tool_call_id"), name = message.string("tool_name");
  const auto call = std::ranges::find_if(open, [&](const auto& one) {
    return (!id || id->empty() || one.first.empty() || one.first == *id) && (!name || one.second == *name);
  });
  if (call == open.end())
    throw invalid_value(message.path("role"), "no earlier message calls {} without a result", name.value_or("a tool"));
  history.result(Callee{.name = call->second}.recipient(), std::move(output));
  open.erase(call);
}

void read_message(Fields& message, History& history, OpenCalls& open) {
  const size_t role = message.required_choice("role", {"system", "developer", "user", "assistant", "tool"});
  std::string text = message.string("content").value_or("");
  message.refuse({"images"}, "gpt-oss reads text only");
  if (role < 3) return history.say(role == 2 ? text::Role::kUser : text::Role::kSystem, std::move(text), false);
  if (role == 4) return read_result(message, std::move(text), history, open);
  const Json* calls = message.array("tool_calls");
  const bool calls_any = calls != nullptr && !calls->empty();
  history.reasoning(message.string("thinking").value_or(""));
  if (!text.empty() || !calls_any) history.answer(std::move(text), calls_any);
  read_calls(message, history, open);
}

// A text of JSON's name, or a schema.
OutputFormat read_plain_format(Fields& fields) {
  const Json* format = fields.find("format");
  if (format == nullptr || *format == "") return {};
  OutputFormat read{.kind = OutputFormat::Kind::kJsonObject, .schema = {}, .field = "format"};
  if (*format == "json") return read;
  if (!format->is_object()) throw invalid_value("format", "want \"json\" or a schema, found {}", to_text(*format));
  read.kind = OutputFormat::Kind::kJsonSchema;
  read.schema = {.name = "response", .description = "", .schema = *format};
  return read;
}

void read_think(Fields& fields, TurnRequest& into) {
  const Json* think = fields.find("think");
  if (think == nullptr) return;
  if (!think->is_boolean()) {
    into.effort = read_effort(fields, "think").value_or(into.effort);
  } else if (!think->get<bool>()) {  // gpt-oss has no switch
    into.effort = text::ReasoningEffort::kLow;
    into.include_reasoning = false;
  }
}

void read_options(Fields& fields, GenerationFields& into) {
  auto options = fields.object("options");
  if (!options) return;
  read_sampling(*options, into);
  if (into.seed == static_cast<uint64_t>(-1)) into.seed.reset();
  into.stop = read_stops(*options, "stop");
  if (const auto most = options->integer("num_predict", {-2, kMostTokens}); most && *most > 0) into.max_tokens = *most;
  into.context = options->integer("num_ctx", {0, kMostTokens});
  for (const char* name : {"num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread"})  // of how a model is run
    static_cast<void>(options->integer(name, {INT32_MIN, INT32_MAX}));
  options->ignore_booleans({"use_mmap", "use_mlock", "numa", "low_vram", "vocab_only", "f16_kv"});
  options->only("mirostat", 0, "there is no such sampler");
  for (const char* name : {"mirostat_tau", "mirostat_eta"}) static_cast<void>(options->number(name, {0, 1e9}));
  for (const char* name : {"tfs_z", "typical_p"}) options->only(name, 1, "there is no such sampler");
  const auto& sampling = into.request.sampling;
  const bool penalises =
      sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 || sampling.frequency_penalty != 0;
  if (const auto last = options->integer("repeat_last_n", {-1, kMostTokens}); last && *last != -1 && penalises)
    throw unsupported_value(options->path("repeat_last_n"), "want -1: penalties count the whole context");
  if (!options->boolean("penalize_newline").value_or(true) && penalises)
    throw unsupported_value(options->path("penalize_newline"), "want true: penalties count every token");
  options->done();
}

void check_keep_alive(Fields& fields) {  // the model stays loaded
  const Json* value = fields.find("keep_alive");
  if (value != nullptr && !value->is_string()) static_cast<void>(number_of(*value, "keep_alive"));
}

}  // namespace

TurnRequest parse_ollama(const Json& body, OllamaFor what, const RequestDefaults& defaults) {
  TurnRequest turn = turn_of(defaults);
  Fields fields(body, {"", &turn.generation.leniency});
  turn.generation.model = fields.required_string("model");
  turn.generation.stream = fields.boolean("stream").value_or(true);
  read_options(fields, turn.generation);
  read_chat_logprobs(fields, turn.generation);
  read_think(fields, turn);
  turn.format = read_plain_format(fields);
  check_keep_alive(fields);
  CallNames calls;
  History history(turn, calls);
  if (what == OllamaFor::kChat) {
    OpenCalls open;
    if (const Json* messages = fields.array("messages"))
      for_each_object(*messages, fields.place("messages"),
                      [&](Fields& message) { read_message(message, history, open); });
    turn.tools = read_tools(fields, Dialect::kChat);
    fields.refuse({"prompt"}, "use messages");
  } else {
    turn.prompt_field = kOllamaPrompt;
    std::string prompt = fields.string("prompt").value_or(""), system = fields.string("system").value_or("");
    if (!prompt.empty() && !system.empty()) history.instructions(std::move(system));
    if (!prompt.empty()) history.add(text::Role::kUser, std::move(prompt));
    fields.only("raw", false, "use /v1/completions");
    fields.refuse({"suffix"}, "gpt-oss was not trained to fill in the middle");
    fields.refuse({"template", "context", "messages", "tools"}, "use /api/chat");
    fields.refuse({"images"}, "gpt-oss reads text only");
  }
  for (const char* name : {"truncate", "shift"})
    fields.only(name, false, "a conversation that is too long is refused, never cut");
  fields.done();
  return turn;
}

}  // namespace nibble::server

#include "app/options/option_parts.h"
#include "base/error.h"
#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string_view>

namespace nibble::app {
namespace {

// Both are short and have no free text, so that a small model's answers end.
constexpr std::string_view kBuiltInTools = R"([
  {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "required": ["city", "unit"], "additionalProperties": false, "properties": {
      "city": {"enum": ["London", "Paris", "Rome", "Tokyo"]}, "unit": {"enum": ["celsius", "fahrenheit"]}}}}},
  {"type": "function", "function": {"name": "set_lamp", "description": "Turns a lamp on or off", "parameters": {
    "type": "object", "required": ["room", "on"], "additionalProperties": false, "properties": {
      "room": {"enum": ["kitchen", "hall", "bedroom"]}, "on": {"type": "boolean"}}}}}
])";
constexpr std::string_view kBuiltInSchema = R"({
  "type": "object", "required": ["mood", "score", "topics"], "additionalProperties": false, "properties": {
    "mood": {"enum": ["good", "neutral", "bad"]}, "score": {"type": "integer", "minimum": 0, "maximum": 10},
    "topics": {"type": "array", "items": {"enum": ["work", "home", "travel"]}, "maxItems": 3}}
})";

std::string document_named(const char* flag, const std::string& name, std::string_view built_in) {
  const std::string text = name == kBuiltIn ? std::string(built_in) : read_text(std::filesystem::path(name));
  const auto json = read_ordered_json(text);  // a schema's order may matter to a server
  if (json.is_discarded())
    throw Error(Code::kInvalidRequest, "{} {}: want JSON of at most {} levels, found something else", flag, name,
                kMostJsonDepth);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string tools_named(const std::string& name) { return document_named("--tools", name, kBuiltInTools); }
std::string json_schema_named(const std::string& name) { return document_named("--json-schema", name, kBuiltInSchema); }

void add_trust(Flags flags, std::filesystem::path& cacert, bool& insecure) {
  const Flag file =
      flags.value("--cacert", cacert, "For https: PEM file of the authorities to trust; default: the system's")
          .not_empty();
  flags.turn("--insecure", insecure, "For https: accept any certificate").excludes(file);
}

namespace {

// Of chats.
void add_conversations(Flags flags, LoadOptions& o) {
  flags.value("--turns", o.workload.turns, "Of each conversation, chats only: every answer is part of the next prompt")
      .whole(1, 1 << 16)
      .usual("1");
  flags.value("--think-time", o.think_time, "Seconds between an answer and the next turn, on average")
      .within(0, 86400)
      .usual("0");
  const std::string or_file = fmt::format("{}|FILE", kBuiltIn);
  const Flag tools = flags.value("--tools", o.tools, "Tools that chats offer, as OpenAI's; their calls are checked")
                         .not_empty()
                         .type(or_file);
  add_choice<bool>(flags, "--tool-choice", {o.workload.must_call, {{"required", true}, {"auto", false}}},
                   "required: an answer without a call has failed")
      .needs(tools);
  flags.value("--json-schema", o.json_schema, "Schema that answers of chats must meet; they are checked")
      .not_empty()
      .type(or_file)
      .excludes(tools);
}

}  // namespace

void add_load_flags(Flags flags, LoadOptions& o) {
  constexpr int64_t kMostTokens = 1 << 24;
  client::Workload& w = o.workload;
  flags.value("--base-url", o.base_url, "The server: http(s)://HOST:PORT, and a path if it is not /v1").required();
  flags.value("-m,--model", w.model, "The name to ask for; default: the first that the server lists").not_empty();
  flags.show_defaults(true);
  flags.value("--isl,--input-len", w.isl, "Most tokens of a prompt").whole(1, kMostTokens);
  flags.value("--osl,--output-len", w.osl, "Most tokens of an answer").whole(1, kMostTokens);
  flags.value("--range-ratio", w.range_ratio, "Lengths are uniform from this share of the most up to it; 1: all alike")
      .within(0, 1);
  flags.show_defaults(false);
  const Flag concurrency = add_list(flags, "-c,--concurrency,--max-concurrency", {o.concurrency, 1, 16384},
                                    "Requests at a time: a sweep of these");
  flags.value("--request-rate", o.request_rate, "Instead: so many requests per second on average, as a Poisson process")
      .positive()
      .excludes(concurrency);
  const Flag prompts =
      flags.value("--num-prompts", o.num_prompts, "Requests of a point; default: 10 per concurrent one, at a rate 200")
          .whole(1, 1 << 24);
  const Flag warm_ups = flags
                            .value("--num-warmups", o.num_warmups,
                                   "Requests before each point; default: 2 per concurrent one, at a rate 2")
                            .whole(0, 1 << 24);
  flags.value("-r,--repetitions", o.repetitions, "Times each point is measured").whole(1, 1000).usual("1");
  add_choice<client::Api>(flags, "--endpoint",
                          {w.api, {{"completions", client::Api::kCompletions}, {"chat", client::Api::kChat}}},
                          "completions: prompts of token ids; chat: of words, about one token each");
  add_report(flags, o.report);
  flags.group(HelpGroup::kSampling);
  flags.show_defaults(true);
  flags.value("--temperature", w.temperature, "0: greedy").within(0, 100);
  flags.show_defaults(false);
  flags.turn("!--no-ignore-eos", w.ignore_eos,
             "Answers end where the model ends them; servers that know no ignore_eos");
  add_seed(flags, "--seed", w.seed, "Same seed, same prompts; default 1");
  flags.group(HelpGroup::kExpert);
  add_conversations(flags, o);
  add_choice<client::PromptForm>(flags, "--prompt-form",
                                 {w.form, {{"ids", client::PromptForm::kIds}, {"text", client::PromptForm::kText}}},
                                 "Of completions; text for servers that take no token ids");
  const Flag vocab = flags.value("--vocab-size", w.vocab_size, "Token ids are below this")
                         .whole(2, 1 << 24)
                         .usual("the model's where the server or its name tells, else 32000");
  flags.then([&o, vocab] { o.vocab_given = vocab.given(); });
  flags.show_defaults(true);
  flags.value("--prompts-per-client", o.prompts_per_client, "Requests of a point for each concurrent one")
      .whole(1, 1 << 10)
      .excludes(prompts);
  flags.value("--warmups-per-client", o.warmups_per_client, "Requests before each point for each concurrent one")
      .whole(0, 1 << 10)
      .excludes(warm_ups);
  flags.value("--prefix-len", w.prefix_len, "Tokens at the beginning that all prompts share").whole(0, kMostTokens);
  flags.value("--timeout", o.timeout, "Seconds that a request may take").whole(1, 86400);
  flags.value("--gpus", o.gpus, "GPUs of the server: throughput per GPU is divided by them").whole(1, 1 << 16);
  flags.show_defaults(false);
  flags.value("-t,--threads", o.threads, "Threads of this client; default: one per 64 streams, 4 at most")
      .whole(1, 256);
  flags.value("--device", o.device, "What the server runs on, for the result: bench --compare wants to know")
      .not_empty();
  flags.value("--api-key", o.api_key, "Sent as a bearer token; default: OPENAI_API_KEY").not_empty();
  add_trust(flags, o.cacert, o.insecure);
  flags.group(HelpGroup::kCommon);
}

}  // namespace nibble::app

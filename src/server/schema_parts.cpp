#include "server/schema_parts.h"

#include "base/ascii.h"
#include "text/raw_grammar.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

namespace nibble::server {
namespace {

constexpr size_t kMostStops = 16, kMostStopBytes = 4096, kMostStopIds = 256, kMostBiases = 1024, kMostTools = 256;

std::vector<int32_t> read_stop_ids(Fields& fields) {
  const Json* value = fields.array("stop_token_ids");
  if (value == nullptr) return {};
  const std::string path = fields.path("stop_token_ids");
  if (value->size() > kMostStopIds)
    throw invalid_value(path, "want at most {} token ids, found {}", kMostStopIds, value->size());
  return token_ids_of(*value, path);
}

std::vector<std::pair<int32_t, float>> read_logit_bias(Fields& fields) {
  std::vector<std::pair<int32_t, float>> biases;
  if (!fields.object("logit_bias")) return biases;
  const Json* value = fields.find("logit_bias");
  const std::string path = fields.path("logit_bias");
  if (value->size() > kMostBiases)
    throw invalid_value(path, "want at most {} entries, found {}", kMostBiases, value->size());
  for (const auto& [name, bias] : value->items()) {
    const int32_t id = number_in<int32_t>(name).value_or(-1);
    const double number = number_of(bias, fmt::format("{}.{}", path, name));
    if (id < 0 || number < -100 || number > 100)
      throw invalid_value(path, "want token ids with values from -100 to 100, found \"{}\": {}", name, to_text(bias));
    biases.emplace_back(id, static_cast<float>(number));
  }
  return biases;
}

// OpenAI's. Whatever can be cached is, and that changes no answer.
void check_cache_options(Fields& fields) {
  auto options = fields.object("prompt_cache_options");
  if (!options) return;
  static_cast<void>(options->choice("mode", {"implicit", "explicit"}));
  options->ignore_strings({"ttl", "comparison_response_id"});
  options->only("prewarm", false, "every request is answered");
  options->done();
}

// Returns the field of this name as a number that its range holds.
template <class T>
std::optional<T> read_number(Fields& fields, std::string_view name, const backend::SamplingField& of) {
  const double least = of.request_least.value_or(of.range.least), most = of.range.most;
  std::optional<double> number;
  if constexpr (std::is_integral_v<T>)
    number = fields.integer(name, {static_cast<int64_t>(least), static_cast<int64_t>(most)});
  else
    number = fields.number(name, {least, most});
  if (!number) return std::nullopt;
  return static_cast<T>(std::max(*number, of.range.smallest()));
}

// A tool's {name, description}, unless `others` have one of that name.
Tool read_named(Fields& fields, const text::ToolSpace& space, std::vector<Tool>& others) {
  Tool tool{.spec = {.name = fields.required_string("name"),
                     .description = fields.string("description").value_or(""),
                     .parameters = {},
                     .space = space}};
  check_name(fields, tool.spec.name);
  if (find_tool(others, tool.callee()) != nullptr)
    throw invalid_value(fields.path("name"), "two tools are called {}", tool.spec.name);
  return tool;
}

// A function's {name, description, strict} and its parameters, whose field is called `schema`.
Tool read_function(Fields& function, std::string_view schema, std::vector<Tool>& others,
                   const text::ToolSpace& space = {}) {
  Tool tool = read_named(function, space, others);
  if (function.object(schema)) tool.spec.parameters = *function.find(schema);
  tool.strict = function.boolean("strict").value_or(false);
  return tool;
}

void read_deferral(Fields& fields, Tool& tool) {
  if (fields.boolean("defer_loading").value_or(false)) tool.told = Tool::Told::kNotYet;
}

// A tool that takes a text: {name, description, format}.
Tool read_custom(Fields& fields, Dialect dialect, std::vector<Tool>& others, const text::ToolSpace& space = {}) {
  Tool tool = read_named(fields, space, others);
  tool.kind = ToolKind::kCustom;
  tool.spec.parameters = Json{{"type", "string"}};
  auto format = fields.object("format");
  if (!format || format->required_choice("type", {"text", "grammar"}) == 0) return tool;
  std::optional<Fields> inner;
  if (dialect == Dialect::kChat) inner = format->required_object("grammar");
  Fields& grammar = inner ? *inner : *format;
  const size_t syntax = grammar.required_choice("syntax", {"lark", "regex"});
  tool.grammar = grammar_of(syntax == 0 ? text::lark_grammar : text::regex_grammar,
                            grammar.required_string("definition"), grammar.path("definition"));
  tool.strict = true;
  grammar.done();
  format->done();
  return tool;
}

void read_response_tool(Fields& tool, const text::ToolSpace* space, std::vector<Tool>& into) {
  const std::string type = tool.string("type").value_or("function");
  const text::ToolSpace here = space == nullptr ? text::ToolSpace() : *space;
  if (type == "function" || type == "custom") {
    into.push_back(type == "function" ? read_function(tool, "parameters", into, here)
                                      : read_custom(tool, Dialect::kResponses, into, here));
    read_deferral(tool, into.back());
  } else if (type == "namespace" && space == nullptr) {
    const text::ToolSpace inner{tool.required_string("name"), tool.string("description").value_or("")};
    check_name(tool, inner.name);
    if (inner.name == "browser" || inner.name == "python")
      throw invalid_value(tool.path("name"), "want another name than {}, which gpt-oss knows as a built-in tool",
                          inner.name);
    for_each_object(tool.required("tools", "an array of tools"), tool.place("tools"),
                    [&](Fields& one) { read_response_tool(one, &inner, into); });
  } else if (type == "tool_search" && space == nullptr) {
    tool.only("execution", "client", "there is no search of tools here");
    into.push_back(
        {.spec = {"tool_search", tool.string("description").value_or(""), {}, {}}, .kind = ToolKind::kSearch});
    if (tool.object("parameters")) into.back().spec.parameters = *tool.find("parameters");
  } else if (type.starts_with("web_search") || type == "image_generation") {
    tool.ignore_all(type);  // an offer
  } else {
    throw unsupported_value(tool.path("type"), "want function, custom, namespace or tool_search, found {}", type);
  }
}

void read_tool(Fields& tool, Dialect dialect, std::vector<Tool>& into) {
  if (dialect == Dialect::kResponses) return read_response_tool(tool, nullptr, into);
  if (dialect == Dialect::kMessages) {
    tool.only("type", "custom", "there are no built-in tools");
    static_cast<void>(tool.required_object("input_schema"));
    into.push_back(read_function(tool, "input_schema", into));
    read_deferral(tool, into.back());
    tool.ignore_booleans({"eager_input_streaming"});  // arguments always come as they are made
    tool.only("allowed_callers", {"direct"}, "the model alone calls");
    tool.refuse({"input_examples"}, "put them into the description");
  } else {
    const bool custom = tool.choice("type", {"function", "custom"}) == 1;
    Fields named = tool.required_object(custom ? "custom" : "function");
    into.push_back(custom ? read_custom(named, dialect, into) : read_function(named, "parameters", into));
    named.done();
  }
  static_cast<void>(tool.object("cache_control"));  // what can be cached is
}

// The choice itself, not whether there is such a tool.
void read_choice(Fields& fields, Dialect dialect, TurnRequest& into) {
  if (dialect == Dialect::kMessages) {
    auto choice = fields.object("tool_choice");
    if (!choice) return;
    // in the order of ToolChoice
    into.tool_choice = static_cast<ToolChoice>(choice->required_choice("type", {"auto", "none", "any", "tool"}));
    if (into.tool_choice == ToolChoice::kNamed) into.named_tool.name = choice->required_string("name");
    into.parallel_tool_calls = !choice->boolean("disable_parallel_tool_use").value_or(false);
    return choice->done();
  }
  into.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr || !choice->is_object()) {
    into.tool_choice = static_cast<ToolChoice>(fields.choice("tool_choice", {"auto", "none", "required"}).value_or(0));
    return;
  }
  Fields named(*choice, fields.place("tool_choice"));
  if (dialect == Dialect::kChat) {
    const bool custom = named.choice("type", {"function", "custom"}) == 1;
    Fields tool = named.required_object(custom ? "custom" : "function");
    into.named_tool.name = tool.required_string("name");
    tool.done();
  } else if (named.choice("type", {"function", "custom", "tool_search"}) == 2) {
    into.named_tool.name = "tool_search";
  } else {
    into.named_tool.space = named.string("namespace").value_or(into.named_tool.space);
    into.named_tool.name = named.required_string("name");
  }
  into.tool_choice = ToolChoice::kNamed;
  named.done();
}

// A value that may also be written as a text.
Json json_in(const Json& value, const std::string& path) {
  if (!value.is_string()) return value;
  try {
    return parse_json(value.get_ref<const std::string&>());
  } catch (const ApiError&) {
    throw invalid_value(path, "want JSON, found a text that is none");
  }
}

// What a field of each kind says of the text.
struct Constraint {
  const char* name;
  enum class Kind { kSchema, kObject, kRegex, kChoice, kGrammar, kTags } kind;
};

OutputFormat read_constraint(const Json& value, const Place& place, Constraint::Kind kind) {
  const std::string& path = place.path;
  using Kind = Constraint::Kind;
  OutputFormat read{.kind = OutputFormat::Kind::kGrammar, .field = path};
  if (kind == Kind::kObject) {
    read.kind = OutputFormat::Kind::kJsonObject;
  } else if (kind == Kind::kSchema || kind == Kind::kTags) {
    const Json json = json_in(value, path);
    Fields object(json, path);
    if (kind == Kind::kTags) read.grammar = read_structural_tag(object, place.leniency);
    if (kind == Kind::kTags) return read;
    read.kind = OutputFormat::Kind::kJsonSchema;
    read.schema = {.name = "response", .description = "", .schema = json};
  } else if (kind == Kind::kChoice) {
    std::vector<std::string> texts;
    for (const Json& text : array_of(value, path)) texts.push_back(string_of(text, path));
    read.grammar = grammar_of(text::choice_grammar, texts, path);
  } else {
    read.grammar =
        grammar_of(kind == Kind::kRegex ? text::regex_grammar : text::raw_grammar, string_of(value, path), path);
  }
  return read;
}

void read_constraints(Fields& fields, std::span<const Constraint> known, OutputFormat& into) {
  for (const Constraint& constraint : known) {
    const Json* value = fields.find(constraint.name);
    const std::string path = fields.path(constraint.name);
    if (value == nullptr || *value == "" || *value == Json::array()) continue;  // asks for nothing
    if (constraint.kind == Constraint::Kind::kObject && !boolean_of(*value, path)) continue;
    if (into.kind != OutputFormat::Kind::kText)
      throw invalid_value(path, "want one format, found {} as well", into.field);
    into = read_constraint(*value, fields.place(constraint.name), constraint.kind);
  }
}

}  // namespace

std::vector<std::string> read_strings(Fields& fields, std::string_view name) {
  const Json* value = fields.find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> out;
  for (const Json& text : array_of(*value, fields.path(name))) out.push_back(string_of(text, fields.path(name)));
  return out;
}

std::vector<std::string> read_stops(Fields& fields, std::string_view name) {
  const std::string path = fields.path(name);
  std::vector<std::string> stops = read_strings(fields, name);
  if (stops.size() > kMostStops)
    throw invalid_value(path, "want at most {} strings, found {}", kMostStops, stops.size());
  for (const std::string& stop : stops)
    if (stop.empty() || stop.size() > kMostStopBytes)
      throw invalid_value(path, "want strings of 1 to {} bytes, found {}", kMostStopBytes, stop.size());
  return stops;
}

void check_texts(Fields& fields, std::string_view name) {
  if (!fields.object(name)) return;
  for (const auto& [key, value] : fields.find(name)->items())
    static_cast<void>(string_of(value, fmt::format("{}.{}", fields.path(name), key)));
}

GenerationFields generation_of(const RequestDefaults& defaults) {
  GenerationFields fields;
  fields.include_usage = defaults.include_usage;
  fields.request.sampling = defaults.sampling;
  fields.leniency = defaults.leniency;
  return fields;
}

TurnRequest turn_of(const RequestDefaults& defaults) {
  TurnRequest turn;
  turn.generation = generation_of(defaults);
  turn.effort = defaults.effort;
  return turn;
}

void read_sampling(Fields& fields, GenerationFields& into) {
  auto& sampling = into.request.sampling;
  backend::for_each_field(sampling, [&]<class T>(const backend::SamplingField& field, T& value) {
    value = read_number<T>(fields, field.name, field).value_or(value);
    if (field.name != "repetition_penalty") return;
    constexpr std::string_view kLlamas = "repeat_penalty";  // llama.cpp's name
    const auto same = read_number<T>(fields, kLlamas, field);
    if (same && fields.find(field.name) != nullptr && *same != value)
      throw ApiError(std::string(kLlamas),
                     "repeat_penalty: want the value of repetition_penalty, or one of them alone");
    value = same.value_or(value);
  });
  sampling.logit_bias = read_logit_bias(fields);
  if (const auto seed = fields.integer("seed", {INT64_MIN, INT64_MAX})) into.seed = static_cast<uint64_t>(*seed);
  into.request.stop_ids = read_stop_ids(fields);
  into.request.min_tokens = fields.integer("min_tokens", {0, kMostTokens}).value_or(0);
  into.request.prefix_cache = fields.boolean("cache_prompt").value_or(true);
  into.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  into.request.priority = fields.integer("priority", {INT32_MIN, INT32_MAX}).value_or(0);
}

void read_model(Fields& fields, GenerationFields& into) {
  into.model = fields.string("model").value_or("");
  into.stream = fields.boolean("stream").value_or(false);
}

void read_chat_logprobs(Fields& fields, GenerationFields& into) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", {0, kMostLogprobs});
  if (top && *top > 0 && !wanted) throw invalid_value("top_logprobs", "want logprobs true as well");
  if (wanted) into.request.logprobs = static_cast<int>(top.value_or(0));
}

void read_generation(Fields& fields, GenerationFields& into) {
  read_model(fields, into);
  read_sampling(fields, into);
  into.stop = read_stops(fields, "stop");
  into.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  into.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  fields.ignore_strings({"user", "safety_identifier", "prompt_cache_key", "request_id", "session_id"});
  fields.ignore_booleans({"spaces_between_special_tokens"});
  static_cast<void>(fields.choice("service_tier", {"auto", "default", "flex", "scale", "priority"}));
  static_cast<void>(fields.choice("prompt_cache_retention", {"in-memory", "in_memory", "24h"}));
  check_texts(fields, "metadata");  // a response gives them back
  check_cache_options(fields);
  static_cast<void>(fields.integer("stream_interval", {1, kMostTokens}));  // every token is sent at once
  fields.only("length_penalty", 1, "there is no beam search");
  fields.refuse({"use_beam_search", "early_stopping", "bad_words", "allowed_token_ids", "logits_processors",
                 "truncate_prompt_tokens", "prompt_logprobs", "return_tokens_as_token_ids", "cache_salt",
                 "kv_transfer_params", "vllm_xargs", "moderation"},
                "this server does not do it");
}

std::optional<int64_t> read_limit(Fields& fields, std::string_view name) {
  const auto limit = fields.integer(name, {-1, kMostTokens});
  if (limit == 0) throw invalid_value(fields.path(name), "want at least 1, or -1 for no limit, found 0");
  return limit == -1 ? std::nullopt : limit;
}

void check_name(const Fields& fields, const std::string& name) {
  const auto legal = [](char c) { return is_word_char(c, "_-"); };
  if (name.empty() || name.size() > 128 || !std::all_of(name.begin(), name.end(), legal))
    throw invalid_value(fields.path("name"), "want 1 to 128 of a-z, A-Z, 0-9, _ and -, found \"{}\"", name);
}

Tool* find_tool(std::vector<Tool>& tools, const Callee& callee) {
  const auto it = std::ranges::find_if(
      tools, [&](const Tool& tool) { return tool.spec.name == callee.name && tool.spec.space.name == callee.space; });
  return it == tools.end() ? nullptr : &*it;
}

std::vector<Tool> read_tools(Fields& fields, Dialect dialect) {
  std::vector<Tool> read;
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return read;
  const std::string path = fields.path("tools");
  for_each_object(*tools, fields.place("tools"), [&](Fields& tool) { read_tool(tool, dialect, read); });
  if (read.size() > kMostTools) throw invalid_value(path, "want at most {}, found {}", kMostTools, read.size());
  return read;
}

void check_prefill(const TurnRequest& turn, std::string_view field) {
  const bool free = turn.format.kind == OutputFormat::Kind::kText &&
                    (turn.tool_choice == ToolChoice::kAuto || turn.tool_choice == ToolChoice::kNone);
  if (turn.prefill && !free)
    throw invalid_value(field, "want a message of the user at the end where the answer must be JSON or a call");
}

void read_tool_choice(Fields& fields, Dialect dialect, TurnRequest& into) {
  read_choice(fields, dialect, into);
  const std::string path = "tool_choice";
  if (into.tool_choice == ToolChoice::kNamed) {
    const Tool* tool = find_tool(into.tools, into.named_tool);
    if (tool == nullptr) throw invalid_value(path, "there is no tool {}", into.named_tool.name);
    if (tool->told == Tool::Told::kNotYet) throw invalid_value(path, "{} is not loaded yet", into.named_tool.name);
  }
  const auto told = [](const Tool& tool) { return tool.told != Tool::Told::kNotYet; };
  if (into.tool_choice == ToolChoice::kRequired && std::ranges::none_of(into.tools, told))
    throw invalid_value(path, "a call is required, but there are no tools");
}

std::optional<text::ReasoningEffort> read_effort(Fields& fields, std::string_view name) {
  const auto choice = fields.choice(name, {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (!choice) return std::nullopt;
  using E = text::ReasoningEffort;
  return *choice < 3 ? E::kLow : *choice == 3 ? E::kMedium : E::kHigh;
}

void read_verbosity(Fields& fields, TurnRequest& into) {
  const auto choice = fields.choice("verbosity", {"low", "medium", "high"});
  if (choice == 0) into.instructions.emplace_back("Keep the answer short: say what was asked for and no more.");
  if (choice == 2) into.instructions.emplace_back("Answer at length: explain thoroughly, with details and examples.");
}

OutputFormat read_json_schema(Fields& fields) {
  OutputFormat format{.kind = OutputFormat::Kind::kJsonSchema, .schema = {}};
  format.schema.name = fields.string("name").value_or("response");
  format.schema.description = fields.string("description").value_or("");
  static_cast<void>(fields.required_object("schema"));
  format.schema.schema = *fields.find("schema");
  fields.ignore_booleans({"strict"});  // the schema is enforced either way
  return format;
}

OutputFormat read_format(Fields& fields, std::string_view name, Dialect dialect) {
  auto format = fields.object(name);
  if (!format) return {};
  const size_t type = format->required_choice("type", {"text", "json_object", "json_schema", "structural_tag"});
  OutputFormat read{.kind = static_cast<OutputFormat::Kind>(type)};
  if (read.kind == OutputFormat::Kind::kGrammar) read.grammar = read_structural_tag(*format, format->leniency());
  const bool plain_schema = read.kind == OutputFormat::Kind::kJsonObject && format->find("schema") != nullptr;
  if (plain_schema) read.kind = OutputFormat::Kind::kJsonSchema;  // llama.cpp's way to say it
  if (read.kind == OutputFormat::Kind::kJsonSchema && dialect == Dialect::kChat && !plain_schema) {
    Fields schema = format->required_object("json_schema");
    read = read_json_schema(schema);
    schema.done();
  } else if (read.kind == OutputFormat::Kind::kJsonSchema) {
    read = read_json_schema(*format);
  } else if (dialect == Dialect::kChat && format->find("json_schema") != nullptr) {
    throw invalid_value(format->path("json_schema"), "want the type json_schema with it");
  }
  read.field = fields.path(name);
  format->done();
  return read;
}

void read_structured_outputs(Fields& fields, OutputFormat& into) {
  using enum Constraint::Kind;
  constexpr Constraint kInside[] = {{"json", kSchema},   {"json_object", kObject}, {"regex", kRegex},
                                    {"choice", kChoice}, {"grammar", kGrammar},    {"structural_tag", kTags}};
  constexpr Constraint kOutside[] = {{"guided_json", kSchema},     {"guided_regex", kRegex}, {"guided_choice", kChoice},
                                     {"guided_grammar", kGrammar}, {"grammar", kGrammar},    {"json_schema", kSchema},
                                     {"structural_tag", kTags}};
  read_constraints(fields, kOutside, into);
  fields.refuse({"guided_whitespace_pattern"}, "the white space of JSON is fixed");
  fields.refuse({"grammar_lazy", "grammar_triggers"}, "a grammar holds from the first character");
  if (fields.string("guided_decoding_backend") && fields.leniency() != nullptr)  // there is one engine of grammars
    fields.leniency()->ignore("guided_decoding_backend");
  if (fields.find("structured_outputs") == nullptr) return;
  Fields wanted(*fields.find("structured_outputs"), fields.path("structured_outputs"));
  read_constraints(wanted, kInside, into);
  wanted.refuse({"whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"},
                "the schema alone says what may come");
  wanted.ignore_booleans({"disable_fallback"});
  wanted.done();
  if (!into.field.starts_with("structured_outputs."))
    throw invalid_value("structured_outputs",
                        "want one of json, json_object, regex, choice, grammar and structural_tag");
}

std::string text_of_part(Fields& part, std::string_view name) {
  std::string text = part.required_string(name);
  part.ignore_arrays({"annotations", "logprobs", "citations"});           // of answers, sent back
  for (const char* cache : {"cache_control", "prompt_cache_breakpoint"})  // what can be cached is
    static_cast<void>(part.object(cache));
  return text;
}

std::string text_for(Fields& part, std::string_view type, std::string_view wanted) {
  const bool is_image = type == "image" || type == "image_url" || type == "input_image";
  Leniency* const leniency = part.leniency();
  if (!is_image || leniency == nullptr || !leniency->images)
    throw unsupported_value(part.path("type"), "want {}, found {}; gpt-oss reads text only", wanted, type);
  part.ignore_all(type);
  return fmt::format("[image {}: left out, since this model reads text only]", ++leniency->images_left_out);
}

std::string text_of(const Json& content, const Place& place, std::initializer_list<std::string_view> types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    throw invalid_value(place.path, "want a string or an array of parts, found {}", to_text(content));
  std::string text;
  for_each_object(content, place, [&](Fields& part) {
    const std::string type = part.required_string("type");
    const bool wanted = std::find(types.begin(), types.end(), type) != types.end();
    text += wanted ? text_of_part(part, type == "refusal" ? "refusal" : "text")
                   : text_for(part, type, fmt::format("{}", fmt::join(types, ", ")));
  });
  return text;
}

void History::add(text::Role role, std::string text, std::string name) {
  into_.history.push_back({.role = role, .name = std::move(name), .content = {std::move(text)}});
}

void History::say(text::Role role, std::string text, bool before_call) {
  if (role == text::Role::kAssistant) return answer(std::move(text), before_call);
  if (role == text::Role::kUser) return add(role, std::move(text));
  instructions(std::move(text));
}

void History::instructions(std::string text) {
  if (into_.history.empty()) return into_.instructions.push_back(std::move(text));
  into_.history.push_back(
      {.role = text::Role::kDeveloper,
       .content = {text::DeveloperOptions{.instructions = std::move(text), .tools = {}, .response_formats = {}}}});
}

void History::reasoning(std::string text) {
  if (text.empty()) return;
  add(text::Role::kAssistant, std::move(text));
  into_.history.back().channel = text::kAnalysisChannel;
}

void History::answer(std::string text, bool before_call) {
  add(text::Role::kAssistant, std::move(text));
  into_.history.back().channel = before_call ? text::kCommentaryChannel : text::kFinalChannel;
}

void History::call(const std::string& id, const Callee& callee, std::string arguments) {
  answer(std::move(arguments), /*before_call=*/true);
  into_.history.back().recipient = calls_[id] = callee.recipient();
  if (callee.kind != ToolKind::kCustom)
    into_.history.back().content_type = text::ContentType{.name = "json", .constrained = true};
}

void History::load(std::vector<Tool> tools) {
  text::DeveloperOptions told{.instructions = {}, .tools = {}, .response_formats = {}};
  const bool at_start = into_.history.empty();
  for (Tool& tool : tools) {
    Tool* const known = find_tool(into_.tools, tool.callee());
    const bool is_told = known != nullptr && known->told != Tool::Told::kNotYet;
    if (is_told && known->spec.parameters == tool.spec.parameters && known->grammar == tool.grammar) continue;
    tool.told = at_start ? Tool::Told::kAtStart : Tool::Told::kInHistory;
    if (!at_start) told.tools.push_back(tool.spec);
    if (known != nullptr)
      *known = std::move(tool);
    else
      into_.tools.push_back(std::move(tool));
  }
  if (into_.tools.size() > kMostTools)
    throw invalid_value("tools", "want at most {} with those that are loaded, found {}", kMostTools,
                        into_.tools.size());
  if (!told.tools.empty()) into_.history.push_back({.role = text::Role::kDeveloper, .content = {std::move(told)}});
}

void History::result(const std::string& recipient, std::string output) {
  add(text::Role::kTool, std::move(output), recipient);
  into_.history.back().recipient = "assistant";
  into_.history.back().channel = text::kCommentaryChannel;
}

bool History::open_last() {
  const auto taken = [this](std::string_view channel) -> std::optional<std::string> {
    auto& all = into_.history;
    if (all.empty() || all.back().role != text::Role::kAssistant || all.back().channel != channel) return std::nullopt;
    std::string text = std::move(std::get<std::string>(all.back().content[0]));
    all.pop_back();
    return text;
  };
  into_.prefill = taken(text::kFinalChannel);
  if (into_.prefill) into_.prefill_reasoning = taken(text::kAnalysisChannel).value_or("");
  return into_.prefill.has_value();
}

const std::string& History::called(Fields& fields, std::string_view name) const {
  const std::string id = fields.required_string(name);
  const auto it = calls_.find(id);
  if (it == calls_.end())
    throw invalid_value(fields.path(name), "no earlier message calls a function with the id {}", id);
  return it->second;
}

}  // namespace nibble::server

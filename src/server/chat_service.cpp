#include "server/chat_service.h"

#include "base/random.h"
#include "text/grammar.h"
#include "text/harmony_render.h"
#include "text/json_grammar.h"
#include "text/typescript_schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

namespace nibble::server {
namespace {

text::Conversation conversation_of(const TurnRequest& turn, const std::string& date) {
  text::SystemOptions system{.current_date = date.empty() ? std::nullopt : std::optional(date), .effort = turn.effort};
  if (turn.identity) system.identity = turn.identity;
  text::DeveloperOptions options;
  if (!turn.instructions.empty()) options.instructions = fmt::format("{}", fmt::join(turn.instructions, "\n\n"));
  for (const Tool& tool : turn.tools)
    if (turn.tool_choice != ToolChoice::kNone && tool.told == Tool::Told::kAtStart) options.tools.push_back(tool.spec);
  if (turn.format.kind == OutputFormat::Kind::kJsonSchema) options.response_formats = {turn.format.schema};
  return text::conversation_of(std::move(system), std::move(options), turn.history);
}

class MatcherMask final : public engine::TokenMask {
 public:
  explicit MatcherMask(text::GrammarMatcher matcher) : matcher_(std::move(matcher)) {}
  bool fill(std::span<uint32_t> mask) override {
    if (matcher_.finished()) return false;
    matcher_.fill(mask);
    return true;
  }
  void accept(int32_t token) override { matcher_.accept(token); }
  int32_t take(int32_t drawn) override { return matcher_.take(drawn); }
  void undo(int tokens) override { matcher_.undo(tokens); }
  [[nodiscard]] bool cut() const override { return matcher_.cut(); }
  static_assert(kMostUndone <= text::GrammarMatcher::kMostUndone);

 private:
  text::GrammarMatcher matcher_;
};

// Makes one mask per answer; an answer has at most `room` tokens. Empty: the request needs none.
using MaskSource = std::function<std::shared_ptr<engine::TokenMask>(int64_t room)>;

// Limits reasoning to `most` tokens and to half of the room.
MaskSource masks_of(text::Grammar grammar, std::optional<int64_t> most_reasoning, Leniency& told) {
  for (const std::string& keyword : grammar.widened()) told.ignore(keyword);
  return [grammar = std::move(grammar), most_reasoning](int64_t room) {
    text::TurnLimits limits{.all = room};
    if (most_reasoning) limits.reasoning = std::min(*most_reasoning, room / 2);
    return std::make_shared<MatcherMask>(grammar.matcher(limits));
  };
}

text::ContentRule rule_of(const OutputFormat& format) {
  return {.kind = static_cast<text::ContentRule::Kind>(format.kind),
          .schema = format.schema.schema,
          .grammar = format.grammar,
          .where = format.field};
}

// Whether a call of the tool must follow its schema.
using Bound = std::function<bool(const Tool& tool)>;
bool is_strict(const Tool& tool) { return tool.strict; }

text::ContentRule rule_of(const Tool& tool, const Bound& bound) {
  using Kind = text::ContentRule::Kind;
  text::ContentRule rule{.kind = Kind::kJsonObject, .where = "tool " + tool.spec.name};
  if (tool.kind == ToolKind::kCustom) {
    rule.kind = tool.grammar.empty() ? Kind::kText : Kind::kGrammar;
    rule.grammar = tool.grammar;
  } else if (tool.spec.parameters && bound(tool)) {
    rule.kind = Kind::kJsonSchema;
    rule.schema = *tool.spec.parameters;
  }
  return rule;
}

// The model must not end the turn with text of its own.
bool is_forced(const TurnRequest& turn) {
  return turn.format.kind != OutputFormat::Kind::kText || turn.tool_choice == ToolChoice::kRequired ||
         turn.tool_choice == ToolChoice::kNamed;
}

// Hosts of gpt-oss advise a max_tokens of some 30,000 at high effort (docs.together.ai/docs/gpt-oss, 2026-11); each
// effort below has a quarter.
std::optional<int64_t> most_reasoning(const TurnRequest& turn) {
  if (turn.reasoning_tokens || !is_forced(turn)) return turn.reasoning_tokens;
  constexpr int64_t kMost[] = {2'048, 8'192, 32'768};
  return kMost[static_cast<size_t>(turn.effort)];
}

ApiError bad_schema(const OutputFormat& format, const Error& error) {
  const bool is_grammar = format.kind == OutputFormat::Kind::kGrammar;
  return {format.field, error.what(), 400, is_grammar ? "unsupported_value" : "invalid_json_schema"};
}

ApiError bad_tools(const Error& error) { return {"tools", error.what(), 400, "invalid_function_parameters"}; }

// Whether the prompt can hold the format's schema: it does not nest too deeply.
bool can_be_told(const OutputFormat& format) {
  if (format.kind != OutputFormat::Kind::kJsonSchema) return true;
  try {
    static_cast<void>(text::compact_json(format.schema.schema, format.field));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Rules under which the arguments of `bound` tools follow their schemas.
text::TurnRules rules_of(const TurnRequest& turn, const Bound& bound) {
  text::TurnRules rules;
  rules.answer = rule_of(turn.format);
  rules.preamble = turn.format.kind == OutputFormat::Kind::kText;  // the content is the document, whole
  if (turn.tool_choice == ToolChoice::kRequired || turn.tool_choice == ToolChoice::kNamed) rules.answer.reset();
  if (turn.tool_choice == ToolChoice::kNone) return rules;
  for (const Tool& tool : turn.tools) {
    const std::string recipient = tool.callee().recipient();
    if (tool.told == Tool::Told::kNotYet) continue;
    if (turn.tool_choice == ToolChoice::kNamed && recipient != turn.named_tool.recipient()) continue;
    rules.calls.push_back({.recipient = recipient, .arguments = rule_of(tool, bound)});
  }
  return rules;
}

// Before the prompt tells the schemas: rendering and tokenizing them costs more. Throws ApiError.
void check_schema_sizes(const TurnRequest& turn) {
  const text::TurnRules rules = rules_of(turn, is_strict);
  const auto check = [](const text::ContentRule& rule, const auto& refusal) {
    try {
      if (rule.kind == text::ContentRule::Kind::kJsonSchema) text::expect_schema_within_limits(rule.schema, rule.where);
    } catch (const Error& e) {
      throw refusal(e);
    }
  };
  if (rules.answer) check(*rules.answer, [&](const Error& e) { return bad_schema(turn.format, e); });
  for (const text::CallRule& call : rules.calls) check(call.arguments, bad_tools);
}

std::optional<text::Grammar> compiled(const text::GrammarCompiler& compiler, const text::TurnRules& rules) {
  try {
    return compiler.turn(rules);
  } catch (const Error& e) {
    if (e.code() != Code::kInvalidRequest && e.code() != Code::kUnsupported) throw;
    return std::nullopt;
  }
}

// Whether this tool's arguments can be bound to its schema: the tool is strict, or the grammar can express the schema.
// Another tool's schema does not matter here.
bool can_bind(const text::GrammarCompiler& compiler, const Tool& tool) {
  TurnRequest alone;
  alone.tool_choice = ToolChoice::kRequired;
  alone.tools = {tool};
  return tool.strict || compiled(compiler, rules_of(alone, [](const Tool&) { return true; }));
}

// The mask of a turn. Tools are called by name, with arguments that follow their schemas. If a schema is none, or too
// large, a strict tool is an ApiError; another tool's arguments are any JSON object, which is noted. A turn that must
// end in a call or in JSON, or that has a budget, reasons within that budget and within half of the room. Throws
// ApiError.
MaskSource turn_mask(const text::GrammarCompiler& compiler, const TurnRequest& turn, Leniency& told) {
  if (turn.prefill) return {};  // of a text that has begun nothing else can come
  const bool tools = turn.tool_choice != ToolChoice::kNone && !rules_of(turn, is_strict).calls.empty();
  const bool binding =
      is_forced(turn) || turn.reasoning_tokens || (tools && std::ranges::any_of(turn.tools, is_strict));
  if (!tools && !binding) return {};
  const GenerationFields& fields = turn.generation;
  if (fields.ignore_eos || fields.request.min_tokens > 0) {  // both go on after the grammar has ended
    if (!binding) {
      for (const Tool& tool : turn.tools) told.ignore(fmt::format("tool {}#", tool.spec.name));
      return {};
    }
    const char* param = fields.ignore_eos ? "ignore_eos" : "min_tokens";
    throw ApiError(
        param,
        std::string(param) + " cannot go with response_format, strict tools, a required call or thinking_token_budget");
  }
  for (const bool each : {false, true}) {  // all schemas, then those that can be expressed
    const Bound bound = [&](const Tool& tool) {
      const bool out = !each || can_bind(compiler, tool);
      if (!out) told.ignore(fmt::format("tool {}#", tool.spec.name));
      return out;
    };
    if (const auto grammar = compiled(compiler, rules_of(turn, bound)))
      return masks_of(*grammar, most_reasoning(turn), told);
  }
  try {
    return masks_of(compiler.turn(rules_of(turn, is_strict)), most_reasoning(turn), told);
  } catch (const Error& e) {
    if (!compiled(compiler, {.answer = rule_of(turn.format)})) throw bad_schema(turn.format, e);
    throw bad_tools(e);
  }
}

// The mask of a completion: the text alone.
MaskSource text_mask(const text::GrammarCompiler& compiler, const OutputFormat& format,
                     const std::vector<int32_t>& end_ids, Leniency& told) {
  if (format.kind == OutputFormat::Kind::kText) return {};
  try {
    return masks_of(compiler.content(rule_of(format), end_ids), std::nullopt, told);
  } catch (const Error& e) {
    throw bad_schema(format, e);
  }
}

// Generated tokens share the context with the prompt; a prompt that is only scored may fill it.
void check_length(const ServedModel& model, const engine::Request& request, const std::string& param) {
  const int64_t tokens = std::ssize(request.prompt), room = request.max_tokens > 0 ? 1 : 0;
  if (tokens + room <= model.max_context) return;
  // Anthropic's words, from which its clients read both numbers.
  throw ApiError(param,
                 fmt::format("prompt is too long: {} tokens > {} maximum (of a context of {}{})", tokens,
                             model.max_context - room, model.max_context, room > 0 ? ", one to generate" : ""),
                 400, "context_length_exceeded")
      .with_prompt(tokens);
}

void check_id(const ServedModel& model, int32_t id, const char* param) {
  if (id >= model.vocab) throw invalid_value(param, "want token ids below {}, found {}", model.vocab, id);
}

// Everything but the prompt.
engine::Request base_request(const ServedModel& model, const GenerationFields& fields) {
  engine::Request request = fields.request;
  for (const auto& [id, bias] : request.sampling.logit_bias) check_id(model, id, "logit_bias");
  for (const int32_t id : request.stop_ids) check_id(model, id, "stop_token_ids");
  if (request.priority != 0 && !model.by_priority)
    throw invalid_value("priority", "want 0, or a server started with --scheduling-policy priority, found {}",
                        request.priority);
  if (fields.context.value_or(0) > model.max_context)
    throw invalid_value("options.num_ctx", "want at most the context of {}, found {}", model.max_context,
                        *fields.context);
  request.max_tokens = fields.max_tokens.value_or(std::numeric_limits<int32_t>::max());
  if (request.min_tokens > request.max_tokens)
    throw invalid_value("min_tokens", "want at most the limit of {}, found {}", request.max_tokens, request.min_tokens);
  if (!fields.ignore_eos) request.stop_ids.insert(request.stop_ids.end(), model.eos_ids.begin(), model.eos_ids.end());
  return request;
}

uint64_t seed_of(const GenerationFields& fields) {
  if (fields.seed) return *fields.seed;
  std::array<uint8_t, 8> bytes{};
  fill_unguessable(bytes);
  return std::bit_cast<uint64_t>(bytes);
}

}  // namespace

std::vector<int32_t> turn_prompt(const ServedModel& model, const TurnRequest& turn, const std::string& date) {
  const auto encode = [&model](std::string_view text) { return model.tokenizer->encode(text); };
  try {
    std::vector<text::Segment> segments = text::render_for_completion(conversation_of(turn, date));
    if (turn.prefill) {
      const auto write = [&segments](std::string_view channel, const std::string& text) {
        segments.emplace_back(text::Special::kChannel);
        segments.emplace_back(std::string(channel));
        segments.emplace_back(text::Special::kMessage);
        if (!text.empty()) segments.emplace_back(text);
      };
      if (!turn.prefill_reasoning.empty()) {
        write(text::kAnalysisChannel, turn.prefill_reasoning);
        segments.emplace_back(text::Special::kEnd);
        segments.emplace_back(text::Special::kStart);
        segments.emplace_back(std::string(text::name_of(text::Role::kAssistant)));
      }
      write(text::kFinalChannel, *turn.prefill);
    }
    return text::to_tokens(segments, model.ids, encode);
  } catch (const Error& e) {
    if (e.code() != Code::kInvalidRequest) throw;
    if (!can_be_told(turn.format)) throw bad_schema(turn.format, e);
    throw bad_tools(e);
  }
}

std::vector<engine::Request> turn_requests(const ServedModel& model, const TurnRequest& turn, const std::string& date,
                                           Leniency& told) {
  const GenerationFields& fields = turn.generation;
  engine::Request request = base_request(model, fields);
  if (!fields.ignore_eos) {  // these ids end a turn, whatever the model's files list
    request.stop_ids.push_back(model.ids.id_of(text::Special::kReturn));
    request.stop_ids.push_back(model.ids.id_of(text::Special::kCall));
  }
  check_schema_sizes(turn);
  request.prompt = turn_prompt(model, turn, date);
  check_length(model, request, turn.prompt_field);
  const MaskSource mask = turn_mask(*model.grammars, turn, told);  // behind the check: it may take seconds
  const int64_t room = std::min(request.max_tokens, model.max_context - static_cast<int64_t>(request.prompt.size()));
  request.sampling.seed = seed_of(fields);
  std::vector<engine::Request> requests;
  for (int i = 0; i < fields.n; ++i) {
    requests.push_back(request);
    if (mask) requests.back().mask = mask(room);
    ++request.sampling.seed;
  }
  return requests;
}

std::vector<engine::Request> completion_requests(const ServedModel& model, const CompletionRequest& completion,
                                                 Leniency& told) {
  const GenerationFields& fields = completion.generation;
  engine::Request request = base_request(model, fields);
  if (completion.echo) request.prompt_logprobs = request.logprobs;
  if (completion.format.kind != OutputFormat::Kind::kText && (fields.ignore_eos || request.min_tokens > 0))
    throw ApiError("response_format", "response_format cannot go with ignore_eos or min_tokens");
  const MaskSource mask = text_mask(*model.grammars, completion.format, model.eos_ids, told);
  const uint64_t seed = seed_of(fields);
  std::vector<engine::Request> requests;
  for (const auto& prompt : completion.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt))
      request.prompt = model.tokenizer->encode(*text, text::SpecialTokens::kAllowed);
    else
      request.prompt = std::get<std::vector<int32_t>>(prompt);
    if (request.prompt.empty()) throw invalid_value("prompt", "want at least one token, found none");
    for (const int32_t id : request.prompt) check_id(model, id, "prompt");
    check_length(model, request, "prompt");
    const int64_t room = std::min(request.max_tokens, model.max_context - std::ssize(request.prompt));
    for (int i = 0; i < fields.n; ++i) {
      request.sampling.seed = seed + static_cast<uint64_t>(i);
      requests.push_back(request);
      if (mask) requests.back().mask = mask(room);
    }
  }
  return requests;
}

}  // namespace nibble::server

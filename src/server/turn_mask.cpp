#include "server/turn_mask.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace nibble::server {
namespace {

class MatcherMask final : public engine::TokenMask {
 public:
  explicit MatcherMask(text::GrammarMatcher matcher) : matcher_(std::move(matcher)) {}
  bool fill(std::span<uint32_t> mask) override {
    if (matcher_.finished()) return false;
    matcher_.fill(mask);
    return true;
  }
  void accept(int32_t token) override {
    if (!matcher_.finished()) matcher_.accept(token);
  }

 private:
  text::GrammarMatcher matcher_;
};

// Reasoning takes at most so many tokens, and half the room.
MaskSource masks_of(text::Grammar grammar, std::optional<int64_t> most_reasoning) {
  return [grammar = std::move(grammar), most_reasoning](int64_t room) {
    const auto budget = most_reasoning ? std::optional(std::min(*most_reasoning, room / 2)) : std::nullopt;
    return std::make_shared<MatcherMask>(grammar.matcher(budget));
  };
}

text::ContentRule rule_of(const OutputFormat& format) {
  return {
      .kind = static_cast<text::ContentRule::Kind>(format.kind), .schema = format.schema.schema, .where = format.field};
}

// The model may not end the turn with text of its own.
bool is_forced(const TurnRequest& turn) {
  return turn.format.kind != OutputFormat::Kind::kText || turn.tool_choice == ToolChoice::kRequired ||
         turn.tool_choice == ToolChoice::kNamed;
}

// Hosts of gpt-oss advise a max_tokens of some 30,000 at high effort (docs.together.ai/docs/gpt-oss, 2026-11); each
// effort below has a quarter.
std::optional<int64_t> most_reasoning(const TurnRequest& turn) {
  if (turn.reasoning_tokens || !is_forced(turn)) return turn.reasoning_tokens;
  switch (turn.effort) {
    case text::ReasoningEffort::kLow: return 2'048;
    case text::ReasoningEffort::kMedium: return 8'192;
    case text::ReasoningEffort::kHigh: return 32'768;
  }
  return std::nullopt;
}

ApiError bad_schema(const OutputFormat& format, const Error& error) {
  return {format.field, error.what(), 400, "invalid_json_schema"};
}

using Names = std::vector<std::string>;

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The arguments of the tools in `bound` follow their schemas.
text::TurnRules rules_of(const TurnRequest& turn, const Names& bound) {
  using Kind = text::ContentRule::Kind;
  text::TurnRules rules;
  rules.answer = rule_of(turn.format);
  rules.preamble = turn.format.kind == OutputFormat::Kind::kText;  // the content is the document, whole
  if (turn.tool_choice == ToolChoice::kRequired || turn.tool_choice == ToolChoice::kNamed) rules.answer.reset();
  if (turn.tool_choice == ToolChoice::kNone) return rules;
  for (const text::ToolSpec& tool : turn.tools) {
    if (turn.tool_choice == ToolChoice::kNamed && tool.name != turn.named_tool) continue;
    text::ContentRule rule{.kind = Kind::kJsonObject, .where = "tool " + tool.name};
    if (has(bound, tool.name) && tool.parameters) {
      rule.kind = Kind::kJsonSchema;
      rule.schema = *tool.parameters;
    }
    rules.calls.push_back({.recipient = "functions." + tool.name, .arguments = std::move(rule)});
  }
  return rules;
}

std::optional<text::Grammar> compiled(const text::GrammarCompiler& compiler, const text::TurnRules& rules) {
  try {
    return compiler.turn(rules);
  } catch (const Error& e) {
    if (e.code() != Code::kInvalidRequest && e.code() != Code::kUnsupported) throw;
    return std::nullopt;
  }
}

// A strict tool, or one whose schema the grammar can express: another's does not free its arguments.
bool can_bind(const text::GrammarCompiler& compiler, const TurnRequest& turn, const std::string& name) {
  if (has(turn.strict_tools, name)) return true;
  TurnRequest alone;
  alone.tool_choice = ToolChoice::kRequired;
  const auto it =
      std::find_if(turn.tools.begin(), turn.tools.end(), [&](const auto& tool) { return tool.name == name; });
  alone.tools = {*it};
  return compiled(compiler, rules_of(alone, {name})).has_value();
}

}  // namespace

MaskSource turn_mask(const text::GrammarCompiler& compiler, const TurnRequest& turn) {
  const bool tools = !turn.tools.empty() && turn.tool_choice != ToolChoice::kNone;
  const bool binding = is_forced(turn) || turn.reasoning_tokens || !turn.strict_tools.empty();
  if (!tools && !binding) return {};
  const GenerationFields& fields = turn.generation;
  if (fields.ignore_eos || fields.request.min_tokens > 0) {  // both go on where the grammar ends
    if (!binding) return {};
    const char* param = fields.ignore_eos ? "ignore_eos" : "min_tokens";
    throw ApiError(
        param,
        std::string(param) + " cannot go with response_format, strict tools, a required call or thinking_token_budget");
  }
  Names bound;
  for (const text::ToolSpec& tool : turn.tools) bound.push_back(tool.name);
  if (const auto grammar = compiled(compiler, rules_of(turn, bound))) return masks_of(*grammar, most_reasoning(turn));
  std::erase_if(bound, [&](const std::string& name) { return !can_bind(compiler, turn, name); });
  if (const auto grammar = compiled(compiler, rules_of(turn, bound))) return masks_of(*grammar, most_reasoning(turn));
  try {
    return masks_of(compiler.turn(rules_of(turn, turn.strict_tools)), most_reasoning(turn));
  } catch (const Error& e) {
    if (!compiled(compiler, {.answer = rule_of(turn.format)})) throw bad_schema(turn.format, e);
    throw ApiError("tools", e.what(), 400, "invalid_function_parameters");
  }
}

MaskSource text_mask(const text::GrammarCompiler& compiler, const OutputFormat& format,
                     const std::vector<int32_t>& end_ids) {
  if (format.kind == OutputFormat::Kind::kText) return {};
  try {
    return masks_of(compiler.content(rule_of(format), end_ids), std::nullopt);
  } catch (const Error& e) {
    throw bad_schema(format, e);
  }
}

}  // namespace nibble::server

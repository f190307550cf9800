#include "server/chat_service.h"

#include "base/random.h"
#include "server/turn_mask.h"
#include "text/harmony_render.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <limits>
#include <utility>

namespace nibble::server {
namespace {

text::Conversation conversation_of(const TurnRequest& turn, const std::string& date) {
  text::SystemOptions system_options;
  system_options.effort = turn.effort;
  if (turn.identity) system_options.identity = turn.identity;
  if (!date.empty()) system_options.current_date = date;
  text::Message system;
  system.role = text::Role::kSystem;
  system.content = {std::move(system_options)};
  text::Conversation conversation{{std::move(system)}};

  text::DeveloperOptions options;
  if (!turn.instructions.empty()) options.instructions = fmt::format("{}", fmt::join(turn.instructions, "\n\n"));
  if (turn.tool_choice != ToolChoice::kNone) options.functions = turn.tools;
  if (turn.format.kind == OutputFormat::Kind::kJsonSchema) options.response_formats = {turn.format.schema};
  if (options.instructions || !options.functions.empty() || !options.response_formats.empty()) {
    text::Message developer;
    developer.role = text::Role::kDeveloper;
    developer.content = {std::move(options)};
    conversation.messages.push_back(std::move(developer));
  }
  conversation.messages.insert(conversation.messages.end(), turn.history.begin(), turn.history.end());
  return conversation;
}

// What is generated shares the context with the prompt; a prompt that is only scored may fill it.
void check_length(const ServedModel& model, const engine::Request& request, const std::string& param) {
  const int64_t tokens = std::ssize(request.prompt), room = request.max_tokens > 0 ? 1 : 0;
  if (tokens + room <= model.max_context) return;
  throw ApiError(param,
                 fmt::format("the context holds {} tokens, and the prompt alone has {}{}", model.max_context, tokens,
                             tokens == model.max_context ? ", which leaves no room to generate" : ""),
                 400, "context_length_exceeded");
}

void check_id(const ServedModel& model, int32_t id, const char* param) {
  if (id >= model.vocab)
    throw ApiError(param, fmt::format("{}: want token ids below {}, found {}", param, model.vocab, id));
}

// Everything but the prompt.
engine::Request base_request(const ServedModel& model, const GenerationFields& fields) {
  engine::Request request = fields.request;
  for (const auto& [id, bias] : request.sampling.logit_bias) check_id(model, id, "logit_bias");
  for (const int32_t id : request.stop_ids) check_id(model, id, "stop_token_ids");
  if (request.priority != 0 && !model.by_priority) {
    throw ApiError("priority", fmt::format("priority: want 0, or a server started with --scheduling-policy priority, "
                                           "found {}",
                                           request.priority));
  }
  request.max_tokens = fields.max_tokens.value_or(std::numeric_limits<int32_t>::max());
  if (request.min_tokens > request.max_tokens) {
    throw ApiError("min_tokens", fmt::format("min_tokens: want at most the limit of {}, found {}", request.max_tokens,
                                             request.min_tokens));
  }
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
  return text::to_tokens(text::render_for_completion(conversation_of(turn, date)), model.ids, encode);
}

std::vector<engine::Request> turn_requests(const ServedModel& model, const TurnRequest& turn, const std::string& date) {
  const GenerationFields& fields = turn.generation;
  const MaskSource mask = turn_mask(*model.grammars, turn);
  engine::Request request = base_request(model, fields);
  if (!fields.ignore_eos) {  // a turn ends here, whatever the model's files list
    request.stop_ids.push_back(model.ids.id_of(text::Special::kReturn));
    request.stop_ids.push_back(model.ids.id_of(text::Special::kCall));
  }
  request.prompt = turn_prompt(model, turn, date);
  check_length(model, request, turn.prompt_field);
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

std::vector<engine::Request> completion_requests(const ServedModel& model, const CompletionRequest& completion) {
  const GenerationFields& fields = completion.generation;
  engine::Request request = base_request(model, fields);
  if (completion.echo) request.prompt_logprobs = request.logprobs;
  if (completion.format.kind != OutputFormat::Kind::kText && (fields.ignore_eos || request.min_tokens > 0))
    throw ApiError("response_format", "response_format cannot go with ignore_eos or min_tokens");
  const MaskSource mask = text_mask(*model.grammars, completion.format, model.eos_ids);
  const uint64_t seed = seed_of(fields);
  std::vector<engine::Request> requests;
  for (const auto& prompt : completion.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt))
      request.prompt = model.tokenizer->encode(*text, text::SpecialTokens::kAllowed);
    else
      request.prompt = std::get<std::vector<int32_t>>(prompt);
    if (request.prompt.empty()) throw ApiError("prompt", "prompt: want at least one token, found none");
    for (const int32_t id : request.prompt) check_id(model, id, "prompt");
    check_length(model, request, "prompt");
    for (int i = 0; i < fields.n; ++i) {
      request.sampling.seed = seed + static_cast<uint64_t>(i);
      requests.push_back(request);
      if (mask) requests.back().mask = mask(request.max_tokens);
    }
  }
  return requests;
}

}  // namespace nibble::server

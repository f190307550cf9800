#include "server/presenter.h"

#include "base/random.h"
#include "server/json_fields.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace nibble::server {

std::string make_id(std::string_view prefix) {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::array<uint8_t, 24> bytes{};
  fill_unguessable(bytes);
  std::string id(prefix);
  for (const uint8_t byte : bytes) id += kLetters[byte % kLetters.size()];
  return id;
}

ChunkTemplate::ChunkTemplate(const Json& chunk) {
  const std::string text = to_text(chunk), hole = to_text(Json(kHole));
  size_t from = 0;
  for (size_t at = 0; (at = text.find(hole, from)) != std::string::npos; from = at + hole.size())
    parts_.push_back(text.substr(from, at - from));
  parts_.push_back(text.substr(from));
}

std::string ChunkTemplate::filled(std::string_view text) const {
  const std::string value = to_text(Json(text));
  std::string all = parts_[0];
  for (size_t i = 1; i < parts_.size(); ++i) all.append(value).append(parts_[i]);
  return all;
}

Json object_of(std::string_view arguments) {
  try {
    Json input = parse_json(arguments);
    if (input.is_object()) return input;
  } catch (const ApiError&) {
  }
  return Json::object();
}

std::string_view finish_reason(engine::FinishReason reason, bool called) {
  using enum engine::FinishReason;
  if (reason == kLength || reason == kContext) return "length";
  return called ? "tool_calls" : "stop";
}

Json merged(Json fields, const Json& more) {
  fields.update(more);
  return fields;
}

double finite_logprob(double value) { return std::isfinite(value) ? value : -9999.0; }

namespace {

Json chat_logprob(const text::Tokenizer& tokenizer, const engine::TokenEvent& event) {
  const auto entry = [&tokenizer](int32_t token, double value) {
    const std::string_view text = tokenizer.contains(token) ? tokenizer.token_bytes(token) : std::string_view();
    Json bytes = Json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
    return Json{{"token", text}, {"logprob", finite_logprob(value)}, {"bytes", std::move(bytes)}};
  };
  Json json = entry(event.token, event.logprobs->value);
  Json& top = json["top_logprobs"] = Json::array();
  for (const engine::Logprob& other : event.logprobs->top) top.push_back(entry(other.token, other.value));
  return json;
}

Json chat_usage(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

}  // namespace

Json CompletionFrame::head(std::string_view name) const {
  return {{"id", id.id}, {"object", name}, {"created", id.created}, {"model", id.model}};
}

Json CompletionFrame::whole(Json choices, const Usage& usage) const {
  Json json = head(object);
  json["choices"] = std::move(choices);
  json["usage"] = chat_usage(usage);
  return json;
}

Json CompletionFrame::chunk(Json choice, const Usage& so_far) const {
  Json json = head(chunk_object);
  json["choices"] = Json::array({std::move(choice)});
  if (wanted.include_usage) json["usage"] = wanted.continuous_usage ? chat_usage(so_far) : Json();
  return json;
}

Json CompletionFrame::last_chunk(const Usage& usage) const {
  Json json = head(chunk_object);
  json["choices"] = Json::array();
  json["usage"] = chat_usage(usage);
  return json;
}

// llama.cpp's prompt_progress, without its time.
Json CompletionFrame::progress_chunk(const engine::PromptProgress& read) const {
  Json json = head(chunk_object);
  json["choices"] = Json::array();
  json["prompt_progress"] = {{"total", read.total}, {"cache", read.cached}, {"processed", read.done}};
  return json;
}

void ContentLogprobs::add(const text::Tokenizer& tokenizer, const engine::TokenEvent& event, const TurnReader& reader,
                          bool in_content, const std::vector<TurnEvent>& events) {
  const bool special = tokenizer.is_special(event.token);
  const size_t own =
      !special && tokenizer.contains(event.token) ? tokenizer.token_bytes(event.token).size() : size_t{0};
  size_t text = 0;
  for (const TurnEvent& e : events)
    if (e.kind == ItemKind::kContent && e.what == TurnEvent::What::kText) text += e.text.size();
  if (!in_content && text > own) pushed_ += text - own;
  if (special || !event.logprobs || !(in_content || reader.in_content())) return;
  waiting_.emplace_back(pushed_, chat_logprob(tokenizer, event));
  pushed_ += own;
}

Json ContentLogprobs::take(size_t emitted) {
  Json entries = Json::array();
  const auto gone = [emitted](const auto& entry) { return entry.first >= emitted; };
  const auto end = std::find_if(waiting_.begin(), waiting_.end(), gone);
  for (auto it = waiting_.begin(); it != end; ++it) entries.push_back(std::move(it->second));
  waiting_.erase(waiting_.begin(), end);
  return entries;
}

TurnPresenter::TurnPresenter(const ServedModel& model, AnswerId id, const TurnRequest& request)
    : id_(std::move(id)),
      stream_(request.generation.stream),
      tokenizer_(*model.tokenizer),
      logprobs_(request.generation.request.logprobs >= 0),
      reasoning_(request.include_reasoning) {
  std::vector<Callee> tools;
  for (const Tool& tool : request.tools) tools.push_back(tool.callee());
  const TurnOptions options{.calls = !tools.empty() && request.tool_choice != ToolChoice::kNone,
                            .tools = std::move(tools),
                            .prefilled = request.prefill.has_value(),
                            .parallel_calls = request.parallel_tool_calls,
                            .stop = request.generation.stop,
                            .include_stop = request.generation.include_stop,
                            .min_tokens = request.generation.request.min_tokens};
  for (int i = 0; i < request.generation.n; ++i)
    choices_.push_back({.reader = TurnReader(tokenizer_, model.ids, options)});
}

bool TurnPresenter::token(size_t choice, const engine::TokenEvent& event) {
  Choice& c = choices_[choice];
  next(choice, &event);
  ++c.usage.completion_tokens;
  const bool was_content = c.reader.in_content();
  const std::vector<TurnEvent> events = c.reader.push(event.token);
  c.usage.reasoning_tokens = c.reader.reasoning_tokens();
  if (logprobs_) c.logprobs.add(tokenizer_, event, c.reader, was_content, events);
  take(choice, events);
  return !c.reader.ended();
}

void TurnPresenter::finished(size_t choice, const engine::Finished& finished) {
  Choice& c = choices_[choice];
  next(choice, nullptr);
  c.finish = finished;
  take(choice, c.reader.finish());
  c.usage.prompt_tokens = finished.prompt_tokens;
  c.usage.cached_tokens = finished.cached_tokens;
  choice_ended(choice);
}

std::string TurnPresenter::text_of(const Choice& choice, ItemKind kind) {
  std::string text;
  for (const TurnItem& item : choice.items)
    if (item.kind == kind) text.append(text.empty() ? "" : kBreak).append(item.text);
  return text;
}

int64_t TurnPresenter::earlier(const Choice& choice) {
  return std::ranges::count(choice.items, choice.items.back().kind, &TurnItem::kind) - 1;
}

Usage TurnPresenter::usage() const {
  Usage sum = choices_[0].usage;
  for (size_t i = 1; i < choices_.size(); ++i) {
    sum.completion_tokens += choices_[i].usage.completion_tokens;
    sum.reasoning_tokens += choices_[i].usage.reasoning_tokens;
  }
  return sum;
}

int64_t TurnPresenter::repairs() const {
  int64_t sum = 0;
  for (const Choice& c : choices_) sum += c.reader.repairs();
  return sum;
}

void TurnPresenter::take(size_t choice, const std::vector<TurnEvent>& events) {
  Choice& c = choices_[choice];
  for (const TurnEvent& event : events) {
    if (event.kind == ItemKind::kReasoning && !reasoning_) continue;
    switch (event.what) {
      case TurnEvent::What::kBegin:
        c.items.push_back({.kind = event.kind, .callee = event.callee, .preamble = event.preamble});
        item_begun(choice, c.items.back());
        break;
      case TurnEvent::What::kText:
        c.items.back().text += event.text;
        if (event.kind == ItemKind::kContent) c.content_bytes += event.text.size();
        item_grown(choice, c.items.back(), event.text);
        break;
      case TurnEvent::What::kEnd:
        item_ended(choice, c.items.back());
        c.items.back().ended = true;
        break;
    }
  }
}

}  // namespace nibble::server

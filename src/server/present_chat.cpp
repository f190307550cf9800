// /v1/chat/completions: the answer, whole or in chunks.

#include "server/presenter.h"

#include <optional>
#include <utility>

namespace nibble::server {
namespace {

constexpr std::string_view kBreak = "\n\n";  // between two messages that become one text

struct Choice {
  TurnReader reader;
  std::string reasoning{}, content{};
  size_t content_bytes = 0;  // the model's own, without breaks
  Json calls = Json::array();
  Json logprobs = Json::array();
  ContentLogprobs waiting{};
  std::vector<int32_t> token_ids{};  // not yet sent
  Usage usage{};
  Json finish_reason{};
  bool opened = false;
  std::optional<ChunkTemplate> reasoning_template{},
      content_template{};  // of its chunks, where nothing but text is in them
};

class ChatPresenter final : public Presenter {
 public:
  ChatPresenter(const ServedModel& model, AnswerId id, const TurnRequest& request)
      : model_(model),
        id_(std::move(id)),
        stream_(request.generation.stream),
        include_usage_(request.generation.include_usage),
        continuous_usage_(request.generation.continuous_usage),
        logprobs_(request.generation.request.logprobs >= 0),
        token_ids_(request.generation.return_token_ids),
        reasoning_(request.include_reasoning) {
    for (int i = 0; i < request.generation.n; ++i) choices_.push_back({.reader = reader_of(model, request)});
  }

  void prompt(size_t choice, int64_t tokens) override { choices_[choice].usage.prompt_tokens = tokens; }

  bool token(size_t choice, const engine::TokenEvent& event) override {
    Choice& c = choices_[choice];
    open(choice);
    ++c.usage.completion_tokens;
    if (token_ids_) c.token_ids.push_back(event.token);
    const bool was_content = c.reader.in_content();
    const std::vector<TurnEvent> events = c.reader.push(event.token);
    c.usage.reasoning_tokens = c.reader.reasoning_tokens();
    if (logprobs_) c.waiting.add(*model_.tokenizer, event, c.reader, was_content, events);
    take(choice, events);
    return !c.reader.ended();
  }

  void finished(size_t choice, const engine::Finished& finished) override {
    Choice& c = choices_[choice];
    open(choice);
    take(choice, c.reader.finish());
    c.usage.prompt_tokens = finished.prompt_tokens;
    c.usage.cached_tokens = finished.cached_tokens;
    c.finish_reason = server::finish_reason(finished.reason, c.reader.called());
    if (stream_) send_delta(choice, Json::object());
  }

  void end() override {
    if (!stream_) return;
    if (include_usage_) {
      Json chunk = head("chat.completion.chunk");
      chunk["choices"] = Json::array();
      chunk["usage"] = chat_usage(usage());
      send(chunk);
    }
    send_done();
  }

  Json body() override {
    Json json = head("chat.completion");
    json["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      Json message = {{"role", "assistant"}, {"content", c.content}, {"refusal", nullptr}};
      if (c.content.empty() && !c.calls.empty()) message["content"] = nullptr;
      if (!c.reasoning.empty()) message["reasoning_content"] = message["reasoning"] = c.reasoning;
      if (!c.calls.empty()) message["tool_calls"] = std::move(c.calls);
      json["choices"].push_back({{"index", i},
                                 {"message", std::move(message)},
                                 {"logprobs", logprobs_ ? Json{{"content", std::move(c.logprobs)}} : Json()},
                                 {"finish_reason", c.finish_reason}});
      if (token_ids_) json["choices"].back()["token_ids"] = c.token_ids;
    }
    json["usage"] = chat_usage(usage());
    return json;
  }

  [[nodiscard]] Usage usage() const override {
    Usage sum = choices_[0].usage;
    for (size_t i = 1; i < choices_.size(); ++i) {
      sum.completion_tokens += choices_[i].usage.completion_tokens;
      sum.reasoning_tokens += choices_[i].usage.reasoning_tokens;
    }
    return sum;
  }
  [[nodiscard]] int64_t repairs() const override {
    int64_t sum = 0;
    for (const Choice& c : choices_) sum += c.reader.repairs();
    return sum;
  }

 private:
  [[nodiscard]] Json head(std::string_view object) const {
    return {{"id", id_.id}, {"object", object}, {"created", id_.created}, {"model", id_.model}};
  }

  // Sent with the first token, not earlier: clients take the first chunk as the end of the prompt.
  void open(size_t choice) {
    if (stream_ && !std::exchange(choices_[choice].opened, true))
      send_delta(choice, {{"role", "assistant"}, {"content", ""}});
  }

  void send_delta(size_t choice, Json delta) { send(chunk_of(choice, std::move(delta))); }

  void send_text(size_t choice, ItemKind kind, std::string_view text) {
    const auto delta = [kind](std::string_view value) {
      return kind == ItemKind::kContent ? Json{{"content", value}}
                                        : Json{{"reasoning_content", value}, {"reasoning", value}};
    };
    if (logprobs_ || token_ids_ || continuous_usage_) return send_delta(choice, delta(text));
    Choice& c = choices_[choice];
    std::optional<ChunkTemplate>& chunk = kind == ItemKind::kContent ? c.content_template : c.reasoning_template;
    if (!chunk) chunk.emplace(chunk_of(choice, delta(ChunkTemplate::kHole)));
    send_json(chunk->filled(text));
  }

  // With `finish_reason` of the choice, which is null until it has finished.
  Json chunk_of(size_t choice, Json delta) {
    Choice& c = choices_[choice];
    Json chunk = head("chat.completion.chunk");
    Json item = {
        {"index", choice}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", c.finish_reason}};
    if (logprobs_) {
      Json entries = c.waiting.take(c.content_bytes);
      if (!entries.empty()) item["logprobs"] = {{"content", std::move(entries)}};
    }
    if (token_ids_) item["token_ids"] = std::exchange(c.token_ids, {});
    chunk["choices"] = Json::array({std::move(item)});
    if (include_usage_) chunk["usage"] = continuous_usage_ ? chat_usage(c.usage) : Json();
    return chunk;
  }

  void take(size_t choice, const std::vector<TurnEvent>& events) {
    for (const TurnEvent& event : events) {
      switch (event.kind) {
        case ItemKind::kReasoning: add_reasoning(choice, event); break;
        case ItemKind::kContent: add_content(choice, event); break;
        case ItemKind::kCall: add_call(choice, event); break;
      }
    }
  }

  void add_reasoning(size_t choice, const TurnEvent& event) {
    if (!reasoning_) return;
    Choice& c = choices_[choice];
    const std::string text = text_of(event, c.reasoning);
    if (text.empty()) return;
    c.reasoning += text;
    if (stream_) send_text(choice, event.kind, text);
  }

  void add_content(size_t choice, const TurnEvent& event) {
    Choice& c = choices_[choice];
    const std::string text = text_of(event, c.content);
    if (text.empty()) return;
    c.content += text;
    c.content_bytes += event.text.size();
    if (stream_) return send_text(choice, event.kind, text);
    if (!logprobs_) return;
    for (Json& entry : c.waiting.take(c.content_bytes)) c.logprobs.push_back(std::move(entry));
  }

  void add_call(size_t choice, const TurnEvent& event) {
    Choice& c = choices_[choice];
    if (event.what == TurnEvent::What::kBegin) {
      c.calls.push_back(
          {{"id", make_id("call_")}, {"type", "function"}, {"function", {{"name", event.text}, {"arguments", ""}}}});
      if (!stream_) return;
      Json call = {{"index", c.calls.size() - 1}};
      call.update(c.calls.back());
      send_delta(choice, {{"tool_calls", Json::array({std::move(call)})}});
    } else if (event.what == TurnEvent::What::kText) {
      c.calls.back()["function"]["arguments"].get_ref<std::string&>() += event.text;
      if (!stream_) return;
      send_delta(choice, {{"tool_calls",
                           Json::array({{{"index", c.calls.size() - 1}, {"function", {{"arguments", event.text}}}}})}});
    }
  }

  // What the event adds to the text.
  static std::string text_of(const TurnEvent& event, const std::string& so_far) {
    if (event.what == TurnEvent::What::kText) return event.text;
    return event.what == TurnEvent::What::kBegin && !so_far.empty() ? std::string(kBreak) : std::string();
  }

  const ServedModel& model_;
  const AnswerId id_;
  const bool stream_, include_usage_, continuous_usage_, logprobs_, token_ids_, reasoning_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<Presenter> present_chat(const ServedModel& model, AnswerId id, const TurnRequest& request) {
  return std::make_unique<ChatPresenter>(model, std::move(id), request);
}

}  // namespace nibble::server

// /v1/messages, Anthropic's: the message, whole or as a stream of its events. A message of the model is a block.

#include "server/json_fields.h"
#include "server/presenter.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

using What = TurnEvent::What;

// Clients send thinking back only with a signature. Nobody reads this one.
constexpr std::string_view kSignature = "unsigned";

std::string_view error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

// A call's arguments. They are an object unless the call was cut short, or no grammar held it.
Json input_of(std::string_view arguments) {
  try {
    Json input = parse_json(arguments);
    if (input.is_object()) return input;
  } catch (const ApiError&) {
  }
  return Json::object();
}

class MessagePresenter final : public Presenter {
 public:
  MessagePresenter(const ServedModel& model, AnswerId id, const TurnRequest& request)
      : id_(std::move(id)),
        stream_(request.generation.stream),
        thinking_(request.include_reasoning),
        stops_(request.generation.stop),
        reader_(reader_of(model, request)) {}

  void prompt(size_t, int64_t tokens) override { usage_.prompt_tokens = tokens; }

  void begin() override {
    Json json = message();
    json["content"] = Json::array();
    event("message_start", {{"message", std::move(json)}});
  }

  bool token(size_t, const engine::TokenEvent& event) override {
    ++usage_.completion_tokens;
    for (const TurnEvent& e : reader_.push(event.token)) take(e);
    return !reader_.ended();
  }

  void finished(size_t, const engine::Finished& finished) override {
    using enum engine::FinishReason;
    for (const TurnEvent& e : reader_.finish()) take(e);
    usage_.prompt_tokens = finished.prompt_tokens;
    usage_.cached_tokens = finished.cached_tokens;
    usage_.reasoning_tokens = reader_.reasoning_tokens();
    if (const auto stop = reader_.stop()) stop_sequence_ = stops_[*stop];
    stop_reason_ = finished.reason == kLength    ? "max_tokens"
                   : finished.reason == kContext ? "model_context_window_exceeded"
                   : reader_.stop()              ? "stop_sequence"
                   : reader_.called()            ? "tool_use"
                                                 : "end_turn";
  }

  void end() override {
    if (!stream_) return;
    event("message_delta",
          {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}}, {"usage", usage_json()}});
    event("message_stop", Json::object());
  }

  void failed(const ApiError& error) override { send("error", message_error(error)); }
  [[nodiscard]] Json failure(const ApiError& error) const override { return message_error(error); }

  Json body() override { return message(); }
  [[nodiscard]] Usage usage() const override { return usage_; }
  [[nodiscard]] int64_t repairs() const override { return reader_.repairs(); }

 private:
  void event(std::string_view type, Json fields) {
    Json json = {{"type", type}};
    json.update(fields);
    send(type, json);
  }
  void block_event(std::string_view type, Json fields) {
    if (!stream_) return;
    Json all = {{"index", index_}};
    all.update(fields);
    event(type, std::move(all));
  }

  [[nodiscard]] Json usage_json() const {
    return {{"input_tokens", usage_.prompt_tokens - usage_.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage_.cached_tokens},
            {"output_tokens", usage_.completion_tokens},
            {"output_tokens_details", {{"thinking_tokens", usage_.reasoning_tokens}}}};
  }

  [[nodiscard]] Json message() const {
    return {{"id", id_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", id_.model},
            {"content", content_},
            {"stop_reason", stop_reason_},
            {"stop_sequence", stop_sequence_},
            {"usage", usage_json()}};
  }

  void take(const TurnEvent& e) {
    if (e.kind == ItemKind::kReasoning && !thinking_) return;
    switch (e.what) {
      case What::kBegin: begin_block(e); break;
      case What::kText: add_text(e); break;
      case What::kEnd: end_block(e); break;
    }
  }

  void begin_block(const TurnEvent& e) {
    text_.clear();
    switch (e.kind) {
      case ItemKind::kReasoning: block_ = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}; break;
      case ItemKind::kContent: block_ = {{"type", "text"}, {"text", ""}}; break;
      case ItemKind::kCall:
        block_ = {{"type", "tool_use"}, {"id", make_id("toolu_")}, {"name", e.text}, {"input", Json::object()}};
    }
    block_event("content_block_start", {{"content_block", block_}});
    if (!stream_) return;
    const char* const types[] = {"thinking_delta", "text_delta", "input_json_delta"};
    const char* const names[] = {"thinking", "text", "partial_json"};
    const auto kind = static_cast<size_t>(e.kind);
    delta_.emplace(Json{{"type", "content_block_delta"},
                        {"index", index_},
                        {"delta", {{"type", types[kind]}, {names[kind], ChunkTemplate::kHole}}}});
  }

  void add_text(const TurnEvent& e) {
    if (stream_) return send_json("content_block_delta", delta_->filled(e.text));
    text_ += e.text;
  }

  void end_block(const TurnEvent& e) {
    if (e.kind == ItemKind::kReasoning)
      block_event("content_block_delta", {{"delta", {{"type", "signature_delta"}, {"signature", kSignature}}}});
    block_event("content_block_stop", Json::object());
    ++index_;
    if (stream_) return;
    switch (e.kind) {
      case ItemKind::kReasoning: block_["thinking"] = text_, block_["signature"] = kSignature; break;
      case ItemKind::kContent: block_["text"] = text_; break;
      case ItemKind::kCall: block_["input"] = input_of(text_); break;
    }
    content_.push_back(std::move(block_));
  }

  const AnswerId id_;
  const bool stream_, thinking_;
  const std::vector<std::string> stops_;
  TurnReader reader_;
  size_t index_ = 0;  // of the block that is open, or comes next
  Json block_;
  std::string text_;                    // of the block; a stream keeps none
  std::optional<ChunkTemplate> delta_;  // a stream's event with more of it
  Json content_ = Json::array();
  Json stop_reason_, stop_sequence_;
  Usage usage_;
};

}  // namespace

std::unique_ptr<Presenter> present_message(const ServedModel& model, AnswerId id, const TurnRequest& request) {
  return std::make_unique<MessagePresenter>(model, std::move(id), request);
}

Json message_error(const ApiError& error) {
  return {{"type", "error"}, {"error", {{"type", error_type(error.status())}, {"message", error.what()}}}};
}

}  // namespace nibble::server

// /v1/messages, Anthropic's: the message, whole or as a stream of its events. A message of the model is a block.

#include "server/presenter.h"

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

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

class MessagePresenter final : public TurnPresenter {
 public:
  MessagePresenter(const ServedModel& model, AnswerId id, const TurnRequest& request)
      : TurnPresenter(model, std::move(id), request), stops_(request.generation.stop) {}

  void begin() override {
    event("message_start", {{"message", body()}});
    event("ping", Json::object());
  }

  void end() override {
    if (!stream_) return;
    event("message_delta",
          {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}}, {"usage", usage_json()}});
    event("message_stop", Json::object());
  }

  void failed(const ApiError& error) override { send("error", message_error(error)); }
  [[nodiscard]] Json failure(const ApiError& error) const override { return message_error(error); }

  Json body() override {
    Json content = Json::array();
    for (const TurnItem& item : only().items) content.push_back(item.json);
    return {{"id", id_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", id_.model},
            {"content", std::move(content)},
            {"stop_reason", stop_reason_},
            {"stop_sequence", stop_sequence_},
            {"usage", usage_json()}};
  }

 private:
  void event(std::string_view type, Json fields) {
    Json json = {{"type", type}};
    json.update(fields);
    send(type, json);
  }
  void block_event(std::string_view type, Json fields) {
    if (!stream_) return;
    Json all = {{"index", only().items.size() - 1}};
    all.update(fields);
    event(type, std::move(all));
  }

  [[nodiscard]] Json usage_json() const {
    const Usage& usage = only().usage;
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"thinking_tokens", usage.reasoning_tokens}}}};
  }

  void item_begun(size_t, TurnItem& item) override {
    switch (item.kind) {
      case ItemKind::kReasoning: item.json = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}; break;
      case ItemKind::kContent: item.json = {{"type", "text"}, {"text", ""}}; break;
      case ItemKind::kCall:
        item.json = {
            {"type", "tool_use"}, {"id", make_id("toolu_")}, {"name", item.callee.name}, {"input", Json::object()}};
    }
    block_event("content_block_start", {{"content_block", item.json}});
    if (!stream_) return;
    const char* const types[] = {"thinking_delta", "text_delta", "input_json_delta"};
    const char* const names[] = {"thinking", "text", "partial_json"};
    const auto kind = static_cast<size_t>(item.kind);
    delta_.emplace(Json{{"type", "content_block_delta"},
                        {"index", only().items.size() - 1},
                        {"delta", {{"type", types[kind]}, {names[kind], ChunkTemplate::kHole}}}});
  }

  void item_grown(size_t, TurnItem&, const std::string& by) override {
    if (stream_) send_json("content_block_delta", delta_->filled(by));
  }

  void item_ended(size_t, TurnItem& item) override {
    if (item.kind == ItemKind::kReasoning)
      block_event("content_block_delta", {{"delta", {{"type", "signature_delta"}, {"signature", kSignature}}}});
    block_event("content_block_stop", Json::object());
    if (stream_) return;
    switch (item.kind) {
      case ItemKind::kReasoning: item.json["thinking"] = item.text, item.json["signature"] = kSignature; break;
      case ItemKind::kContent: item.json["text"] = item.text; break;
      case ItemKind::kCall: item.json["input"] = object_of(item.text); break;
    }
  }

  void choice_ended(size_t) override {
    using enum engine::FinishReason;
    const auto& [reader, finish] = std::tie(only().reader, only().finish->reason);
    if (const auto stop = reader.stop()) stop_sequence_ = stops_[*stop];
    stop_reason_ = finish == kLength    ? "max_tokens"
                   : finish == kContext ? "model_context_window_exceeded"
                   : reader.stop()      ? "stop_sequence"
                   : reader.called()    ? "tool_use"
                                        : "end_turn";
  }

  const std::vector<std::string> stops_;
  std::optional<ChunkTemplate> delta_;  // a stream's event with more of the item that is open
  Json stop_reason_, stop_sequence_;
};

}  // namespace

std::unique_ptr<Presenter> present_message(const ServedModel& model, AnswerId id, const TurnRequest& request) {
  return std::make_unique<MessagePresenter>(model, std::move(id), request);
}

Json message_error(const ApiError& error) {
  Json json = {{"type", "error"}, {"error", {{"type", error_type(error.status())}, {"message", error.what()}}}};
  if (error.openai_code().starts_with("thread_")) json["error"]["details"] = {{"error_code", error.openai_code()}};
  return json;
}

}  // namespace nibble::server

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
  void event(std::string_view type, const Json& fields) { send(type, merged({{"type", type}}, fields)); }
  void block_event(std::string_view type, const Json& fields) {
    if (stream_) event(type, merged({{"index", only().items.size() - 1}}, fields));
  }

  [[nodiscard]] Json usage_json() const {
    const Usage& usage = only().usage;
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"thinking_tokens", usage.reasoning_tokens}}}};
  }

  // A block of each kind: its type and the field that grows, and the same of the events by which that grows.
  struct BlockForm {
    const char *type, *field, *delta, *delta_field;
  };
  static const BlockForm& form_of(const TurnItem& item) {
    static constexpr BlockForm kForms[] = {{"thinking", "thinking", "thinking_delta", "thinking"},
                                           {"text", "text", "text_delta", "text"},
                                           {"tool_use", "input", "input_json_delta", "partial_json"}};
    return kForms[static_cast<size_t>(item.kind)];
  }

  void item_begun(size_t, TurnItem& item) override {
    const BlockForm& form = form_of(item);
    item.json = {{"type", form.type}};
    if (item.kind == ItemKind::kCall) item.json.update({{"id", make_id("toolu_")}, {"name", item.callee.name}});
    item.json[form.field] = item.kind == ItemKind::kCall ? Json::object() : Json("");
    if (item.kind == ItemKind::kReasoning) item.json["signature"] = "";
    block_event("content_block_start", {{"content_block", item.json}});
    if (!stream_) return;
    delta_.emplace(Json{{"type", "content_block_delta"},
                        {"index", only().items.size() - 1},
                        {"delta", {{"type", form.delta}, {form.delta_field, ChunkTemplate::kHole}}}});
  }

  void item_grown(size_t, TurnItem&, const std::string& by) override {
    if (stream_) send_json("content_block_delta", delta_->filled(by));
  }

  void item_ended(size_t, TurnItem& item) override {
    if (item.kind == ItemKind::kReasoning)
      block_event("content_block_delta", {{"delta", {{"type", "signature_delta"}, {"signature", kSignature}}}});
    block_event("content_block_stop", Json::object());
    if (stream_) return;
    item.json[form_of(item).field] = item.kind == ItemKind::kCall ? object_of(item.text) : Json(item.text);
    if (item.kind == ItemKind::kReasoning) item.json["signature"] = kSignature;
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

// /v1/responses: the response object, whole or as a stream of its events in OpenAI's order, numbered.

#include "server/presenter.h"

#include <utility>

namespace nibble::server {
namespace {

using What = TurnEvent::What;

class ResponsePresenter final : public Presenter {
 public:
  ResponsePresenter(const ServedModel& model, AnswerId id, const ResponsesRequest& request, KeepResponse keep)
      : model_(model),
        id_(std::move(id)),
        stream_(request.turn.generation.stream),
        logprobs_(request.turn.generation.request.logprobs >= 0),
        echoed_(request.echoed),
        calls_(request.calls),
        keep_(std::move(keep)),
        reader_(reader_of(model, request.turn)) {}

  void begin() override {
    event("response.created", {{"response", response()}});
    event("response.in_progress", {{"response", response()}});
  }

  bool token(size_t, const engine::TokenEvent& event) override {
    ++usage_.completion_tokens;
    const bool was_content = reader_.in_content();
    const std::vector<TurnEvent> events = reader_.push(event.token);
    if (logprobs_) waiting_.add(*model_.tokenizer, event, reader_, was_content, events);
    for (const TurnEvent& e : events) take(e);
    return !reader_.ended();
  }

  void finished(size_t, const engine::Finished& finished) override {
    const bool cut = finish_reason(finished.reason, false) == "length";
    status_ = cut ? "incomplete" : "completed";
    for (const TurnEvent& e : reader_.finish()) take(e);
    usage_.prompt_tokens = finished.prompt_tokens;
    usage_.cached_tokens = finished.cached_tokens;
    usage_.reasoning_tokens = reader_.reasoning_tokens();
    if (cut) incomplete_ = {{"reason", "max_output_tokens"}};
  }

  void end() override {
    const Json whole = response();
    if (keep_) keep_(whole, reader_.messages(), calls_);
    if (stream_) event(status_ == "completed" ? "response.completed" : "response.incomplete", {{"response", whole}});
  }

  void failed(const ApiError& error) override {
    status_ = "failed";
    error_ = {{"code", "server_error"}, {"message", error.what()}};
    event("response.failed", {{"response", response()}});
  }

  Json body() override { return response(); }
  [[nodiscard]] Usage usage() const override { return usage_; }
  [[nodiscard]] int64_t repairs() const override { return reader_.repairs(); }

 private:
  void event(std::string_view type, Json fields) {
    Json json = {{"type", type}, {"sequence_number", sequence_++}};
    json.update(fields);
    send(type, json);
  }
  // An event about the item that is open.
  void item_event(std::string_view type, Json fields) {
    if (!stream_) return;
    Json all = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
    all.update(fields);
    event(type, std::move(all));
  }
  void part_event(std::string_view type, Json fields) {
    Json all = {{"content_index", 0}};
    all.update(fields);
    item_event(type, std::move(all));
  }

  [[nodiscard]] Json response() const {
    Json json = {{"id", id_.id},       {"object", "response"}, {"created_at", id_.created},
                 {"status", status_},  {"error", error_},      {"incomplete_details", incomplete_},
                 {"model", id_.model}, {"output", output_}};
    json.update(echoed_);
    json["usage"] = nullptr;
    if (status_ == "in_progress") return json;
    json["usage"] = {{"input_tokens", usage_.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens}, {"cache_write_tokens", 0}}},
                     {"output_tokens", usage_.completion_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", usage_.reasoning_tokens}}},
                     {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens}};
    return json;
  }

  void take(const TurnEvent& e) {
    switch (e.what) {
      case What::kBegin: begin_item(e); break;
      case What::kText: add_text(e); break;
      case What::kEnd: end_item(e); break;
    }
  }

  void begin_item(const TurnEvent& e) {
    if (e.kind == ItemKind::kReasoning) {
      item_ = {{"id", make_id("rs_")},     {"type", "reasoning"},          {"summary", Json::array()},
               {"content", Json::array()}, {"encrypted_content", nullptr}, {"status", "in_progress"}};
    } else if (e.kind == ItemKind::kContent) {
      item_ = {{"id", make_id("msg_")},
               {"type", "message"},
               {"role", "assistant"},
               {"content", Json::array()},
               {"status", "in_progress"}};
    } else {
      item_ = {{"id", make_id("fc_")}, {"type", "function_call"}, {"call_id", make_id("call_")},
               {"name", e.text},       {"arguments", ""},         {"status", "in_progress"}};
      calls_[item_["call_id"].get<std::string>()] = e.text;
    }
    text_.clear();
    item_logprobs_ = Json::array();
    if (stream_) event("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
    if (e.kind != ItemKind::kCall) part_event("response.content_part.added", {{"part", part(e.kind)}});
  }

  [[nodiscard]] Json part(ItemKind kind) const {
    if (kind == ItemKind::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", item_logprobs_}};
  }

  void add_text(const TurnEvent& e) {
    text_ += e.text;
    if (e.kind == ItemKind::kReasoning) return part_event("response.reasoning_text.delta", {{"delta", e.text}});
    if (e.kind == ItemKind::kCall) return item_event("response.function_call_arguments.delta", {{"delta", e.text}});
    content_bytes_ += e.text.size();
    Json logprobs = waiting_.take(content_bytes_);
    for (const Json& entry : logprobs) item_logprobs_.push_back(entry);
    part_event("response.output_text.delta", {{"delta", e.text}, {"logprobs", std::move(logprobs)}});
  }

  void end_item(const TurnEvent& e) {
    item_["status"] = status_ == "incomplete" ? status_ : "completed";
    if (e.kind == ItemKind::kCall) {
      item_["arguments"] = text_;
      item_event("response.function_call_arguments.done", {{"name", item_["name"]}, {"arguments", text_}});
    } else {
      if (e.kind == ItemKind::kReasoning)
        part_event("response.reasoning_text.done", {{"text", text_}});
      else
        part_event("response.output_text.done", {{"text", text_}, {"logprobs", item_logprobs_}});
      part_event("response.content_part.done", {{"part", part(e.kind)}});
      item_["content"] = Json::array({part(e.kind)});
    }
    if (stream_) event("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::move(item_));
  }

  const ServedModel& model_;
  const AnswerId id_;
  const bool stream_, logprobs_;
  const Json echoed_;
  CallNames calls_;
  const KeepResponse keep_;
  TurnReader reader_;
  Json output_ = Json::array();
  Json item_, item_logprobs_ = Json::array();  // of the item that is open
  std::string text_;                           // of the same
  size_t content_bytes_ = 0;                   // of all messages
  ContentLogprobs waiting_;
  std::string status_ = "in_progress";
  Json error_, incomplete_;
  Usage usage_;
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Presenter> present_response(const ServedModel& model, AnswerId id, const ResponsesRequest& request,
                                            KeepResponse keep) {
  return std::make_unique<ResponsePresenter>(model, std::move(id), request, std::move(keep));
}

}  // namespace nibble::server

// /v1/responses: the response object, whole or as a stream of its events in OpenAI's order, numbered.

#include "server/presenter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble::server {
namespace {

class ResponsePresenter final : public TurnPresenter {
 public:
  ResponsePresenter(const ServedModel& model, AnswerId id, const ResponsesRequest& request, KeepResponse keep)
      : TurnPresenter(model, std::move(id), request.turn),
        echoed_(request.echoed),
        calls_(request.calls),
        keep_(std::move(keep)) {}

  void begin() override {
    event("response.created", {{"response", body()}});
    event("response.in_progress", {{"response", body()}});
  }

  void end() override {
    const Json whole = body();
    if (keep_) keep_(whole, only().reader.messages(), calls_);
    if (stream_) event(fmt::format("response.{}", status()), {{"response", whole}});
  }

  [[nodiscard]] bool streams_overflow() const override { return true; }  // Codex reads it there alone

  void failed(const ApiError& error) override {
    error_ = {{"code", error.prompt_tokens() ? error.openai_code() : "server_error"}, {"message", error.what()}};
    event("response.failed", {{"response", body()}});
  }

  Json body() override {
    Json output = Json::array();
    for (const TurnItem& item : only().items)
      if (item.ended) output.push_back(item.json);
    const bool cut = status() == "incomplete";
    Json json = {{"id", id_.id},
                 {"object", "response"},
                 {"created_at", id_.created},
                 {"status", status()},
                 {"error", error_},
                 {"incomplete_details", cut ? Json{{"reason", "max_output_tokens"}} : Json()},
                 {"model", id_.model},
                 {"output", std::move(output)}};
    json.update(echoed_);
    json["usage"] = nullptr;
    if (status() == "in_progress") return json;
    const Usage& usage = only().usage;
    json["usage"] = {{"input_tokens", usage.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
                     {"output_tokens", usage.completion_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
                     {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
    return json;
  }

 private:
  [[nodiscard]] std::string_view status() const {
    if (!error_.is_null()) return "failed";
    if (!only().finish) return "in_progress";
    return finish_reason(only().finish->reason, false) == "length" ? "incomplete" : "completed";
  }

  void event(std::string_view type, const Json& fields) {
    send(type, merged({{"type", type}, {"sequence_number", sequence_++}}, fields));
  }
  // Events about an item, and about its only part.
  void item_event(std::string_view type, const TurnItem& item, const Json& fields) {
    if (stream_) event(type, merged({{"item_id", item.json["id"]}, {"output_index", only().items.size() - 1}}, fields));
  }
  void part_event(std::string_view type, const TurnItem& item, const Json& fields) {
    item_event(type, item, merged({{"content_index", 0}}, fields));
  }
  // How a call of each kind of tool is told.
  struct CallForm {
    const char *id, *type, *field, *events;  // events: null where there are none while it grows
  };
  static const CallForm& form_of(const TurnItem& item) {
    static constexpr CallForm kForms[] = {{"fc_", "function_call", "arguments", "response.function_call_arguments."},
                                          {"ctc_", "custom_tool_call", "input", "response.custom_tool_call_input."},
                                          {"tsc_", "tool_search_call", "arguments", nullptr}};
    return kForms[static_cast<size_t>(item.callee.kind)];
  }
  void call_event(std::string_view what, const TurnItem& item, const Json& fields) {
    if (const char* events = form_of(item).events) item_event(events + std::string(what), item, fields);
  }
  void whole_event(std::string_view type, const TurnItem& item) {
    if (stream_) event(type, {{"output_index", only().items.size() - 1}, {"item", item.json}});
  }

  void item_begun(size_t, TurnItem& item) override {
    if (item.kind == ItemKind::kReasoning) {
      item.json = {{"id", make_id("rs_")},     {"type", "reasoning"},          {"summary", Json::array()},
                   {"content", Json::array()}, {"encrypted_content", nullptr}, {"status", "in_progress"}};
    } else if (item.kind == ItemKind::kContent) {
      item.json = {{"id", make_id("msg_")},
                   {"type", "message"},
                   {"role", "assistant"},
                   {"content", Json::array()},
                   {"phase", item.preamble ? "commentary" : "final_answer"},
                   {"status", "in_progress"}};
    } else {
      const CallForm& form = form_of(item);
      const std::string id = make_id("call_");
      item.json = {{"id", make_id(form.id)}, {"type", form.type}, {"call_id", id}};
      if (item.callee.kind == ToolKind::kSearch) {
        item.json.update({{"execution", "client"}, {"arguments", Json::object()}});
      } else {
        item.json["name"] = item.callee.name;
        if (item.callee.space != text::kFunctionsSpace) item.json["namespace"] = item.callee.space;
        item.json[form.field] = "";
      }
      item.json["status"] = "in_progress";
      calls_[id] = item.callee.recipient();
    }
    logprobs_ = Json::array();
    whole_event("response.output_item.added", item);
    if (item.kind != ItemKind::kCall) part_event("response.content_part.added", item, {{"part", part(item)}});
  }

  [[nodiscard]] Json part(const TurnItem& item) const {
    if (item.kind == ItemKind::kReasoning) return {{"type", "reasoning_text"}, {"text", item.text}};
    return {{"type", "output_text"}, {"text", item.text}, {"annotations", Json::array()}, {"logprobs", logprobs_}};
  }

  void item_grown(size_t, TurnItem& item, const std::string& by) override {
    if (item.kind == ItemKind::kReasoning) return part_event("response.reasoning_text.delta", item, {{"delta", by}});
    if (item.kind == ItemKind::kCall) return call_event("delta", item, {{"delta", by}});
    Json logprobs = choice(0).logprobs.take(only().content_bytes);
    for (const Json& entry : logprobs) logprobs_.push_back(entry);
    part_event("response.output_text.delta", item, {{"delta", by}, {"logprobs", std::move(logprobs)}});
  }

  void item_ended(size_t, TurnItem& item) override {
    item.json["status"] = status() == "incomplete" ? "incomplete" : "completed";
    if (item.kind == ItemKind::kCall) {
      const CallForm& form = form_of(item);
      item.json[form.field] = item.callee.kind == ToolKind::kSearch ? object_of(item.text) : Json(item.text);
      call_event("done", item, {{"name", item.callee.name}, {form.field, item.text}});
    } else {
      if (item.kind == ItemKind::kReasoning)
        part_event("response.reasoning_text.done", item, {{"text", item.text}});
      else
        part_event("response.output_text.done", item, {{"text", item.text}, {"logprobs", logprobs_}});
      part_event("response.content_part.done", item, {{"part", part(item)}});
      item.json["content"] = Json::array({part(item)});
    }
    whole_event("response.output_item.done", item);
  }

  const Json echoed_;
  CallNames calls_;
  const KeepResponse keep_;
  Json logprobs_ = Json::array();  // of the item that is open
  Json error_;
  int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Presenter> present_response(const ServedModel& model, AnswerId id, const ResponsesRequest& request,
                                            KeepResponse keep) {
  return std::make_unique<ResponsePresenter>(model, std::move(id), request, std::move(keep));
}

Json input_items(const std::string& response_id, const Json& input, std::string_view query) {
  const std::string_view order = query_value(query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    throw invalid_value("order", "want asc or desc, found {}", order);
  for (const char* part : {"limit", "after"})
    if (!query_value(query, part).empty()) throw unsupported_value(part, "the list is given whole");
  Json items = Json::array();
  for (const Json& given : input.is_string() ? Json::array({{{"role", "user"}, {"content", input}}}) : input) {
    items.push_back({{"id", fmt::format("item_{}_{}", response_id, items.size())}, {"type", "message"}});
    items.back().update(given);
    if (items.back().value("content", Json()).is_string())
      items.back()["content"] = Json::array({{{"type", "input_text"}, {"text", items.back()["content"]}}});
  }
  if (order != "asc") std::reverse(items.begin(), items.end());
  const Json first = items.empty() ? Json() : items.front()["id"], last = items.empty() ? Json() : items.back()["id"];
  return {{"object", "list"}, {"data", std::move(items)}, {"first_id", first}, {"last_id", last}, {"has_more", false}};
}

}  // namespace nibble::server

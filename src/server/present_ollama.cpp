// /api/chat and /api/generate, Ollama's: one object, or a stream of lines of JSON.

#include "server/presenter.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::server {
namespace {

class OllamaPresenter final : public TurnPresenter {
 public:
  OllamaPresenter(const ServedModel& model, AnswerId id, const TurnRequest& request, OllamaFor what)
      : TurnPresenter(model, std::move(id), request),
        is_chat_(what == OllamaFor::kChat),
        logprobs_(request.generation.request.logprobs >= 0) {}

  [[nodiscard]] std::string_view stream_type() const override { return "application/x-ndjson"; }

  void end() override {
    if (stream_) send_line(last("", "", Json::array()));
  }
  void failed(const ApiError& error) override { send_line(ollama_error(error)); }
  [[nodiscard]] Json failure(const ApiError& error) const override { return ollama_error(error); }

  Json body() override {
    Json calls = Json::array();
    for (const TurnItem& item : only().items)
      if (item.kind == ItemKind::kCall) calls.push_back(item.json);
    return last(text_of(only(), ItemKind::kContent), text_of(only(), ItemKind::kReasoning), std::move(calls));
  }

 private:
  // An object of the answer. Empty parts are left out, but for the content.
  [[nodiscard]] Json object(std::string_view content, std::string_view thinking, Json calls, bool done) {
    Json json = {{"model", id_.model}, {"created_at", utc_time(id_.created)}};
    Json part = is_chat_ ? Json{{"role", "assistant"}, {"content", content}} : Json{{"response", content}};
    if (!thinking.empty()) part["thinking"] = thinking;
    if (!calls.empty()) part["tool_calls"] = std::move(calls);
    is_chat_ ? static_cast<void>(json["message"] = std::move(part)) : json.update(part);
    json["done"] = done;
    Json entries = logprobs_ ? choice(0).logprobs.take(only().content_bytes) : Json();
    if (!entries.empty()) json["logprobs"] = std::move(entries);
    return json;
  }

  [[nodiscard]] Json last(std::string_view content, std::string_view thinking, Json calls) {
    Json json = object(content, thinking, std::move(calls), /*done=*/true);
    if (!only().finish) {
      json["done_reason"] = "load";
      return json;
    }
    const engine::Finished& f = *only().finish;
    const auto ns = [](double seconds) { return static_cast<int64_t>(seconds * 1e9); };
    json.update({{"done_reason", finish_reason(f.reason, false)},
                 {"total_duration", ns(f.queue_seconds + f.prefill_seconds + f.decode_seconds)},
                 {"load_duration", 0},
                 {"prompt_eval_count", f.prompt_tokens},
                 {"prompt_eval_duration", ns(f.prefill_seconds)},
                 {"eval_count", only().usage.completion_tokens},
                 {"eval_duration", ns(f.decode_seconds)}});
    return json;
  }

  void send_text(ItemKind kind, std::string_view text) {
    if (!stream_) return;
    const auto chunk = [&](std::string_view with) {
      return kind == ItemKind::kContent ? object(with, "", {}, false) : object("", with, {}, false);
    };
    if (logprobs_) return send_line(chunk(text));
    auto& [of, with] = chunk_;
    if (!with || of != kind) of = kind, with.emplace(chunk(ChunkTemplate::kHole));
    send_line(with->filled(text));
  }

  void item_begun(size_t, TurnItem& item) override {
    if (item.kind != ItemKind::kCall && earlier(only()) > 0) send_text(item.kind, kBreak);
  }
  void item_grown(size_t, TurnItem& item, const std::string& by) override {
    if (item.kind != ItemKind::kCall) send_text(item.kind, by);
  }
  void item_ended(size_t, TurnItem& item) override {
    if (item.kind != ItemKind::kCall) return;
    item.json = {{"function", {{"name", item.callee.name}, {"arguments", object_of(item.text)}}}};
    if (stream_) send_line(object("", "", Json::array({item.json}), /*done=*/false));
  }

  const bool is_chat_, logprobs_;
  std::pair<ItemKind, std::optional<ChunkTemplate>> chunk_;  // with more of an item of this kind
};

}  // namespace

std::unique_ptr<Presenter> present_ollama_chat(const ServedModel& model, AnswerId id, const TurnRequest& request) {
  return std::make_unique<OllamaPresenter>(model, std::move(id), request, OllamaFor::kChat);
}

std::unique_ptr<Presenter> present_ollama_text(const ServedModel& model, AnswerId id, const TurnRequest& request) {
  return std::make_unique<OllamaPresenter>(model, std::move(id), request, OllamaFor::kGenerate);
}

Json ollama_error(const ApiError& error) { return {{"error", error.what()}}; }

}  // namespace nibble::server

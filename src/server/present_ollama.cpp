// /api/chat and /api/generate, Ollama's: one object, or a stream of lines of JSON.

#include "base/time_text.h"
#include "engine/pages.h"
#include "server/presenter.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace nibble::server {
namespace {

class OllamaPresenter final : public TurnPresenter {
 public:
  OllamaPresenter(const ServedModel& model, AnswerId id, const TurnRequest& request)
      : TurnPresenter(model, std::move(id), request),
        is_chat_(request.prompt_field != kOllamaPrompt),
        logprobs_(request.generation.request.logprobs >= 0) {}

  [[nodiscard]] std::string_view stream_type() const override { return kLines; }

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
    json.update(is_chat_ ? Json{{"message", part}} : part);
    json["done"] = done;
    Json entries = logprobs_ ? choice(0).logprobs.take(only().content_bytes) : Json();
    if (!entries.empty()) json["logprobs"] = std::move(entries);
    return json;
  }

  [[nodiscard]] Json last(std::string_view content, std::string_view thinking, Json calls) {
    Json json = object(content, thinking, std::move(calls), /*done=*/true);
    const engine::Finished f = only().finish.value_or(engine::Finished());
    const auto ns = [](double seconds) { return static_cast<int64_t>(seconds * 1e9); };
    json.update({{"done_reason", only().finish ? finish_reason(f.reason, false) : "load"},
                 {"total_duration", ns(f.queue_seconds + f.prefill_seconds + f.decode_seconds)},
                 {"load_duration", 0},
                 {"prompt_eval_count", f.prompt_tokens},
                 {"prompt_eval_duration", ns(f.prefill_seconds)},
                 {"eval_count", only().usage.completion_tokens},
                 {"eval_duration", ns(f.decode_seconds)}});
    return json;
  }

  void send_text(ItemKind kind, std::string_view text) {
    if (!stream_ || kind == ItemKind::kCall) return;  // a call is sent whole
    const bool is_content = kind == ItemKind::kContent;
    send_line(object(is_content ? text : "", is_content ? "" : text, {}, /*done=*/false));
  }

  void item_begun(size_t, TurnItem& item) override {
    if (earlier(only()) > 0) send_text(item.kind, kBreak);
  }
  void item_grown(size_t, TurnItem& item, const std::string& by) override { send_text(item.kind, by); }
  void item_ended(size_t, TurnItem& item) override {
    if (item.kind != ItemKind::kCall) return;
    item.json = {{"function", {{"name", item.callee.name}, {"arguments", object_of(item.text)}}}};
    if (stream_) send_line(object("", "", Json::array({item.json}), /*done=*/false));
  }

  const bool is_chat_, logprobs_;
};

}  // namespace

std::unique_ptr<Presenter> present_ollama(const ServedModel& model, AnswerId id, const TurnRequest& request) {
  return std::make_unique<OllamaPresenter>(model, std::move(id), request);
}

Json ollama_error(const ApiError& error) { return {{"error", error.what()}}; }

Json ollama_entry(const ServedModel& model, int64_t since, const std::string& name) {
  const ModelFacts& facts = model.facts;
  std::string digest;
  for (uint64_t hash = static_cast<uint64_t>(facts.bytes); digest.size() < 64;) {
    hash = engine::hashed(hash, static_cast<uint64_t>(facts.parameters));
    digest += fmt::format("{:016x}", hash);
  }
  return {{"name", name},
          {"model", name},
          {"modified_at", utc_time(since)},
          {"size", facts.bytes},
          {"digest", digest},
          {"details",
           {{"parent_model", ""},
            {"format", facts.format},
            {"family", "gptoss"},
            {"families", {"gptoss"}},
            {"parameter_size", fmt::format("{:.1f}B", static_cast<double>(facts.parameters) / 1e9)},
            {"quantization_level", facts.quantization}}}};
}

Json ollama_details(const ServedModel& model, int64_t since, const std::string& name) {
  Json entry = ollama_entry(model, since, name);
  for (const char* empty : {"license", "modelfile", "parameters", "template"}) entry[empty] = "";
  entry["capabilities"] = {"completion", "tools", "thinking"};
  entry["model_info"] = {{"general.architecture", "gptoss"},
                         {"general.parameter_count", model.facts.parameters},
                         {"gptoss.context_length", model.max_context}};
  return entry;
}

}  // namespace nibble::server

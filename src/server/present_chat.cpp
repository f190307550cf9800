// /v1/chat/completions: the answer, whole or in chunks.

#include "server/presenter.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace nibble::server {
namespace {

class ChatPresenter final : public TurnPresenter {
 public:
  ChatPresenter(const ServedModel& model, AnswerId id, const TurnRequest& request)
      : TurnPresenter(model, id, request),
        frame_{std::move(id), request.generation, "chat.completion", "chat.completion.chunk"},
        sending_(choices().size()) {}

  void progress(size_t choice, const engine::PromptProgress& read) override {
    if (choice == 0) send(frame_.progress_chunk(read));  // all have the same prompt
  }

  void end() override {
    if (!stream_) return;
    if (frame_.wanted.include_usage) send(frame_.last_chunk(usage()));
    send_done();
  }

  Json body() override {
    Json list = Json::array();
    for (size_t i = 0; i < choices().size(); ++i) {
      Choice& c = choice(i);
      Json calls = Json::array();
      for (TurnItem& item : c.items)
        if (item.kind == ItemKind::kCall) calls.push_back(std::move(item.json));
      const std::string reasoning = text_of(c, ItemKind::kReasoning), content = text_of(c, ItemKind::kContent);
      Json message = {{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
      if (content.empty() && !calls.empty()) message["content"] = nullptr;
      if (!reasoning.empty()) message["reasoning_content"] = message["reasoning"] = reasoning;
      if (!calls.empty()) message["tool_calls"] = std::move(calls);
      list.push_back({{"index", i},
                      {"message", std::move(message)},
                      {"logprobs", frame_.logprobs() ? Json{{"content", c.logprobs.take(c.content_bytes)}} : Json()},
                      {"finish_reason", sending_[i].finish_reason}});
      if (frame_.wanted.return_token_ids) list.back()["token_ids"] = sending_[i].token_ids;
    }
    return frame_.whole(std::move(list), usage());
  }

 private:
  struct Sending {
    bool opened = false;
    Json finish_reason{};                                 // null until the choice has finished
    std::vector<int32_t> token_ids{};                     // not yet sent
    std::optional<ChunkTemplate> reasoning{}, content{};  // chunks with nothing new but text
  };

  // How a call is told: its type, which is also the name of its object, and the name of its text there.
  static std::pair<const char*, const char*> form_of(const TurnItem& item) {
    return item.callee.kind == ToolKind::kCustom ? std::pair("custom", "input") : std::pair("function", "arguments");
  }

  // A stream's choice begins with the first token, not earlier: clients take the first chunk as the end of the prompt.
  void next(size_t choice, const engine::TokenEvent* event) override {
    Sending& s = sending_[choice];
    if (stream_ && !std::exchange(s.opened, true)) send_delta(choice, {{"role", "assistant"}, {"content", ""}});
    if (event != nullptr && frame_.wanted.return_token_ids) s.token_ids.push_back(event->token);
  }

  void item_begun(size_t choice, TurnItem& item) override {
    const int64_t before = earlier(this->choice(choice));
    if (item.kind != ItemKind::kCall) {
      if (stream_ && before > 0) send_text(choice, item.kind, kBreak);
      return;
    }
    const auto& [type, text] = form_of(item);
    item.json = {{"id", make_id("call_")}, {"type", type}, {type, {{"name", item.callee.name}, {text, ""}}}};
    if (!stream_) return;
    send_delta(choice, {{"tool_calls", Json::array({merged({{"index", before}}, item.json)})}});
  }

  void item_grown(size_t choice, TurnItem& item, const std::string& by) override {
    if (!stream_) return;
    if (item.kind != ItemKind::kCall) return send_text(choice, item.kind, by);
    const auto& [type, text] = form_of(item);
    send_delta(choice,
               {{"tool_calls", Json::array({{{"index", earlier(this->choice(choice))}, {type, {{text, by}}}}})}});
  }

  void item_ended(size_t, TurnItem& item) override {
    const auto& [type, text] = form_of(item);
    if (item.kind == ItemKind::kCall) item.json[type][text] = item.text;
  }

  void choice_ended(size_t choice) override {
    const Choice& c = this->choice(choice);
    sending_[choice].finish_reason = finish_reason(c.finish->reason, c.reader.called());
    if (stream_) send_delta(choice, Json::object());
  }

  void send_delta(size_t choice, Json delta) { send(chunk_of(choice, std::move(delta))); }

  void send_text(size_t choice, ItemKind kind, std::string_view text) {
    const auto delta = [kind](std::string_view value) {
      return kind == ItemKind::kContent ? Json{{"content", value}}
                                        : Json{{"reasoning_content", value}, {"reasoning", value}};
    };
    if (!frame_.only_text_changes()) return send_delta(choice, delta(text));
    Sending& s = sending_[choice];
    std::optional<ChunkTemplate>& chunk = kind == ItemKind::kContent ? s.content : s.reasoning;
    if (!chunk) chunk.emplace(chunk_of(choice, delta(ChunkTemplate::kHole)));
    send_json(chunk->filled(text));
  }

  Json chunk_of(size_t choice, Json delta) {
    Choice& c = this->choice(choice);
    Sending& s = sending_[choice];
    Json item = {
        {"index", choice}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", s.finish_reason}};
    if (frame_.logprobs()) {
      Json entries = c.logprobs.take(c.content_bytes);
      if (!entries.empty()) item["logprobs"] = {{"content", std::move(entries)}};
    }
    if (frame_.wanted.return_token_ids) item["token_ids"] = std::exchange(s.token_ids, {});
    return frame_.chunk(std::move(item), c.usage);
  }

  const CompletionFrame frame_;
  std::vector<Sending> sending_;
};

}  // namespace

std::unique_ptr<Presenter> present_chat(const ServedModel& model, AnswerId id, const TurnRequest& request) {
  return std::make_unique<ChatPresenter>(model, std::move(id), request);
}

}  // namespace nibble::server

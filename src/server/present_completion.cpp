// /v1/completions: the text, whole or in chunks. Choice p * n + i is answer i to prompt p.

#include "server/presenter.h"
#include "text/text_stream.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace nibble::server {
namespace {

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

struct Entry {  // of the logprobs object
  std::string token;
  Json logprob, top;
  int64_t offset;  // characters
};

struct TextChoice {
  text::StopStrings stops;
  text::Utf8Stream utf8{};
  std::string text{};
  size_t own_bytes = 0;                             // of the text that was generated, not echoed
  size_t pushed = 0;                                // bytes of the tokens generated so far
  int64_t characters = 0;                           // of all tokens so far
  std::vector<std::pair<size_t, Entry>> waiting{};  // first byte, entry; echoed ones have byte 0
  Json logprobs{};
  std::vector<int32_t> token_ids{};  // not yet sent
  Usage usage{};
  bool ended = false;  // by a stop string
  bool begun = false;
  Json finish_reason{};
  std::optional<ChunkTemplate> chunk{};  // of its chunks, where nothing but text is in them
};

class CompletionPresenter final : public Presenter {
 public:
  CompletionPresenter(const ServedModel& model, AnswerId id, const CompletionRequest& request)
      : model_(model),
        frame_{std::move(id), request.generation, "text_completion", "text_completion"},
        skip_special_(request.skip_special_tokens),
        per_prompt_(static_cast<size_t>(request.generation.n)) {
    const auto match =
        request.generation.include_stop ? text::StopStrings::Match::kIncluded : text::StopStrings::Match::kExcluded;
    for (const auto& prompt : request.prompts) {
      TextChoice choice{.stops = text::StopStrings(request.generation.stop, match)};
      if (request.echo) echo(choice, prompt);
      for (size_t i = 0; i < per_prompt_; ++i) choices_.push_back(choice);
    }
  }

  void prompt(size_t choice, int64_t tokens) override { choices_[choice].usage.prompt_tokens = tokens; }

  bool token(size_t choice, const engine::TokenEvent& event) override {
    TextChoice& c = choices_[choice];
    begin_choice(choice);
    if (event.of_prompt) {
      add_entry(c, event, 0, bytes_of(event.token));
      return true;
    }
    ++c.usage.completion_tokens;
    if (frame_.wanted.return_token_ids) c.token_ids.push_back(event.token);
    std::string_view bytes = bytes_of(event.token);
    if (skip_special_ && model_.tokenizer->is_special(event.token)) bytes = {};
    if (frame_.logprobs()) add_entry(c, event, c.pushed, bytes);
    c.pushed += bytes.size();
    std::string text = c.utf8.push(bytes);
    if (c.usage.completion_tokens > frame_.wanted.request.min_tokens) {
      text::StopStrings::Step step = c.stops.push(text);
      c.ended = step.stop_idx.has_value();
      text = std::move(step.text);
    }
    emit(choice, text);
    return !c.ended;
  }

  void finished(size_t choice, const engine::Finished& finished) override {
    TextChoice& c = choices_[choice];
    begin_choice(choice);
    std::string rest;
    if (!c.ended) {
      rest = c.stops.push(c.utf8.finish()).text;
      rest += c.stops.finish();
    }
    c.usage.prompt_tokens = finished.prompt_tokens;
    c.usage.cached_tokens = finished.cached_tokens;
    c.finish_reason = server::finish_reason(finished.reason, false);
    if (!c.ended) c.own_bytes = c.pushed + 1;  // all entries may go
    emit(choice, rest, /*even_empty=*/true);
  }

  void end() override {
    if (!frame_.wanted.stream) return;
    if (frame_.wanted.include_usage) send(frame_.last_chunk(usage()));
    send_done();
  }

  Json body() override {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      TextChoice& c = choices_[i];
      list.push_back({{"index", i},
                      {"text", std::move(c.text)},
                      {"logprobs", std::move(c.logprobs)},
                      {"finish_reason", c.finish_reason}});
      if (frame_.wanted.return_token_ids) list.back()["token_ids"] = c.token_ids;
    }
    return frame_.whole(std::move(list), usage());
  }

  [[nodiscard]] Usage usage() const override {
    Usage sum;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Usage& one = choices_[i].usage;
      sum.completion_tokens += one.completion_tokens;
      if (i % per_prompt_ != 0) continue;
      sum.prompt_tokens += one.prompt_tokens;
      sum.cached_tokens += one.cached_tokens;
    }
    return sum;
  }

 private:
  [[nodiscard]] std::string_view bytes_of(int32_t token) const {
    return model_.tokenizer->contains(token) ? model_.tokenizer->token_bytes(token) : std::string_view();
  }

  void echo(TextChoice& c, const std::variant<std::string, std::vector<int32_t>>& prompt) {
    const bool is_text = std::holds_alternative<std::string>(prompt);
    const std::vector<int32_t> ids =
        is_text ? model_.tokenizer->encode(std::get<std::string>(prompt), text::SpecialTokens::kAllowed)
                : std::get<std::vector<int32_t>>(prompt);
    std::string bytes;
    for (const int32_t id : ids) bytes += bytes_of(id);
    c.text = text::valid_utf8(bytes);
    if (frame_.logprobs() && !ids.empty())
      add_entry(c, {.token = ids[0], .of_prompt = true, .logprobs = {}}, 0, bytes_of(ids[0]));
  }

  // `shown`: what the token adds to the text.
  void add_entry(TextChoice& c, const engine::TokenEvent& event, size_t byte, std::string_view shown) {
    const std::string_view bytes = bytes_of(event.token);
    Entry entry{.token = std::string(bytes), .logprob = {}, .top = {}, .offset = c.characters};
    if (event.logprobs) {
      entry.logprob = finite_logprob(event.logprobs->value);
      entry.top = Json::object();
      for (const engine::Logprob& other : event.logprobs->top)
        entry.top[std::string(bytes_of(other.token))] = finite_logprob(other.value);
      entry.top[std::string(bytes)] = entry.logprob;  // beside the likeliest ones
    }
    c.characters += characters(shown);
    c.waiting.emplace_back(byte, std::move(entry));
  }

  void begin_choice(size_t choice) {
    TextChoice& c = choices_[choice];
    if (std::exchange(c.begun, true) || c.text.empty() || !frame_.wanted.stream) return;
    send_chunk(choice, c.text);
  }

  void emit(size_t choice, const std::string& text, bool even_empty = false) {
    TextChoice& c = choices_[choice];
    c.own_bytes += text.size();
    if (!frame_.wanted.stream) c.text += text;
    if (text.empty() && !even_empty) return;
    if (frame_.wanted.stream) return send_chunk(choice, text);
    take_entries(c, c.logprobs);
  }

  void send_chunk(size_t choice, const std::string& text) {
    TextChoice& c = choices_[choice];
    if (!frame_.only_text_changes() || !c.finish_reason.is_null()) return send(chunk_of(choice, text));
    if (!c.chunk) c.chunk.emplace(chunk_of(choice, ChunkTemplate::kHole));
    send_json(c.chunk->filled(text));
  }

  Json chunk_of(size_t choice, std::string_view text) {
    TextChoice& c = choices_[choice];
    Json logprobs;
    take_entries(c, logprobs);
    Json item = {
        {"index", choice}, {"text", text}, {"logprobs", std::move(logprobs)}, {"finish_reason", c.finish_reason}};
    if (frame_.wanted.return_token_ids) item["token_ids"] = std::exchange(c.token_ids, {});
    return frame_.chunk(std::move(item), c.usage);
  }

  void take_entries(TextChoice& c, Json& into) const {
    if (!frame_.logprobs()) return;
    if (into.is_null())
      into = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
    auto it = c.waiting.begin();
    for (; it != c.waiting.end() && (it->first < c.own_bytes || it->first == 0); ++it) {
      into["tokens"].push_back(it->second.token);
      into["token_logprobs"].push_back(it->second.logprob);
      into["top_logprobs"].push_back(std::move(it->second.top));
      into["text_offset"].push_back(it->second.offset);
    }
    c.waiting.erase(c.waiting.begin(), it);
  }

  const ServedModel& model_;
  const CompletionFrame frame_;
  const bool skip_special_;
  const size_t per_prompt_;
  std::vector<TextChoice> choices_;
};

}  // namespace

std::unique_ptr<Presenter> present_completion(const ServedModel& model, AnswerId id, const CompletionRequest& request) {
  return std::make_unique<CompletionPresenter>(model, std::move(id), request);
}

}  // namespace nibble::server

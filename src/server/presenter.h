#pragma once
// Turns the engine's answers into one endpoint's JSON, whole or as server-sent events. Pure: no engine, no HTTP, no
// clock.

#include "engine/request.h"
#include "server/api_error.h"
#include "server/http.h"
#include "server/schema.h"
#include "server/turn_reader.h"
#include "text/grammar.h"
#include "text/harmony_tokens.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::server {

// What programs like to show of a model.
struct ModelFacts {
  std::string format{}, quantization{};
  int64_t bytes = 0, parameters = 0;
  bool on_card = false;
};

// What answers need to know about the model.
struct ServedModel {
  const text::Tokenizer* tokenizer;
  const text::GrammarCompiler* grammars;
  text::HarmonyIds ids;
  std::vector<std::string> names;  // the names it is served under; the first one is shown
  std::string root{};              // the model as it was given at the start
  std::vector<int32_t> eos_ids;
  int64_t max_context = 0, vocab = 0;
  bool by_priority = false;  // --scheduling-policy priority
  ModelFacts facts{};
};

struct AnswerId {
  std::string id;       // chatcmpl-…, cmpl-…, resp_…, msg_…
  std::string model;    // the name in the answer
  int64_t created = 0;  // seconds since 1970
};

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
};

// A chunk of a stream in which only one text changes from token to token: built once, then filled.
class ChunkTemplate {
 public:
  static constexpr std::string_view kHole{"\0", 1};  // stands in the chunk in place of the text
  explicit ChunkTemplate(const Json& chunk);
  [[nodiscard]] std::string filled(std::string_view text) const;  // equals to_text() of the whole chunk

 private:
  std::vector<std::string> parts_;  // around the holes
};

// Choices are numbered from 0. Each gets its tokens in order and then one finished().
class Presenter {
 public:
  virtual ~Presenter() = default;
  // The length of a choice's prompt. Comes before everything else.
  virtual void prompt(size_t /*choice*/, int64_t /*tokens*/) {}
  // Comes before the tokens of a stream.
  virtual void begin() {}
  virtual void progress(size_t /*choice*/, const engine::PromptProgress& /*read*/) {}
  // False: the choice is complete; its further tokens are not sent here.
  virtual bool token(size_t choice, const engine::TokenEvent& event) = 0;
  // kStop if token() returned false.
  virtual void finished(size_t choice, const engine::Finished& finished) = 0;
  // All choices have finished.
  virtual void end() = 0;
  [[nodiscard]] virtual std::string_view stream_type() const { return kEventStream; }
  // A stream that cannot begin, since its prompt is too long, says so by its events, with a 200.
  [[nodiscard]] virtual bool streams_overflow() const { return false; }
  // A stream ends here, unfinished.
  virtual void failed(const ApiError& error) {
    send(error.json());
    send_done();
  }
  // What is sent in place of a whole answer.
  [[nodiscard]] virtual Json failure(const ApiError& error) const { return error.json(); }
  // The whole answer. REQUIRES end(), and that it is not a stream.
  [[nodiscard]] virtual Json body() = 0;
  [[nodiscard]] virtual Usage usage() const = 0;
  [[nodiscard]] virtual int64_t repairs() const { return 0; }

  // A stream's text since the last call.
  [[nodiscard]] std::string take() { return std::exchange(text_, {}); }

 protected:
  void send(const Json& json) { send_json(to_text(json)); }
  void send(std::string_view event, const Json& json) { send_json(event, to_text(json)); }
  void send_json(std::string_view event, std::string_view json) {
    text_.append("event: ").append(event).append("\n");
    send_json(json);
  }
  void send_json(std::string_view json) { text_.append("data: ").append(json).append("\n\n"); }
  void send_done() { text_ += "data: [DONE]\n\n"; }
  void send_line(const Json& json) { text_ += to_text(json) + '\n'; }

 private:
  std::string text_;
};

// `prefix` and 24 random letters and digits.
[[nodiscard]] std::string make_id(std::string_view prefix);
// A call's arguments. They are an object unless the call was cut short, or no grammar held it.
[[nodiscard]] Json object_of(std::string_view arguments);
// "stop", "tool_calls" or "length".
[[nodiscard]] std::string_view finish_reason(engine::FinishReason reason, bool called);
[[nodiscard]] double finite_logprob(double value);  // JSON has no minus infinity
// The fields of one object, then the other's.
[[nodiscard]] Json merged(Json fields, const Json& more);

// What chat completions and completions have around their choices.
struct CompletionFrame {
  AnswerId id;
  GenerationFields wanted;
  std::string_view object, chunk_object;  // what the answer and a chunk are called

  [[nodiscard]] bool logprobs() const { return wanted.request.logprobs >= 0; }
  // All but the text is the same in every chunk, until the choice ends.
  [[nodiscard]] bool only_text_changes() const {
    return !logprobs() && !wanted.return_token_ids && !wanted.continuous_usage;
  }
  [[nodiscard]] Json whole(Json choices, const Usage& usage) const;
  [[nodiscard]] Json chunk(Json choice, const Usage& so_far) const;
  [[nodiscard]] Json last_chunk(const Usage& usage) const;  // with the usage alone
  [[nodiscard]] Json progress_chunk(const engine::PromptProgress& read) const;

 private:
  [[nodiscard]] Json head(std::string_view name) const;
};

// Logprobs of the content's tokens. Each is sent with the text that holds its first byte.
class ContentLogprobs {
 public:
  // A token that was read, and what came of it. Before it, the turn was `in_content` or in a header; a header that
  // turns out to be text has no entries.
  void add(const text::Tokenizer& tokenizer, const engine::TokenEvent& event, const TurnReader& reader, bool in_content,
           const std::vector<TurnEvent>& events);
  // Entries of the first `emitted` bytes: {token, logprob, bytes}, and the likeliest tokens as top_logprobs.
  [[nodiscard]] Json take(size_t emitted);

 private:
  std::vector<std::pair<size_t, Json>> waiting_;
  size_t pushed_ = 0;
};

// A part of an answer to a turn: some reasoning, some text, or a call.
struct TurnItem {
  ItemKind kind;
  Callee callee{};
  bool preamble = false;  // content before a call
  std::string text{};     // so far; a call's arguments
  Json json{};            // the item as the endpoint presents it
  bool ended = false;
};

// Answers to a turn as items, in their order. Endpoints say what is sent when one begins, grows and ends.
class TurnPresenter : public Presenter {
 public:
  void prompt(size_t choice, int64_t tokens) final { choices_[choice].usage.prompt_tokens = tokens; }
  bool token(size_t choice, const engine::TokenEvent& event) final;
  void finished(size_t choice, const engine::Finished& finished) final;
  [[nodiscard]] Usage usage() const final;
  [[nodiscard]] int64_t repairs() const final;

 protected:
  struct Choice {
    TurnReader reader;
    std::vector<TurnItem> items{};
    Usage usage{};
    std::optional<engine::Finished> finish{};
    ContentLogprobs logprobs{};
    size_t content_bytes = 0;  // of all text
  };
  TurnPresenter(const ServedModel& model, AnswerId id, const TurnRequest& request);

  // Before a token is read, and before the end of a choice.
  virtual void next(size_t /*choice*/, const engine::TokenEvent* /*event*/) {}
  virtual void item_begun(size_t choice, TurnItem& item) = 0;
  virtual void item_grown(size_t choice, TurnItem& item, const std::string& by) = 0;
  virtual void item_ended(size_t choice, TurnItem& item) = 0;
  virtual void choice_ended(size_t /*choice*/) {}

  [[nodiscard]] Choice& choice(size_t index) { return choices_[index]; }
  [[nodiscard]] std::vector<Choice>& choices() { return choices_; }
  [[nodiscard]] const Choice& only() const { return choices_[0]; }  // of endpoints with one
  static constexpr std::string_view kBreak = "\n\n";                // between two items that become one text
  [[nodiscard]] static std::string text_of(const Choice& choice, ItemKind kind);
  // Whether items of its kind came before the last one.
  [[nodiscard]] static int64_t earlier(const Choice& choice);

  const AnswerId id_;
  const bool stream_;

 private:
  void take(size_t choice, const std::vector<TurnEvent>& events);

  const text::Tokenizer& tokenizer_;
  const bool logprobs_, reasoning_;
  std::vector<Choice> choices_;
};

[[nodiscard]] std::unique_ptr<Presenter> present_chat(const ServedModel& model, AnswerId id,
                                                      const TurnRequest& request);
[[nodiscard]] std::unique_ptr<Presenter> present_completion(const ServedModel& model, AnswerId id,
                                                            const CompletionRequest& request);
// Anthropic's messages.
[[nodiscard]] std::unique_ptr<Presenter> present_message(const ServedModel& model, AnswerId id,
                                                         const TurnRequest& request);
// {type: error, error: {type, message}}
[[nodiscard]] Json message_error(const ApiError& error);
// Ollama's; a turn that computed nothing says that the model is loaded.
[[nodiscard]] std::unique_ptr<Presenter> present_ollama(const ServedModel& model, AnswerId id,
                                                        const TurnRequest& request);
[[nodiscard]] Json ollama_error(const ApiError& error);  // {error: message}
// A model as /api/tags lists it and, with more, /api/show. No file is hashed: the digest only tells models apart.
[[nodiscard]] Json ollama_entry(const ServedModel& model, int64_t since, const std::string& name);
[[nodiscard]] Json ollama_details(const ServedModel& model, int64_t since, const std::string& name);
// Called with a response that has ended, for the store: the object, and the messages that the model added.
using KeepResponse =
    std::function<void(const Json& response, const std::vector<text::Message>& added, const CallNames& calls)>;
[[nodiscard]] std::unique_ptr<Presenter> present_response(const ServedModel& model, AnswerId id,
                                                          const ResponsesRequest& request, KeepResponse keep);
// A list of a kept response's input, as items with ids; the last one first unless the query says order=asc. Throws
// ApiError.
[[nodiscard]] Json input_items(const std::string& response_id, const Json& input, std::string_view query);

}  // namespace nibble::server

#pragma once
// A turn of the model, token by token: what is reasoning, what is the answer, what calls a function. Total: any tokens
// become something, and nothing throws.
//
// `analysis` is reasoning; `final`, `commentary` without a recipient and text without a channel are content; a message
// with a recipient is a call, whatever its channel, where the request has tools, and content (in `analysis`:
// reasoning) where it has none. What the model writes under another role than the assistant's is reasoning.
// Stop strings are looked for in the content only, message by message.
// A call whose recipient is none of the tools', but nearly so (functions.SPACE.NAME, functions.SPACE__NAME, or a NAME
// that one tool has), is repaired and counted. The text of a custom tool that comes as JSON, an object with one string,
// is that string.

#include "server/schema.h"
#include "text/conversation.h"
#include "text/harmony_parse.h"
#include "text/harmony_tokens.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble::server {

enum class ItemKind { kReasoning, kContent, kCall };

// begin (text)* end, one item after the other. Reasoning and content without text are left out.
struct TurnEvent {
  enum class What { kBegin, kText, kEnd };
  What what;
  ItemKind kind;
  std::string text{};
  Callee callee{};        // kBegin of a call
  bool preamble = false;  // kBegin of content: it stands before a call
};

struct TurnOptions {
  bool calls = false;  // the request has tools
  std::vector<Callee> tools{};
  bool prefilled = false;      // the content has begun in the prompt
  bool parallel_calls = true;  // false: the turn ends where a second call would begin
  std::vector<std::string> stop{};
  bool include_stop = false;
  int64_t min_tokens = 0;  // stop strings are looked for after this many tokens
};

class TurnReader {
 public:
  TurnReader(const text::Tokenizer& tokenizer, const text::HarmonyIds& ids, const TurnOptions& options);

  // Takes one generated token. After a token that ended the turn, nothing more comes out.
  [[nodiscard]] std::vector<TurnEvent> push(int32_t token);
  // There are no more tokens: closes what is open.
  [[nodiscard]] std::vector<TurnEvent> finish();

  [[nodiscard]] bool ended() const { return ended_; }  // at a stop string or at one call too many
  // The index of the stop string that ended the turn.
  [[nodiscard]] std::optional<size_t> stop() const { return stop_; }
  // The last token belongs to the content.
  [[nodiscard]] bool in_content() const { return open_ == ItemKind::kContent; }
  [[nodiscard]] bool called() const { return calls_ > 0; }
  [[nodiscard]] int64_t reasoning_tokens() const { return reasoning_tokens_; }
  [[nodiscard]] int64_t repairs() const { return parser_.repairs() + names_repaired_; }
  // The assistant's messages so far, as Harmony has them.
  [[nodiscard]] const std::vector<text::Message>& messages() const { return messages_; }

 private:
  void take(const std::vector<text::Event>& events);
  void on(const text::MessageStarted& started);
  void on(const text::TextDelta& delta);
  void on(const text::MessageEnded& ended);
  void on(text::Repair) {}
  void emit_text(std::string text);
  [[nodiscard]] ItemKind kind_of(const text::MessageHeader& header) const;
  [[nodiscard]] Callee called(std::string_view recipient);

  const text::Tokenizer& tokenizer_;
  const text::HarmonyIds& ids_;
  const TurnOptions options_;
  text::HarmonyParser parser_;
  text::StopStrings stops_;
  std::optional<text::WrappedString> wrapped_;  // the open call's text, if it should be raw and comes as JSON
  std::vector<TurnEvent> events_;               // of the push at work
  std::vector<text::Message> messages_;
  std::optional<ItemKind> open_;  // of the message that is open
  bool begun_ = false;            // its kBegin is out
  bool ended_ = false;
  std::optional<size_t> stop_;
  int calls_ = 0;
  int64_t tokens_ = 0, reasoning_tokens_ = 0, names_repaired_ = 0;
};

}  // namespace nibble::server

#pragma once
// Harmony → messages, token by token. Total: every sequence of tokens gives some messages and nothing throws.
//
// What leaves the format is repaired, counted and reported:
//   found                                      becomes                                         repair
//   text where a header should be              a message in `final`, or `commentary` with to=  missing_message *
//   <|channel|>analysis We need …              a message in that channel, text from `We` on    missing_message
//   <|channel|>The user …                      a message in `final`, text from `The` on        missing_message *
//   <|channel|>??<|message|>, odd<|message|>   a message in `final`, or `commentary` with to=  unknown_channel
//   <|channel|>commentary?<|message|>          a message in `commentary`                       unknown_channel
//   assistant<|message|>                       a message in `final`, or `commentary` with to=  missing_channel
//   <|start|>word<|message|>                   a message of the tool `word`                    unknown_role
//   commentary to=f<|call|>                    a message without text                          missing_message
//   <|channel|>final<|end|>                    nothing                                         abandoned_header
//   <|channel|>a<|channel|>b<|message|>        a message in b                                  stray_special
//   <|start|> or <|channel|> in the content    the message ends; the next one begins           missing_end
//   <|message|>, <|constrain|> in the content  left out                                        stray_special
//   text or <|channel|> after an end token     a message as if <|start|> stood there           missing_start
//   an end token after an end token            left out                                        stray_special
//   * and missing_channel
// Bytes of content come out exactly once and in order, and so does text that looked like a header but was none. Left
// out are: the words of a header, white space before the first word of text that stands in a header's place, and white
// space between messages. Invalid UTF-8 comes out as U+FFFD.
// Accepted without repair: openai-harmony's forms and the Hugging Face template's (` to=f<|channel|>commentary json`).
// Two readings differ from openai-harmony 0.0.8, which takes a lone last word for the recipient: <|constrain|>json and
// a lone `json` or `code` are content types here.

#include "text/conversation.h"
#include "text/harmony_header.h"
#include "text/harmony_tokens.h"
#include "text/text_stream.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::text {

struct MessageStarted {
  MessageHeader header;
};
struct TextDelta {
  std::string text;  // never empty, whole characters
};
enum class MessageEnd {
  kEnd,
  kReturn,
  kCall,
  kImplied,    // by the beginning of the next message
  kTruncated,  // by the end of the stream
};
struct MessageEnded {
  MessageEnd kind;
};
// started (delta)* ended, one message after the other; Repair stands anywhere.
using Event = std::variant<MessageStarted, TextDelta, MessageEnded, Repair>;

class HarmonyParser {
 public:
  // `role`: the generation prompt `<|start|>role` is consumed already. None: the stream begins before a <|start|>.
  explicit HarmonyParser(std::optional<Role> role = Role::kAssistant);

  // One token: a formatting token, or the bytes of any other token. How text is cut into pushes changes the cut of the
  // deltas and nothing else.
  [[nodiscard]] std::vector<Event> push(Special special);
  [[nodiscard]] std::vector<Event> push(std::string_view bytes);
  // The stream is over: closes what is open. The parser then stands where it does after a message.
  [[nodiscard]] std::vector<Event> finish();

  [[nodiscard]] int64_t repairs() const { return repairs_; }

 private:
  enum class State { kExpectStart, kHeader, kContent };

  void open_header(HeaderText::Opening opening, Role role, std::string name = {});
  void in_expect_start(Special special);
  void in_header(Special special);
  void in_content(Special special);
  void push_header_bytes(std::string_view bytes);
  void mark_header(HeaderText::Marker marker);
  void abandon_header(std::optional<Special> by);
  void begin_message(HeaderReading reading);
  void add_text(std::string_view bytes);
  void end_message(MessageEnd kind);
  void repair(Repair what);

  State state_ = State::kExpectStart;
  Role assumed_role_ = Role::kAssistant;  // of a message that names none
  HeaderText header_text_;                // in kHeader
  MessageHeader header_;                  // in kContent
  Utf8Stream utf8_;                       // in kContent; empty otherwise
  int64_t repairs_ = 0;
  std::vector<Event> events_;  // of the push at work
};

}  // namespace nibble::text

#pragma once
// One message header, from its raw text between formatting tokens to its fields. Pure; used by harmony_parse.
//
// A header is read word by word. Words that only a header can hold (a role after <|start|>, a known channel after
// <|channel|>, to=recipient, a known type after <|constrain|>) are taken at once. Words that might as well be text
// (`json`, `functions.f`, an unknown channel name) wait: the next formatting token confirms them, a further word of
// free text turns them into text. The first word that cannot be of a header ends it: from there on all is text.

#include "text/conversation.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nibble::text {

inline constexpr size_t kMaxHeaderBytes = 512;  // of text; a longer header is text. By the API a recipient ends at 257

// Every way in which a stream may leave the format and what becomes of it: the table is in harmony_parse.h.
enum class Repair {
  kMissingStart,     // a message without <|start|>
  kMissingMessage,   // free text where the header should have ended with <|message|>
  kMissingEnd,       // <|start|> or <|channel|> inside the content
  kMissingChannel,   // an assistant message without a channel
  kUnknownChannel,   // an assistant message in a channel that does not exist
  kUnknownRole,      // neither a role nor marked as a tool by a dot or to=
  kAbandonedHeader,  // a header that ended with nothing to say
  kStraySpecial,     // a formatting token that means nothing where it stands
};

struct MessageHeader {
  Role role = Role::kAssistant;
  std::string name;
  std::optional<std::string> recipient, channel;
  std::optional<ContentType> content_type;

  [[nodiscard]] Message message() const { return {role, name, recipient, channel, content_type}; }  // still empty
};

struct HeaderText {
  enum class Opening {
    kStart,         // after <|start|>: the first word is a role or a tool's name
    kGiven,         // the role is known: the generation prompt, or <|channel|> inside an earlier message
    kMissingStart,  // like kGiven, but any role may be named
  };
  Opening opening = Opening::kStart;
  Role role = Role::kAssistant;  // known, or to be assumed when none is named
  std::string name = {};         // of that role
  enum class Marker { kNone, kChannel, kConstrain };
  struct Part {
    Marker marker;  // the formatting token before the text
    std::string text;
  };
  std::vector<Part> parts = {{Marker::kNone, ""}};  // in order of appearance, each marker at most once

  [[nodiscard]] size_t bytes() const;
};

// What follows the header text read so far.
enum class HeaderEnd {
  kOpen,       // nothing yet: the last word may grow
  kMarked,     // <|channel|> or <|constrain|>
  kMessage,    // <|message|>
  kAbandoned,  // <|start|> or an end token: no <|message|> will come
  kTruncated,  // the stream ended
};

struct HeaderReading {
  MessageHeader header;             // meaningful unless the header is still open
  std::optional<std::string> text;  // set: the header is over, and this much of it was the message's text
  std::vector<Repair> repairs;      // meaningful with the header
};

[[nodiscard]] HeaderReading read_header(const HeaderText& text, HeaderEnd end);

}  // namespace nibble::text

#include "text/harmony_parse.h"

#include "base/ascii.h"

#include <algorithm>
#include <utility>

namespace nibble::text {
namespace {

bool is_end(Special special) {
  return special == Special::kEnd || special == Special::kReturn || special == Special::kCall;
}

MessageEnd end_of(Special special) {
  if (special == Special::kReturn) return MessageEnd::kReturn;
  return special == Special::kCall ? MessageEnd::kCall : MessageEnd::kEnd;
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos; }

bool has_letters(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return is_word_char(c, "") || (c & 0x80) != 0; });
}

}  // namespace

HarmonyParser::HarmonyParser(std::optional<Role> role) {
  if (!role) return;
  assumed_role_ = *role;
  open_header(HeaderText::Opening::kGiven, *role);
}

std::vector<Event> HarmonyParser::push(Special special) {
  switch (state_) {
    case State::kExpectStart: in_expect_start(special); break;
    case State::kHeader: in_header(special); break;
    case State::kContent: in_content(special); break;
  }
  return std::exchange(events_, {});
}

std::vector<Event> HarmonyParser::push(std::string_view bytes) {
  if (state_ == State::kContent)
    add_text(bytes);
  else
    push_header_bytes(bytes);
  return std::exchange(events_, {});
}

std::vector<Event> HarmonyParser::finish() {
  if (state_ == State::kHeader) abandon_header(std::nullopt);
  if (state_ == State::kContent) end_message(MessageEnd::kTruncated);
  state_ = State::kExpectStart;
  return std::exchange(events_, {});
}

void HarmonyParser::open_header(HeaderText::Opening opening, Role role, std::string name) {
  header_text_ = HeaderText{.opening = opening, .role = role, .name = std::move(name)};
  state_ = State::kHeader;
}

void HarmonyParser::in_expect_start(Special special) {
  if (is_end(special)) return repair(Repair::kStraySpecial);
  if (special == Special::kStart) return open_header(HeaderText::Opening::kStart, assumed_role_);
  repair(Repair::kMissingStart);
  open_header(HeaderText::Opening::kMissingStart, assumed_role_);
  in_header(special);
}

void HarmonyParser::in_header(Special special) {
  if (special == Special::kMessage) return begin_message(read_header(header_text_, HeaderEnd::kMessage));
  if (special == Special::kChannel) return mark_header(HeaderText::Marker::kChannel);
  if (special == Special::kConstrain) return mark_header(HeaderText::Marker::kConstrain);
  abandon_header(special);
  if (special == Special::kStart) open_header(HeaderText::Opening::kStart, assumed_role_);
}

void HarmonyParser::in_content(Special special) {
  if (is_end(special)) return end_message(end_of(special));
  if (special == Special::kMessage || special == Special::kConstrain) return repair(Repair::kStraySpecial);
  repair(Repair::kMissingEnd);
  end_message(MessageEnd::kImplied);
  if (special == Special::kStart) return open_header(HeaderText::Opening::kStart, assumed_role_);
  open_header(HeaderText::Opening::kGiven, header_.role, header_.name);
  mark_header(HeaderText::Marker::kChannel);
}

void HarmonyParser::push_header_bytes(std::string_view bytes) {
  // Byte by byte, so that the end of a header does not depend on how the text was cut into tokens.
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (state_ == State::kExpectStart) {
      if (is_blank(bytes.substr(at, 1))) continue;
      repair(Repair::kMissingStart);
      open_header(HeaderText::Opening::kMissingStart, assumed_role_);
    }
    header_text_.parts.back().text += bytes[at];
    HeaderReading reading = read_header(header_text_, HeaderEnd::kOpen);
    if (!reading.text) continue;
    begin_message(std::move(reading));
    return add_text(bytes.substr(at + 1));
  }
}

// <|channel|> or <|constrain|> in a header. A second one replaces the first, unless text stood between them.
void HarmonyParser::mark_header(HeaderText::Marker marker) {
  const Special special = marker == HeaderText::Marker::kChannel ? Special::kChannel : Special::kConstrain;
  auto& parts = header_text_.parts;
  const auto earlier =
      std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.marker == marker; });
  const bool is_repeated = earlier != parts.end();
  HeaderReading reading = read_header(header_text_, is_repeated ? HeaderEnd::kAbandoned : HeaderEnd::kMarked);
  const bool is_noise = is_repeated && earlier + 1 == parts.end() && reading.text && !has_letters(*reading.text);
  if (reading.text && !is_noise) {
    begin_message(std::move(reading));
    return in_content(special);
  }
  if (is_repeated) {
    repair(Repair::kStraySpecial);
    parts.erase(earlier);
  }
  parts.push_back({marker, ""});
}

// The header has no <|message|>: the text in it becomes the message's, or it is a call without arguments, or nothing.
void HarmonyParser::abandon_header(std::optional<Special> by) {
  HeaderReading reading = read_header(header_text_, by ? HeaderEnd::kAbandoned : HeaderEnd::kTruncated);
  const bool is_ended = by && is_end(*by);
  if (!reading.text && !(is_ended && reading.header.recipient)) {
    const auto has_words = [](const HeaderText::Part& part) { return !is_blank(part.text); };
    if (by || std::ranges::any_of(header_text_.parts, has_words)) repair(Repair::kAbandonedHeader);
    state_ = State::kExpectStart;
    return;
  }
  if (!reading.text) repair(Repair::kMissingMessage);
  begin_message(std::move(reading));
  end_message(is_ended ? end_of(*by) : by ? MessageEnd::kImplied : MessageEnd::kTruncated);
}

void HarmonyParser::begin_message(HeaderReading reading) {
  for (const Repair repaired : reading.repairs) repair(repaired);
  header_ = reading.header;
  events_.emplace_back(MessageStarted{std::move(reading.header)});
  state_ = State::kContent;
  if (reading.text) add_text(*reading.text);
}

void HarmonyParser::add_text(std::string_view bytes) {
  if (std::string text = utf8_.push(bytes); !text.empty()) events_.emplace_back(TextDelta{std::move(text)});
}

void HarmonyParser::end_message(MessageEnd kind) {
  if (std::string text = utf8_.finish(); !text.empty()) events_.emplace_back(TextDelta{std::move(text)});
  events_.emplace_back(MessageEnded{kind});
  state_ = State::kExpectStart;
}

void HarmonyParser::repair(Repair what) {
  ++repairs_;
  events_.emplace_back(what);
}

}  // namespace nibble::text

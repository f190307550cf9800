// Any token stream: messages are well nested, the cut into tokens changes nothing, and no content is lost or doubled.
#include "text/harmony_parse.h"
#include "base/error.h"

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace nibble::text {
namespace {

using Token = std::variant<Special, std::string>;

// Words of headers, so that the fuzzer finds them: one byte each.
constexpr std::array<std::string_view, 24> kWords = {"assistant",
                                                     "user",
                                                     "tool",
                                                     "analysis",
                                                     "final",
                                                     "commentary",
                                                     " to=",
                                                     "functions.f",
                                                     "json",
                                                     "code",
                                                     " ",
                                                     "Hello there",
                                                     ":name",
                                                     "??",
                                                     "python",
                                                     "\n",
                                                     "odd",
                                                     "to=",
                                                     " to=functions.f ",
                                                     "browser.search",
                                                     "{\"a\":1}",
                                                     "comm",
                                                     "system",
                                                     "\xF0\x9F\x98\x80"};

// 0x80…0x97: a word; 0xF8…0xFE: a formatting token; any other byte: itself.
std::vector<Token> tokens_of(const uint8_t* data, size_t size) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] >= 0xF8 && data[i] <= 0xFE) {
      tokens.emplace_back(static_cast<Special>(data[i] - 0xF8));
      continue;
    }
    if (tokens.empty() || !std::holds_alternative<std::string>(tokens.back())) tokens.emplace_back(std::string());
    auto& text = std::get<std::string>(tokens.back());
    if (data[i] >= 0x80 && data[i] < 0x80 + kWords.size())
      text += kWords[data[i] - 0x80];
    else
      text += static_cast<char>(data[i]);
  }
  return tokens;
}

struct ParsedMessage {
  std::string header, text, run;  // run: bytes between <|message|> and the next token that ends content
  MessageEnd end{};
  bool ended = false;
  bool operator==(const ParsedMessage& other) const {
    return header == other.header && text == other.text && end == other.end;
  }
};

struct Parsed {
  std::vector<ParsedMessage> messages;
  std::vector<std::string> repairs;
  bool in_run = false;

  [[nodiscard]] bool is_open() const { return !messages.empty() && !messages.back().ended; }
  void add(const std::vector<Event>& events) {
    for (const Event& event : events) {
      if (const auto* started = std::get_if<MessageStarted>(&event)) {
        check(!is_open(), "a message starts inside another");
        const MessageHeader& h = started->header;
        messages.push_back({.header = std::string(name_of(h.role)) + " " + h.name + " " + h.recipient.value_or("") +
                                      " " + (h.content_type ? h.content_type->name : "") + h.channel.value_or(""),
                            .text = {},
                            .run = {}});
      } else if (const auto* delta = std::get_if<TextDelta>(&event)) {
        check(is_open() && !delta->text.empty(), "a delta is empty or outside a message");
        messages.back().text += delta->text;
      } else if (const auto* ended = std::get_if<MessageEnded>(&event)) {
        check(is_open(), "an end without a message");
        messages.back().end = ended->kind;
        messages.back().ended = true;
      } else {
        repairs.push_back(std::to_string(static_cast<int>(std::get<Repair>(event))));
      }
    }
  }
};

bool ends_content(Special special) { return special != Special::kMessage && special != Special::kConstrain; }

Parsed parse(const std::vector<Token>& tokens, std::optional<Role> role, size_t cut) {
  HarmonyParser parser(role);
  Parsed out;
  for (const Token& token : tokens) {
    if (const auto* special = std::get_if<Special>(&token)) {
      out.add(parser.push(*special));
      if (*special == Special::kMessage) {
        check(out.is_open(), "<|message|> opened no message");
        out.in_run = true;
      } else if (ends_content(*special)) {
        out.in_run = false;
      }
      continue;
    }
    const std::string_view text = std::get<std::string>(token);
    if (out.in_run) out.messages.back().run += text;
    for (size_t at = 0; at < text.size(); at += cut) out.add(parser.push(text.substr(at, cut)));
  }
  out.add(parser.finish());
  check(!out.is_open(), "a message stays open");
  check(parser.repairs() == static_cast<int64_t>(out.repairs.size()), "repairs are miscounted");
  return out;
}

bool is_word_char(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Every ASCII word outside the content runs comes out somewhere: as text, as a field or in a repair.
void check_words(const std::vector<Token>& tokens, const Parsed& parsed) {
  std::string out = "to ";
  for (const ParsedMessage& message : parsed.messages) out += message.header + message.text + " ";
  for (const std::string& repair : parsed.repairs) out += repair + " ";
  for (const Token& token : tokens) {
    const auto* text = std::get_if<std::string>(&token);
    if (text == nullptr) continue;
    for (size_t at = 0; at < text->size();) {
      size_t end = at;
      while (end < text->size() && is_word_char((*text)[end])) ++end;
      // The stream's end may cut a header's to= or role; those are reported in a repair, as is all else.
      check(out.find(text->substr(at, end - at)) != std::string::npos, "a word got lost");
      at = end + 1;
    }
  }
}

void check_runs(const Parsed& parsed) {
  for (const ParsedMessage& message : parsed.messages) {
    size_t begin = 0;  // leading continuation bytes may complete a character of the text before <|message|>
    while (begin < message.run.size() && (static_cast<uint8_t>(message.run[begin]) & 0xC0) == 0x80) ++begin;
    Utf8Stream stream;
    std::string want = stream.push(std::string_view(message.run).substr(begin));
    want += stream.finish();
    check(message.text.ends_with(want), "content is lost, doubled or out of order");
    const bool has_spill = message.text.size() > want.size() + 3 * begin;
    check(!has_spill || !parsed.repairs.empty(), "text out of nowhere");
  }
}

}  // namespace
}  // namespace nibble::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::text;
  if (size == 0) return 0;
  const std::optional<Role> role = data[0] % 2 == 0 ? std::optional(Role::kAssistant) : std::nullopt;
  const std::vector<Token> tokens = tokens_of(data + 1, size - 1);
  const Parsed whole = parse(tokens, role, SIZE_MAX / 2);
  for (const size_t cut : {size_t{1}, size_t{2}, size_t{7}}) {
    const Parsed pieces = parse(tokens, role, cut);
    nibble::check(pieces.messages == whole.messages && pieces.repairs == whole.repairs, "the cut changes the messages");
  }
  check_runs(whole);
  check_words(tokens, whole);
  return 0;
}

#include "lab/client/answer_reader.h"

#include "base/read_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace nibble::client {

void EventStream::line(std::string_view text, const OnData& on_data) {
  if (text.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  const size_t colon = text.find(':');
  if (text.substr(0, colon) != "data") return;  // a comment, or a field that says nothing of the answer
  std::string_view value = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

bool EventStream::take(std::string_view bytes, const OnData& on_data) {
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, bytes.find('\n'));
    if (part_.size() + data_.size() + part.size() > kMostEventBytes) return false;
    part_ += part;
    if (part.size() == bytes.size()) return true;
    bytes.remove_prefix(part.size() + 1);
    if (part_.ends_with('\r')) part_.pop_back();
    line(part_, on_data);
    part_.clear();
  }
  return true;
}

namespace {

using Json = nlohmann::json;

constexpr size_t kMostRefusal = 4096;  // bytes of a body that says why
constexpr size_t kMostMessage = 300;
constexpr int64_t kMostCalls = 128;  // of an answer

const Json* find(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// {"error": {"message": …}}, {"error": …} or {"detail": …}; else all of it.
std::string reason_of(const Json& json) {
  const Json* error = find(json, "error");
  if (error == nullptr) error = find(json, "detail");
  if (error == nullptr) error = find(json, "message");
  if (error == nullptr) error = &json;
  if (const Json* message = find(*error, "message")) error = message;
  return error->is_string() ? error->get<std::string>() : error->dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string reason_in(std::string_view body) {
  const Json json = read_json(body);
  return short_text(json.is_discarded() ? std::string(body) : reason_of(json));
}

std::string_view text_of(const Json& object, const char* name) {
  const Json* value = find(object, name);
  return value != nullptr && value->is_string() ? std::string_view(value->get_ref<const std::string&>())
                                                : std::string_view();
}

int64_t count_of(const Json& usage, const char* name) {
  const Json* value = find(usage, name);
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : -1;
}

// What a choice adds to the answer.
struct Piece {
  bool known = false;  // it has the API's form
  bool token = false;
  std::string text;
  const Json* calls = nullptr;  // pieces of some; part of the choice
};

Piece piece_of(const Json& choice) {
  if (const Json* delta = find(choice, "delta"); delta != nullptr && delta->is_object()) {  // chat
    Piece piece{.known = true, .text = std::string(text_of(*delta, "content")), .calls = find(*delta, "tool_calls")};
    piece.token = !piece.text.empty() || !text_of(*delta, "reasoning_content").empty() ||
                  !text_of(*delta, "reasoning").empty() || (piece.calls != nullptr && !piece.calls->empty());
    return piece;
  }
  const auto it = choice.find("text");
  if (it == choice.end() || !it->is_string()) return {.known = find(choice, "finish_reason") != nullptr, .text = {}};
  // A token may be part of a character: then its text is empty, and it is no end.
  return {.known = true,
          .token = !it->empty() && (!text_of(choice, "text").empty() || find(choice, "finish_reason") == nullptr),
          .text = it->get<std::string>()};
}

}  // namespace

std::string short_text(std::string_view text) {
  std::string out(text.substr(0, kMostMessage));
  const auto is_c1 = [&out](size_t i) {  // two bytes in UTF-8: C2 80 to C2 9F
    return out[i] == '\xC2' && i + 1 < out.size() && static_cast<unsigned char>(out[i + 1]) < 0xA0;
  };
  for (size_t i = 0; i < out.size(); ++i) {
    if (is_c1(i)) out.replace(i, 2, "  ");
    if (static_cast<unsigned char>(out[i]) < 0x20 || out[i] == 0x7F) out[i] = ' ';
  }
  return out + (text.size() > kMostMessage ? "…" : "");
}

void AnswerReader::fail(Failure failure, std::string_view message) {
  if (over_) return;
  over_ = true;
  outcome_.failure = failure;
  outcome_.message = short_text(message);
}

void AnswerReader::head(int status, std::string_view content_type) {
  outcome_.status = status;
  if (status == 200 && !content_type.starts_with("text/event-stream"))
    fail(Failure::kMalformed, fmt::format("want Content-Type text/event-stream, found \"{}\"", content_type));
}

void AnswerReader::body(std::string_view bytes, double now) {
  if (over_) return;
  if (outcome_.status != 200) {
    refusal_ += bytes.substr(0, kMostRefusal - std::min(kMostRefusal, refusal_.size()));
    return;
  }
  if (!stream_.take(bytes, [&](std::string_view data) { event(data, now); }))
    fail(Failure::kMalformed, "an event of more than 16 MiB");
}

void AnswerReader::end() {
  if (over_) return;
  if (outcome_.status != 200) return fail(Failure::kStatus, reason_in(refusal_));
  fail(Failure::kTruncated, fmt::format("the stream ended after {} events, without [DONE]", outcome_.events));
}

void AnswerReader::token(double now) {
  if (outcome_.events++ == 0)
    outcome_.first = now;
  else
    outcome_.gaps.push_back(static_cast<float>(now - outcome_.last));
  outcome_.last = now;
}

// Each piece belongs to the call of its index; the first one has the name. False: they are no such pieces.
bool AnswerReader::keep_calls(const Json& pieces) {
  if (!pieces.is_array()) return false;
  for (const Json& piece : pieces) {
    const Json* index = find(piece, "index");
    const int64_t at = index == nullptr             ? std::ssize(outcome_.calls)
                       : index->is_number_integer() ? index->get<int64_t>()
                                                    : -1;
    if (!piece.is_object() || at < 0 || at >= kMostCalls) return false;
    if (at >= std::ssize(outcome_.calls)) outcome_.calls.resize(static_cast<size_t>(at) + 1);
    ToolCall& call = outcome_.calls[static_cast<size_t>(at)];
    call.id += text_of(piece, "id");
    if (const Json* function = find(piece, "function")) {
      call.name += text_of(*function, "name");
      call.arguments += text_of(*function, "arguments");
    }
  }
  return true;
}

void AnswerReader::event(std::string_view data, double now) {
  if (over_) return;
  if (data == "[DONE]") {
    if (outcome_.events == 0) return fail(Failure::kEmpty, "the answer ended without a token");
    if (outcome_.finish_reason.empty())
      return fail(Failure::kCutOff, fmt::format("[DONE] after {} events, none with a finish_reason", outcome_.events));
    over_ = true;
    return;
  }
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object()) return fail(Failure::kMalformed, fmt::format("want a JSON object, found {}", data));
  if (find(json, "error") != nullptr) return fail(Failure::kReported, reason_in(data));
  const Json* usage = find(json, "usage");
  if (usage != nullptr) {
    outcome_.prompt_tokens = count_of(*usage, "prompt_tokens");
    outcome_.output_tokens = count_of(*usage, "completion_tokens");
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array()) {
    if (usage == nullptr) fail(Failure::kMalformed, fmt::format("want an event with choices, found {}", data));
    return;
  }
  for (const Json& choice : *choices) {
    const Piece piece = choice.is_object() ? piece_of(choice) : Piece{};
    if (!piece.known) return fail(Failure::kMalformed, fmt::format("want a choice with text or delta, found {}", data));
    if (const std::string_view reason = text_of(choice, "finish_reason"); !reason.empty())
      outcome_.finish_reason = reason;
    if (options_.keep_answer) {
      outcome_.text += piece.text;
      if (piece.calls != nullptr && !keep_calls(*piece.calls))
        return fail(Failure::kMalformed,
                    fmt::format("want pieces of at most {} tool calls, found {}", kMostCalls, data));
    }
    if (piece.token) token(now);
  }
  if (options_.close_after > 0 && outcome_.events >= options_.close_after) over_ = outcome_.cancelled = true;
}

}  // namespace nibble::client

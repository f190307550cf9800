#pragma once
// The bytes of an answer to its outcome: an event stream of OpenAI's completions or chat completions. Pure.

#include "lab/client/outcome.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace nibble::client {

// Server-sent events: bytes as they come, to the data of whole events (WHATWG HTML, section 9.2, but a line ends with a
// line feed: no server is known to send lone carriage returns).
class EventStream {
 public:
  using OnData = std::function<void(std::string_view data)>;
  static constexpr size_t kMostEventBytes = size_t{16} << 20;

  // Tells of each event that is whole, of those that have data. False: an event is larger than kMostEventBytes.
  [[nodiscard]] bool take(std::string_view bytes, const OnData& on_data);

 private:
  void line(std::string_view text, const OnData& on_data);

  std::string part_;  // of a line
  std::string data_;
  bool has_data_ = false;
};

struct AnswerOptions {
  int64_t close_after = 0;   // events with tokens, then it is left; 0: never
  bool keep_answer = false;  // its text and its calls
};

// The beginning of a text as a line of printable characters, for messages.
[[nodiscard]] std::string short_text(std::string_view text);

class AnswerReader {
 public:
  AnswerReader(Outcome& outcome, const AnswerOptions& options) : outcome_(outcome), options_(options) {}

  void head(int status, std::string_view content_type);
  void body(std::string_view bytes, double now);
  void end();                                            // no more bytes come
  void fail(Failure failure, std::string_view message);  // unless it has failed or is over

  [[nodiscard]] bool over() const { return over_; }  // what follows does not matter
  [[nodiscard]] bool begun() const { return outcome_.status != 0; }

 private:
  void event(std::string_view data, double now);
  void token(double now);
  [[nodiscard]] bool keep_calls(const nlohmann::json& pieces);

  Outcome& outcome_;
  const AnswerOptions options_;
  EventStream stream_;
  std::string refusal_;  // the body of an answer that is no success
  bool over_ = false;
};

}  // namespace nibble::client

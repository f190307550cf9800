#pragma once
// How one request went.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::client {

enum class Failure : uint8_t {
  kNone,
  kConnect,    // refused, or not made in time
  kHandshake,  // of TLS: no common ground, or a certificate that does not convince
  kLost,       // the connection ended before an answer began
  kTimeout,    // no whole answer in time
  kStatus,     // an HTTP status that is no success
  kMalformed,  // no HTTP, no event stream, or an event that is none of the API
  kTruncated,  // the stream ended before it said so
  kReported,   // the server told of an error in its stream
  kEmpty,      // a whole answer without a token
  kCutOff,     // the stream ended as it should, but no finish_reason came: the server broke the answer off
  // Whole answers that are not what was asked for.
  kNoCall,       // of a tool, although one was wanted
  kUnknownTool,  // a call of none that was offered
  kInvalidJson,  // an answer or a call's arguments
};

[[nodiscard]] constexpr std::string_view name_of(Failure failure) {
  switch (failure) {
    case Failure::kNone: return "none";
    case Failure::kConnect: return "connect";
    case Failure::kHandshake: return "TLS handshake";
    case Failure::kLost: return "connection lost";
    case Failure::kTimeout: return "timeout";
    case Failure::kStatus: return "status";
    case Failure::kMalformed: return "malformed stream";
    case Failure::kTruncated: return "truncated stream";
    case Failure::kReported: return "error in stream";
    case Failure::kEmpty: return "no token";
    case Failure::kCutOff: return "no finish_reason";
    case Failure::kNoCall: return "no tool call";
    case Failure::kUnknownTool: return "unknown tool";
    case Failure::kInvalidJson: return "invalid JSON";
  }
  return "?";
}

struct ToolCall {
  std::string id, name, arguments;
};

// Times are seconds since the run began.
struct Outcome {
  int turn = 0;            // of its conversation, from 0
  bool ended = false;      // false: the run was cut before, or the turn before it failed
  bool cancelled = false;  // left by us, as the run asked
  Failure failure = Failure::kNone;
  int status = 0;              // HTTP's; 0: none came
  std::string message;         // of a failure
  double sent = 0;             // when it was due; connecting is part of the wait
  double first = 0, last = 0;  // events with tokens
  double done = 0;
  std::vector<float> gaps;                         // between events with tokens
  int64_t events = 0;                              // with tokens
  int64_t prompt_tokens = -1, output_tokens = -1;  // as the server counted; -1: it did not
  std::string finish_reason;
  std::string text;             // the answer without its reasoning, where the run keeps it
  std::vector<ToolCall> calls;  // where the run keeps them

  [[nodiscard]] bool ok() const { return ended && failure == Failure::kNone && !cancelled; }
  [[nodiscard]] int64_t tokens() const { return output_tokens >= 0 ? output_tokens : events; }
  // By which failures are counted: "HTTP 429", "timeout".
  [[nodiscard]] std::string kind() const {
    return failure == Failure::kStatus ? "HTTP " + std::to_string(status) : std::string(name_of(failure));
  }
};

}  // namespace nibble::client

#pragma once
// HTTP as the API sees it: a request, and a call that answers it piece by piece; and the parts of it that are plain
// text.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::server {

inline constexpr std::string_view kEventStream = "text/event-stream; charset=utf-8";
inline constexpr std::string_view kLines = "application/x-ndjson";  // of JSON

struct HttpRequest {
  std::string method{};         // GET
  std::string path{};           // without the query
  std::string query{};          // what follows the ?
  std::string authorization{};  // the header of that name
  std::string api_key{};        // x-api-key
  std::string content_encoding{};
  std::string accept_encoding{};
  std::string client_id{};  // x-request-id
  std::string body{};
};

struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
  bool stream = false;  // the body comes in pieces, its size is unknown
};

// One request at work, used by its connection's thread only. Destroying it before it is done cancels the work.
class Call {
 public:
  struct Output {
    std::optional<HttpHead> head{};  // once, not later than the first byte of the body
    std::string body{};
    bool done = false;
  };
  virtual ~Call() = default;
  // What can be sent now; empty: wait for the next wake.
  virtual Output poll() = 0;
  // The server is ending: the next poll() returns the last bytes, and says so if the answer is not whole.
  virtual void cut() {}
  // What waits to be polled, as a share of what is kept for a slow reader. Above 1 the client is too slow.
  [[nodiscard]] virtual double backlog() const { return 0; }
};

// Called from any thread, at most once between two polls that returned something.
using Wake = std::function<void()>;
// Called on HTTP threads, several at a time. Must not throw.
using Handler = std::function<std::unique_ptr<Call>(const HttpRequest& request, Wake wake)>;

// An answer that is complete at once.
class ReadyCall final : public Call {
 public:
  ReadyCall(HttpHead head, std::string body) : head_(std::move(head)), body_(std::move(body)) {}
  Output poll() override { return {.head = std::move(head_), .body = std::move(body_), .done = true}; }

 private:
  HttpHead head_;
  std::string body_;
};

// How one answer goes out.
struct Framing {
  bool keep_alive = true;
  bool chunked = false;  // else the body has a length, or ends with the connection
  std::string_view allowed_origin{};
};

// Status line and headers. `length`: the body's, if it is known.
[[nodiscard]] std::string head_text(const HttpHead& head, const Framing& framing, std::optional<size_t> length);

// A call's answer as bytes.
class Reply {
 public:
  struct Piece {
    std::string bytes{};
    bool done = false;  // these are the last bytes
  };
  // `framing`: what the client allows. The call must outlive the reply. For a HEAD request only the head is sent.
  Reply(Call& call, const Framing& framing, bool is_head) : call_(&call), framing_(framing), is_head_(is_head) {}

  [[nodiscard]] Piece next();                              // polls the call
  [[nodiscard]] bool streams() const { return streams_; }  // known once there is a first byte
  [[nodiscard]] bool keep_alive() const { return framing_.keep_alive; }
  // A comment line, which only events have. REQUIRES streams().
  [[nodiscard]] std::string ping() const { return has_events_ ? framed(": \n\n") : ""; }
  [[nodiscard]] double backlog() const { return call_->backlog(); }
  void cut() { call_->cut(); }
  void close_after() { framing_.keep_alive = false; }  // announced, if the head has not been sent yet

 private:
  [[nodiscard]] std::string framed(std::string&& body) const;

  Call* call_;
  Framing framing_;
  bool is_head_, streams_ = false, has_events_ = false;
};

// Whether an Accept-Encoding header accepts gzip.
[[nodiscard]] bool takes_gzip(std::string_view accept_encoding);
// "/a/b?c" → "/a/b", %2F and the like decoded, without a slash at the end.
[[nodiscard]] std::string path_of(std::string_view target);
// "/a/b?c" → "c", not decoded.
[[nodiscard]] std::string_view query_of(std::string_view target);
// The value of a name in a query, not decoded; empty: there is none.
[[nodiscard]] std::string_view query_value(std::string_view query, std::string_view name);
// Whether this is a valid value of a Host header; an empty one is.
[[nodiscard]] bool is_host(std::string_view text);
// The answer to a browser that asks whether a page may call.
[[nodiscard]] std::string preflight_text(std::string_view wanted_headers, const Framing& framing);
// The answer to bytes that never became a request.
struct Refusal {
  int status;
  std::string message, code{};
};
// The whole answer, with OpenAI's error object; the connection ends.
[[nodiscard]] std::string refusal_text(const Refusal& refusal, std::string_view allowed_origin);

}  // namespace nibble::server

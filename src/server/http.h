#pragma once
// HTTP as the API sees it: a request, and a call that answers it piece by piece.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::server {

struct HttpRequest {
  std::string method{};         // GET
  std::string path{};           // without the query
  std::string query{};          // what stands behind the ?
  std::string authorization{};  // of that header
  std::string content_encoding{};
  std::string accept_encoding{};
  std::string client_id{};  // x-request-id
  std::string body{};
};

struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
  bool stream = false;  // the body comes in pieces of no known size
};

// One request at work; used by its connection's thread only. Destroying it before it is done cancels the work.
class Call {
 public:
  struct Output {
    std::optional<HttpHead> head{};  // once, not later than the first byte of the body
    std::string body{};
    bool done = false;
  };
  virtual ~Call() = default;
  // What there is to be sent now; empty: wait for the next wake.
  virtual Output poll() = 0;
  // The server ends: the next poll() gives the last there is, and says so where that is not the whole answer.
  virtual void cut() {}
  // Answers waiting to be polled, as a share of what is kept for a slow reader: above 1 the client is too slow.
  [[nodiscard]] virtual double backlog() const { return 0; }
};

// Called from any thread, at most once between two polls that found something.
using Wake = std::function<void()>;
// Called on HTTP threads, several at a time. Must not throw.
using Handler = std::function<std::unique_ptr<Call>(const HttpRequest& request, Wake wake)>;

// An answer that is there at once.
class ReadyCall final : public Call {
 public:
  ReadyCall(HttpHead head, std::string body) : head_(std::move(head)), body_(std::move(body)) {}
  Output poll() override { return {.head = std::move(head_), .body = std::move(body_), .done = true}; }

 private:
  HttpHead head_;
  std::string body_;
};

}  // namespace nibble::server

#pragma once
// HTTP as the API sees it: a request, and a call that answers it piece by piece.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nibble::server {

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

}  // namespace nibble::server

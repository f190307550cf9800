#pragma once
// A server for tests, of plain sockets: what it answers is what the test says, well-formed or not.

#include <atomic>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <thread>

namespace nibble::client {

class StandIn {
 public:
  // Sends bytes; false once the client has gone.
  using Send = std::function<bool(std::string_view bytes)>;
  // Called with each request's head and body, on its connection's thread; the connection ends with it.
  using Answer = std::function<void(const std::string& request, const Send& send)>;

  explicit StandIn(Answer answer);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  [[nodiscard]] std::string url() const;
  [[nodiscard]] int most_at_once() const { return most_; }
  [[nodiscard]] bool stopping() const { return stopping_; }  // for answers that hang

 private:
  void accept();
  void talk(int connection);

  const Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> open_ = 0, most_ = 0;
  std::list<std::jthread> connections_;
  std::jthread acceptor_;
};

// A whole answer of so many tokens as chunked events; `between` is called before each.
void send_tokens(const StandIn::Send& send, int tokens, const std::function<void()>& between = {});
[[nodiscard]] std::string chunk(std::string_view data);  // of HTTP's chunked coding
inline constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

}  // namespace nibble::client

#pragma once
// HTTP/1.1, plain or over TLS, for many clients on few threads. Everything from the network is hostile: headers,
// bodies, idle and slow clients have limits. If a client goes away, its call is destroyed.

#include "server/http.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace nibble::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  int threads = 2;
  std::string certificate_file{}, key_file{};  // both: TLS
  std::string allowed_origin = "*";            // web pages that may call; empty: only our own
  size_t max_header_bytes = size_t{16} << 10, max_body_bytes = size_t{32} << 20;
  int max_connections = 4096;
  std::chrono::seconds header_time{10};  // from the first byte of a request to the end of its header
  std::chrono::seconds body_time{60};
  std::chrono::seconds idle_time{75};   // between requests
  std::chrono::seconds write_time{30};  // in which the client takes no byte
  std::chrono::seconds ping_time{15};   // of silence in a stream, before a comment line is sent
  std::chrono::seconds drain_time{30};  // after SIGTERM, for running calls
  std::function<void()> on_signal{};    // called before a signal is acted on
  // Called with the status of answers that the handler did not give: not HTTP, too large, too late, a browser's
  // OPTIONS. Any thread.
  std::function<void(int status)> on_own_answer{};
  std::function<void()> on_dropped{};  // a connection beyond max_connections was closed. Any thread.
};

// Throws what the server would for the files of TLS: Error(kIo), and Error(kInvalidRequest) for one without the other.
void require_certificate(const HttpOptions& options);

class HttpServer {
 public:
  // Listens from here on. Throws Error(kIo) if it cannot. The handler must outlive it. SIGTERM and SIGINT drain: no new
  // connections are accepted, incomplete requests are refused, running calls may finish. A second signal, or the end of
  // drain_time, cuts them short with a last message. A third signal, or another second, ends everything. The first
  // SIGHUP drains, too, unless it is ignored; it never counts as a second.
  HttpServer(HttpOptions options, Handler handler);
  ~HttpServer();  // ends everything
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;
  void wait();  // until a signal has come and the drain is over

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server

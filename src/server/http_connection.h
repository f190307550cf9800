#pragma once
// A connection: its bytes, the thread that it belongs to, and what of it other threads may touch. With http_server.cpp
// the only files that include Beast and Asio.

#include "server/http_text.h"

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/ssl.hpp>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace nibble::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Tcp = asio::ip::tcp;

// A socket, plain or under TLS: one type for both, so that what reads HTTP is compiled once.
class HttpStream {
 public:
  using Some = std::tuple<boost::system::error_code, size_t>;

  explicit HttpStream(Tcp::socket socket) : plain_(std::make_unique<beast::tcp_stream>(std::move(socket))) {}
  HttpStream(Tcp::socket socket, asio::ssl::context& context)
      : secure_(std::make_unique<Secure>(std::move(socket), context)) {}

  [[nodiscard]] bool is_plain() const { return plain_ != nullptr; }
  // The socket with its deadline, below any TLS.
  [[nodiscard]] beast::tcp_stream& lowest() { return plain_ ? *plain_ : beast::get_lowest_layer(*secure_); }

  // Some bytes; no error and none where the other side has ended.
  asio::awaitable<Some> read_some(asio::mutable_buffer into);
  asio::awaitable<Some> write_some(asio::const_buffer bytes);
  // Of TLS; nothing where there is none. Whether it went well.
  asio::awaitable<bool> begin();
  asio::awaitable<void> end();

 private:
  using Secure = beast::ssl_stream<beast::tcp_stream>;
  std::unique_ptr<beast::tcp_stream> plain_;
  std::unique_ptr<Secure> secure_;
};

// Done when the client has closed its end, or vanished.
asio::awaitable<void> watch(Tcp::socket& socket);

struct Peer;

// A thread with connections of its own: they need no locks. Wakes are collected: a step of the engine may have tokens
// for many streams, and the thread is called once.
struct Worker {
  ~Worker() {
    const std::lock_guard lock(awake.mutex);
    awake.over = true;
  }
  void wake(const std::shared_ptr<Peer>& peer);  // any thread

  struct Awake {
    std::mutex mutex;
    std::vector<std::shared_ptr<Peer>> peers;  // both guarded by mutex
    bool over = false;
  };
  Awake awake;
  asio::io_context io{1};  // its end destroys what still runs
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
};

// Of one connection; used by its thread only. Shared with wakes that may come late.
struct Peer {
  using Clock = std::chrono::steady_clock;
  Peer(Worker& of, beast::tcp_stream& lowest, bool is_plain)
      : worker(of), plain(is_plain), stream(&lowest), timer(std::in_place, of.io), sent_at(Clock::now()) {}

  Worker& worker;
  const bool plain;                         // no TLS
  beast::tcp_stream* stream;                // null once the connection is over
  std::optional<asio::steady_timer> timer;  // as long; without a reply it ends the reading of a request
  Clock::time_point sent_at;
  Reply* reply = nullptr;              // while there is one
  std::optional<Reply::Piece> left{};  // of it, for answer() to send
  bool woken = false, writing = false;
  bool idle = true;      // nothing is lost when it is closed
  bool resting = false;  // answer() waits for something to send

  void wake();
  void drain();  // ends what has not become a request; what has is the last
  void cut();    // ends its answer with what there is left to say

 private:
  void send_now(std::string& bytes);
};

}  // namespace nibble::server

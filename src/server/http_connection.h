#pragma once
// A connection: its bytes, the thread that owns it, and the part of it that other threads may touch. Only this and
// http_server.cpp include Beast and Asio.

#include "server/http.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>

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

// A socket, plain or with TLS: one type for both, so that the code that reads HTTP is compiled once.
class HttpStream {
 public:
  using Some = std::tuple<boost::system::error_code, size_t>;

  explicit HttpStream(Tcp::socket socket) : plain_(std::make_unique<beast::tcp_stream>(std::move(socket))) {}
  HttpStream(Tcp::socket socket, asio::ssl::context& context)
      : secure_(std::make_unique<Secure>(std::move(socket), context)) {}

  [[nodiscard]] bool is_plain() const { return plain_ != nullptr; }
  // The socket with its deadline, below any TLS.
  [[nodiscard]] beast::tcp_stream& lowest() { return plain_ ? *plain_ : beast::get_lowest_layer(*secure_); }

  // Reads some bytes. No bytes and no error: the other side has ended.
  asio::awaitable<Some> read_some(asio::mutable_buffer into);
  asio::awaitable<Some> write_some(asio::const_buffer bytes);
  // Begins TLS, if there is any. False: it failed.
  asio::awaitable<bool> begin();
  asio::awaitable<void> end();

 private:
  using Secure = beast::ssl_stream<beast::tcp_stream>;
  std::unique_ptr<beast::tcp_stream> plain_;
  std::unique_ptr<Secure> secure_;
};

// Returns when the client has closed its end, or vanished.
asio::awaitable<void> watch(Tcp::socket& socket);

struct Peer;

// A thread with its own connections, which need no locks. Wakes are collected: one step of the engine may have tokens
// for many streams, and wakes the thread once.
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

// A connection's state, used by its thread only. Shared with wakes, which may come late.
struct Peer {
  using Clock = std::chrono::steady_clock;
  Peer(Worker& of, beast::tcp_stream& lowest, bool is_plain)
      : worker(of), plain(is_plain), stream(&lowest), timer(std::in_place, of.io), sent_at(Clock::now()) {}

  Worker& worker;
  const bool plain;           // no TLS
  beast::tcp_stream* stream;  // null once the connection is over
  std::optional<asio::steady_timer>
      timer;  // lives as long as the connection; without a reply it ends the reading of a request
  Clock::time_point sent_at;
  Reply* reply = nullptr;              // while there is one
  std::optional<Reply::Piece> left{};  // the rest of a piece, for answer() to send
  bool woken = false, writing = false;
  bool idle = true;      // closing the connection now loses nothing
  bool resting = false;  // answer() waits for something to send

  void wake();
  void drain();  // no new request after the one at work
  void cut();    // ends the answer with what is left to say

 private:
  void send_now(std::string& bytes);
};

}  // namespace nibble::server

#pragma once
// The threads of the HTTP server, and what of a connection others may touch. With http_server.cpp and
// http_stream the only files that include Beast and Asio.

#include "server/http_text.h"

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace nibble::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Tcp = asio::ip::tcp;

// Done when the client has closed its end, or vanished.
asio::awaitable<void> watch(Tcp::socket& socket);

struct Peer;

// A thread with connections of its own: nothing of theirs needs a lock. Wakes are gathered: however many streams a
// step of the engine has something for, the thread is called once.
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

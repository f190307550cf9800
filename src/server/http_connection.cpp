#include "server/http_connection.h"

#include <boost/asio/experimental/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <poll.h>

namespace nibble::server {
namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr auto kGoneCheck =
    std::chrono::milliseconds(100);  // how often to look for the end of a connection that unread bytes hide

bool has_gone(int fd) {
  pollfd state{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace

asio::awaitable<HttpStream::Some> HttpStream::read_some(asio::mutable_buffer into) {
  return plain_ ? plain_->async_read_some(into, kTuple) : secure_->async_read_some(into, kTuple);
}

asio::awaitable<HttpStream::Some> HttpStream::write_some(asio::const_buffer bytes) {
  return plain_ ? plain_->async_write_some(bytes, kTuple) : secure_->async_write_some(bytes, kTuple);
}

asio::awaitable<bool> HttpStream::begin() {
  if (plain_) co_return true;
  const auto [error] = co_await secure_->async_handshake(asio::ssl::stream_base::server, kTuple);
  co_return !error;
}

asio::awaitable<void> HttpStream::end() {
  if (secure_) co_await secure_->async_shutdown(kTuple);
}

asio::awaitable<void> watch(Tcp::socket& socket) {
  asio::steady_timer pause(socket.get_executor());
  while (true) {
    const auto [error] = co_await socket.async_wait(Tcp::socket::wait_read, kTuple);
    if (error || has_gone(socket.native_handle())) co_return;
    pause.expires_after(kGoneCheck);  // these are bytes of the next request
    co_await pause.async_wait(kTuple);
  }
}

void Worker::wake(const std::shared_ptr<Peer>& peer) {
  const std::lock_guard lock(awake.mutex);
  if (awake.over) return;
  awake.peers.push_back(peer);
  if (awake.peers.size() > 1) return;  // a wake is already on its way
  asio::post(io, [this] {
    std::vector<std::shared_ptr<Peer>> peers;
    {
      const std::lock_guard taking(awake.mutex);
      peers.swap(awake.peers);
    }
    for (const auto& woken : peers) woken->wake();
  });
}

// Writes at once what the socket takes. That saves a turn of the coroutine, with its timers and queues.
void Peer::wake() {
  woken = true;
  if (reply == nullptr) return;
  if (writing && reply->backlog() > 1) stream->close();
  if (!resting) return;
  if (plain) {
    try {
      left = reply->next();
    } catch (const std::exception&) {  // as in answer(): the connection ends
      return stream->close();
    }
    send_now(left->bytes);
    woken = false;
    if (left->bytes.empty() && !left->done) return left.reset();
  }
  resting = false;
  timer->cancel();
}

void Peer::drain() {
  if (stream == nullptr) return;
  if (idle) return stream->close();
  if (reply != nullptr) return reply->close_after();
  timer->expires_at(Clock::time_point::min());
}

void Peer::cut() {
  if (reply == nullptr) return;
  reply->cut();
  wake();
}

// Sends what the socket takes and leaves the rest in `bytes`.
void Peer::send_now(std::string& bytes) {
  if (bytes.empty()) return;
  boost::system::error_code error;
  bytes.erase(0, stream->socket().write_some(asio::buffer(bytes), error));
  sent_at = Clock::now();
}

}  // namespace nibble::server

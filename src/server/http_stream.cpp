#include "server/http_stream.h"

#include <boost/asio/experimental/as_tuple.hpp>

namespace nibble::server {
namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

}  // namespace

asio::awaitable<HttpStream::Some> HttpStream::read_some(asio::mutable_buffer into) {
  if (plain_) {
    const Some some = co_await plain_->async_read_some(into, kTuple);
    co_return some;
  }
  const Some some = co_await secure_->async_read_some(into, kTuple);
  co_return some;
}

asio::awaitable<HttpStream::Some> HttpStream::write_some(asio::const_buffer bytes) {
  if (plain_) {
    const Some some = co_await plain_->async_write_some(bytes, kTuple);
    co_return some;
  }
  const Some some = co_await secure_->async_write_some(bytes, kTuple);
  co_return some;
}

asio::awaitable<bool> HttpStream::begin() {
  if (plain_) co_return true;
  const auto [error] = co_await secure_->async_handshake(asio::ssl::stream_base::server, kTuple);
  co_return !error;
}

asio::awaitable<void> HttpStream::end() {
  if (secure_) co_await secure_->async_shutdown(kTuple);
}

}  // namespace nibble::server

#pragma once
// A connection's bytes, plain or under TLS: one type for both, so that what reads HTTP is compiled once.

#include "server/http_worker.h"

#include <boost/asio/ssl.hpp>
#include <boost/beast/ssl.hpp>

#include <memory>
#include <tuple>

namespace nibble::server {

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

}  // namespace nibble::server

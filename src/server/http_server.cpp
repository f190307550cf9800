// What is co_awaited is given names, not temporaries: g++ 12 destroys some of those twice.

#include "server/http_server.h"

#include "base/error.h"
#include "base/machine.h"
#include "server/http_connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

namespace nibble::server {
namespace {

namespace http = beast::http;
using boost::system::error_code;
using asio::experimental::awaitable_operators::operator||;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

constexpr int kBacklog = 4096;
constexpr int kSendBufferBytes = 256 << 10;  // how much the kernel keeps for a client that does not read
constexpr size_t kReadAhead = size_t{64} << 10;
constexpr size_t kMostDrained = size_t{4} << 20;  // of a refused body that is read and dropped
constexpr auto kGrace = std::chrono::seconds(5);
constexpr auto kLinger = std::chrono::seconds(2);     // time for a client to read why it was refused
constexpr auto kLastWords = std::chrono::seconds(1);  // the same when the server ends, for all answers
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

// Done when the time is over.
asio::awaitable<void> pass(asio::steady_timer& timer) { co_await timer.async_wait(kAwait); }

using Parser = http::request_parser<http::string_body>;
enum class Part { kHeader, kBody };

// What is wrong with a readable header; empty: nothing.
std::string header_fault(const http::fields& fields, bool modern) {
  using enum http::field;
  for (const char* name : {"Host", "Authorization", "Content-Encoding", "Transfer-Encoding", "X-Api-Key"})
    if (const size_t count = fields.count(name); count > 1)
      return fmt::format("want one {} header, found {}", name, count);
  // With any other coding the end of the body would be a guess.
  if (const auto coding = fields[transfer_encoding]; !coding.empty() && !(modern && beast::iequals(coding, "chunked")))
    return "want no Transfer-Encoding but chunked, of HTTP/1.1";
  if (modern && fields.count(host) == 0) return "want a Host header";
  return is_host(fields[host]) ? "" : "want the name of a host in the Host header";
}

// The request without its body. Fields of a trailer are ignored.
HttpRequest request_of(const http::request_header<>& head) {
  const auto field = [&head](std::string_view name) { return std::string(head[name]); };
  return {.method = std::string(head.method_string()),
          .path = path_of(head.target()),
          .query = std::string(query_of(head.target())),
          .authorization = field("Authorization"),
          .api_key = field("X-Api-Key"),
          .content_encoding = field("Content-Encoding"),
          .accept_encoding = field("Accept-Encoding"),
          .client_id = field("X-Request-Id")};
}

// Some clients send an empty line after a body. False: nothing else has arrived yet.
bool skip_empty_lines(beast::flat_buffer& buffer) {
  const auto next = [&buffer] {
    return std::string_view(static_cast<const char*>(buffer.data().data()), buffer.size());
  };
  while (next().starts_with("\r\n")) buffer.consume(2);
  return !next().empty() && next() != "\r";
}

// As nohup ignores SIGHUP.
bool is_ignored(int signal) {
  struct sigaction now{};
  sigaction(signal, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

// Null without a certificate. Throws Error(kIo), Error(kInvalidRequest).
std::unique_ptr<asio::ssl::context> tls_of(const HttpOptions& options) {
  if (options.certificate_file.empty() && options.key_file.empty()) return nullptr;
  if (options.certificate_file.empty() || options.key_file.empty())
    throw Error(Code::kInvalidRequest, "want --ssl-certfile and --ssl-keyfile together, found one of them");
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1);
  tls->use_certificate_chain_file(options.certificate_file, error);
  if (error) throw Error(Code::kIo, "--ssl-certfile {}: {}", options.certificate_file, error.message());
  tls->set_password_callback([](size_t, auto) { return std::string(); }, error);  // OpenSSL would ask at the terminal
  tls->use_private_key_file(options.key_file, asio::ssl::context::pem, error);
  if (error) throw Error(Code::kIo, "--ssl-keyfile {}: {}", options.key_file, error.message());
  return tls;
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpOptions o, Handler h)
      : options(std::move(o)),
        handler(std::move(h)),
        workers(static_cast<size_t>(options.threads)),
        control(workers.front().io),
        acceptor(control),
        signals(control),
        deadline(control) {}

  void listen() {
    allow_most_files();
    error_code error;
    Tcp::resolver resolver(control);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        Tcp::resolver::passive | Tcp::resolver::numeric_service, error);
    if (error || found.empty()) throw Error(Code::kIo, "--host {}: no such address: {}", options.host, error.message());
    const Tcp::endpoint endpoint = *found.begin();
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(kBacklog, error);
    if (error) {
      const std::string_view next =
          error == boost::asio::error::address_in_use
              ? "; another program has it: stop that one, or take another --port (0: any free one)"
              : "";
      throw Error(Code::kIo, "cannot listen on {} port {}: {}{}", options.host, options.port, error.message(), next);
    }
    port = acceptor.local_endpoint().port();
  }

  void await_signal() {
    signals.async_wait([this](error_code error, int signal) {
      if (error) return;
      if (signal != SIGHUP || !draining) {  // a terminal that closes may tell it twice, by its shell and by itself
        if (options.on_signal) options.on_signal();
        end();
      }
      await_signal();
    });
  }

  // Three steps, one at each signal or when the time of the step before is over: running calls may finish; they are
  // cut; the threads stop.
  void end() {
    if (cut) return stop();
    cut = draining.exchange(true);
    error_code ignored;
    acceptor.close(ignored);
    deadline.expires_after(cut ? kLastWords : options.drain_time);
    deadline.async_wait([this](error_code error) {
      if (!error) end();
    });
    const std::lock_guard lock(peers.mutex);
    for (const auto& peer : peers.open)
      asio::post(peer->worker.io, [peer, cut = cut] { cut ? peer->cut() : peer->drain(); });
    if (connections == 0) stop();
  }

  void stop() {
    for (Worker& worker : workers) worker.io.stop();
  }

  void connection_over() {
    if (--connections == 0 && draining) stop();
  }

  // The answer to bytes that are not a request, or to one that is too large. None: the client has gone.
  [[nodiscard]] std::optional<Refusal> refusal_of(error_code error) const {
    const bool of_http = error.category() == http::make_error_code(http::error::bad_method).category();
    const bool gone = error == http::error::end_of_stream || error == http::error::partial_message;
    if (error == asio::error::timed_out)
      return draining ? Refusal{503, "the server is shutting down", "shutting_down"}
                      : Refusal{408, "the request did not arrive in time"};
    if (!of_http || gone) return std::nullopt;
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return Refusal{431, "the header, a chunk's line or the trailer is too large"};
    if (error == http::error::body_limit)
      return Refusal{413, fmt::format("the body is larger than {} bytes", options.max_body_bytes)};
    if (error == http::error::bad_field) return Refusal{400, "want lines of the form Name: value in the header"};
    return Refusal{400, "this is no HTTP request: " + error.message()};
  }

  asio::awaitable<void> accept() {
    for (size_t turn = 0; !draining; ++turn) {
      Worker& worker = workers[turn % workers.size()];
      auto [error, socket] = co_await acceptor.async_accept(asio::any_io_executor(worker.io.get_executor()), kAwait);
      if (error == asio::error::operation_aborted || draining) co_return;
      if (error || connections >= options.max_connections) {  // too many: the new connection is closed, the others stay
        if (!error && options.on_dropped) options.on_dropped();
        asio::steady_timer pause(control, error ? kAcceptPause : std::chrono::milliseconds(1));
        co_await pause.async_wait(kAwait);
        continue;
      }
      error_code ignored;
      socket.set_option(Tcp::no_delay(true), ignored);
      socket.set_option(Tcp::socket::send_buffer_size(kSendBufferBytes), ignored);
      socket.non_blocking(true, ignored);  // Peer::send_now
      ++connections;
      const auto over = [this](const std::exception_ptr&) { connection_over(); };
      HttpStream stream = tls ? HttpStream(std::move(socket), *tls) : HttpStream(std::move(socket));
      asio::co_spawn(worker.io, converse(worker, std::move(stream)), over);
    }
  }

  asio::awaitable<void> converse(Worker& worker, HttpStream stream) {
    beast::tcp_stream& lowest = stream.lowest();
    const auto peer = std::make_shared<Peer>(worker, lowest, stream.is_plain());
    {
      const std::lock_guard lock(peers.mutex);
      peers.open.insert(peer);
    }
    struct Leave {  // runs also if the coroutine is destroyed
      Impl& server;
      const std::shared_ptr<Peer>& peer;
      ~Leave() {
        peer->stream = nullptr;
        peer->reply = nullptr;
        peer->timer.reset();
        const std::lock_guard lock(server.peers.mutex);
        server.peers.open.erase(peer);
      }
    } leave{*this, peer};
    if (draining) co_return;  // from here on drain() finds it
    lowest.expires_after(options.header_time);
    const bool begun = co_await stream.begin();
    if (!begun) co_return;
    // Trailers and lines of chunks have to fit as well.
    beast::flat_buffer buffer(options.max_header_bytes + kReadAhead);
    bool more = true;
    while (more) more = co_await exchange(stream, peer, buffer);
    error_code ignored;
    lowest.expires_after(std::chrono::seconds(1));
    co_await stream.end();
    lowest.socket().shutdown(Tcp::socket::shutdown_both, ignored);
  }

  // Waits for the first bytes of a request. False: the connection ends.
  asio::awaitable<bool> await_request(HttpStream& stream, Peer& peer, beast::flat_buffer& buffer) {
    while (!skip_empty_lines(buffer)) {
      peer.idle = true;
      stream.lowest().expires_after(options.idle_time);
      const auto [error, size] = co_await stream.read_some(buffer.prepare(4096));
      if (error) co_return false;
      buffer.commit(size);
    }
    peer.idle = false;
    co_return true;
  }

  // One request and its answer. False: the connection ends.
  asio::awaitable<bool> exchange(HttpStream& stream, std::shared_ptr<Peer> peer, beast::flat_buffer& buffer) {
    beast::tcp_stream& lowest = stream.lowest();
    if (draining) co_return false;
    const bool begun = co_await await_request(stream, *peer, buffer);
    if (!begun) co_return false;
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
    parser.body_limit(options.max_body_bytes);
    const error_code bad_header = co_await read_in_time(stream, *peer, buffer, parser, Part::kHeader);
    const auto& message = parser.get();
    const bool modern = message.version() >= 11;
    const std::string fault = bad_header ? "" : header_fault(message, modern);
    if (bad_header || !fault.empty()) {
      const auto refusal = bad_header ? refusal_of(bad_header) : Refusal{400, fault};
      co_await refuse(stream, *peer, refusal);
      co_return false;
    }
    HttpRequest request = request_of(message);
    if (modern && beast::iequals(message[http::field::expect], "100-continue")) {
      const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      const bool sent = co_await write(stream, go_on, options.write_time);
      if (!sent) co_return false;
    }
    const error_code bad_body = co_await read_in_time(stream, *peer, buffer, parser, Part::kBody);
    if (bad_body) {
      const auto refusal = refusal_of(bad_body);
      co_await refuse(stream, *peer, refusal);
      co_return false;
    }
    const Framing framing{
        .keep_alive = message.keep_alive() && !draining, .chunked = modern, .allowed_origin = options.allowed_origin};
    if (message.method() == http::verb::options) {
      const std::string text =
          preflight_text(std::string_view(message[http::field::access_control_request_headers]), framing);
      if (options.on_own_answer) options.on_own_answer(204);
      const bool sent = co_await write(stream, text, options.write_time);
      co_return sent&& framing.keep_alive;
    }
    request.body = std::move(parser.get().body());
    Wake wake = [peer] { peer->worker.wake(peer); };
    const std::unique_ptr<Call> call = handler(request, std::move(wake));
    request.body = {};
    Reply reply(*call, framing, request.method == "HEAD");
    peer->left.reset();
    peer->resting = false;
    peer->reply = &reply;
    bool whole = false;
    co_await (answer(stream, *peer, reply, whole) || watch(lowest.socket()));
    peer->reply = nullptr;
    co_return whole&& reply.keep_alive() && !draining;
  }

  // `whole`: the answer was sent to its end.
  asio::awaitable<void> answer(HttpStream& stream, Peer& peer, Reply& reply, bool& whole) {
    while (true) {
      if (!peer.left) peer.woken = false;
      const Reply::Piece piece = peer.left ? *std::exchange(peer.left, std::nullopt) : reply.next();
      const bool sent = co_await send(stream, peer, piece.bytes);
      whole = sent && piece.done;
      if (!sent || whole) co_return;
      while (!peer.woken && !peer.left) {
        peer.timer->expires_at(peer.sent_at + options.ping_time);
        peer.resting = true;
        const auto [interrupted] = co_await peer.timer->async_wait(kAwait);
        peer.resting = false;
        const auto now = Peer::Clock::now();
        if (interrupted || peer.woken || peer.left || now < peer.sent_at + options.ping_time) continue;
        peer.sent_at = now;
        if (!reply.streams()) continue;
        const std::string ping = reply.ping();
        const bool pinged = co_await send(stream, peer, ping);
        if (!pinged) co_return;
      }
    }
  }

  asio::awaitable<void> read(HttpStream& stream, beast::flat_buffer& buffer, Parser& parser, Part part,
                             error_code& error) {
    parser.eager(part == Part::kBody);
    const auto done = [&] { return part == Part::kHeader ? parser.is_header_done() : parser.is_done(); };
    while (!done()) {
      if (buffer.size() > 0) {
        buffer.consume(parser.put(buffer.data(), error));
        if (error != http::error::need_more) {
          if (error) co_return;
          continue;
        }
        error = {};
      }
      const size_t room = buffer.max_size() - buffer.size();
      if (room == 0) {
        error = http::error::buffer_overflow;
        co_return;
      }
      const auto [failed, size] = co_await stream.read_some(buffer.prepare(std::min(room, kReadAhead)));
      if (failed == asio::error::eof && parser.got_some()) {
        parser.put_eof(error);  // part of a message, or one that ends here
        co_return;
      }
      if (failed) {
        error = failed == asio::error::eof ? error_code(http::error::end_of_stream) : failed;
        co_return;
      }
      buffer.commit(size);
    }
  }

  // Error asio::error::timed_out if the bytes do not come in time, or the server ends. The client can still be told.
  asio::awaitable<error_code> read_in_time(HttpStream& stream, Peer& peer, beast::flat_buffer& buffer, Parser& parser,
                                           Part part) {
    if (draining) co_return asio::error::timed_out;
    const std::chrono::seconds time = part == Part::kHeader ? options.header_time : options.body_time;
    peer.timer->expires_after(time);
    stream.lowest().expires_after(time + kGrace);  // the stream's own deadline, which would close it
    error_code error;
    const auto first = co_await (read(stream, buffer, parser, part, error) || pass(*peer.timer));
    co_return first.index() == 1 ? error_code(asio::error::timed_out) : error;
  }

  // Sends the refusal, then reads and drops for a moment what the client still sends. Otherwise the client would see a
  // reset instead of the answer.
  asio::awaitable<void> refuse(HttpStream& stream, Peer& peer, std::optional<Refusal> refusal) {
    if (!refusal) co_return;
    peer.idle = true;
    if (options.on_own_answer) options.on_own_answer(refusal->status);
    const std::string text = refusal_text(*refusal, options.allowed_origin);
    const bool sent = co_await write(stream, text, draining ? kLastWords : options.write_time);
    if (!sent) co_return;
    beast::tcp_stream& lowest = stream.lowest();
    error_code ignored;
    lowest.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    lowest.expires_after(draining ? kLastWords : kLinger);
    std::string sink(64 << 10, '\0');
    const asio::mutable_buffer into = asio::buffer(sink);
    for (size_t drained = 0; drained < kMostDrained;) {
      const auto [over, size] = co_await lowest.async_read_some(into, kAwait);
      if (over) co_return;
      drained += size;
    }
  }

  asio::awaitable<bool> write(HttpStream& stream, const std::string& bytes, std::chrono::seconds time) {
    for (size_t at = 0; at < bytes.size();) {
      stream.lowest().expires_after(time);  // starts again: a client that takes some bytes may have the rest
      const auto [error, size] = co_await stream.write_some(asio::buffer(bytes) + at);
      if (error) co_return false;
      at += size;
    }
    co_return true;
  }

  // Sends bytes of an answer.
  asio::awaitable<bool> send(HttpStream& stream, Peer& peer, const std::string& bytes) {
    if (bytes.empty()) co_return true;
    peer.writing = true;
    const bool sent = co_await write(stream, bytes, options.write_time);
    peer.writing = false;
    peer.sent_at = Peer::Clock::now();
    co_return sent;
  }

  struct Peers {  // guarded by mutex
    std::mutex mutex;
    std::set<std::shared_ptr<Peer>> open;
  };

  const HttpOptions options;
  const Handler handler;
  int port = 0;  // the port that was bound
  std::unique_ptr<asio::ssl::context> tls;
  std::atomic<bool> draining = false;
  bool cut = false;  // control's
  std::atomic<int> connections = 0;
  Peers peers;
  std::vector<Worker> workers;  // destroyed first, since they use all of the above
  asio::io_context& control;    // the first worker's: for accepting and for ending
  Tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer deadline;
  std::vector<std::jthread> threads;
};

void require_certificate(const HttpOptions& options) { static_cast<void>(tls_of(options)); }

HttpServer::HttpServer(HttpOptions options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {
  impl_->tls = tls_of(impl_->options);
  impl_->listen();
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  if (!is_ignored(SIGHUP)) impl_->signals.add(SIGHUP);
  impl_->await_signal();
  asio::co_spawn(impl_->control, impl_->accept(), asio::detached);
  try {
    for (Worker& worker : impl_->workers) impl_->threads.emplace_back([&worker] { worker.io.run(); });
  } catch (const std::system_error& e) {
    impl_->stop();  // stops the threads that were started
    throw Error(Code::kIo, "--http-threads {}: {} could be started: {}", impl_->workers.size(), impl_->threads.size(),
                e.code().message());
  }
}

HttpServer::~HttpServer() {
  impl_->stop();
  impl_->threads.clear();
}

int HttpServer::port() const { return impl_->port; }

void HttpServer::wait() {
  for (std::jthread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace nibble::server

// What is co_awaited is given names, not temporaries: g++ 12 destroys some of those twice.
#include "lab/client/http_requests.h"

#include "base/ascii.h"
#include "base/error.h"
#include "base/machine.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/as_tuple.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <tuple>

namespace nibble::client {

std::string Endpoint::authority() const {
  const bool address6 = host.find(':') != std::string::npos;
  return (address6 ? "[" + host + "]" : host) + (port == (tls ? "443" : "80") ? "" : ":" + port);
}

Endpoint parse_base_url(std::string_view url) {
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  const auto refuse = [&](std::string_view why) -> Error {
    return {Code::kInvalidRequest, "--base-url: want {} such as http://127.0.0.1:8000, found \"{}\"", why, url};
  };
  const bool tls = url.starts_with(kTls);
  if (!tls && !url.starts_with(kPlain)) throw refuse("a URL");
  if (std::ranges::any_of(url,
                          [](unsigned char c) { return c <= ' ' || c >= 0x7F || c == '?' || c == '#' || c == '@'; }))
    throw refuse("a URL of scheme, host, port and path");
  std::string_view rest = url.substr(tls ? kTls.size() : kPlain.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  Endpoint endpoint{.tls = tls, .host = {}, .port = tls ? "443" : "80", .prefix = {}};
  size_t colon = authority.rfind(':');
  const bool in_brackets = authority.starts_with('[');
  if (in_brackets) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) throw refuse("a URL");
    endpoint.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
    colon = authority.find(':');
    if (colon != 0 && !authority.empty()) throw refuse("a URL");
  } else {
    endpoint.host = authority.substr(0, colon);
  }
  if (colon != std::string_view::npos) {
    endpoint.port = authority.substr(colon + 1);
    if (const int port = number_in<int>(endpoint.port).value_or(0); port < 1 || port > 65535)
      throw refuse("a port from 1 to 65535 in a URL");
  }
  if (endpoint.host.empty() || (!in_brackets && endpoint.host.find(':') != std::string::npos)) throw refuse("a URL");
  while (path.ends_with('/')) path.remove_suffix(1);
  endpoint.prefix = path.empty() ? "/v1" : path;
  return endpoint;
}

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using Tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

constexpr size_t kReadAhead = size_t{64} << 10, kMostPlainBytes = size_t{1} << 20;
constexpr auto kConnectTime = std::chrono::seconds(30);
constexpr auto kAskAgain = std::chrono::milliseconds(100);

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// A body that is handed on as it comes.
struct SinkBody {
  struct value_type {  // NOLINT(readability-identifier-naming): Beast's name
    std::function<void(std::string_view)> take;
  };
  class reader {  // NOLINT(readability-identifier-naming): Beast's name
   public:
    template <bool kRequest, class Fields>
    reader(http::header<kRequest, Fields>& /*header*/, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>& /*length*/, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      for (const asio::const_buffer part : beast::buffers_range_ref(buffers))
        body_.take({static_cast<const char*>(part.data()), part.size()});
      return beast::buffer_bytes(buffers);
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// `more`: further headers, each with its end of line; a body has a length.
std::string request_to(const Server& server, std::string_view verb, const std::string& target,
                       const std::string& more = "", const std::string& body = "") {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nUser-Agent: nibble/{}\r\n", verb,
                                 target, server.endpoint.authority(), NIBBLE_VERSION);
  if (!server.api_key.empty()) text += "Authorization: Bearer " + server.api_key + "\r\n";
  return text + more + "\r\n" + body;
}

// Where an exchange tells what happens.
struct Talk {
  std::function<void(int status, std::string_view content_type)> head;
  std::function<void(std::string_view bytes)> body;
  std::function<bool()> over;  // asked after each piece
};
// How it ended.
struct Ending {
  Failure failure = Failure::kNone;  // none: it is whole, or the talk was over
  std::string why{};
};

Tcp::resolver::results_type resolve(const Endpoint& endpoint) {
  error_code error;
  asio::io_context io{1};
  Tcp::resolver resolver(io);
  auto found = resolver.resolve(endpoint.host, endpoint.port, Tcp::resolver::numeric_service, error);
  if (error || found.empty()) throw Error(Code::kIo, "{}: no such host: {}", endpoint.host, error.message());
  return found;
}

Failure failure_of(error_code error, bool begun) {
  if (error == beast::error::timeout) return Failure::kTimeout;
  const bool ended = error == http::error::end_of_stream || error == http::error::partial_message ||
                     error.category() != http::make_error_code(http::error::partial_message).category();
  if (!ended) return Failure::kMalformed;
  return begun ? Failure::kTruncated : Failure::kLost;
}

using Secure = asio::ssl::stream<beast::tcp_stream&>;

// Null where none is spoken.
std::unique_ptr<asio::ssl::context> tls_of(const Server& server) {
  if (!server.endpoint.tls) {
    if (!server.cacert.empty() || server.insecure)
      throw Error(Code::kInvalidRequest, "--cacert and --insecure: want --base-url https://…, found {}",
                  server.endpoint.root_url());
    return nullptr;
  }
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1);
  error_code error;
  if (server.insecure) {
    tls->set_verify_mode(asio::ssl::verify_none, error);
  } else {
    tls->set_verify_mode(asio::ssl::verify_peer, error);
    tls->set_verify_callback(asio::ssl::host_name_verification(server.endpoint.host), error);
    if (server.cacert.empty())
      tls->set_default_verify_paths(error);
    else
      tls->load_verify_file(server.cacert.string(), error);
  }
  if (error) throw Error(Code::kIo, "--cacert {}: {}", server.cacert.string(), error.message());
  return tls;
}

// Where a server is and how one speaks with it.
struct Way {
  explicit Way(const Server& server)
      : host(server.endpoint.host), addresses(resolve(server.endpoint)), tls(tls_of(server)) {}

  std::string host;
  Tcp::resolver::results_type addresses;
  std::unique_ptr<asio::ssl::context> tls;
};

using Parser = http::response_parser<SinkBody>;

// A connection, plain or with TLS: one type for both, so that what speaks HTTP is compiled once.
struct Stream {
  using Some = std::tuple<error_code, size_t>;

  asio::awaitable<Some> read_some(asio::mutable_buffer into) const {
    return secure == nullptr ? plain->async_read_some(into, kAwait) : secure->async_read_some(into, kAwait);
  }
  asio::awaitable<Some> write_some(asio::const_buffer bytes) const {
    return secure == nullptr ? plain->async_write_some(bytes, kAwait) : secure->async_write_some(bytes, kAwait);
  }

  beast::tcp_stream* plain;
  Secure* secure;  // null: no TLS
};

asio::awaitable<error_code> write(const Stream& stream, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const auto [failed, size] = co_await stream.write_some(asio::buffer(text) + at);
    if (failed) co_return failed;
    at += size;
  }
  co_return error_code();
}

// What is read is added to the buffer. At the end of the stream the parser says whether the answer may end there.
asio::awaitable<error_code> read_more(const Stream& stream, beast::flat_buffer& buffer, Parser& parser) {
  const size_t room = buffer.max_size() - buffer.size();
  if (room == 0) co_return http::error::buffer_overflow;
  const asio::mutable_buffer into = buffer.prepare(std::min(room, kReadAhead));
  auto [error, size] = co_await stream.read_some(into);
  buffer.commit(size);
  if (error != asio::error::eof) co_return error;
  if (!parser.got_some()) co_return http::error::end_of_stream;
  error = {};
  parser.put_eof(error);
  co_return error;
}

asio::awaitable<Ending> exchange_over(const Stream& stream, const std::string& request, const Talk& talk) {
  // A server may refuse before it has read all: what it says is read all the same.
  const error_code unsent = co_await write(stream, request);
  if (unsent == beast::error::timeout) co_return Ending{Failure::kTimeout, "the request was not taken"};
  Parser parser;
  parser.body_limit(boost::none);
  parser.header_limit(kReadAhead);
  parser.get().body().take = talk.body;
  beast::flat_buffer buffer(2 * kReadAhead);
  buffer.reserve(kReadAhead);
  bool told = false;
  while (!parser.is_done() && !talk.over()) {
    error_code error = http::error::need_more;
    if (buffer.size() > 0) buffer.consume(parser.put(buffer.data(), error));
    if (error == http::error::need_more) error = co_await read_more(stream, buffer, parser);
    if (error) co_return Ending{failure_of(error, told), error.message()};
    if (told || !parser.is_header_done()) continue;
    told = true;
    parser.eager(true);  // the body, too
    talk.head(parser.get().result_int(), std::string_view(parser.get()[http::field::content_type]));
  }
  co_return Ending{};
}

asio::awaitable<Ending> converse(asio::io_context& io, const Way& way, const std::string& request,
                                 Clock::time_point deadline, const Talk& talk) {
  beast::tcp_stream plain(io);
  plain.expires_at(std::min(deadline, Clock::now() + kConnectTime));
  const auto [refused, address] = co_await plain.async_connect(way.addresses, kAwait);
  if (refused) co_return Ending{Failure::kConnect, refused.message()};
  error_code ignored;
  plain.socket().set_option(Tcp::no_delay(true), ignored);
  std::optional<Secure> secure;
  if (way.tls) {
    secure.emplace(plain, *way.tls);
    error_code no_address;
    asio::ip::make_address(way.host, no_address);
    if (no_address) SSL_set_tlsext_host_name(secure->native_handle(), way.host.c_str());  // only names are told
    const auto [failed] = co_await secure->async_handshake(asio::ssl::stream_base::client, kAwait);
    if (failed)
      co_return Ending{failed == beast::error::timeout ? Failure::kConnect : Failure::kHandshake, failed.message()};
  }
  plain.expires_at(deadline);
  const Stream stream{&plain, secure ? &*secure : nullptr};
  Ending ended = co_await exchange_over(stream, request, talk);
  plain.socket().shutdown(Tcp::socket::shutdown_both, ignored);  // nobody waits for a farewell
  co_return ended;
}

class Run {
 public:
  explicit Run(const RequestPlan& plan)
      : plan_(plan), conversations_(plan.count / plan.turns), outcomes_(plan.count), way_(plan.server) {
    allow_most_files();
  }

  std::vector<Outcome> go() {
    begin_ = Clock::now();
    const auto ended = [this](const std::exception_ptr& error) {
      if (!error || error_) return;
      error_ = error;
      io_.stop();
    };
    const bool open_loop = !plan_.arrivals.empty();
    const size_t many = open_loop ? conversations_ : std::min(conversations_, static_cast<size_t>(plan_.concurrency));
    for (size_t i = 0; i < many; ++i) asio::co_spawn(io_, open_loop ? arrive(i) : repeat(), ended);
    while (!io_.stopped()) {
      io_.run_for(kAskAgain);
      if (plan_.keep_going && !plan_.keep_going(done_)) io_.stop();
    }
    if (error_) std::rethrow_exception(error_);
    return std::move(outcomes_);
  }

 private:
  [[nodiscard]] double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  asio::awaitable<void> repeat() {
    for (size_t c = next_++; c < conversations_; c = next_++) co_await hold(c);
  }

  // Late is late: the wait counts from when the request was due.
  asio::awaitable<void> arrive(size_t conversation) {
    asio::steady_timer due(io_, begin_ + seconds(plan_.arrivals[conversation]));
    co_await due.async_wait(kAwait);
    co_await hold(conversation);
  }

  asio::awaitable<void> hold(size_t conversation) {
    for (size_t turn = 0; turn < plan_.turns; ++turn) {
      const size_t i = conversation * plan_.turns + turn;
      outcomes_[i].turn = static_cast<int>(turn);
      if (turn > 0 && plan_.pause) {
        asio::steady_timer pause(io_, seconds(plan_.pause(i)));
        co_await pause.async_wait(kAwait);
      }
      std::string body = plan_.body(i);
      outcomes_[i].sent = turn == 0 && !plan_.arrivals.empty() ? plan_.arrivals[conversation] : now();
      co_await exchange(i, std::move(body));
      if (outcomes_[i].ok()) continue;
      done_ += plan_.turns - turn - 1;
      co_return;
    }
  }

  asio::awaitable<void> exchange(size_t i, std::string body) {
    Outcome& outcome = outcomes_[i];
    AnswerReader reader(outcome, plan_.options ? plan_.options(i) : AnswerOptions{});
    const std::string more = fmt::format(
        "Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {}\r\n", body.size());
    const std::string request = request_to(plan_.server, "POST", plan_.server.endpoint.prefix + plan_.path, more, body);
    const Talk talk{.head = [&](int status, std::string_view type) { reader.head(status, type); },
                    .body = [&](std::string_view bytes) { reader.body(bytes, now()); },
                    .over = [&] { return reader.over(); }};
    const Clock::time_point deadline = Clock::now() + seconds(plan_.timeout_seconds);
    const Ending ended = co_await converse(io_, way_, request, deadline, talk);
    if (ended.failure != Failure::kNone) reader.fail(ended.failure, ended.why);
    reader.end();
    outcome.done = now();
    outcome.ended = true;
    if (plan_.judge) plan_.judge(i, outcome);
    ++done_;
  }

  const RequestPlan& plan_;
  const size_t conversations_;
  std::vector<Outcome> outcomes_;
  Clock::time_point begin_;
  size_t next_ = 0, done_ = 0;
  std::exception_ptr error_;
  const Way way_;
  asio::io_context io_{1};  // its end destroys what still runs, which uses the above
};

}  // namespace

PlainAnswer get(const Server& server, const std::string& path, double timeout) {
  asio::io_context io{1};
  const Way way(server);
  PlainAnswer answer;
  Ending ended;
  const std::string request = request_to(server, "GET", path);
  const Talk talk{.head = [&](int status, std::string_view) { answer.status = status; },
                  .body =
                      [&](std::string_view bytes) {
                        answer.body += bytes.substr(0, kMostPlainBytes - std::min(kMostPlainBytes, answer.body.size()));
                      },
                  .over = [] { return false; }};
  asio::co_spawn(io, converse(io, way, request, Clock::now() + seconds(timeout), talk),
                 [&](const std::exception_ptr& /*error*/, Ending how) { ended = std::move(how); });
  io.run();
  if (ended.failure != Failure::kNone) throw Error(Code::kIo, "{}{}: {}", server.endpoint.root_url(), path, ended.why);
  return answer;
}

std::vector<Outcome> run_requests(const RequestPlan& plan) {
  if (plan.count == 0) return {};
  return Run(plan).go();
}

}  // namespace nibble::client

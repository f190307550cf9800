#include "lab/client/http_requests.h"

#include "base/error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::client {
namespace {

// A server for tests, of plain sockets: what it answers is what the test says, well-formed or not.
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

constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

StandIn::StandIn(Answer answer) : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  check(::bind(listener_, where, size) == 0 && ::listen(listener_, 4096) == 0, "listen");
  check(::getsockname(listener_, where, &size) == 0, "getsockname");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { accept(); });
}

StandIn::~StandIn() {
  stopping_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  connections_.clear();
  ::close(listener_);
}

std::string StandIn::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

void StandIn::accept() {
  while (true) {
    const int connection = ::accept(listener_, nullptr, nullptr);
    if (connection < 0) return;
    connections_.emplace_back([this, connection] { talk(connection); });
  }
}

void StandIn::talk(int connection) {
  const int now = ++open_;
  for (int most = most_; now > most && !most_.compare_exchange_weak(most, now);) {
  }
  std::string request;
  std::array<char, 65536> buffer;
  size_t whole = std::string::npos;
  while (request.size() < whole) {
    const ssize_t size = ::recv(connection, buffer.data(), buffer.size(), 0);
    if (size <= 0) break;
    request.append(buffer.data(), static_cast<size_t>(size));
    const size_t head = request.find("\r\n\r\n");
    if (head == std::string::npos) continue;
    const size_t length = request.find("Content-Length: ");
    whole = head + 4 + (length < head ? static_cast<size_t>(std::atoll(request.c_str() + length + 16)) : 0);
  }
  answer_(request, [&](std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  });
  --open_;
  ::close(connection);
}

// Of HTTP's chunked coding.
std::string chunk(std::string_view data) { return fmt::format("{:x}\r\n{}\r\n", data.size(), data); }

// A whole answer of so many tokens as chunked events; `between` is called before each.
void send_tokens(const StandIn::Send& send, int tokens, const std::function<void()>& between = {}) {
  if (!send(kStreamHead)) return;
  for (int i = 0; i < tokens; ++i) {
    if (between) between();
    const bool last = i + 1 == tokens;
    if (!send(chunk(fmt::format("data: {{\"choices\":[{{\"index\":0,\"text\":\"a\",\"finish_reason\":{}}}]}}\n\n",
                                last ? "\"length\"" : "null"))))
      return;
  }
  send(chunk(
      fmt::format("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":{}}}}}\n\n", tokens)));
  send(chunk("data: [DONE]\n\n") + "0\r\n\r\n");
}

TEST(Endpoint, takes_what_openais_clients_take) {
  const Endpoint plain = parse_base_url("http://127.0.0.1:8000");
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, "8000");
  EXPECT_EQ(plain.base_url(), "http://127.0.0.1:8000/v1");
  EXPECT_EQ(parse_base_url("http://gpu.example:8000/v1/").base_url(), "http://gpu.example:8000/v1");
  EXPECT_EQ(parse_base_url("http://gpu.example/api/openai").base_url(), "http://gpu.example/api/openai");
  const Endpoint six = parse_base_url("http://[::1]:81/v1");
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.authority(), "[::1]:81");
  EXPECT_EQ(parse_base_url("http://[::1]").port, "80");
  EXPECT_FALSE(plain.tls);
  const Endpoint secure = parse_base_url("https://gpu.example");
  EXPECT_TRUE(secure.tls);
  EXPECT_EQ(secure.port, "443");
  EXPECT_EQ(secure.base_url(), "https://gpu.example/v1");
  EXPECT_EQ(parse_base_url("https://gpu.example:80/v1").base_url(), "https://gpu.example:80/v1");
}

TEST(Endpoint, refuses_what_is_no_such_url) {
  for (const char* url : {"", "localhost:8000", "ftp://a", "https://", "http://", "http://:80", "http://a:0",
                          "http://a:65536", "http://a:x", "http://a:8000:9", "http://[::1", "http://[::1]x",
                          "http://a/v1?b", "http://u@a", "http://a /v1", "http://a\r\nX: y"}) {
    EXPECT_THROW(static_cast<void>(parse_base_url(url)), Error) << url;
  }
}

using testing::HasSubstr;

Server at(const std::string& url) { return {.endpoint = parse_base_url(url), .api_key = {}}; }
std::string numbered_body(size_t request) { return fmt::format("{{\"request\":{}}}", request); }

Outcome one(const std::string& url, double timeout = 60) {
  const Server server = at(url);
  const std::vector<Outcome> outcomes = run_requests(
      {.server = server, .path = "/completions", .count = 1, .body = numbered_body, .timeout_seconds = timeout});
  EXPECT_TRUE(outcomes.front().ended);
  return outcomes.front();
}

TEST(HttpRequests, each_request_is_sent_once_and_read_whole) {
  std::mutex mutex;
  std::map<std::string, int> seen;
  StandIn server([&](const std::string& request, const StandIn::Send& send) {
    {
      const std::lock_guard lock(mutex);
      ++seen[request.substr(request.find("\r\n\r\n") + 4)];
    }
    EXPECT_TRUE(request.starts_with("POST /v1/completions HTTP/1.1\r\n")) << request;
    EXPECT_THAT(request, HasSubstr("Authorization: Bearer key\r\n"));
    send_tokens(send, 7);
  });
  const Server where{.endpoint = parse_base_url(server.url()), .api_key = "key"};
  const auto outcomes =
      run_requests({.server = where, .path = "/completions", .count = 100, .body = numbered_body, .concurrency = 16});
  for (const Outcome& o : outcomes) {
    EXPECT_TRUE(o.ok()) << o.kind() << o.message;
    EXPECT_EQ(o.events, 7);
    EXPECT_EQ(o.tokens(), 7);
    EXPECT_LE(o.sent, o.first);
    EXPECT_LE(o.last, o.done);
  }
  EXPECT_EQ(seen.size(), 100U);
  for (const auto& [body, times] : seen) EXPECT_EQ(times, 1) << body;
}

TEST(HttpRequests, a_body_without_a_length_ends_with_the_connection) {
  StandIn server([](const std::string& request, const StandIn::Send& send) {
    EXPECT_TRUE(request.starts_with("GET /here HTTP/1.1\r\n")) << request;
    send("HTTP/1.1 200 OK\r\n\r\nall of");
    send(" it");
  });
  const PlainAnswer answer = get(at(server.url()), "/here", 60);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "all of it");
}

// The first requests wait until all of them are there, so no clock decides.
TEST(HttpRequests, as_many_run_at_a_time_as_asked) {
  std::mutex mutex;
  std::condition_variable all;
  int there = 0;
  constexpr int kAtOnce = 12;
  StandIn server([&](const std::string&, const StandIn::Send& send) {
    {
      std::unique_lock lock(mutex);
      ++there;
      all.notify_all();
      all.wait(lock, [&] { return there >= kAtOnce; });
    }
    send_tokens(send, 1);
  });
  const Server where = at(server.url());
  const auto outcomes =
      run_requests({.server = where, .path = "/x", .count = 30, .body = numbered_body, .concurrency = kAtOnce});
  EXPECT_TRUE(std::ranges::all_of(outcomes, &Outcome::ok));
  // The stand-in may see the next one before it has closed the one before.
  EXPECT_GE(server.most_at_once(), kAtOnce);
  EXPECT_LE(server.most_at_once(), 2 * kAtOnce);
}

TEST(HttpRequests, arrivals_come_whatever_still_runs) {
  std::mutex mutex;
  std::condition_variable all;
  int there = 0;
  StandIn server([&](const std::string&, const StandIn::Send& send) {
    std::unique_lock lock(mutex);
    ++there;
    all.notify_all();
    all.wait(lock, [&] { return there == 5; });  // none ends before all have come
    lock.unlock();
    send_tokens(send, 2);
  });
  const Server where = at(server.url());
  const auto outcomes = run_requests(
      {.server = where, .path = "/x", .count = 5, .body = numbered_body, .arrivals = {0, 0.01, 0.02, 0.02, 0.05}});
  for (const Outcome& o : outcomes) EXPECT_TRUE(o.ok()) << o.message;
  EXPECT_EQ(outcomes[4].sent, 0.05);
  EXPECT_GE(outcomes[0].first, 0.05);
}

// Who asks knows what was answered before; nobody else's answer comes between.
TEST(HttpRequests, turns_of_a_conversation_follow_each_other) {
  StandIn server([&](const std::string&, const StandIn::Send& send) { send_tokens(send, 2); });
  const Server where = at(server.url());
  constexpr size_t kTurns = 3, kConversations = 20;
  std::vector<size_t> asked(kConversations), ended(kConversations);
  const auto outcomes = run_requests({.server = where,
                                      .path = "/x",
                                      .count = kTurns * kConversations,
                                      .body =
                                          [&](size_t i) {
                                            const size_t c = i / kTurns;
                                            EXPECT_EQ(asked[c]++, i % kTurns);
                                            EXPECT_EQ(ended[c], i % kTurns);
                                            return numbered_body(i);
                                          },
                                      .turns = kTurns,
                                      .pause = [](size_t) { return 1e-3; },
                                      .judge =
                                          [&](size_t i, Outcome& outcome) {
                                            ++ended[i / kTurns];
                                            if (i == 4) outcome.failure = Failure::kNoCall;
                                          },
                                      .concurrency = 6});
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].turn, i == 5 ? 0 : static_cast<int>(i % kTurns));
    EXPECT_EQ(outcomes[i].ok(), i != 4 && i != 5) << i;
    if (i % kTurns > 0 && outcomes[i].ok()) EXPECT_GE(outcomes[i].sent, outcomes[i - 1].done + 1e-3);
  }
  EXPECT_FALSE(outcomes[5].ended);  // behind the one that failed
  EXPECT_EQ(ended[1], 2U);
}

TEST(HttpRequests, a_refused_connection_is_counted) {
  std::string url;
  {
    StandIn gone([](const std::string&, const StandIn::Send&) {});
    url = gone.url();
  }
  const Outcome o = one(url);
  EXPECT_EQ(o.failure, Failure::kConnect);
  EXPECT_THAT(o.message, HasSubstr("refused"));
  EXPECT_THROW(static_cast<void>(get(at(url), "/health", 5)), Error);
  EXPECT_THROW(static_cast<void>(one("http://no-such-host.invalid:1")), Error);
}

// What a server may send instead of an answer, and what it is called.
TEST(HttpRequests, every_bad_answer_has_a_kind) {
  const std::string token = chunk("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"), head(kStreamHead);
  const struct {
    std::string bytes;
    Failure failure;
  } cases[] = {
      {"", Failure::kLost},
      {"HTTP/1.1 200 O", Failure::kLost},
      {"SSH-2.0-OpenSSH_9\r\n\r\n", Failure::kMalformed},
      {"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nbad", Failure::kStatus},
      {"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", Failure::kStatus},
      {"HTTP/1.1 302 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Failure::kStatus},
      {"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi", Failure::kMalformed},
      {head, Failure::kTruncated},
      {head + token, Failure::kTruncated},
      {head + token + "0\r\n\r\n", Failure::kTruncated},
      {head + token + "zz\r\n", Failure::kMalformed},
      {head + token + chunk("data: oops\n\n"), Failure::kMalformed},
      {head + chunk("data: [DONE]\n\n") + "0\r\n\r\n", Failure::kEmpty},
      {head + token + chunk("data: [DONE]\n\n") + "0\r\n\r\n", Failure::kCutOff},
      {head + token + chunk("data: {\"error\":{\"message\":\"x\"}}\n\n"), Failure::kReported},
      {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata: ", Failure::kTruncated},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(1 << 20, 'y'), Failure::kMalformed},
  };
  for (const auto& each : cases) {
    StandIn server([&](const std::string&, const StandIn::Send& send) { send(each.bytes); });
    const Outcome o = one(server.url());
    EXPECT_EQ(name_of(o.failure), name_of(each.failure)) << each.bytes.substr(0, 200) << ": " << o.message;
  }
  // And the same in one piece that is right: the end of the connection ends this body.
  StandIn plain([](const std::string&, const StandIn::Send& send) {
    send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
  });
  EXPECT_TRUE(one(plain.url()).ok());
}

// Nothing at all, a head without a body, and a byte now and then: each would hold a client for ever.
TEST(HttpRequests, whoever_never_ends_is_left_at_the_timeout) {
  for (const int kind : {0, 1, 2}) {
    StandIn* self = nullptr;
    StandIn server([&, kind](const std::string&, const StandIn::Send& send) {
      if (kind > 0 && !send(kStreamHead)) return;
      while (!self->stopping()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (kind == 2 && !send(chunk(": wait\n"))) return;
      }
    });
    self = &server;
    EXPECT_EQ(name_of(one(server.url(), 0.3).failure), "timeout") << kind;
  }
}

TEST(HttpRequests, a_run_that_is_cut_leaves_what_has_not_ended) {
  StandIn* self = nullptr;
  StandIn server([&](const std::string& request, const StandIn::Send& send) {
    const bool first = request.find("{\"request\":0}") != std::string::npos;
    while (!first && !self->stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    send_tokens(send, 1);
  });
  self = &server;
  const Server where = at(server.url());
  const auto outcomes = run_requests({.server = where,
                                      .path = "/x",
                                      .count = 8,
                                      .body = numbered_body,
                                      .concurrency = 4,
                                      .keep_going = [](size_t done) { return done < 1; }});
  EXPECT_TRUE(outcomes[0].ok());
  EXPECT_EQ(std::ranges::count(outcomes, true, &Outcome::ended), 1);
}

TEST(HttpRequests, a_request_that_is_left_tells_the_server) {
  std::atomic<int> gone = 0;
  StandIn server([&](const std::string&, const StandIn::Send& send) {
    if (!send(kStreamHead)) return;
    while (send(chunk("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++gone;
  });
  const Server where = at(server.url());
  const auto outcomes = run_requests({.server = where,
                                      .path = "/x",
                                      .count = 3,
                                      .body = numbered_body,
                                      .options = [](size_t) { return AnswerOptions{.close_after = 4}; },
                                      .concurrency = 3});
  for (const Outcome& o : outcomes) EXPECT_TRUE(o.cancelled && o.events >= 4);
  while (gone < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(HttpRequests, a_plain_answer_is_read_whole) {
  StandIn server([](const std::string& request, const StandIn::Send& send) {
    EXPECT_TRUE(request.starts_with("GET /metrics HTTP/1.1\r\n"));
    send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde");
  });
  const PlainAnswer answer = get(at(server.url()), "/metrics", 60);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "abcde");
}

}  // namespace
}  // namespace nibble::client

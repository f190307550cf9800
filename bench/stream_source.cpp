// Answers as many streams at a time as come, each at a steady pace, at next to no cost: what a load generator can take
// is measured against it, as what it sends is known.
//
//   stream_source [tokens per second of a stream: 50] [tokens of an answer: 500]
//
// It says its URL, then serves until it is stopped. Every answer is the same, whatever was asked; a connection is one.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
constexpr std::string_view kModels =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 26\r\n\r\n"
    R"({"data":[{"id":"source"}]})";

std::string chunk(std::string_view data) { return fmt::format("{:x}\r\n{}\r\n", data.size(), data); }

// As long as those of servers are.
std::string event(std::string_view finish_reason) {
  return chunk(fmt::format(
      R"(data: {{"id":"cmpl-5219ccae6f0c452f85ed6780a52fac6f","object":"text_completion","created":1795645293,"model":"source","choices":[{{"index":0,"text":" word","logprobs":null,"finish_reason":{}}}],"usage":null}})"
      "\n\n",
      finish_reason));
}

struct Stream {
  std::string request;
  int64_t sent = 0;
};

struct Due {
  Clock::time_point at;
  int connection;
  bool operator>(const Due& other) const { return at > other.at; }
};

class Source {
 public:
  Source(double rate, int64_t tokens)
      : gap_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / rate))),
        tokens_(tokens),
        middle_(event("null")),
        last_(event("\"length\"") +
              chunk(fmt::format(
                  "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{}}}}}\n\n", tokens)) +
              chunk("data: [DONE]\n\n") + "0\r\n\r\n") {
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
      files.rlim_cur = files.rlim_max;
      setrlimit(RLIMIT_NOFILE, &files);
    }
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof address;
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_, where, size) != 0 || ::listen(listener_, 4096) != 0 ||
        ::getsockname(listener_, where, &size) != 0)
      std::abort();
    watch(listener_);
    fmt::print("http://127.0.0.1:{}\n", ntohs(address.sin_port));
    std::fflush(stdout);
  }

  void serve() {
    std::array<epoll_event, 256> events;
    while (true) {
      const auto wait = due_.empty()
                            ? std::chrono::milliseconds(1000)
                            : std::chrono::duration_cast<std::chrono::milliseconds>(due_.top().at - Clock::now());
      const int many = ::epoll_wait(epoll_, events.data(), events.size(),
                                    static_cast<int>(std::clamp<int64_t>(wait.count(), 0, 1000)));
      for (int i = 0; i < many; ++i) {
        const int from = events[static_cast<size_t>(i)].data.fd;
        if (from == listener_)
          accept();
        else
          read(from);
      }
      for (const auto now = Clock::now(); !due_.empty() && due_.top().at <= now;) {
        const Due due = due_.top();
        due_.pop();
        next(due);
      }
    }
  }

 private:
  void watch(int connection) const {
    epoll_event event{.events = EPOLLIN, .data = {.fd = connection}};
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection, &event);
  }

  void accept() {
    const int connection = ::accept(listener_, nullptr, nullptr);
    if (connection < 0) return;
    const int on = 1;
    ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    streams_[connection] = {};
    watch(connection);
  }

  void read(int connection) {
    std::array<char, 65536> buffer;
    const ssize_t size = ::recv(connection, buffer.data(), buffer.size(), 0);
    if (size <= 0) return close(connection);
    std::string& request = streams_[connection].request;
    request.append(buffer.data(), static_cast<size_t>(size));
    const size_t head = request.find("\r\n\r\n"), length = request.find("Content-Length: ");
    if (head == std::string::npos) return;
    if (request.starts_with("GET ")) {
      send(connection, kModels);
      return close(connection);
    }
    if (length < head && request.size() < head + 4 + std::strtoull(request.c_str() + length + 16, nullptr, 10)) return;
    request = {};
    send(connection, kHead);
    due_.push({Clock::now() + gap_, connection});
  }

  void next(const Due& due) {
    const auto stream = streams_.find(due.connection);
    if (stream == streams_.end()) return;
    const bool last = ++stream->second.sent == tokens_;
    send(due.connection, last ? last_ : middle_);
    if (last) return close(due.connection);
    due_.push({due.at + gap_, due.connection});
  }

  static void send(int connection, std::string_view bytes) {
    static_cast<void>(::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  void close(int connection) {
    streams_.erase(connection);
    ::close(connection);
  }

  const Clock::duration gap_;
  const int64_t tokens_;
  const std::string middle_, last_;
  const int epoll_ = ::epoll_create1(0);
  int listener_ = -1;
  std::map<int, Stream> streams_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

}  // namespace

int main(int argc, char** argv) {
  const double rate = argc > 1 ? std::strtod(argv[1], nullptr) : 50;
  const int64_t tokens = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 500;
  if (rate <= 0 || tokens < 1) {
    fmt::print(stderr, "usage: stream_source [tokens per second of a stream] [tokens of an answer]\n");
    return 2;
  }
  Source(rate, tokens).serve();
}

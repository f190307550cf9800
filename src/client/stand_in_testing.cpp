#include "client/stand_in_testing.h"

#include "base/error.h"

#include <fmt/format.h>

#include <array>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::client {

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

std::string chunk(std::string_view data) { return fmt::format("{:x}\r\n{}\r\n", data.size(), data); }

void send_tokens(const StandIn::Send& send, int tokens, const std::function<void()>& between) {
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

}  // namespace nibble::client

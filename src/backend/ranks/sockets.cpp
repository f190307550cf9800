#include "backend/ranks/sockets.h"

#include "base/error.h"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace nibble::backend {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// All that the name means. No host: all of this machine's.
Addresses addresses_of(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) throw Error(Code::kIo, "{}: no such address: {}", host, gai_strerror(failed));
  return {found, &freeaddrinfo};
}

Socket make_socket(const addrinfo& of) {
  const int fd = socket(of.ai_family, of.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, of.ai_protocol);
  if (fd < 0) throw Error(Code::kIo, "no socket: {}", std::strerror(errno));
  return Socket(fd);
}

// Verbs are short messages that somebody waits for.
void send_at_once(const Socket& socket) {
  const int yes = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

std::string text_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  getnameinfo(generic, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  return fmt::format("{}:{}", host, port);
}

// 0, or why not.
int try_listen(const addrinfo& at, Socket& into) {
  into = make_socket(at);
  const int yes = 1;
  setsockopt(into.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  constexpr int kMostWaiting = 128;
  return bind(into.fd(), at.ai_addr, at.ai_addrlen) == 0 && listen(into.fd(), kMostWaiting) == 0 ? 0 : errno;
}

}  // namespace

std::string text_of(const Address& address) { return fmt::format("{}:{}", address.host, address.port); }

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}
Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
void Socket::shut() const { shutdown(fd_, SHUT_RDWR); }

Listener listen_at(const Address& address) {
  Listener listener{{}, address};
  const Addresses own = addresses_of(address.host, address.port, 0);
  int failed = try_listen(*own, listener.socket);
  if (failed == EADDRNOTAVAIL) {
    listener.at.host = own->ai_family == AF_INET6 ? "::" : "0.0.0.0";
    failed = try_listen(*addresses_of(listener.at.host, address.port, AI_PASSIVE), listener.socket);
  }
  if (failed != 0)
    throw Error(Code::kIo, "cannot listen on {} for the other ranks: {}", text_of(listener.at), std::strerror(failed));
  return listener;
}

std::optional<Accepted> accept_one(const Socket& listener) {
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  const int fd = accept4(listener.fd(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return std::nullopt;
  Accepted accepted{Socket(fd), text_of(from, size)};
  send_at_once(accepted.socket);
  return accepted;
}

bool meets_itself(const Socket& socket) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  return getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&other), &other_size) == 0 && own_size == other_size &&
         std::memcmp(&own, &other, own_size) == 0;
}

Socket connect_to(const Address& address, std::chrono::milliseconds timeout) {
  int failed = ETIMEDOUT;
  const Addresses all = addresses_of(address.host, address.port, 0);
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    Socket socket = make_socket(*at);
    failed = connect(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
      failed = ETIMEDOUT;
      socklen_t size = sizeof failed;
      if (wait_until(socket, Ready::kToWrite, timeout)) getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &failed, &size);
    }
    if (failed == 0 && meets_itself(socket)) failed = ECONNREFUSED;
    if (failed != 0) continue;
    send_at_once(socket);
    return socket;
  }
  throw Error(Code::kIo, "{}", std::strerror(failed));
}

ReadResult read_some(const Socket& socket, std::span<std::byte> into) {
  const ssize_t count = recv(socket.fd(), into.data(), into.size(), 0);
  if (count > 0) return {ReadState::kSome, static_cast<size_t>(count)};
  const bool later = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return {later ? ReadState::kNothingYet : ReadState::kClosed};
}

std::optional<size_t> write_some(const Socket& socket, std::span<const std::byte> bytes) {
  const ssize_t count = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count >= 0) return static_cast<size_t>(count);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  return std::nullopt;
}

bool wait_until(const Socket& socket, Ready what, std::chrono::milliseconds timeout) {
  pollfd waited{
      .fd = socket.fd(), .events = static_cast<short>(what == Ready::kToRead ? POLLIN : POLLOUT), .revents = 0};
  return poll(&waited, 1, static_cast<int>(timeout.count())) > 0;
}

}  // namespace nibble::backend

#include "server/http_server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::server {
namespace {

// What comes on a new connection after `request`, read slowly through a small window until it ends.
std::string read_slowly(int port, const std::string& request, std::chrono::milliseconds pause) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0), window = 64 << 10;
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
  const sockaddr_in address{.sin_family = AF_INET,
                            .sin_port = htons(static_cast<uint16_t>(port)),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                            .sin_zero = {}};
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string all, piece(256 << 10, '\0');
  for (ssize_t got = 0; (got = ::recv(fd, piece.data(), piece.size(), 0)) > 0;) {
    all.append(piece, 0, static_cast<size_t>(got));
    std::this_thread::sleep_for(pause);
  }
  ::close(fd);
  return all;
}

TEST(http_server, a_slow_reader_gets_all_while_it_takes_some) {
  const std::string body(4 << 20, 'x');
  HttpServer server({.port = 0, .write_time = std::chrono::seconds(1)},
                    [&body](const HttpRequest&, const Wake&) { return std::make_unique<ReadyCall>(HttpHead{}, body); });
  const std::string all = read_slowly(server.port(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                                      std::chrono::milliseconds(40));
  EXPECT_TRUE(all.ends_with(body)) << all.size();
}

}  // namespace
}  // namespace nibble::server

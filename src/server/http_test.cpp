#include "server/http.h"

#include "server/http_server.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nibble::server {
namespace {

class Scripted final : public Call {
 public:
  explicit Scripted(std::deque<Output> outputs) : outputs_(std::move(outputs)) {}
  Output poll() override {
    if (outputs_.empty()) return {};
    Output out = std::move(outputs_.front());
    outputs_.pop_front();
    return out;
  }

 private:
  std::deque<Output> outputs_;
};

const HttpHead kStream{.content_type = "text/event-stream", .headers = {}, .stream = true};

std::string body_of(const std::string& bytes) { return bytes.substr(bytes.find("\r\n\r\n") + 4); }

TEST(reply, a_whole_answer_has_its_length) {
  ReadyCall call({}, "{}");
  Reply reply(call, {.keep_alive = true, .chunked = true}, /*is_head=*/false);
  const Reply::Piece piece = reply.next();
  EXPECT_TRUE(piece.done);
  EXPECT_FALSE(reply.streams());
  EXPECT_TRUE(reply.keep_alive());
  EXPECT_NE(piece.bytes.find("Content-Length: 2\r\n"), std::string::npos);
  EXPECT_EQ(body_of(piece.bytes), "{}");
}

TEST(reply, a_stream_goes_out_in_chunks_and_says_where_it_ends) {
  Scripted call({{.head = kStream, .body = ""}, {.head = {}, .body = "data: 1\n\n"}, {}, {.head = {}, .done = true}});
  Reply reply(call, {.keep_alive = true, .chunked = true}, /*is_head=*/false);
  const std::string head = reply.next().bytes;
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_EQ(body_of(head), "");
  EXPECT_EQ(reply.next().bytes, "9\r\ndata: 1\n\n\r\n");
  EXPECT_EQ(reply.next().bytes, "");
  EXPECT_EQ(reply.ping(), "4\r\n: \n\n\r\n");
  const Reply::Piece last = reply.next();
  EXPECT_TRUE(last.done && reply.keep_alive());
  EXPECT_EQ(last.bytes, "0\r\n\r\n");
}

TEST(reply, a_stream_by_http_1_0_ends_with_the_connection) {
  Scripted call({{.head = kStream, .body = "data: 1\n\n"}, {.head = {}, .body = "data: 2\n\n", .done = true}});
  Reply reply(call, {.keep_alive = true, .chunked = false}, /*is_head=*/false);
  EXPECT_EQ(body_of(reply.next().bytes), "data: 1\n\n");
  EXPECT_FALSE(reply.keep_alive());
  EXPECT_EQ(reply.ping(), ": \n\n");
  EXPECT_EQ(reply.next().bytes, "data: 2\n\n");
}

TEST(reply, a_head_request_gets_the_head_alone) {
  ReadyCall call({}, "{}");
  Reply reply(call, {.keep_alive = true, .chunked = true}, /*is_head=*/true);
  const std::string bytes = reply.next().bytes;
  EXPECT_NE(bytes.find("Content-Length: 2\r\n"), std::string::npos);
  EXPECT_EQ(body_of(bytes), "");
}

TEST(http_text, targets_have_a_path_and_a_query) {
  for (const auto& [target, path, query] :
       {std::array{"/a%2Fb?c=d?e#f", "/a/b", "c=d?e"}, std::array{"/", "/", ""}, std::array{"", "", ""},
        std::array{"http://h/a?", "/a", ""}, std::array{"/metrics/?a", "/metrics", "a"}, std::array{"/%41", "/A", ""},
        std::array{"/%4", "/%4", ""}}) {
    EXPECT_EQ(path_of(target), path);
    EXPECT_EQ(query_of(target), query);
  }
}

TEST(http_text, gzip_is_taken_by_its_name_alone) {
  for (const char* yes :
       {"gzip", "gzip, deflate, br, zstd", "br;q=1.0, GZIP ; q=0.8, *;q=0.1", "identity,gzip;q=0.001"})
    EXPECT_TRUE(takes_gzip(yes)) << yes;
  for (const char* no :
       {"", "identity", "*", "gzip;q=0", "br, gzip; q=0.000, deflate", "xgzip", "gzipx", "deflate;gzip"})
    EXPECT_FALSE(takes_gzip(no)) << no;
}

TEST(http_text, hosts_have_no_path_user_or_space) {
  for (const char* good : {"", "localhost:8000", "[::1]:80", "a-b.c_d~", "xn--bcher-kva.example", "%41"})
    EXPECT_TRUE(is_host(good)) << good;
  for (const char* bad : {"a/b", "a b", "a@b", "a?b", "a#b", "\x7F", "\xC3\xA4", "a,b\tc"})
    EXPECT_FALSE(is_host(bad)) << bad;
}

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
